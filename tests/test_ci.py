"""What keeps tests from hanging, and the script that decides whether a change lands."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import LIMIT_S

SCRIPT = Path(__file__).parents[1] / ".ci" / "run"
MAKEFILE = """
lint:
test:
\t.venv/bin/python -m pytest -q -m 'not slow'
test-slow:
\t.venv/bin/python -m pytest -q -m slow
"""
TESTS = """
import pathlib, pytest
def first(name):
    seen = pathlib.Path(name).exists()
    pathlib.Path(name).touch()
    return not seen
def test_sound(): pass
@pytest.mark.parametrize("kind", ["a b", "c"])
def test_flaky(kind): assert not first(kind)
@pytest.mark.slow
def test_slow(): assert not (first("slow") or BROKEN)
"""


def test_every_test_has_a_limit() -> None:
    assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= LIMIT_S


@pytest.mark.slow
@pytest.mark.parametrize("broken", [False, True])
def test_what_fails_only_once_is_named_at_the_end_and_in_a_file(tmp_path: Path, broken: bool) -> None:
    (tmp_path / ".ci").mkdir()
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (tmp_path / ".venv" / "bin" / "python").chmod(0o755)
    shutil.copy(SCRIPT, tmp_path / ".ci" / "run")
    (tmp_path / "Makefile").write_text(MAKEFILE)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = slow\n")
    (tmp_path / "test_kinds.py").write_text(TESTS.replace("BROKEN", str(broken)))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    done = subprocess.run(
        [tmp_path / ".ci" / "run"], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    names = ["test_kinds.py::test_flaky[a b]", "test_kinds.py::test_flaky[c]", "test_kinds.py::test_slow"]
    names = names[:2] if broken else names
    assert (done.returncode != 0) is broken, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == f"flaky, failed once: {' '.join(names)}"
    assert (tmp_path / ".ci" / "flaky.txt").read_text().splitlines() == names
