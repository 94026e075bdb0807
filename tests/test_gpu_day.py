"""The command that proves everything on a GPU: `python -m benchmarks.gpu_day`."""

import sys
from pathlib import Path

import psutil
import pytest

from benchmarks.gpu_day.__main__ import run


def test_what_a_section_has_started_ends_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program, number = tmp_path / "python", tmp_path / "number"
    program.write_text(f"#!/bin/sh\nsleep 600 &\necho $! > {number}\nwait\n")
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    assert run("machine", tmp_path, 1) == "stopped after 1 s"
    left = int(number.read_text())
    assert not psutil.pid_exists(left) or psutil.Process(left).status() == psutil.STATUS_ZOMBIE
