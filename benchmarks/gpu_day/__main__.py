"""Runs all sections, each in a process, and prints one table: python -m benchmarks.gpu_day --out DIR.

Needs torch, transformers, safetensors and, for the section of tests, pytest; `PYTHONPATH=scripts` without an
installation. Nothing is downloaded. A section appends its rows to DIR/SECTION.jsonl as it goes, so a section that runs
out of time keeps what it has measured. Without a GPU, sections that need one report that, and the others run small
shapes on the CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from specchat.engine.tools.report import Table, paragraphs

STEPS: tuple[tuple[float, tuple[str, ...]], ...] = (
    (40, ("machine",)),
    (190, ("numerics", "engine", "drills", "tests")),
    (200, ("speeds",)),
    (60, ("start",)),
    (100, ("codes",)),
)
"""Time limits in seconds, and the sections that share them and run at the same time: in the second step nothing is
timed. A step may use what earlier ones left."""
SECTIONS = tuple(name for _, names in STEPS for name in names)


def main() -> int:
    """Run the sections; returns 1 if one of them failed or found something wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--only", choices=SECTIONS, action="append", help="run only this section; repeatable")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    ends: dict[str, str] = {}
    began, planned = time.monotonic(), 0.0
    for limit, names in STEPS:
        names = tuple(name for name in names if name in (options.only or SECTIONS))
        planned += limit if names else 0
        found = run(names, options.out, planned - (time.monotonic() - began))
        for name, end in found.items():
            print(f"{name}: {end}, {time.monotonic() - began:.0f} s so far", file=sys.stderr, flush=True)
        ends |= found
    rows = {name: read(options.out / f"{name}.jsonl") for name in ends}
    text = table(rows, ends)
    (options.out / "table.txt").write_text(text + "\n", encoding="utf-8")
    print(text)
    return int(any(end != "done" for end in ends.values()) or any(row.get("wrong") for r in rows.values() for row in r))


def run(names: Sequence[str], out: Path, seconds: float) -> dict[str, str]:
    """Run sections at the same time; returns how each ended, in a few words."""
    # Several processes at once have no cores left for a compiler's own processes.
    variables = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1"} if len(names) > 1 else None
    ends, running = {}, {name: _started(name, out, variables) for name in names}
    deadline = time.monotonic() + seconds
    for name, process in running.items():
        try:
            code = process.wait(max(deadline - time.monotonic(), 0))
            ends[name] = "done" if code == 0 else f"failed with exit code {code}, see {name}.log"
        except subprocess.TimeoutExpired:
            ends[name] = f"stopped after {seconds:.0f} s"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # also what it started, which would slow down later sections
            process.wait()
    return ends


def _started(name: str, out: Path, variables: dict[str, str] | None) -> subprocess.Popen[bytes]:
    """The process of a section, which writes to NAME.jsonl and NAME.log."""
    file = out / f"{name}.jsonl"
    file.unlink(missing_ok=True)
    command = [sys.executable, "-m", "benchmarks.gpu_day.section", name, str(file)]
    with (out / f"{name}.log").open("w", encoding="utf-8") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, env=variables)


def read(file: Path) -> list[dict[str, Any]]:
    """Rows of a section; the last line of one that was stopped may be incomplete."""
    if not file.exists():
        return []
    lines = file.read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines if line.endswith("}")]


def table(rows: dict[str, list[dict[str, Any]]], ends: dict[str, str]) -> str:
    """One table: a line per row, with what was measured and whether it is wrong."""
    lines: list[list[str]] = []
    for name, end in ends.items():
        for row in rows[name]:
            measured = {key: value for key, value in row.items() if key not in ("what", "wrong")}
            values = ", ".join(f"{key} {number(value)}" for key, value in measured.items())
            lines.append([name, str(row["what"]), "WRONG" if row.get("wrong") else "", values])
        if end != "done" or not rows[name]:
            lines.append([name, end, "", ""])
    return paragraphs(Table(["section", "what", "", "measured"], lines, names=4).text())


def number(value: Any) -> str:
    """A value with four significant digits."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.exit(main())
