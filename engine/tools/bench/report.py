"""Report of a benchmark, as JSON and as plain text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

from specchat.engine.progress import size_text
from specchat.engine.tools.bench.cell import Cell
from specchat.engine.tools.bench.crossover import Crossover
from specchat.engine.tools.bench.pace import PeerCell
from specchat.engine.tools.bench.plan import BASELINE, Plan
from specchat.engine.tools.bench.reading import ReadingCell

VERSION = 1
"""Version of the JSON object; raised when the meaning of a field changes."""

_DEFINITIONS = """\
tokens/s    tokens of all rows per second, without prefill; medians over passes, in each of which all variants alternate
draft ...   milliseconds per round of the batch: draft, verification, and the rest (everything else)
accepted    accepted / tested; tokens behind a rejection are not tested; then the same at draft position 1, 2, ...
tau         tokens per row and target pass, the correction or bonus included
c           time of one draft step / time of a target pass of plain decoding
pass        time of a verification / time of a target pass of plain decoding; the theory assumes 1
predicted   Leviathan et al. 2023, Theorem 3.8, with the measured alpha and c, over the draft lengths that were run
measured    time per token of plain decoding / time per token, in the same run
against     time per token of the peer / time per token of ours, in the same run
MB/token    weights and KV cache read per token; then per second, and as a fraction of the copy bandwidth
"""


@dataclass(frozen=True, slots=True)
class Setting:
    """Machine, models and versions of a measurement."""

    target: str
    draft: str | None
    synthetic: str | None
    """Notice that the models have random weights; None for real ones."""
    device: str
    device_name: str
    dtype: str
    threads: int
    weight_bytes: int
    cache_bytes: int
    held_bytes: int | None
    """Bytes of the device's memory that the engine holds after the passes, tokenizer included; None if not known, or
    if peers hold some too."""
    copy_bandwidth: float
    """Bytes read plus bytes written per second."""
    instruction_sets: dict[str, str]
    """What the engine and its peers compute with on the CPU, by name; only those that say it."""


@dataclass(frozen=True, slots=True)
class BenchReport:
    """Result of `specchat bench`."""

    command: str
    versions: dict[str, str]
    setting: Setting
    plan: Plan
    cells: tuple[Cell, ...]
    peers: tuple[PeerCell, ...]
    readings: tuple[ReadingCell, ...]
    crossovers: tuple[Crossover, ...]
    notes: tuple[str, ...]

    def json(self) -> str:
        """The whole report as one JSON object."""
        whole: dict[str, Any] = {"specchat_bench": VERSION, **asdict(self)}
        return json.dumps(whole, indent=1, ensure_ascii=False)

    def text(self) -> str:
        """The report as text tables, with definitions of the columns."""
        tables = (*self._tables(), *_readings(self.readings), *map(_crossover, self.crossovers))
        parts = [self._head(), *tables, _DEFINITIONS, *self.notes]
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
            *(f"{name} computes with {what}" for name, what in s.instruction_sets.items()),
        ]
        return "\n".join([*([s.synthetic] if s.synthetic else []), *lines])

    def _tables(self) -> Iterable[str]:
        for (prompts, batch, temperature), cells in groupby(
            self.cells, key=lambda cell: (cell.prompts, cell.batch, cell.temperature)
        ):
            peers = [p for p in self.peers if (p.prompts, p.batch, p.temperature) == (prompts, batch, temperature)]
            title = f"{prompts}, batch {batch}, temperature {temperature:g}"
            rows = [_HEADER, *map(_row, cells), *map(_peer_row, peers)]
            yield "\n".join([title, *_table(rows), *map(_against, peers)])


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
"""Draft positions shown in the table; the JSON object has all."""


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


def _against(peer: PeerCell) -> str:
    gamma = f" {peer.gamma}" if peer.gamma != "-" else ""
    ratios = ", ".join(f"{name} {ratio:.2f}x" for name, ratio in peer.variants.items())
    return f"against {peer.name}{gamma}: {ratios}"


def _readings(readings: Sequence[ReadingCell]) -> Iterable[str]:
    """Table of reading a prompt, if that was measured."""
    if readings:
        rows = [("reader", "tokens/s", "measured")]
        rows += [(each.name, f"{each.tokens_per_second:.0f}", f"{each.measured_speedup:.2f}x") for each in readings]
        yield "\n".join([f"reading a prompt of {readings[0].prompt_tokens} tokens", *_table(rows)])


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Align rows in columns: the first left, the others right."""
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
