"""Fetching from the hub, with a stand-in for the hub library's two calls."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import errors

from specchat.engine.errors import EngineError
from specchat.engine.models.hub import fetch_from_hub, needed_files
from specchat.engine.models.resolve import resolve
from specchat.engine.models.store import ModelStore
from specchat.engine.progress import ignore_progress


class Hub:
    """Answers like the hub's library, out of a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.error: Exception | None = None
        self.download_error: Exception | None = None
        self.asked: list[list[str]] = []

    def model_info(self, *_: object, **__: object) -> SimpleNamespace:
        if self.error:
            raise self.error
        files = [file for file in sorted(self.folder.rglob("*")) if file.is_file()]
        siblings = [
            SimpleNamespace(rfilename=str(file.relative_to(self.folder)), size=file.stat().st_size) for file in files
        ]
        return SimpleNamespace(siblings=siblings, sha="1" * 40)

    def snapshot_download(self, _: str, *, local_dir: Path, allow_patterns: list[str], **__: object) -> str:
        self.asked.append(allow_patterns)
        (local_dir / ".cache" / "huggingface").mkdir(parents=True)
        for name in allow_patterns:
            if self.download_error and name.endswith(".safetensors"):
                raise self.download_error
            shutil.copy(self.folder / name, local_dir / name)
        return str(local_dir)


@pytest.fixture
def hub(tiny_model: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    folder = tiny_model()
    (folder / "onnx").mkdir()
    (folder / "onnx" / "model.safetensors").write_bytes(b"not wanted")
    (folder / "consolidated.safetensors").write_bytes(b"not wanted")
    (folder / "pytorch_model.bin").write_bytes(b"not wanted")
    stand_in = Hub(folder)
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda *a, **k: stand_in.model_info(*a, **k))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", stand_in.snapshot_download)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "no-hub-cache"))
    return stand_in


def test_a_hub_model_lands_in_the_store(hub: Hub, tmp_path: Path) -> None:
    store = ModelStore(tmp_path / "models")
    folder = resolve("someone/tiny-1", store, ignore_progress)
    assert folder == store.path("someone--tiny-1")
    names = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert {file.name for file in folder.iterdir()} == names | {"chat_template.jinja", "specchat.json"}
    assert store.models()[0].origin == "someone/tiny-1"
    assert resolve("someone/tiny-1", store, ignore_progress) == folder
    assert len(hub.asked) == 1


def test_a_hub_model_cut_off_is_gone_on_with(hub: Hub, tmp_path: Path) -> None:
    store = ModelStore(tmp_path)
    hub.download_error = ConnectionError("reset")
    with pytest.raises(EngineError, match="the hub cannot be reached"):
        resolve("someone/tiny-1", store, ignore_progress)
    assert store.find("someone--tiny-1") is None
    work = store.folder / ".unfinished" / "someone--tiny-1" / "model"
    assert (work / "config.json").is_file()
    (work / "of-an-older-revision.json").write_text("{}")
    shutil.rmtree(work / ".cache")
    hub.download_error = None
    folder = resolve("someone/tiny-1", store, ignore_progress)
    assert not (folder / "of-an-older-revision.json").exists()


@pytest.mark.usefixtures("hub")
def test_a_preset_and_its_hub_id_are_one_folder(tmp_path: Path) -> None:
    store = ModelStore(tmp_path)
    assert resolve("qwen3-0.6b", store, ignore_progress) == resolve("Qwen/Qwen3-0.6B", store, ignore_progress)


def test_a_complete_model_in_the_hub_cache_is_used_where_it_lies(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "hub"
    snapshot = cache / "models--someone--tiny-1" / "snapshots" / ("1" * 40)
    shutil.copytree(hub.folder, snapshot)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(cache))

    def download(hub_id: str, local_files_only: bool = False, **options: Any) -> str:
        return str(snapshot) if local_files_only else hub.snapshot_download(hub_id, **options)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    store = ModelStore(tmp_path / "models")
    assert resolve("someone/tiny-1", store, ignore_progress) == snapshot
    (snapshot / "model.safetensors").unlink()
    assert resolve("someone/tiny-1", store, ignore_progress) == store.path("someone--tiny-1")


def _response(status: int) -> Any:
    return SimpleNamespace(status_code=status, headers={}, request=None, url="", text="")


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (errors.GatedRepoError("gated", response=_response(403)), "is gated: accept its licence at https"),
        (
            errors.RepositoryNotFoundError("none", response=_response(404)),
            "there is no model someone/tiny-1 on the hub",
        ),
        (errors.OfflineModeIsEnabled("offline"), "HF_HUB_OFFLINE is set"),
        (errors.HfHubHTTPError("oops", response=_response(503)), r"refused someone/tiny-1 \(HTTP status 503\)"),
        (errors.HFValidationError("name"), "cannot be the name of a model"),
        (ConnectionError("no route"), "the hub cannot be reached"),
    ],
)
def test_what_the_hub_says_is_one_sentence(hub: Hub, tmp_path: Path, error: Exception, sentence: str) -> None:
    hub.error = error
    with pytest.raises(EngineError, match=sentence):
        resolve("someone/tiny-1", ModelStore(tmp_path), ignore_progress)


def test_a_file_the_library_left_short_is_noticed(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def half(hub_id: str, *, local_dir: Path, **options: Any) -> str:
        hub.snapshot_download(hub_id, local_dir=local_dir, **options)
        (local_dir / "model.safetensors").write_bytes(b"short")
        return str(local_dir)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", half)
    with pytest.raises(EngineError, match=r"could not be fetched completely \(model.safetensors is cut short\)"):
        fetch_from_hub("someone/tiny-1", tmp_path / "work", ignore_progress)


@pytest.mark.usefixtures("hub")
def test_a_hub_model_that_does_not_fit_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10))
    with pytest.raises(EngineError, match="fetching someone/tiny-1 needs"):
        fetch_from_hub("someone/tiny-1", tmp_path / "work", ignore_progress)


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (["config.json", "pytorch_model.bin"], "weights are pickled"),
        (["model.Q4_K_M.gguf"], "it holds GGUF files"),
        (["README.md"], "holds no weights"),
    ],
)
def test_hub_models_without_safetensors_are_refused(names: list[str], sentence: str) -> None:
    with pytest.raises(EngineError, match=sentence):
        needed_files("someone/tiny-1", names)


def test_only_what_is_needed_is_fetched() -> None:
    wanted = ["config.json", "model-00001-of-00002.safetensors", "model.safetensors.index.json", "tokenizer.model"]
    wanted += [
        "special_tokens_map.json",
        "added_tokens.json",
        "vocab.json",
        "merges.txt",
        "chat_template.jinja",
        "LICENSE",
    ]
    others = [
        "original/consolidated.00.pth",
        "onnx/model.onnx",
        "modeling_custom.py",
        "training_args.bin",
        "fp16/x.json",
    ]
    assert needed_files("someone/tiny-1", wanted + others) == wanted
