"""Trees of a draft model: a cache as if the text had been fed, and only tokens that the model knows."""

from pathlib import Path

import pytest
import torch

from specchat.engine import Engine, Request, Round, Sampling
from specchat.engine.backends.packed import PackedBackend
from specchat.engine.backends.transformers_backend import TransformersBackend
from specchat.engine.decoding.backend import Backend
from specchat.engine.decoding.draft import Budget, RowOrder
from specchat.engine.decoding.tree_growth import EXPECTED
from specchat.engine.drafters.draft_model import DraftCache, Member, ModelDrafter
from specchat.engine.drafters.model_steps import ModelSteps
from specchat.engine.sampling.penalties import Penalties
from tests.engine.drafters.models import packed_family, related
from tests.engine.rows import row_of
from tests.engine.tiny import VOCABULARY, ask, ids_of, tiny_engine, tiny_head, tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")


def drafter_of(runner: Backend, vocabulary: int = VOCABULARY) -> tuple[ModelDrafter, DraftCache]:
    cache = DraftCache(runner, 32)
    steps = ModelSteps(
        runner.forward, runner.graphs(1), Penalties(runner.cache.slots, runner.context, runner.device), vocabulary
    )
    return ModelDrafter(Member("draft", cache, steps, runner), trees=True), cache


def runner_of(kind: str, folder: Path) -> Backend:
    if kind == "kernels":
        return PackedBackend(packed_family("llama", folder), 3, 64, 17)
    return TransformersBackend(related().model, 3, 64, 17)


def cheap() -> Budget:
    """Costs at which a tree takes nearly all the room there is."""
    return Budget([0.03 * n for n in range(18)], 0.001, EXPECTED)


@pytest.mark.parametrize(
    ("drafter", "before"), [(name, before) for name in ("head", "model-tree") for before in (name, "model", "none")]
)
def test_a_follow_up_drafts_as_a_fresh_engine_would(drafter: str, before: str) -> None:
    target, draft, prompt = tiny_model(), related(sharpness=12.0), tuple(range(97, 117)) * 3
    head, sampling = tiny_head(target), Sampling(temperature=1.0, seed=2)

    def rounds_of(engine: Engine, tokens: tuple[int, ...]) -> list[tuple[object, ...]]:
        request = Request("two", prompt_ids=tokens, drafter=drafter, gamma=4, max_tokens=12, sampling=sampling)
        rounds = [event for event in engine.stream(request) if isinstance(event, Round)]
        return [(each.drafted, each.accepted, each.last) for each in rounds]

    with tiny_engine(target, draft, head) as engine:
        reply = ids_of(engine.stream(Request("one", prompt_ids=prompt, drafter=before, max_tokens=20)))
        follow_up = (*prompt, *reply, 100, 101, 102)
        found = rounds_of(engine, follow_up)
    with tiny_engine(target, draft, head) as fresh:
        assert rounds_of(fresh, follow_up) == found


@torch.inference_mode()
@pytest.mark.parametrize("kind", ["modelling code", "kernels"])
def test_tokens_that_the_draft_model_does_not_know_are_never_drawn(kind: str, tmp_path: Path) -> None:
    runner = runner_of(kind, tmp_path)
    known = runner.vocabulary
    drafter, _ = drafter_of(runner, known + 64)
    for seed in range(8):
        row = row_of([5, 6, 7 + seed], seed % 3, ask("r", sampling=Sampling(temperature=2.0)), seed=seed)
        drafter.admit(row)
        (draft,) = drafter.propose([RowOrder(row, 4, cheap())])
        assert len(draft.tree)
        assert max(draft.tokens) < known
        assert not draft.q[0, known:].any()
        torch.testing.assert_close(draft.q[0].sum(), torch.tensor(1.0))
        drafter.release(row)
