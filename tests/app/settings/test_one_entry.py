"""A setting is one entry: all that shows or takes settings has it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

COMMANDS = ["ask", "serve", "web"]
NUMBER = "a whole number at least 1"
RANGE = "calm is -1: it must be at least 1"
ENTRIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "specchat.engine.settings": (
        'calm: float = _number(0.0, "F", "0 (off) or more", lambda x: x >= 0, "Above 0: calmer replies.")',
        "dry_base: float",
        {
            "field": 4.0,
            "range": "calm is -1: it must be 0 (off) or more",
            "start": None,
            "control": ["calm, a number 0 (off) or more, or auto: above 0: calmer replies"],
            "command": ["/calm F|auto"],
            "reference": [
                "| `calm` | Above 0: calmer replies. | a number, 0 (off) or more | auto | from the next reply on "
                "| `--calm` | `/calm` | `calm` |"
            ],
        },
    ),
    "specchat.app.settings.settings": (
        'calm: int = setting(1, "Calmer replies.", "N", engine.MODEL, engine.ONE_OR_MORE)',
        "exports: str",
        {"start": None, "control": [f"calm, {NUMBER}: calmer replies"], "command": ["/calm N"]},
    ),
}


@pytest.mark.parametrize("module", ENTRIES)
def test_an_entry_is_all_that_a_setting_needs(module: str, tmp_path: Path) -> None:
    entry, field, expected = ENTRIES[module]
    program = [sys.executable, "-m", "tests.app.settings.with_entry", module, entry, field, str(tmp_path)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found == {**found, "options": COMMANDS, "key": 2, "variable": 3, "range": RANGE, **expected}
    assert found["reference"]
