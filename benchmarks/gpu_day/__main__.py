"""Runs all sections, each in a process with a time limit, and prints one table: python -m benchmarks.gpu_day --out DIR.

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
from contextlib import suppress
from pathlib import Path
from typing import Any

from specchat.engine.tools.report import Table, paragraphs

SECTIONS = {
    "machine": 45,
    "numerics": 80,
    "engine": 90,
    "drills": 60,
    "start": 60,
    "plain": 70,
    "speculation": 100,
    "peers": 60,
    "tests": 90,
}
"""Sections in order, with their time limits in seconds; a section may use what earlier ones left."""
TOTAL = 590
"""Seconds for all of them."""


def main() -> int:
    """Run the sections; returns 1 if one of them failed or found something wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--only", choices=SECTIONS, action="append", help="run only this section; repeatable")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    began, planned, ends = time.monotonic(), 0, {}
    for name in options.only or SECTIONS:
        planned += SECTIONS[name]
        used = time.monotonic() - began
        ends[name] = run(name, options.out, min(planned, TOTAL) - used)
        print(f"{name}: {ends[name]}, {time.monotonic() - began:.0f} s so far", file=sys.stderr, flush=True)
    rows = {name: read(options.out / f"{name}.jsonl") for name in ends}
    text = table(rows, ends)
    (options.out / "table.txt").write_text(text + "\n", encoding="utf-8")
    print(text)
    return int(any(end != "done" for end in ends.values()) or any(row.get("wrong") for r in rows.values() for row in r))


def run(name: str, out: Path, seconds: float) -> str:
    """Run one section; returns how it ended, in a few words."""
    file = out / f"{name}.jsonl"
    file.unlink(missing_ok=True)
    if seconds < 1:
        return "no time left"
    command = [sys.executable, "-m", "benchmarks.gpu_day.section", name, str(file)]
    with (out / f"{name}.log").open("w", encoding="utf-8") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            return f"stopped after {seconds:.0f} s"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # also what it started, which would slow down later sections
            process.wait()
    return "done" if code == 0 else f"failed with exit code {code}, see {name}.log"


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
