"""Report of a comparison, as JSON and as tables."""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from specchat.engine.lanes.clock import CLOCKS, Order
from specchat.engine.tools.compare.figures import SAMPLED, LaneTally
from specchat.engine.tools.compare.runner import Trial
from specchat.engine.tools.report import Table, json_report, paragraphs

VERSION = 1
"""Version of the JSON object; raised when the meaning of a field changes."""
ORDERS_AGREE = 0.05
"""Largest relative difference in a lane's tokens per second between orders that counts as agreement."""

_DEFINITIONS = """\
time        the lane's clock for the reply, from its submission on, prefill included
tokens/s    tokens / time from the start of the first round to the end of the last
measured    time per token left / time per token right, over the rounds; median over pairs of runs
predicted   Leviathan et al. 2023, Theorem 3.8, with the measured alpha and c, over the draft lengths that were run
saved       target passes saved / target passes of plain decoding
work        arithmetic operations per token / those of plain decoding, counted; then by Theorem 3.11 from alpha
a ... b     least and greatest of all runs
"""


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, least and greatest of several values."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Spread | None:
        """Spread of the known values; None if all are None."""
        known = [value for value in values if value is not None]
        return cls(statistics.median(known), min(known), max(known)) if known else None


def spread_line(trials: Sequence[Trial]) -> str:
    """The last of several trials, and the spread of all."""
    measured = [trial.comparison.measured for trial in trials]
    spread, latest = Spread.of(measured), measured[-1]
    if spread is None or latest is None:
        return f"run {len(trials)}: no speedup can be measured between these lanes"
    return (
        f"run {len(trials)}: {latest:.2f}x measured; of all runs {spread.median:.2f}x, "
        f"{spread.least:.2f}x ... {spread.most:.2f}x"
    )


@dataclass(frozen=True, slots=True)
class LaneRow:
    """Figures of one lane over several trials."""

    set_up: str
    seconds: Spread | None
    reading_s: Spread | None
    tokens: Spread | None
    tokens_per_second: Spread | None
    passes: int
    passes_saved: int
    tested: int
    accepted: int
    alpha: float | None
    work: Spread | None
    predicted_work: Spread | None


@dataclass(frozen=True, slots=True)
class ComparisonRow:
    """Figures of several trials: of one prompt in one order, or of all prompts."""

    prompt: str | None
    """None for all prompts."""
    order: Order
    left: LaneRow
    right: LaneRow
    measured: Spread | None
    measured_in_all: Spread | None
    """As `measured`, prefill included."""
    predicted: Spread | None
    cost_ratio: Spread | None
    identical: int
    """Trials whose replies have the same tokens."""
    trials: int
    difference: int | None
    """Equal tokens before the first difference, in the first trial with different replies."""
    top2_gap: float | None
    """Difference of the target's two largest logits there; greedy only."""


@dataclass(frozen=True, slots=True)
class ComparisonReport:
    """Result of `specchat compare`."""

    command: str
    target: str
    device: str
    dtype: str
    greedy: bool
    same_target: bool
    exact: bool | None
    """Whether passes are batch-invariant on this device (measured); None if not asked for."""
    exact_cost: float | None
    """Time of a batch-invariant pass / time of an ordinary pass over one token."""
    rows: tuple[ComparisonRow, ...]
    overall: tuple[ComparisonRow, ...]
    """All prompts, one row per order."""
    orders_differ: float | None
    """Largest relative difference between orders of a lane's median tokens per second; None if only one order ran."""
    notes: tuple[str, ...]

    def json(self) -> str:
        """The whole report as one JSON object."""
        return json_report("compare", VERSION, self)

    def text(self) -> str:
        """The report as text, with definitions of the columns."""
        lines = [line for row in self.rows + self.overall for line in _lines(row)]
        return paragraphs(
            f"{self.target} in {self.dtype} on {self.device}",
            Table(_HEADER, lines, names=2).text(),
            "\n".join(self._sentences()),
            _DEFINITIONS,
            textwrap.fill(CLOCKS, 112),
            *self.notes,
        )

    def _sentences(self) -> Iterable[str]:
        if not self.same_target:
            yield "The lanes have different targets: their texts are not compared."
        elif not self.greedy:
            yield SAMPLED
        else:
            orders = len({row.order for row in self.rows}) > 1
            for row in self.rows:
                yield f"{_name(row)}{f' ({row.order})' if orders else ''}: {sameness(row)}"
        if self.exact is not None and self.exact_cost is not None:
            how = "give every token the same bits here" if self.exact else "do NOT give the same bits on this device"
            yield f"Exact mode: batch-invariant passes {how}; one takes {self.exact_cost:.2f} times an ordinary pass."
        if self.orders_differ is not None:
            verdict = "agree" if self.orders_differ <= ORDERS_AGREE else "DISAGREE"
            yield f"Both orders {verdict}: tokens/s of a lane differ by {self.orders_differ:.1%} at most."


