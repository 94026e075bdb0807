"""Report of a benchmark, as JSON and as tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from specchat.engine.progress import size_text
from specchat.engine.tools.bench.figures import Cell, PeerCell, Place
from specchat.engine.tools.bench.suite import Crossover, Plan, ReadingCell
from specchat.engine.tools.report import Columns, Table, json_report, number, paragraphs
from specchat.engine.tools.runner import BASELINE

_POSITIONS = 5
"""Draft positions shown in the table; the JSON object has all."""

_DEFINITIONS = """\
tokens/s    tokens of all rows per second, without prefill; medians over passes, in each of which all variants alternate
draft ...   milliseconds per round of the batch: draft, verification, and the rest (everything else)
accepted    accepted / tested; tokens after a rejection are not tested; then the same at draft position 1, 2, ...
tau         tokens per row and target pass, the correction or bonus included
c           time of one draft step / time of a target pass of plain decoding
pass        time of a verification / time of a target pass of plain decoding; the theory assumes 1
predicted   Leviathan et al. 2023, Theorem 3.8, with the measured alpha and c, over the draft lengths that were run
            without varying acceptance, the cost of verifying several tokens, and overhead, so what is measured differs
measured    time per token of plain decoding / time per token, in the same run
against     time per token of the peer / time per token of ours, in the same run
MB/token    weights and KV cache read per token; then per second, and as a fraction of the copy bandwidth
"""
_SPEED: Columns = {
    "drafter": lambda cell: cell.drafter,
    "gamma": lambda cell: cell.gamma,
    "tokens/s": lambda cell: f"{cell.tokens_per_second:.1f}",
    "draft": lambda cell: f"{cell.draft_ms:.2f}",
    "verify": lambda cell: f"{cell.verify_ms:.2f}",
    "rest ms": lambda cell: f"{cell.rest_ms:.2f}",
    "accepted": lambda cell: number(cell.acceptance, "{:.0%}"),
    "by position": lambda cell: _positions(cell.per_position),
    "tau": lambda cell: number(cell.tau, "{:.2f}"),
    "c": lambda cell: number(cell.cost_ratio, "{:.3f}"),
    "pass": lambda cell: number(cell.pass_ratio, "{:.2f}"),
    "predicted": lambda cell: number(cell.predicted_speedup, "{:.2f}x"),
    "measured": lambda cell: "-" if cell.drafter == BASELINE else f"{cell.measured_speedup:.2f}x",
    "MB/token": lambda cell: number(cell.bytes_per_token, "{:.1f}", 1e-6),
    "GB/s": lambda cell: number(cell.bytes_per_second, "{:.1f}", 1e-9),
    "of copy": lambda cell: number(cell.roofline, "{:.0%}"),
}
"""Columns of the main table; peers have four of them."""


_READING: Columns = {
    "reader": lambda cell: cell.name,
    "tokens/s": lambda cell: f"{cell.tokens_per_second:.0f}",
    "measured": lambda cell: f"{cell.measured_speedup:.2f}x",
}


@dataclass(frozen=True, slots=True)
class BenchReport:
    """Result of `specchat bench`."""

    command: str
    versions: dict[str, str]
    setting: dict[str, Any]
    """Machine and models: target, draft, device, device_name, dtype, weight_bytes and cache_bytes as in `Ready`;
    synthetic (notice that the models have random weights, or None), threads, held_bytes (memory of the device that the
    engine holds after the passes, tokenizer included; None if unknown, or if peers hold some too), copy_bandwidth
    (bytes read plus bytes written per second), and instruction_sets (of the engine and its peers on the CPU)."""
    plan: Plan
    cells: tuple[Cell, ...]
    peers: tuple[PeerCell, ...]
    readings: tuple[ReadingCell, ...]
    crossovers: tuple[Crossover, ...]
    notes: tuple[str, ...]

    def json(self) -> str:
        """The whole report as one JSON object."""
        return json_report("bench", self)

    def text(self) -> str:
        """The report as tables, with definitions of the columns."""
        crossovers = map(_crossover, self.crossovers)
        return paragraphs(self._head(), *self._speeds(), self._readings(), *crossovers, _DEFINITIONS, *self.notes)

    def _head(self) -> str:
        about = self.setting
        both = about["weight_bytes"] + about["cache_bytes"]
        held = f", in memory {about['held_bytes'] / both:.2f} of both" if about["held_bytes"] else ""
        models = f"{about['target']}, draft {about['draft']}" if about["draft"] else about["target"]
        lines = [
            about["synthetic"],
            f"{models} in {about['dtype']} on {about['device_name']} ({about['device']}, {about['threads']} threads)",
            f"weights {size_text(about['weight_bytes'])}, cache {size_text(about['cache_bytes'])}{held}, "
            f"copy bandwidth {about['copy_bandwidth'] / 1e9:.1f} GB/s",
            ", ".join(f"{name} {version}" for name, version in self.versions.items()),
            *(f"{name} computes with {sets}" for name, sets in about["instruction_sets"].items()),
        ]
        return "\n".join(filter(None, lines))

    def _speeds(self) -> Iterator[str]:
        """Table of each prompt set, batch size and temperature."""
        for place, cells in groupby(self.cells, key=_place):
            rows, ratios = [[show(cell) for show in _SPEED.values()] for cell in cells], []
            for peer in (peer for peer in self.peers if _place(peer) == place):
                speed, speedup = f"{peer.tokens_per_second:.1f}", f"{peer.measured_speedup:.2f}x"
                known = {"drafter": peer.name, "gamma": peer.gamma, "tokens/s": speed, "measured": speedup}
                rows.append([known.get(column, "") for column in _SPEED])
                name = peer.name if peer.gamma == "-" else f"{peer.name} {peer.gamma}"
                against = ", ".join(f"{variant} {ratio:.2f}x" for variant, ratio in peer.variants.items())
                ratios.append(f"against {name}: {against}")
            yield "\n".join([Table(tuple(_SPEED), rows, str(place)).text(), *ratios])

    def _readings(self) -> str:
        """Table of reading a prompt; empty if that was not measured."""
        if not self.readings:
            return ""
        return Table.of(self.readings, _READING, f"reading a prompt of {self.readings[0].prompt_tokens} tokens").text()


def _place(cell: Cell | PeerCell) -> Place:
    return Place(cell.prompts, cell.batch, cell.temperature)


def _positions(rates: tuple[float, ...]) -> str:
    shown = " ".join(f"{100 * rate:.0f}" for rate in rates[:_POSITIONS]) or "-"
    return f"{shown} .." if len(rates) > _POSITIONS else shown


def _crossover(found: Crossover) -> str:
    title = f"{found.drafter}, gamma {found.gamma}, {found.prompts}, temperature {found.temperature:g}, batch by batch"
    columns: Columns = {
        "batch": lambda pair: str(pair[0].batch),
        "tokens/s none": lambda pair: f"{pair[1]:.1f}",
        f"tokens/s {found.drafter}": lambda pair: f"{pair[0].tokens_per_second:.1f}",
        "measured": lambda pair: f"{pair[0].measured_speedup:.2f}x",
        "predicted": lambda pair: _SPEED["predicted"](pair[0]),
        "pass": lambda pair: _SPEED["pass"](pair[0]),
    }
    verdict = f"It stops paying at a batch of {found.batch}."
    if found.batch is None:
        verdict = f"It still pays at a batch of {found.cells[-1].batch}, the largest tried."
    pairs = zip(found.cells, found.plain_tokens_per_second, strict=True)
    return f"{Table.of(pairs, columns, title).text()}\n{verdict}"
