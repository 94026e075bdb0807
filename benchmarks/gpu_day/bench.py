"""Runs of the engine's benchmark in a process of their own, read from its JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import torch

ON_GPU = torch.cuda.is_available()


def bench(*options: object) -> dict[str, Any]:
    """The report of a run.

    Raises:
        RuntimeError: it fails; its last line is the message.
    """
    command = [sys.executable, "-m", "specchat.engine.tools.bench", *map(str, options), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[3:])}: {done.stderr.strip().splitlines()[-1]}")
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def cells(report: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and figures of each cell of a report."""
    for cell in report["cells"]:
        gamma = "" if cell["gamma"] == "-" else f" γ {cell['gamma']}"
        yield f"{report['setting']['target']}, {cell['drafter']}{gamma}, {cell['batch']} rows", cell


def rounded(cell: dict[str, Any], *names: str) -> dict[str, Any]:
    """Some figures of a cell, those that it has."""
    return {name: cell[name] for name in names if cell.get(name) is not None}
