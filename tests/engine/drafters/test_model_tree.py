"""Trees of a draft model: after any text, of tokens that the model knows, and in calls of one round or of several."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
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
from specchat.engine.models.packed.load import PackedModel
from specchat.engine.sampling.penalties import Penalties
from tests.engine.drafters.models import pack, packed_family, related
from tests.engine.families import write_family
from tests.engine.rows import row_of
from tests.engine.tiny import VOCABULARY, ask, ids_of, rounds_of, run_together, tiny_engine, tiny_head, tiny_model

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


PENALISED = Sampling(repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.2, logit_bias=((7, 3.0),))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> PackedModel:
    folder = tmp_path_factory.mktemp("model")
    return pack(write_family("llama", folder / "llama", initializer_range=0.4), folder)  # sure of some tokens


@contextmanager
def engine_of(model: PackedModel, rounds: int) -> Iterator[Engine]:
    """An engine whose target may run `rounds` rounds in a call."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PackedBackend, "capabilities", replace(PackedBackend.capabilities, rounds=rounds))
        with tiny_engine(model, model, slots=3, chunk=8, seed=3) as engine:  # type: ignore[arg-type]
            yield engine


@pytest.mark.daily(2)
@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize(
    "sampling", [Sampling(), Sampling(0.7, seed=1), Sampling(1.0), replace(PENALISED, temperature=0.9)]
)
def test_rounds_of_one_call_draft_what_they_would_one_by_one(sampling: Sampling, model: PackedModel) -> None:
    """The target is the draft model; with a seed it accepts other branches than the likeliest."""
    found = []
    for rounds, batch in product((1, 4), (1, 3)):
        asked = [
            Request(f"{n}", prompt_ids=tuple(range(5 + n, 20)), drafter="model-tree", gamma=3 + n, max_tokens=60)
            for n in range(3)
        ]
        with engine_of(model, rounds) as engine:
            replies = run_together(engine, [replace(each, sampling=sampling) for each in asked], batch)
        found.append([[(each.drafted, each.accepted, each.last) for each in rounds_of(events)] for events in replies])
    assert found[0] == found[1] == found[2] == found[3]
    assert sum(accepted for events in found[0] for _, accepted, _ in events) > 30
