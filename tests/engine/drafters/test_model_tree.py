"""Trees of a draft model: exact whatever it drafts, a cache as if the text had been fed, few tokens for many paths."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from specchat.engine import Finished, FinishReason, Outbox, Request, Round, Sampling
from specchat.engine.backends.packed import PackedBackend
from specchat.engine.backends.transformers_backend import TransformersBackend
from specchat.engine.cache.kv_cache import KVCache
from specchat.engine.decoding.backend import Backend
from specchat.engine.decoding.gamma.budget import Budget
from specchat.engine.decoding.proposal import Support
from specchat.engine.decoding.tree import Tree
from specchat.engine.decoding.tree_part import TreePlace
from specchat.engine.drafters.draft_cache import DraftCache
from specchat.engine.drafters.draft_model import ModelDrafter
from specchat.engine.drafters.growing.growth import nominal_rate
from specchat.engine.drafters.model_steps import ModelSteps
from specchat.engine.kernels.library import missing
from specchat.engine.models.load import LoadedModel
from specchat.engine.models.packed.find import packed_folder
from specchat.engine.models.packed.load import load_packed
from specchat.engine.models.store import ModelStore
from specchat.engine.progress import ignore_progress
from specchat.engine.sampling.penalties import Penalties
from specchat.engine.sequence.sequence import SequenceState
from tests.engine.families import write_family
from tests.engine.sampled import check_distribution, sampled, says
from tests.engine.tiny import (
    VOCABULARY,
    ask,
    assert_the_same_in_a_batch,
    ids_of,
    tiny_engine,
    tiny_model,
)

pytestmark = pytest.mark.usefixtures("one_thread")

TEXTS = ("hello", "a much longer text, of which the draft model reads several chunks before its first draft", "x", "hi")


def related(noise: float = 0.3, sharpness: float = 25.0, seed: int = 4) -> LoadedModel:
    """The tiny model with weights that are somewhat off: often right, often only in its second choice."""
    draft = tiny_model(sharpness=sharpness)
    random = torch.Generator().manual_seed(seed)
    for weight in draft.model.parameters():
        weight.add_(noise * weight.std() * torch.randn(weight.shape, generator=random))
    return draft


def drafter_of(runner: Backend, vocabulary: int = VOCABULARY) -> tuple[ModelDrafter, DraftCache]:
    cache = DraftCache(runner, 32)
    steps = ModelSteps(runner, Penalties(runner.cache.slots, runner.context, runner.device), vocabulary)
    support = Support.of(torch.arange(vocabulary), vocabulary)
    return ModelDrafter(runner, cache, steps, support), cache


def packed_runner(folder: Path) -> PackedBackend:
    if missing():
        pytest.skip(str(missing()))
    packed = packed_folder(str(write_family("llama", folder / "m")), "q8", ModelStore(folder), ignore_progress)
    assert packed is not None
    return PackedBackend(load_packed(packed, ignore_progress), 3, 64, 17)


def row_of(slot: int, tokens: list[int], sampling: Sampling, gamma: int | None = None) -> SequenceState:
    request = Request(f"r{slot}", prompt_ids=tuple(tokens), sampling=sampling, gamma=gamma)
    return SequenceState(request, Outbox(), slot, tokens, len(tokens), 0, slot, None, "model-tree")  # type: ignore[arg-type]


def cheap() -> Budget:
    """Where tokens cost little a tree takes nearly all the room there is."""
    return Budget([0.03 * n for n in range(18)], 0.001, nominal_rate)


@pytest.mark.parametrize("gamma", [4, None, *(pytest.param(gamma, marks=pytest.mark.slow) for gamma in (1, 9))])
def test_greedy_output_is_the_targets_own(gamma: int | None) -> None:
    target = tiny_model(sharpness=25.0)
    kept: list[int] = []
    with tiny_engine(target, draft=related()) as engine:
        for text in TEXTS:
            plain = ids_of(list(engine.stream(ask(text, drafter="none", max_tokens=30))))
            events = list(engine.stream(ask(text, drafter="model-tree", gamma=gamma, max_tokens=30)))
            assert ids_of(events) == plain
            rounds = [event for event in events if isinstance(event, Round)]
            kept += [sum(map(bool, record.refused)) for record in rounds]
    assert any(kept) or gamma is None, "something beside the likeliest tokens must have been tested"


def test_replies_are_the_same_alone_and_in_any_batch() -> None:
    with tiny_engine(tiny_model(sharpness=25.0), draft=related()) as engine:
        kinds = [Sampling(), *(Sampling(temperature=1, seed=seed) for seed in range(2))]
        kinds.append(Sampling(temperature=1, seed=3, top_k=2, repetition_penalty=1.2))
        requests = [
            ask(text, name=f"{text}{i}{gamma}", drafter="model-tree", gamma=gamma, max_tokens=20, sampling=sampling)
            for text in TEXTS[:2]
            for i, (gamma, sampling) in enumerate(zip((3, 12, 4, 4), kinds, strict=True))
        ]
        assert_the_same_in_a_batch(engine, requests)


@pytest.mark.parametrize("count", [400, pytest.param(4000, marks=pytest.mark.slow)])
def test_sampled_output_has_the_targets_distribution(count: int) -> None:
    target, plain = (tiny_model(sharpness=20.0) for _ in range(2))  # a runner changes its attention
    prompt = (104, 105, 33, 10, 7)
    with tiny_engine(target, draft=related(0.5, 60.0), slots=16, queue=count) as engine:
        events = sampled(engine, "model-tree", prompt, count)
    rounds = [event for each in events for event in each if isinstance(event, Round)]
    assert any(record.offered > record.gamma for record in rounds)
    assert 0 < sum(record.accepted for record in rounds) < sum(record.tested for record in rounds)
    assert check_distribution(events, prompt, says(plain))


def held(cache: KVCache, slot: int, length: int) -> list[Tensor]:
    return [layer[slot, :, :length].float().clone() for layer in (*cache.keys, *cache.values)]


@torch.inference_mode()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.0)], ids=["greedy", "sampled"])
def test_what_was_accepted_stands_in_the_draft_cache_as_if_it_had_been_fed(
    sampling: Sampling, dtype: torch.dtype
) -> None:
    """Along every branch of a tree, of two rows at once."""
    network = related(sharpness=60.0).model.to(dtype)
    runner, fresh = (TransformersBackend(network, 2, 128, 17) for _ in range(2))
    drafter, cache = drafter_of(runner)
    texts = [list(range(40, 70)), list(range(90, 101))]
    seen: set[int] = set()
    for choice in range(6):
        rows = [row_of(slot, list(text), sampling) for slot, text in enumerate(texts)]
        for row in rows:
            drafter.admit(row)
            row.rounds = choice
        draft = drafter.propose(rows, [4, 4], [cheap(), cheap()])
        assert isinstance(draft.tokens, list)
        assert draft.trees is not None
        for b, row in enumerate(rows):
            tree, tokens = draft.trees[b], draft.tokens[b]
            assert tree is not None
            leaves = [node for node in range(1, len(tree) + 1) if not tree.children[node]]
            path = tree.path(leaves[choice % len(leaves)])
            emitted = [*(tokens[node - 1] for node in path), 7]
            row.tokens += emitted
            drafter.on_accepted(row, emitted)
            length = len(row.tokens) - cache._behind(row, 0)
            assert len(texts[b]) + len(path) - 1 <= length < len(row.tokens)
            seen.add(length - len(texts[b]))
            fresh.prefill(torch.tensor([row.tokens]), [row.slot], [0])
            both = (held(each.cache, row.slot, length) for each in (runner, fresh))
            for mine, fed in zip(*both, strict=True):
                torch.testing.assert_close(mine, fed, atol=3e-2 if dtype == torch.bfloat16 else 1e-5, rtol=1e-2)
            drafter.release(row)
    assert max(seen) > 1, "branches of several tokens must have been kept"


def places_of(tree: Tree, tokens: list[int], first: int, slot: int) -> list[list[TreePlace]]:
    """The tokens of a tree level by level, each with the next column."""
    columns: dict[int, int] = {}
    levels: list[list[TreePlace]] = []
    for depth in range(1, tree.depth + 1):
        level = [node for node in range(1, len(tree) + 1) if tree.depths[node] == depth]
        columns |= {node: len(columns) + i for i, node in enumerate(level, 1)}
        paths = [[columns[before] for before in tree.path(node)[:-1]] for node in level]
        levels.append(
            [TreePlace(slot, first, tokens[n - 1], columns[n], path) for n, path in zip(level, paths, strict=True)]
        )
    return levels


@torch.inference_mode()
@pytest.mark.parametrize("kind", ["modelling code", "kernels"])
def test_a_tree_fed_level_by_level_gives_what_its_paths_give_one_by_one(kind: str, tmp_path: Path) -> None:
    runner: Backend = packed_runner(tmp_path) if kind == "kernels" else TransformersBackend(related().model, 3, 64, 17)
    trees = [Tree((0, 0, 1, 2, 1, 3)), Tree((0, 1))]
    texts, tokens = [[5, 6, 7, 8, 9], [30, 31, 32]], [[11, 12, 13, 14, 15, 16], [21, 22]]
    levels = []
    for slot, text in enumerate(texts):
        runner.prefill(torch.tensor([text]), [slot], [0])
        levels.append(places_of(trees[slot], tokens[slot], len(text) - 1, slot))
    for depth in range(3):
        places = [place for each in levels for place in (each[depth] if depth < len(each) else [])]
        logits = runner.extend(places).clone()
        for place, given in zip(places, logits, strict=True):
            b = place.slot
            by_column = {each.column: each.token for level in levels[b] for each in level}
            path = [by_column[column] for column in (*place.path, place.column)]
            alone = runner.forward(torch.tensor([[*texts[b], *path]]), [2], [0])[0, -1]
            torch.testing.assert_close(given, alone, atol=1e-4, rtol=1e-4)


def test_a_tree_takes_fewer_tokens_than_its_paths_as_a_batch() -> None:
    with torch.inference_mode():
        drafter, _ = drafter_of(TransformersBackend(related(sharpness=60.0).model, 1, 128, 17))
        row = row_of(0, list(range(40, 70)), Sampling())
        drafter.admit(row)
        tree = (drafter.propose([row], [4], [cheap()]).trees or [None])[0]
    assert tree is not None
    paths = [tree.path(node) for node in range(1, len(tree) + 1) if not tree.children[node]]
    assert len(paths) > 2
    assert 1 + len(tree) < sum(1 + len(path) for path in paths) / 1.5


@pytest.mark.parametrize("before", ["model", "model-tree", "none"])
def test_a_follow_up_drafts_as_a_fresh_engine_would(before: str) -> None:
    target, draft = tiny_model(sharpness=25.0), related()
    prompt = tuple(range(97, 117)) * 3

    def follow(tokens: tuple[int, ...]) -> Request:
        return Request("two", prompt_ids=tokens, drafter="model-tree", gamma=4, max_tokens=12)

    with tiny_engine(target, draft=draft) as engine:
        reply = ids_of(list(engine.stream(Request("one", prompt_ids=prompt, drafter=before, max_tokens=20))))
        more = (*prompt, *reply, 100, 101, 102)
        events = list(engine.stream(follow(more)))
    with tiny_engine(target, draft=draft) as fresh:
        again = list(fresh.stream(follow(more)))
    rounds = [(e.drafted, e.accepted, e.last) for e in events if isinstance(e, Round)]
    assert rounds == [(e.drafted, e.accepted, e.last) for e in again if isinstance(e, Round)]


def test_a_reply_that_is_stopped_or_changed_leaves_a_cache_that_goes_on() -> None:
    with tiny_engine(tiny_model(sharpness=25.0), draft=related(), slots=1) as engine:
        request = ask("hello", drafter="model-tree", gamma=4, max_tokens=60)
        plain = ids_of(list(engine.stream(ask("hello", drafter="none", max_tokens=60))))
        events = []
        for event in engine.stream(request):
            events.append(event)
            if isinstance(event, Round) and event.number == 2:
                engine.cancel("r")
        assert isinstance(events[-1], Finished)
        assert events[-1].reason is FinishReason.CANCELLED
        assert ids_of(list(engine.stream(request))) == plain
        drafters = iter(["model", "model-tree", "none", "model-tree"])
        for event in engine.stream(request):
            events.append(event)
            if isinstance(event, Round) and event.number % 2 == 0 and (name := next(drafters, None)):
                engine.adjust("r", name, 3)
        names = [event.drafter for event in events if isinstance(event, Round)]
        assert {"model", "model-tree", "none"} <= set(names)
        assert ids_of(events)[-len(plain) :] == plain


@torch.inference_mode()
@pytest.mark.parametrize("kind", ["modelling code", "kernels"])
def test_tokens_that_the_draft_model_does_not_know_are_never_drawn_and_the_others_are(
    kind: str, tmp_path: Path
) -> None:
    runner: Backend = packed_runner(tmp_path) if kind == "kernels" else TransformersBackend(related().model, 3, 64, 17)
    known = runner.vocabulary
    drafter, _ = drafter_of(runner, known + 64)
    for seed in range(8):
        row = row_of(seed % 3, [5, 6, 7 + seed], Sampling(temperature=2.0))
        row.seed = seed
        drafter.admit(row)
        draft = drafter.propose([row], [4], [cheap()])
        assert draft.lengths[0]
        assert max(draft.tokens[0]) < known
        assert draft.q is not None
        assert not draft.q[0, 0, known:].any()
        torch.testing.assert_close(draft.q[0, 0].sum(), torch.tensor(1.0))
        drafter.release(row)
