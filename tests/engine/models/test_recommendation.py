"""The authors' sampling settings: read from a model's files, kept by conversion and packing, stated by the engine."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from specchat.engine import Admitted, EngineConfig, Sampling
from specchat.engine.models import PRESETS, ModelStore, catalog
from specchat.engine.models.catalog import FILE, Recommendation, recommended_sampling
from specchat.engine.models.formats import packed_folder
from specchat.engine.models.packed.load import load_packed
from specchat.engine.models.resolve import resolve
from specchat.engine.progress import ignore_progress
from tests.engine.families import write_family
from tests.engine.tiny import ask, said_while_loading, started, tiny_engine, tiny_model
from tests.tiny_model import write_tiny_gguf

INVALID = "invalid sampling settings in generation_config.json are ignored: "
STATED: list[tuple[dict[str, Any] | str, Sampling | None, str]] = [
    ({"eos_token_id": 2}, None, ""),
    ({"do_sample": True, "temperature": 0.6, "top_k": 20}, Sampling(0.6, 20), ""),
    ({"temperature": 1, "top_p": 0.9, "min_p": None}, Sampling(1.0, top_p=0.9), ""),
    ({"do_sample": True, "top_p": 0.8}, Sampling(1.0, top_p=0.8), ""),
    ({"do_sample": False}, Sampling(), ""),
    ({"do_sample": False, "temperature": 0.7, "repetition_penalty": 1.1}, Sampling(repetition_penalty=1.1), ""),
    (
        {"presence_penalty": 1.5, "frequency_penalty": 0.5, "min_p": 0.05},
        Sampling(presence_penalty=1.5, frequency_penalty=0.5, min_p=0.05),
        "",
    ),
    (
        {"temperature": -1, "top_p": "x", "top_k": 2.5, "min_p": True, "repetition_penalty": 1.2},
        Sampling(repetition_penalty=1.2),
        f'{INVALID}temperature -1, top_k 2.5, top_p "x", min_p true',
    ),
    ('{"temperature": NaN}', None, f"{INVALID}temperature NaN"),
    ({"temperature": 10**400}, None, f"{INVALID}temperature 1000"),
    ("[", None, f"{FILE} cannot be read"),
]


@pytest.mark.parametrize(("stated", "sampling", "notice"), STATED)
def test_valid_ones_count(tmp_path: Path, stated: dict[str, Any] | str, sampling: Sampling | None, notice: str) -> None:
    assert recommended_sampling(tmp_path) == Recommendation()
    (tmp_path / FILE).write_text(stated if isinstance(stated, str) else json.dumps(stated))
    found = recommended_sampling(tmp_path)
    assert found.sampling == sampling
    assert notice in found.notice
    assert bool(notice) is bool(found.notice)


def test_a_gguf_file_recommends(tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    source = tiny_model(hidden_size=64, dtype=torch.bfloat16)
    stated: dict[str, Any] = {"temp": 0.6, "top_k": 20, "penalty_repeat": 1.1}
    metadata = {f"general__sampling__{name}": value for name, value in stated.items()}
    file = write_tiny_gguf(source, tmp_path / "tiny.gguf", **metadata)
    folder = resolve(str(file), ModelStore(tmp_path / "store"), ignore_progress).folder()
    assert recommended_sampling(folder) == (Sampling(0.6, 20, repetition_penalty=1.1), "")


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("quantize", ["none", "q8"])
def test_the_engine_states_it_and_a_bad_value_is_a_notice(tmp_path: Path, quantize: str) -> None:
    model = write_family("llama", tmp_path / "tiny")
    (model / FILE).write_text(json.dumps({"do_sample": True, "temperature": 0.5, "top_p": "x", "min_p": -1}))
    if quantize == "q8":
        folder = packed_folder(resolve(str(model), ModelStore(tmp_path / "store"), ignore_progress), "q8")
        assert load_packed(folder, ignore_progress).recommended.sampling == Sampling(0.5)
    config = EngineConfig(str(model), tmp_path / "store", quantize=quantize, device="cpu", context=64)
    with started(config) as engine:
        assert engine.ready.sampling == Sampling(0.5)
        assert f'tiny: {INVALID}top_p "x", min_p -1' in said_while_loading(engine)


def test_a_preset_recommends_where_the_files_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    own = Sampling(0.6, top_p=0.9)
    monkeypatch.setitem(catalog.PRESETS, "tiny", replace(PRESETS["lfm2.5-1.2b"], name="tiny", sampling=own))
    for stated, expected in ((None, own), (Sampling(), Sampling()), (Sampling(0.3), Sampling(0.3))):
        model = replace(tiny_model(), recommended=Recommendation(stated))
        with tiny_engine(model) as engine:
            assert engine.wait_ready().sampling == expected


def test_a_reply_states_what_it_was_drawn_with() -> None:
    used = Sampling(0.7, top_p=0.9, seed=3)
    with tiny_engine() as engine:
        admitted = next(e for e in engine.stream(ask("x", max_tokens=2, sampling=used)) if isinstance(e, Admitted))
    assert admitted.sampling == used
