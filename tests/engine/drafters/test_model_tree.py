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
from specchat.engine.drafters.draft_model import Member, ModelDrafter
from specchat.engine.drafters.model_steps import ModelSteps
from specchat.engine.drafters.tree_growth import nominal_rate
from specchat.engine.sampling.penalties import Penalties
from specchat.engine.sequence.sequence import SequenceState
from tests.engine.drafters.models import packed_family, related
from tests.engine.tiny import (
    VOCABULARY,
    ask,
    ids_of,
    tiny_engine,
    tiny_model,
)

pytestmark = pytest.mark.usefixtures("one_thread")


def drafter_of(runner: Backend, vocabulary: int = VOCABULARY) -> tuple[ModelDrafter, DraftCache]:
    cache = DraftCache(runner, 32)
    steps = ModelSteps(
        runner.forward, runner.graphs(1), Penalties(runner.cache.slots, runner.context, runner.device), vocabulary
    )
    support = Support.of(torch.arange(vocabulary), vocabulary)
    return ModelDrafter(Member("draft", cache, steps, runner), support), cache


def runner_of(kind: str, folder: Path) -> Backend:
    if kind == "kernels":
        return PackedBackend(packed_family("llama", folder), 3, 64, 17)
    return TransformersBackend(related().model, 3, 64, 17)


def row_of(slot: int, tokens: list[int], sampling: Sampling, gamma: int | None = None) -> SequenceState:
    request = Request(f"r{slot}", prompt_ids=tuple(tokens), sampling=sampling, gamma=gamma)
    return SequenceState(request, Outbox(), slot, tokens, len(tokens), 0, slot, None, "model-tree")  # type: ignore[arg-type]


def cheap() -> Budget:
    """Where tokens cost little a tree takes nearly all the room there is."""
    return Budget([0.03 * n for n in range(18)], 0.001, nominal_rate)


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
    runner = runner_of(kind, tmp_path)
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
    runner = runner_of(kind, tmp_path)
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
