"""Fetching from a hub on this machine: selection, resumption, hashes, gates, presets with a quantised file."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from huggingface_hub import errors

from specchat.engine.config import EngineConfig
from specchat.engine.errors import ClosingError, EngineError
from specchat.engine.models import ModelStore, downloads, is_installed, known_models, pull
from specchat.engine.models.catalog import PRESETS, HubFile, Preset
from specchat.engine.models.hub import needed_files
from specchat.engine.models.packed.load import PackedModel
from specchat.engine.models.resolve import resolve
from specchat.engine.progress import ignore_progress
from specchat.engine.worker.assembly import assemble
from specchat.engine.worker.obtain import obtain_model
from tests.engine import published_heads
from tests.engine.block_drafters import write_block
from tests.failing import fails, untouched
from tests.hub import REVISION, Hub, serving, use
from tests.tiny_model import write_tiny_gguf

NAME = "someone/tiny"
FILES_OF_PRESET = (
    ("someone/tiny-GGUF", "tiny.gguf"), ("someone/head", "config.json"), ("someone/head", "model.safetensors"),
)  # fmt: skip


@pytest.fixture
def hub(tiny_model: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    folder = tiny_model(hidden_size=64, intermediate_size=96, head_dim=16, dtype=torch.bfloat16)
    for name in ("consolidated.safetensors", "pytorch_model.bin"):
        (folder / name).write_bytes(b"not wanted")
    quantised = tmp_path / "gguf"
    quantised.mkdir()
    write_tiny_gguf(folder, quantised / "tiny.gguf")
    for name, size in (("HIDDEN", 64), ("VOCABULARY", 320)):
        monkeypatch.setattr(published_heads, name, size)
    head = published_heads.write(tmp_path / "head", *published_heads.eagle_1())
    repositories = {"someone__tiny-GGUF": quantised, "someone__tiny": folder, "someone__head": head}
    with serving(Hub(**repositories)) as served:
        use(served, monkeypatch, tmp_path / "no-hub-cache")
        file = HubFile("someone/tiny-GGUF", "tiny.gguf", 200_000)
        monkeypatch.setitem(PRESETS, "tiny", Preset("tiny", NAME, "llama", 100_000, "MIT", file))
        yield served


def size(spec: str, store: ModelStore, **options: Any) -> int:
    """Bytes that are to be downloaded."""
    config = EngineConfig(spec, store.folder, **options)
    found = downloads(config)
    assert is_installed(config) == (not found)
    return found.get(spec, 0)


def fetched(hub: Hub) -> set[str]:
    return {name for name, _ in hub.asked}


def test_a_hub_model_lands_in_the_store(hub: Hub, tmp_path: Path) -> None:
    store = ModelStore(tmp_path / "models")
    stated = size(NAME, store)
    folder = resolve(NAME, store, ignore_progress).folder()
    assert folder == store.path("someone--tiny") == resolve(NAME, store, ignore_progress).folder()
    names = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert fetched(hub) == names | {"chat_template.jinja"}
    assert {file.name for file in folder.iterdir()} == fetched(hub) | {"specchat.json"}
    assert store.models()[0].origin == NAME
    assert stated == sum((hub.repositories[NAME] / name).stat().st_size for name in fetched(hub))
    assert size(NAME, store) == 0


@pytest.mark.parametrize("spec", [NAME, "tiny"])
def test_a_download_that_is_cut_off_is_resumed(hub: Hub, tmp_path: Path, spec: str) -> None:
    store = ModelStore(tmp_path / "models")
    hub.whole.clear()
    hub.cut = True
    with pytest.raises(EngineError, match=r"fetching someone/tiny.* was interrupted after .*: try again, it continues"):
        pull(spec, store, ignore_progress)
    assert known(spec, store) is None
    assert size(spec, store) > 0
    hub.whole.set()
    hub.asked.clear()
    said: list[str] = []
    assert pull(spec, store, lambda _stage, text, _done: said.append(text)).is_dir()
    assert size(spec, store) == 0
    large = "model.safetensors" if spec == NAME else "tiny.gguf"
    ((_, asked),) = [each for each in hub.asked if each[0] == large]
    assert int(asked.removeprefix("bytes=").partition("-")[0]) > 0
    assert any(text.endswith(" kB") for text in said)


def test_a_download_stops_at_the_report_that_raises(hub: Hub, tmp_path: Path) -> None:
    def stop(_stage: str, text: str, _done: float | None) -> None:
        if " of " in text:
            raise ClosingError

    with pytest.raises(ClosingError):
        resolve(NAME, ModelStore(tmp_path / "models"), stop).folder()
    assert len(fetched(hub)) == 1


def test_no_file_of_an_earlier_revision_is_kept(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ModelStore(tmp_path / "models")
    hub.whole.clear()
    hub.cut = True
    with pytest.raises(EngineError, match="was interrupted"):
        resolve(NAME, store, ignore_progress).folder()
    hub.whole.set()
    config = hub.repositories[NAME] / "config.json"
    changed = config.read_text().replace('"eos_token_id": 2', '"eos_token_id": 3')
    config.write_text(changed)
    monkeypatch.setattr("tests.hub.REVISION", "2" * 40)
    assert (resolve(NAME, store, ignore_progress).folder() / "config.json").read_text() == changed


def known(spec: str, store: ModelStore) -> Path | None:
    return next((model.folder for model in known_models(store, [spec]) if model.spec == spec), None)


@pytest.mark.usefixtures("kernels")
def test_a_preset_on_a_cpu_is_its_quantised_file(hub: Hub, tmp_path: Path) -> None:
    made = obtain_model("tiny", EngineConfig("tiny", tmp_path), torch.device("cpu"), ignore_progress).model
    assert isinstance(made, PackedModel)
    assert made.format == "F32"
    assert "tiny.gguf" in fetched(hub)
    assert "model.safetensors" not in fetched(hub)
    hub.asked.clear()
    folder = str(hub.repositories[NAME])
    found = obtain_model(folder, EngineConfig(folder, tmp_path), torch.device("cpu"), ignore_progress)
    other, other_notices = found.model, found.notices
    assert (type(other), other.format) == (PackedModel, "Q8")  # safetensors
    by_name = obtain_model(NAME, EngineConfig(NAME, tmp_path), torch.device("cpu"), ignore_progress)
    assert (type(by_name.model), by_name.model.format, by_name.notices) == (PackedModel, "Q8", other_notices)
    plain = obtain_model("tiny", EngineConfig("tiny", tmp_path, quantize="none"), torch.device("cpu"), ignore_progress)
    assert plain.model.fingerprint == made.fingerprint
    assert "model.safetensors" in fetched(hub)


@pytest.mark.usefixtures("kernels")
def test_a_preset_brings_its_drafter(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    preset = replace(PRESETS["tiny"], draft="someone/head", draft_bytes=50_000, tau=2.0)
    monkeypatch.setitem(PRESETS, "tiny", preset)
    store = ModelStore(tmp_path / "models")
    files = [hub.repositories[name] / file for name, file in FILES_OF_PRESET]
    assert size("tiny", store) == sum(file.stat().st_size for file in files)
    pull("tiny", store, ignore_progress)
    assert size("tiny", store) == 0
    hub.asked.clear()
    config = EngineConfig("tiny", store.folder, slots=1, context=64)
    made = assemble(config, ignore_progress)
    assert made.parts["head"].name == "head"
    assert not hub.asked
    monkeypatch.setitem(PRESETS, "tiny", replace(preset, draft="someone/gone"))
    made = assemble(config, ignore_progress)
    assert not made.parts
    assert any("no model someone/gone" in notice for notice in made.notices)
    hub.repositories["someone/block"] = write_block(tmp_path / "block", "dspark")
    monkeypatch.setitem(PRESETS, "tiny", replace(preset, draft="someone/block"))
    (notice,) = [each for each in assemble(config, ignore_progress).notices if "block drafter" in each]
    assert notice.endswith("choose the drafter of this target. Until then drafts come from repeated text alone")
    assert notice.lower().count("until then") == 1
    monkeypatch.setitem(PRESETS, "tiny", replace(preset, experts=True))
    assert not assemble(config, ignore_progress).parts


@pytest.mark.usefixtures("hub")
def test_a_preset_and_its_hub_id_are_one_folder(tmp_path: Path) -> None:
    assert (
        resolve("tiny", ModelStore(tmp_path), ignore_progress).folder()
        == resolve(NAME, ModelStore(tmp_path), untouched).folder()
    )


def test_another_hash_is_refused_and_deleted(hub: Hub, tmp_path: Path) -> None:
    store = ModelStore(tmp_path / "models")
    hub.wrong_hash = True
    with pytest.raises(EngineError, match=r"model.safetensors of someone/tiny was damaged on the way"):
        resolve(NAME, store, ignore_progress).folder()
    assert not list(store.folder.rglob("*.safetensors"))
    hub.wrong_hash = False
    assert resolve(NAME, store, ignore_progress).folder().is_dir()


def test_a_gated_model_needs_a_token(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.gated = True
    with pytest.raises(EngineError, match=rf"is gated: accept its licence at {hub.url}/{NAME}, run 'hf auth login'"):
        resolve(NAME, ModelStore(tmp_path), ignore_progress).folder()
    monkeypatch.setenv("HF_TOKEN", "secret")
    assert resolve(NAME, ModelStore(tmp_path), ignore_progress).folder().is_dir()


def test_a_model_in_the_hub_cache_is_used_there(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "hub"
    snapshot = cache / "models--someone--tiny" / "snapshots" / REVISION
    shutil.copytree(hub.repositories[NAME], snapshot)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text(REVISION)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    store = ModelStore(tmp_path / "models")
    assert resolve(NAME, store, untouched).folder() == snapshot
    (snapshot / "model.safetensors").unlink()
    assert resolve(NAME, store, ignore_progress).folder() == store.path("someone--tiny")


def _response(status: int) -> Any:
    return SimpleNamespace(status_code=status, headers={}, request=None, url="", text="")


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (errors.RepositoryNotFoundError("none", response=_response(404)), "there is no model someone/tiny on the hub"),
        (errors.OfflineModeIsEnabled("offline"), "HF_HUB_OFFLINE is set"),
        (errors.HfHubHTTPError("oops", response=_response(503)), r"refused someone/tiny \(HTTP status 503\)"),
        (errors.HFValidationError("name"), "cannot be the name of a model"),
        (ConnectionError("no route"), "someone/tiny is not on this machine and the hub cannot be reached"),
    ],
)
@pytest.mark.usefixtures("hub")
def test_refusals_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, sentence: str) -> None:
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", fails(error))
    with pytest.raises(EngineError, match=sentence):
        resolve(NAME, ModelStore(tmp_path), ignore_progress).folder()


@pytest.mark.usefixtures("hub")
def test_a_model_that_does_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10))
    with pytest.raises(
        EngineError, match=r"fetching someone/tiny needs .* of disk and .* has 0 kB free, .* too little"
    ):
        pull(NAME, ModelStore(tmp_path), ignore_progress)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=300_000))
    with pytest.raises(
        EngineError, match=r"installing tiny needs 420 kB of disk .* has 300 kB free, 120 kB too little"
    ):
        pull("tiny", ModelStore(tmp_path), ignore_progress)
    monkeypatch.setattr("specchat.engine.device.device.available_memory", lambda _: 100_000)
    needs = "running tiny needs 220 kB of memory and this machine has 100 kB free, 120 kB too little"
    with pytest.raises(EngineError, match=needs):
        pull("tiny", ModelStore(tmp_path), ignore_progress)


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
    wanted += ["special_tokens_map.json", "vocab.json", "merges.txt", "chat_template.jinja", "LICENSE"]
    others = ["original/consolidated.00.pth", "onnx/model.onnx", "modeling_custom.py", "fp16/x.json"]
    assert needed_files("someone/tiny-1", wanted + others) == wanted
