"""The models one can choose from, and whether two of them fit each other."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from specchat.engine.models import ModelStore, known_models, vocabulary_misfit


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
    assert models["qwen3-8b"].disk_bytes is None


def test_a_list_of_models_does_not_wait_for_the_hub_s_library(tmp_path: Path) -> None:
    code = f"""if True:
        import os, sys
        from pathlib import Path
        os.environ["HF_HUB_CACHE"] = {str(tmp_path / "no-hub-cache")!r}
        from specchat.engine.models import ModelStore, known_models
        known_models(ModelStore(Path({str(tmp_path / "models")!r})), ["someone/else"])
        assert "huggingface_hub._snapshot_download" not in sys.modules
        """
    subprocess.run([sys.executable, "-c", code], check=True)


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
