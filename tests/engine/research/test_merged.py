"""Several draft models in one prefix tree: exact whatever they draft, fewer tokens than their chains as a batch."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from specchat.engine import Event, Request, Round, Sampling
from specchat.engine.backends.transformers_backend import TransformersBackend
from specchat.engine.cache.kv_cache import KVCache
from specchat.engine.drafters.draft_cache import DraftCache
from specchat.engine.drafters.draft_model import Member, ModelDrafter
from specchat.engine.drafters.model_steps import ModelSteps
from specchat.engine.drafters.registry import MOST_MODELS
from specchat.engine.models.load import LoadedModel
from specchat.engine.request import MAX_GAMMA
from specchat.engine.research.merged import MergedDrafter, PrefixTree, shares
from specchat.engine.sampling.penalties import Penalties
from specchat.engine.sequence.sequence import SequenceState
from tests.engine.drafters.models import related
from tests.engine.drafters.test_model_tree import row_of
from tests.engine.sampled import check_distribution
from tests.engine.tiny import ask, run_together, tiny_engine, tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")

PROMPT = (104, 105, 33, 10, 7)


def others(count: int = 1, sharpness: float = 25.0) -> list[LoadedModel]:
    """Draft models that are off in other ways than `related`."""
    return [related(0.4, sharpness, seed=10 + number) for number in range(count)]


def drafter_of(runners: Sequence[TransformersBackend]) -> tuple[MergedDrafter, list[DraftCache]]:
    members = []
    for runner in runners:
        penalties = Penalties(runner.cache.slots, runner.context, runner.device)
        steps = ModelSteps(runner.forward, runner.graphs(1), penalties, runner.vocabulary)
        members.append(Member(f"draft {len(members)}", DraftCache(runner, 32), steps, runner))
    return MergedDrafter(members, ModelDrafter(members[0]), runners[0].device), [member.cache for member in members]


def held(cache: KVCache, slot: int, length: int) -> list[Tensor]:
    return [layer[slot, :, :length].float().clone() for layer in (*cache.keys, *cache.values)]


def rounds_of(replies: Sequence[Sequence[Event]]) -> list[Round]:
    return [event for events in replies for event in events if isinstance(event, Round)]


def test_rounds_name_the_models_that_drafted_each_token() -> None:
    with tiny_engine(tiny_model(sharpness=25.0), related(), more=others(2)) as engine:
        assert engine.ready.drafters[0] == "merged"
        requests = [ask(text, drafter="merged", gamma=4, max_tokens=30, detail=1) for text in ("hello", "x", "hi")]
        replies = [list(engine.stream(request)) for request in requests]
    rounds = rounds_of(replies)
    assert any(record.accepted for record in rounds)
    named = {record.proposed_by(token) for record in rounds for token in list(record.tokens())[: len(record.drafted)]}
    assert () not in named
    assert set().union(*named) <= {"tiny (1)", "tiny (2)", "tiny (3)"}
    assert any(record.refused and record.accepted for record in rounds), "another draft must be right"


def filtered(plain: LoadedModel, sampling: Sampling) -> Callable[[list[int]], Tensor]:
    """What the target says behind tokens, by its temperature and top-k alone."""

    @torch.inference_mode()
    def behind(tokens: list[int]) -> Tensor:
        logits: Tensor = plain.model(torch.tensor([tokens])).logits[0, -1] / sampling.temperature
        if sampling.top_k:
            logits[logits < logits.topk(sampling.top_k).values[-1]] = -torch.inf
        return logits.softmax(-1)

    return behind


@pytest.mark.parametrize(
    ("count", "models", "sampling"),
    [
        (500, 2, Sampling(temperature=1.3, top_k=6)),
        pytest.param(1200, 4, Sampling(temperature=1.0), marks=pytest.mark.slow),
    ],
    ids=["filtered", "four models"],
)
def test_sampled_output_has_the_targets_distribution(count: int, models: int, sampling: Sampling) -> None:
    """At two positions and more, with drafts that are surer than they should be and often bring the same token."""
    target, plain = (tiny_model(sharpness=30.0) for _ in range(2))  # a runner changes its attention
    requests = [
        Request(
            f"r{seed}", prompt_ids=PROMPT, drafter="merged", gamma=2, max_tokens=3,
            sampling=Sampling(temperature=sampling.temperature, top_k=sampling.top_k, seed=seed),
        )
        for seed in range(count)
    ]  # fmt: skip
    draft = related(0.5, 60.0)
    with tiny_engine(target, draft, more=others(models - 1, 45.0), slots=16, queue=count) as engine:
        events = run_together(engine, requests)
    rounds = rounds_of(events)
    assert 0 < sum(record.accepted for record in rounds) < sum(record.tested for record in rounds)
    ends = [(r.drafted[r.accepted], r.refused[r.accepted]) for r in rounds if r.accepted < r.tested]
    assert any(token in [other.id for other in beside] for token, beside in ends), "one that two brought, refused twice"
    assert check_distribution(events, PROMPT, filtered(plain, sampling)) >= 2


@torch.inference_mode()
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.0)], ids=["greedy", "sampled"])
def test_what_was_accepted_stands_in_every_draft_cache_as_if_it_had_been_fed(sampling: Sampling) -> None:
    """Along every draft's chain, of two rows at once."""
    networks = [related(sharpness=60.0).model, others()[0].model]
    runners = [TransformersBackend(network, 2, 128, 17) for network in networks]
    fresh = [TransformersBackend(network, 2, 128, 17) for network in networks]
    drafter, caches = drafter_of(runners)
    texts = [list(range(40, 70)), list(range(90, 101))]
    rows: list[SequenceState] = [row_of(slot, list(text), sampling) for slot, text in enumerate(texts)]
    for row in rows:
        drafter.admit(row)
    for choice in range(6):
        for row in rows:
            row.rounds = choice
        draft = drafter.propose(rows, [4, 4])
        for b, row in enumerate(rows):
            chain = drafter._drafted[row.request.request_id][choice % 2]
            tree = (draft.trees or [])[b]
            assert len(tree) == len(draft.tokens[b])
            emitted = [*chain[: 1 + choice % 4], 7]
            proposers = [source.proposer(chain) for source in (draft.sources or [])[b]]
            assert [each.name for each in proposers] == ["draft 0", "draft 1"]
            assert [each.length for each in proposers] == list(map(len, drafter._drafted[row.request.request_id]))
            assert proposers[choice % 2].shared == len(chain)
            row.tokens += emitted
            drafter.on_accepted(row, emitted)
            for runner, cache, again in zip(runners, caches, fresh, strict=True):
                length = len(row.tokens) - cache._behind(row, 0)
                assert length < len(row.tokens)
                again.prefill(torch.tensor([row.tokens]), [row.slot], [0])
                both = (held(each.cache, row.slot, length) for each in (runner, again))
                for mine, fed in zip(*both, strict=True):
                    torch.testing.assert_close(mine, fed, atol=1e-5, rtol=1e-2)


def test_the_same_token_behind_the_same_tokens_is_there_once() -> None:
    merged = PrefixTree.of([[5, 6, 7], [5, 8, 7], [9, 6], [5, 6, 7]])
    assert merged.tokens == [5, 6, 7, 8, 7, 9, 6]
    assert merged.tree.parents == (0, 1, 2, 1, 4, 0, 6)
    assert merged.owners() == [0, 0, 0, 1, 1, 2, 2]
    tests = merged.with_tests([[3, 2, 1, 0], [0, 1, 2, 3], [0, 1, 2, 3]], [0, 3, 6, 8]).candidates
    assert tests[0] == ((1, 8), (6, 6), (1, 3), (1, 0))
    assert [each.node for each in tests[1]] == [2, 4, 2]
    assert [each.source for each in tests[2]] == [2, 10]


def test_no_draft_takes_more_than_a_pass_has_room_for() -> None:
    for models in range(2, MOST_MODELS + 1):
        together = [shares(positions, models) for positions in range(1, 9)]
        assert sum(map(max, zip(*together, strict=True))) <= MAX_GAMMA
        assert all(each[0] == positions for positions, each in enumerate(together, 1))
