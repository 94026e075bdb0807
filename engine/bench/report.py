"""Everything a benchmark found, as one object for programs and as plain text for people."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

from engine.bench.cell import Cell
from engine.bench.crossover import Crossover
from engine.bench.pace import PeerCell
from engine.bench.plan import BASELINE, Plan
from engine.progress import size_text

VERSION = 1
"""Of the JSON object; a field that changes its meaning gives a new one."""

_DEFINITIONS = """\
tokens/s    tokens of all rows per second, prefill left out; medians over the passes, every way taking turns in each
draft ...   milliseconds of one round of the batch: drafting, verification, and the rest, which is all that is neither
accepted    accepted / tested; tokens behind a rejection are not tested; then the same at draft position 1, 2, ...
tau         tokens per row and target pass, the correction or bonus included
c           time of one draft step / time of a target pass without drafts
pass        time of a verification / time of a target pass without drafts; the theory assumes 1
predicted   Leviathan et al. 2023, Theorem 3.8, with the measured alpha and c, over the draft lengths that were run
measured    time per token without drafts / time per token, in the same run
MB/token    weights and cache that have to be read for each token; then per second, and as a share of the copy bandwidth
"""


@dataclass(frozen=True, slots=True)
class Setting:
    """Where and on what it was measured."""

    target: str
    draft: str | None
    synthetic: str | None
    """Says so where the models are made of random weights."""
    device: str
    device_name: str
    dtype: str
    threads: int
    weight_bytes: int
    cache_bytes: int
    held_bytes: int | None
    """What the engine holds of the device's memory after the passes, the tokenizer included; None if not known, or if
    peers hold some too."""
    copy_bandwidth: float
    """Bytes read plus bytes written per second."""


@dataclass(frozen=True, slots=True)
class Report:
    """What `specchat bench` prints."""

    command: str
    versions: dict[str, str]
    setting: Setting
    plan: Plan
    cells: tuple[Cell, ...]
    peers: tuple[PeerCell, ...]
    crossovers: tuple[Crossover, ...]
    notes: tuple[str, ...]

    def json(self) -> str:
        """One object with everything that was measured."""
        whole: dict[str, Any] = {"specchat_bench": VERSION, **asdict(self)}
        return json.dumps(whole, indent=1, ensure_ascii=False)

    def text(self) -> str:
        """Tables for people, with what their columns mean."""
        parts = [self._head(), *self._tables(), *map(_crossover, self.crossovers), _DEFINITIONS, *self.notes]
        return "\n\n".join(part.rstrip("\n") for part in parts if part)

    def _head(self) -> str:
        s = self.setting
        share = (s.held_bytes or 0) / (s.weight_bytes + s.cache_bytes)
        held = f", in memory {share:.2f} of both" if s.held_bytes else ""
        models = f"{s.target}, draft {s.draft}" if s.draft else s.target
        lines = [
            f"{models} in {s.dtype} on {s.device_name} ({s.device}, {s.threads} threads)",
            f"weights {size_text(s.weight_bytes)}, cache {size_text(s.cache_bytes)}{held}, "
            f"copy bandwidth {s.copy_bandwidth / 1e9:.1f} GB/s",
            ", ".join(f"{name} {version}" for name, version in self.versions.items()),
        ]
        return "\n".join([*([s.synthetic] if s.synthetic else []), *lines])

    def _tables(self) -> Iterable[str]:
        for (prompts, batch, temperature), cells in groupby(
            self.cells, key=lambda cell: (cell.prompts, cell.batch, cell.temperature)
        ):
            peers = [p for p in self.peers if (p.prompts, p.batch, p.temperature) == (prompts, batch, temperature)]
            title = f"{prompts}, batch {batch}, temperature {temperature:g}"
            yield "\n".join([title, *_table([_HEADER, *map(_row, cells), *map(_peer_row, peers)])])


_HEADER = (
    "drafter",
    "gamma",
    "tokens/s",
    "draft",
    "verify",
    "rest ms",
    "accepted",
    "by position",
    "tau",
    "c",
    "pass",
    "predicted",
    "measured",
    "MB/token",
    "GB/s",
    "of copy",
)
_POSITIONS = 5
"""Draft positions that fit into the table; the JSON object has all."""


def _row(cell: Cell) -> tuple[str, ...]:
    plain = cell.drafter == BASELINE
    return (
        cell.drafter,
        cell.gamma,
        f"{cell.tokens_per_second:.1f}",
        f"{cell.draft_ms:.2f}",
        f"{cell.verify_ms:.2f}",
        f"{cell.rest_ms:.2f}",
        _number(cell.acceptance, "{:.0%}"),
        _positions(cell.per_position),
        _number(cell.mean_emitted_length, "{:.2f}"),
        _number(cell.cost_ratio, "{:.3f}"),
        _number(cell.pass_ratio, "{:.2f}"),
        _number(cell.predicted_speedup, "{:.2f}x"),
        "-" if plain else f"{cell.measured_speedup:.2f}x",
        _number(cell.bytes_per_token, "{:.1f}", 1e-6),
        _number(cell.bytes_per_second, "{:.1f}", 1e-9),
        _number(cell.roofline, "{:.0%}"),
    )


def _peer_row(peer: PeerCell) -> tuple[str, ...]:
    known = {
        "drafter": peer.name,
        "gamma": peer.gamma,
        "tokens/s": f"{peer.tokens_per_second:.1f}",
        "measured": f"{peer.measured_speedup:.2f}x",
    }
    return tuple(known.get(column, "") for column in _HEADER)


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Columns as wide as they need, the first to the left and the numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows]


def _crossover(found: Crossover) -> str:
    title = f"{found.drafter}, gamma {found.gamma}, {found.prompts}, temperature {found.temperature:g}, batch by batch"
    rows = [("batch", "tokens/s none", f"tokens/s {found.drafter}", "measured", "predicted", "pass")]
    rows += [
        (
            str(cell.batch),
            f"{plain:.1f}",
            f"{cell.tokens_per_second:.1f}",
            f"{cell.measured_speedup:.2f}x",
            _number(cell.predicted_speedup, "{:.2f}x"),
            _number(cell.pass_ratio, "{:.2f}"),
        )
        for cell, plain in zip(found.cells, found.plain_tokens_per_second, strict=True)
    ]
    if found.batch is None:
        verdict = f"It still pays at a batch of {found.cells[-1].batch}, the largest tried."
    else:
        verdict = f"It stops paying at a batch of {found.batch}."
    return "\n".join([title, *_table(rows), verdict])


def _positions(rates: Sequence[float]) -> str:
    shown = [f"{100 * rate:.0f}" for rate in rates[:_POSITIONS]]
    return " ".join([*shown, *([".."] if len(rates) > _POSITIONS else [])]) or "-"


def _number(value: float | None, form: str, factor: float = 1.0) -> str:
    return "-" if value is None else form.format(value * factor)
