"""Folders of models by every kind of name, and names that mean nothing."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from specchat.engine.errors import EngineError
from specchat.engine.models.load import load_model
from specchat.engine.models.resolve import resolve
from specchat.engine.models.store import ModelStore
from specchat.engine.progress import ignore_progress
from tests.failing import untouched
from tests.tiny_model import write_tiny_gguf


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return ModelStore(tmp_path / "models")


@pytest.fixture
def gguf(tiny_model: Callable[..., Path], tmp_path: Path) -> Path:
    return write_tiny_gguf(tiny_model(), tmp_path / "tiny q4.gguf")


def test_a_folder_is_itself(
    tiny_model: Callable[..., Path], store: ModelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny_model()
    monkeypatch.setenv("HOME", str(folder.parent))
    for name in (str(folder), f"~/{folder.name}"):
        assert resolve(name, store, untouched).folder() == folder
    assert not store.folder.exists()


def test_a_gguf_file_is_converted_once(gguf: Path, store: ModelStore) -> None:
    folder = resolve(str(gguf), store, ignore_progress).folder()
    assert folder.parent == store.folder
    assert folder.name.startswith("tiny-q4-")
    assert load_model(folder, torch.device("cpu"), torch.float32, ignore_progress).name == "tiny-q4"
    assert resolve(str(gguf), store, untouched).folder() == folder
    assert store.models()[0].origin == str(gguf)


def test_the_same_content_elsewhere_is_the_same_model(gguf: Path, store: ModelStore, tmp_path: Path) -> None:
    folder = resolve(str(gguf), store, ignore_progress).folder()
    copy = shutil.copy(gguf, tmp_path / "other name.gguf")
    assert resolve(str(copy), store, ignore_progress).folder() == folder


def test_two_files_are_never_confused(tiny_model: Callable[..., Path], gguf: Path, store: ModelStore) -> None:
    """Not even one put in the other's place with its size and time."""
    first, stat = resolve(str(gguf), store, ignore_progress).folder(), gguf.stat()
    other = write_tiny_gguf(tiny_model(seed=1), gguf.with_name("new.gguf"))
    os.utime(other, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert other.stat().st_size == stat.st_size
    other.replace(gguf)
    assert resolve(str(gguf), store, ignore_progress).folder() != first


def test_a_broken_index_of_hashes_is_made_anew(gguf: Path, store: ModelStore) -> None:
    folder = resolve(str(gguf), store, ignore_progress).folder()
    for content in ("", "[1]", '{"x": 3}', "\0"):
        (store.folder / "gguf-hashes.json").write_text(content)
        assert resolve(str(gguf), store, ignore_progress).folder() == folder


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("smolm2-135m", "no model is called 'smolm2-135m': did you mean smollm2-135m"),
        ("zzzz", "no model is called 'zzzz': choose one of smollm2-135m, "),
        ("", "no model is named"),
        ("  ", "no model is named"),
        ("/no/such/folder", "there is no file or folder /no/such/folder"),
        ("./nothing", "there is no file or folder ./nothing"),
        ("~/no such", "there is no file or folder ~/no such"),
        ("no/such/file.gguf", "there is no file or folder no/such/file.gguf"),
        ("a/b/c", "there is no file or folder a/b/c"),
        ("~absent-user/model", "there is no file or folder ~absent-user"),
        pytest.param("a" * 300, "no model is called 'aaa", id="long name"),
        pytest.param("a" * 300 + ".gguf", "there is no file or folder aaa", id="long file"),
    ],
)
def test_names_that_mean_nothing(spec: str, sentence: str, store: ModelStore) -> None:
    with pytest.raises(EngineError, match=sentence):
        resolve(spec, store, untouched).folder()
    assert not store.folder.exists()


def test_a_file_that_is_no_model(store: ModelStore, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(EngineError, match=r"notes.txt is not a GGUF file"):
        resolve(str(tmp_path / "notes.txt"), store, untouched).folder()


def test_a_file_that_cannot_be_read(gguf: Path, store: ModelStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(EngineError, match=r"tiny q4.gguf cannot be read \(Permission denied\): check its permissions"):
        resolve(str(gguf), store, untouched).folder()


def test_a_folder_that_is_no_model(store: ModelStore, tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_text("")
    with pytest.raises(EngineError, match=r"to use its GGUF file, give .*/x.gguf"):
        resolve(str(tmp_path), store, untouched).folder()