def make_report(
    trials: Sequence[Trial], prompts: Sequence[str], set_ups: Sequence[str], *, greedy: bool, **about: Any
) -> ComparisonReport:
    """Build the report from the trials.

    Args:
        prompts: the prompts, by index.
        set_ups: descriptions of both lanes.
        greedy: whether both lanes decode greedily.
        about: the other fields of `ComparisonReport`.
    """
    orders = list(dict.fromkeys(trial.order for trial in trials))
    rows = []
    for number, text in enumerate(prompts):
        for order in orders:
            some = [trial for trial in trials if trial.prompt == number and trial.order is order]
            rows.append(_row(some, text, order, set_ups))
    overall = [_row([t for t in trials if t.order is order], None, order, set_ups) for order in orders]
    return ComparisonReport(
        greedy=greedy,
        rows=tuple(rows),
        overall=tuple(overall) if len(prompts) > 1 else (),
        orders_differ=_disagreement(overall) if len(orders) > 1 else None,
        **about,
    )


def sameness(row: ComparisonRow) -> str:
    """Text on whether the replies to a prompt are equal, and where they differ."""
    if row.identical == row.trials:
        return f"both texts are identical, token for token ({row.trials} of {row.trials} runs)"
    gap = (
        "" if row.top2_gap is None else f", where the target's two likeliest tokens are {row.top2_gap:.3f} logits apart"
    )
    return (
        f"the texts differ in {row.trials - row.identical} of {row.trials} runs, first at token {row.difference}{gap}"
    )


def _row(trials: Sequence[Trial], prompt: str | None, order: Order, set_ups: Sequence[str]) -> ComparisonRow:
    both = [trial.comparison for trial in trials]
    different = next((trial for trial in trials if not trial.comparison.identical), None)
    return ComparisonRow(
        prompt=prompt,
        order=order,
        left=_lane([each.left for each in both], set_ups[0]),
        right=_lane([each.right for each in both], set_ups[1]),
        measured=Spread.of(each.measured for each in both),
        measured_in_all=Spread.of(each.measured_in_all for each in both),
        predicted=Spread.of(each.predicted for each in both),
        cost_ratio=Spread.of(each.cost_ratio for each in both),
        identical=sum(each.identical for each in both),
        trials=len(trials),
        difference=different.comparison.difference if different else None,
        top2_gap=different.gap if different else None,
    )


def _lane(lanes: Sequence[LaneTally], set_up: str) -> LaneRow:
    tested = sum(lane.metrics.tested for lane in lanes)
    alphas = [(lane.alpha, lane.metrics.tested) for lane in lanes if lane.alpha is not None]
    return LaneRow(
        set_up=set_up,
        seconds=Spread.of(lane.seconds for lane in lanes),
        reading_s=Spread.of(lane.reading_s for lane in lanes),
        tokens=Spread.of(float(lane.metrics.emitted) for lane in lanes),
        tokens_per_second=Spread.of(lane.tokens_per_second for lane in lanes),
        passes=sum(lane.passes for lane in lanes),
        passes_saved=sum(lane.passes_saved for lane in lanes),
        tested=tested,
        accepted=sum(lane.metrics.accepted for lane in lanes),
        alpha=sum(alpha * n for alpha, n in alphas) / tested if alphas else None,
        work=Spread.of(lane.work for lane in lanes),
        predicted_work=Spread.of(lane.predicted_work for lane in lanes),
    )


def _disagreement(overall: Sequence[ComparisonRow]) -> float | None:
    """Largest relative difference between orders of a lane's median tokens per second; None with one order."""
    found = []
    for lanes in ([row.left for row in overall], [row.right for row in overall]):
        speeds = [lane.tokens_per_second.median for lane in lanes if lane.tokens_per_second]
        if len(speeds) == len(overall):
            found.append(max(speeds) / min(speeds) - 1)
    return max(found, default=None)


_HEADER = ("prompt", "lane", "time s", "tokens", "tokens/s", "a ... b", "measured", "a ... b", "predicted", "saved",
           "accepted", "work", "by theory")  # fmt: skip


def _lines(row: ComparisonRow) -> Iterable[tuple[str, ...]]:
    left, right = row.left, row.right
    yield (_name(row), left.set_up, *_own(left)[:4], "", "", "", *_own(left)[4:])
    speed = _median(row.measured, "{:.2f}x"), _range(row.measured, "{:.2f}"), _median(row.predicted, "{:.2f}x")
    yield (f"  {row.order}", right.set_up, *_own(right)[:4], *speed, *_own(right)[4:])


def _own(lane: LaneRow) -> tuple[str, ...]:
    passes = lane.passes + lane.passes_saved
    return (
        _median(lane.seconds, "{:.2f}"),
        _median(lane.tokens, "{:.0f}"),
        _median(lane.tokens_per_second, "{:.1f}"),
        _range(lane.tokens_per_second, "{:.1f}"),
        f"{lane.passes_saved / passes:.0%}" if passes else "-",
        f"{lane.accepted / lane.tested:.0%}" if lane.tested else "-",
        _median(lane.work, "{:.2f}"),
        _median(lane.predicted_work, "{:.2f}"),
    )


def _name(row: ComparisonRow) -> str:
    if row.prompt is None:
        return "all prompts"
    words = " ".join(row.prompt.split())
    return words if len(words) <= 24 else words[:23].rstrip() + "…"


def _median(spread: Spread | None, form: str) -> str:
    return "-" if spread is None else form.format(spread.median)


def _range(spread: Spread | None, form: str) -> str:
    return "-" if spread is None else f"{form.format(spread.least)} ... {form.format(spread.most)}"
