"""The model store: its folder, complete models only, one builder at a time, nothing left lying about."""

import errno
import os
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from specchat.engine import models_folder
from specchat.engine.errors import EngineError
from specchat.engine.models.store import ModelStore
from tests.failing import fails


def build(store: ModelStore, name: str, content: str = "{}") -> Path:
    with store.building(name) as work:
        model = work / "model"
        model.mkdir()
        (model / "config.json").write_text(content)
        return store.complete(name, model, f"made for {name}")


def test_a_folder_put_there_by_hand_is_listed_without_origin(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text("{}")
    assert [(model.name, model.origin) for model in ModelStore(tmp_path).models()] == [("mine", "")]


def test_a_folder_without_config_is_replaced(tmp_path: Path) -> None:
    store = ModelStore(tmp_path)
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "model.safetensors").write_text("half deleted by hand")
    assert store.find("one") is None
    folder = build(store, "one")
    assert sorted(file.name for file in folder.iterdir()) == ["config.json", "specchat.json"]


def test_the_second_builder_waits_and_finds_the_model(tmp_path: Path) -> None:
    store, said, found = ModelStore(tmp_path), list[str](), list[Path | None]()
    waiting = threading.Event()

    def progress(_stage: str, text: str, _fraction: float | None) -> None:
        said.append(text)
        waiting.set()

    def second() -> None:
        with store.building("one", progress):
            found.append(store.find("one"))

    with store.building("one") as work:
        thread = threading.Thread(target=second)
        thread.start()
        assert waiting.wait(120)
        (work / "model").mkdir()
        (work / "model" / "config.json").write_text("{}")
        store.complete("one", work / "model", "")
    thread.join(120)
    assert found == [store.path("one")]
    assert "another specchat" in said[0]


def test_work_nobody_came_back_for_is_removed(tmp_path: Path) -> None:
    store = ModelStore(tmp_path)
    for name, age in (("old", 30 * 86400), ("recent", 3600)):
        with suppress(ZeroDivisionError), store.building(name) as work:
            raise ZeroDivisionError
        os.utime(work, (time.time() - age, time.time() - age))
    build(store, "one")
    assert [work.name for work in (tmp_path / ".unfinished").iterdir()] == ["recent"]


@pytest.mark.parametrize("name", ["", "..", "a/b", ".hidden", "a b"])
def test_a_name_that_is_no_folder_is_refused(tmp_path: Path, name: str) -> None:
    assert ModelStore(tmp_path).find(name) is None
    with pytest.raises(EngineError, match="cannot name a stored model"):
        ModelStore(tmp_path).path(name)


def test_a_store_that_is_a_file_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "models").write_text("")
    with pytest.raises(EngineError, match="cannot write to"), ModelStore(tmp_path / "models").building("one"):
        pass


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a file system that holds no folders of users")
def test_a_place_for_no_folder_is_named() -> None:
    with pytest.raises(EngineError, match="cannot write to /proc/none"), ModelStore(Path("/proc/none")).building("one"):
        pass


def test_a_full_disk_at_the_last_step_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", fails(OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(EngineError, match=r"the disk of .* is full"):
        build(ModelStore(tmp_path), "one")
    assert ModelStore(tmp_path).find("one") is None


def test_models_have_a_folder_where_platformdirs_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPECCHAT_HOME", raising=False)
    monkeypatch.setitem(sys.modules, "platformdirs", None)
    assert models_folder() == Path.home() / ".cache" / "specchat" / "models"
