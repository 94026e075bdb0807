"""The presets, the models one can choose from, and whether two of them fit each other."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from specchat.engine.models import PRESETS, Machine, ModelStore, known_models, recommended, vocabulary_misfit
from specchat.engine.models.families import family_of
from specchat.engine.models.machine import _bandwidth


@pytest.fixture(autouse=True)
def no_hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "no-hub-cache"))


def test_presets_stored_models_and_those_used_before(tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    store = ModelStore(tmp_path / "models")
    folder = tiny_model()
    shutil.copytree(folder, store.folder / "mine")
    used = [str(folder), "/gone/old.gguf", "someone/else", "mine", "smollm2-135m"]
    models = {model.spec: model for model in known_models(store, used)}
    assert next(iter(models)) == "smollm2-135m"
    assert list(models)[-4:] == ["mine", str(folder), "/gone/old.gguf", "someone/else"]
    weights = (folder / "model.safetensors").stat().st_size
    assert models["mine"].memory_bytes == models[str(folder)].memory_bytes == weights
    assert models["mine"].folder == store.folder / "mine"
    assert models["/gone/old.gguf"].gone
    assert not models["someone/else"].gone
    assert models["qwen3.5-9b"].disk_bytes is None


@pytest.mark.parametrize(
    ("memory", "disk", "bandwidth", "shortage", "best"),
    [
        (24, 90, 24, "", "gemma-4-26b-a4b"), (48, 90, 24, "", "qwen3.6-35b-a3b"),
        (24, 9, 24, "lacks 3.3 GB disk", "qwen3.5-4b"), (24, 90, 6, "", "lfm2.5-1.2b"),
        (24, 90, 0.1, "", "smollm2-135m"), (4, 90, 24, "lacks 2.5 GB memory", "lfm2.5-2.6b"),
        (8, 9, 24, "lacks 3.3 GB disk", "qwen3.5-4b"), (0.01, 90, 24, "lacks 6.4 GB memory", "smollm2-135m"),
    ],
)  # fmt: skip
def test_what_fits_here(tmp_path: Path, memory: float, disk: float, bandwidth: float, shortage: str, best: str) -> None:
    models = known_models(ModelStore(tmp_path))
    machine = Machine(int(memory * 1e9), int(disk * 1e9), bandwidth * 1e9)
    large = next(model for model in models if model.spec == "qwen3.5-9b")
    assert large.obstacle(machine) == shortage
    assert recommended(models, machine) == best
    assert large.speed(machine) == pytest.approx(bandwidth * 1e9 / 5.869e9 * 2.4 / 1.3, rel=1e-3)


def test_presets_stay_by_their_names_and_older_ones_are_last() -> None:
    assert {
        "smollm2-135m", "qwen3.5-0.8b", "qwen3.5-2b", "qwen3.5-4b", "qwen3.5-9b", "lfm2.5-1.2b", "lfm2.5-2.6b",
        "gemma-4-e2b", "gemma-4-e4b", "gpt-oss-20b", "qwen3-30b-a3b",
    } <= set(PRESETS)  # fmt: skip
    _, *listed = PRESETS.values()
    assert listed == sorted(listed, key=lambda preset: preset.older)


def test_only_a_drafter_that_is_loaded_counts(tmp_path: Path) -> None:
    models = {model.spec: model for model in known_models(ModelStore(tmp_path))}
    machine = Machine(48 * 10**9, 90 * 10**9, 24e9)
    mixture, other = models["gpt-oss-20b"], models["lfm2.5-2.6b"]
    assert (mixture.draft, other.draft) == ("", "LiquidAI/LFM2.5-2.6B-DSpark")
    assert mixture.speed(machine) == pytest.approx(24e9 / (12.11e9 * 3.6 / 20.9), rel=1e-3)
    assert other.speed(machine) == pytest.approx(24e9 / 1.674e9 * 4.8 / 2.1, rel=1e-3)  # longer drafts cost more


def test_without_the_kernels_only_the_default_can_run(tmp_path: Path) -> None:
    models = known_models(ModelStore(tmp_path))
    machine = Machine(48 * 10**9, 90 * 10**9, 24e9, kernels=False)
    assert {model.spec for model in models if not model.obstacle(machine)} == {"smollm2-135m"}
    assert recommended(models, machine) == "smollm2-135m"


def test_a_gpu_without_free_memory_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr("specchat.engine.models.machine.has_gpu", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", full)
    monkeypatch.setattr(torch, "ones", full)
    _bandwidth.cache_clear()
    found = Machine.now(tmp_path)
    _bandwidth.cache_clear()
    assert (found.memory, found.bandwidth) == (0, 0)
    (preset,) = (model for model in known_models(ModelStore(tmp_path)) if model.spec == "smollm2-135m")
    assert preset.speed(found) is None
    assert preset.obstacle(found).startswith("lacks ")


def test_vocabularies_are_compared_without_loading_the_models(tiny_model: Callable[..., Path]) -> None:
    one, same, other = tiny_model(), tiny_model(seed=1), tiny_model(vocabulary=300)
    assert vocabulary_misfit(one, same) == ""
    for name in ("config.json", "generation_config.json"):
        (other / name).write_text((other / name).read_text().replace('"eos_token_id": 2', '"eos_token_id": 3'))
    assert "choose a draft of the same family" in vocabulary_misfit(one, other)
    (same / "tokenizer.json").write_text("{")
    assert "cannot be compared" in vocabulary_misfit(one, same)
    (same / "config.json").unlink()  # as of a head, which is checked when it is loaded
    assert vocabulary_misfit(one, same) == ""


def test_each_runs_on_the_kernels_of_a_cpu_is_smaller_there_and_reads_no_more_than_itself() -> None:
    for preset in PRESETS.values():
        assert family_of(preset.family).packed
        bits = 8 * preset.weight_bytes(gpu=False) / preset.parameters
        assert 4 < bits < (9.5 if preset.parameters < 10**9 else 6), preset.name
        assert preset.weight_bytes(gpu=False) <= preset.weight_bytes(gpu=True)
        assert 0 < preset.token_bytes(gpu=False) <= preset.weight_bytes(gpu=False)
        assert preset.weight_bytes(gpu=False) < preset.memory_bytes(gpu=False)
        assert preset.download_bytes(gpu=False) < preset.disk_bytes(gpu=False)
        assert (preset.tau > 1) == bool(preset.draft) == bool(preset.tau_source)


def test_a_list_of_models_waits_for_no_large_library(tmp_path: Path) -> None:
    names = ("catalog", "store", "wheel", "hub", "resolve", "checkpoint", "known")
    code = f"""if True:
        import os, sys, {", ".join(f"specchat.engine.models.{name}" for name in names)}
        from pathlib import Path
        os.environ["HF_HUB_CACHE"] = {str(tmp_path / "no-hub-cache")!r}
        from specchat.engine.models import ModelStore, known_models
        known_models(ModelStore(Path({str(tmp_path / "models")!r})), ["someone/else"])
        assert not {{"huggingface_hub._snapshot_download", "torch", "transformers"}} & {{*sys.modules}}
        """
    subprocess.run([sys.executable, "-c", code], check=True)
