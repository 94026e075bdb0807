"""Look-ahead positions on the quantised kernels: they leave the target's bits and its distribution as they are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from specchat.engine import Engine, EngineConfig, EngineError, Request, Round, Sampling
from specchat.engine.backends.packed import PackedBackend
from specchat.engine.kernels.library import missing
from specchat.engine.models.packed.find import packed_folder
from specchat.engine.models.packed.load import PackedModel, load_packed
from specchat.engine.models.store import ModelStore
from specchat.engine.progress import ignore_progress
from specchat.engine.research.pass_drafter import LookAhead
from specchat.engine.worker.assembly import put_together
from tests.engine.families import write_family
from tests.engine.sampled import check_distribution, sampled
from tests.engine.tiny import assert_the_same_in_a_batch, ids_of

pytestmark = pytest.mark.skipif(missing() is not None, reason=missing() or "")


def packed(family: str, folder: Path) -> PackedModel:
    made = packed_folder(str(write_family(family, folder / family)), "q8", ModelStore(folder), ignore_progress)
    assert made is not None
    return load_packed(made, ignore_progress)


def some(model: PackedModel) -> LookAhead:
    return LookAhead(torch.from_numpy(model.embedding.rows_of(torch.arange(50, 53).numpy())), "some")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> PackedModel:
    return packed("llama", tmp_path_factory.mktemp("packed"))


@pytest.fixture(scope="module")
def engine(model: PackedModel) -> Iterator[Engine]:
    config = EngineConfig("llama", Path(), slots=4, context=200, queue=3000)
    running = Engine(config, lambda *_: put_together(config, model, look_ahead=some(model)))
    running.start()
    running.wait_ready(60)
    yield running
    running.close()


def asked(seed: int, drafter: str, gamma: int | None, sampling: Sampling) -> Request:
    prompt = tuple(3 + (seed * 31 + 7 * i) % 300 for i in range(5 + 9 * seed))
    return Request(f"{seed}", prompt_ids=prompt, drafter=drafter, gamma=gamma, max_tokens=24, sampling=sampling)


@pytest.mark.parametrize("gamma", [None, 1, 3])
def test_greedy_replies_are_the_targets_own(engine: Engine, gamma: int | None) -> None:
    drafted = 0
    for seed in range(3):
        plain = ids_of(list(engine.stream(asked(seed, "none", None, Sampling()))))
        events = list(engine.stream(asked(seed, "pass", gamma, Sampling())))
        assert ids_of(events) == plain
        drafted += sum(len(event.drafted) for event in events if isinstance(event, Round))
    assert drafted or gamma is None


def test_rows_of_every_kind_share_a_batch(engine: Engine) -> None:
    kinds: list[tuple[str, int, Sampling]] = [
        ("pass", 3, Sampling()),
        ("pass", 2, Sampling(temperature=1.0, seed=1)),
        ("suffix", 4, Sampling()),
        ("pass", 3, Sampling(temperature=1.0, seed=2, repetition_penalty=1.2)),
        ("none", 0, Sampling()),
    ]
    assert_the_same_in_a_batch(engine, [asked(i, *kind) for i, kind in enumerate(kinds)])


@torch.inference_mode()
def test_a_draft_is_what_the_target_predicts_after_the_text_and_at_the_embeddings(
    engine: Engine, model: PackedModel
) -> None:
    target = PackedBackend(model, 1, 200, 17)
    ahead = some(model).embeddings
    request = asked(1, "pass", 3, Sampling())
    rounds = [event for event in engine.stream(request) if isinstance(event, Round)]
    assert request.prompt_ids is not None
    text = list(request.prompt_ids)
    for record in rounds:
        if record.drafted:
            tokens = torch.tensor([text])
            entered = torch.cat([target.embedding_rows(tokens)[0], ahead[:2]])[None]
            said = target.forward(entered, [0], [0])[0, len(text) - 1 :]
            assert list(record.drafted) == said.argmax(-1).tolist()[: len(record.drafted)]
        text += record.emitted
    assert any(record.drafted for record in rounds)


@pytest.mark.slow
def test_sampled_output_has_the_targets_distribution(engine: Engine, model: PackedModel) -> None:
    prompt = (5, 9, 33, 104, 7)
    events = sampled(engine, "pass", prompt, 2500, temperature=0.5)
    assert any(isinstance(event, Round) and event.drafted for each in events for event in each)
    target = PackedBackend(model, 1, 200, 17)

    def p(tokens: list[int]) -> Tensor:
        return (target.forward(torch.tensor([tokens]), [0], [0])[0, -1] / 0.5).softmax(-1)

    assert check_distribution(events, prompt, p, places=2, least=50) == 2


def test_a_target_that_scales_its_embeddings_is_refused_by_name(tmp_path: Path) -> None:
    model = packed("gemma2", tmp_path)
    config = EngineConfig("gemma2", tmp_path, slots=1, context=64)
    with pytest.raises(EngineError, match="gemma2 scales its embeddings"):
        put_together(config, model, look_ahead=some(model))
