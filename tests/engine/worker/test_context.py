"""How long a text may be: as long as the model allows, if memory can hold it."""

from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest

from specchat.engine import Engine, EngineConfig, EngineError, FinishReason, Request
from specchat.engine.models.packed.load import PackedModel
from specchat.engine.worker.assembly import assemble_loaded
from tests.engine.drafters.models import packed_family
from tests.engine.tiny import ids_of, run_together, started, tiny_model

MODEL_CONTEXT, COLUMN_BYTES = 3000, 3 * 2 * 2 * 16 * 2
"""COLUMN_BYTES: layers, keys and values, heads, head size, float16."""


def packed_model(tmp_path: Path, family: str = "llama") -> PackedModel:
    return replace(packed_family(family, tmp_path), context=MODEL_CONTEXT)


def engine_of(model: object, **config: object) -> AbstractContextManager[Engine]:
    """An engine on a model, whose context is not requested."""
    return started(EngineConfig("m", Path(), **config), lambda config, _: assemble_loaded(config, model))  # type: ignore[arg-type]


def test_a_context_is_as_long_as_the_models_in_shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = 5 * MODEL_CONTEXT * COLUMN_BYTES
    monkeypatch.setattr("specchat.engine.device.device.available_memory", lambda _: free)
    monkeypatch.setattr("specchat.engine.worker.assembly.available_memory", lambda _: free)
    with engine_of(packed_model(tmp_path), slots=16) as engine:
        ready = engine.wait_ready()
        assert (ready.slots, ready.context) == (16, MODEL_CONTEXT)
        assert ready.cache_bytes <= ready.kept_bytes < 2 * MODEL_CONTEXT * COLUMN_BYTES
        request = Request("long", prompt_ids=(5,) * (MODEL_CONTEXT - 4), max_tokens=50, drafter="none")
        both = run_together(engine, [request, replace(request, request_id="again")])
        assert [len(ids_of(events)) for events in both] == [4, 4]
        assert ids_of(both[0]) == ids_of(both[1])


@pytest.mark.parametrize(("memory", "cache_type"), [(None, "f16"), (0.0005, "q8")])
def test_a_context_for_which_memory_is_short_is_shorter_and_stated(
    memory: float | None, cache_type: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specchat.engine.worker.assembly.available_memory", lambda _: 4_000_000)
    bytes_held = int((memory or 0.001) * 1e9)
    most = bytes_held / (COLUMN_BYTES if cache_type == "f16" else COLUMN_BYTES * (16 + 4) / (16 * 2))
    with engine_of(packed_model(tmp_path), cache_memory=memory, cache_type=cache_type) as engine:
        ready = engine.wait_ready()
        assert most - 100 < ready.context < most < ready.model_context
        assert ready.kept_bytes == pytest.approx(bytes_held, rel=0.02)
        (end,) = engine.stream(Request("longer", prompt_ids=(5,) * ready.context, max_tokens=2))
        assert end.reason is FinishReason.ERROR
        assert f"{ready.context}" in end.message
        request = Request("fits", prompt_ids=(5,) * (ready.context - 2), max_tokens=50, drafter="none")
        assert len(ids_of(engine.stream(request))) == 2


def test_a_cache_type_that_the_target_cannot_have_is_refused() -> None:
    with pytest.raises(EngineError, match="cache of type q8 is not available, as tiny does not run as a quantised"):
        assemble_loaded(EngineConfig("tiny", Path(), cache_type="q8"), tiny_model())


def test_a_requested_context_has_room_however_little_memory_is_for_other_texts(tmp_path: Path) -> None:
    with engine_of(packed_model(tmp_path), context=2000, cache_memory=1e-6) as engine:
        assert engine.wait_ready().context == 2000
        assert ids_of(engine.stream(Request("r", prompt_ids=(5,) * 1990, max_tokens=5, drafter="none")))


def test_a_requested_context_that_does_not_fit_is_smaller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specchat.engine.device.device.available_memory", lambda _: 1000 * COLUMN_BYTES)
    with engine_of(packed_model(tmp_path), context=2900) as engine:
        ready = engine.wait_ready()
        assert ready.context == 725
        assert ready.slots == 4


def test_rotary_factors_for_long_texts_are_used_only_on_request(tmp_path: Path) -> None:
    with engine_of(packed_model(tmp_path, "phi3-long")) as engine:
        assert engine.wait_ready().context == 128


def test_a_cache_with_memory_for_every_slot_has_a_limit() -> None:
    with engine_of(replace(tiny_model(), context=9000), slots=1) as engine:
        assert engine.wait_ready().context == 4096
