"""The tests marked `gpu`; without a GPU, the tests of the same rounds on the pretended device."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from benchmarks.gpu_day.bench import ON_GPU
from benchmarks.gpu_day.section import Row

_ROOT = Path(__file__).resolve().parents[2]
_RESULT = re.compile(r"(?:\[gw\d+\] \[ *\d+%\] )?(?=.*(?:PASSED|FAILED|ERROR))([A-Z]+ )?(tests/.+?)( [A-Z]+\b.*)?$")
"""A line of pytest about a test that has ended, in one process or several."""
_STEP = 25
"""Passed tests between two rows that count them."""


def rows() -> Iterator[Row]:
    """A row per failure as it comes, since the section may be stopped; counts."""
    chosen = [*_files(), "-m", "gpu"] if ON_GPU else ["tests/engine/device", "-m", "not slow and not gpu"]
    command = [sys.executable, "-m", "pytest", "-vv", "-p", "no:cacheprovider", "--continue-on-collection-errors"]
    if ON_GPU and find_spec("xdist"):
        command += ["-n", "4", "--dist", "worksteal"]
    passed, line = 0, ""
    with subprocess.Popen(
        [*command, *chosen], cwd=_ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout
        for line in process.stdout:
            print(line, end="", flush=True)
            if not (match := _RESULT.match(line)):
                continue
            if "PASSED" not in f"{match[1]}{match[3]}":
                yield {"what": match[2], "wrong": True}
                continue
            passed += 1
            if passed % _STEP == 0:
                yield {"what": f"{passed} tests have passed"}
    yield {"what": f"pytest -m '{chosen[-1]}'", "result": line.strip(" =\n"), "wrong": process.returncode != 0}


def _files() -> list[str]:
    """Files with such tests: others may need packages that are not installed. Rounds are last, as `engine` runs some of
    them."""
    found = [file for file in (_ROOT / "tests/engine").rglob("test_*.py") if "mark.gpu" in file.read_text("utf-8")]
    found.sort(key=lambda file: (file.name == "test_on_a_gpu.py", file))
    return [str(file.relative_to(_ROOT)) for file in found]
