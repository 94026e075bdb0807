"""Everything a comparison found, as one object for programs and as plain text for people."""

from __future__ import annotations

import json
import statistics
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from engine.compare.figures import SAMPLED, Comparison, LaneTally
from engine.compare.runner import Trial
from engine.lanes import CLOCKS, Order

VERSION = 1
"""Of the JSON object; a field that changes its meaning gives a new one."""
ORDERS_AGREE = 0.05
"""Both orders have to give a lane the same tokens per second, but for this share."""

_DEFINITIONS = """\
time        the lane's clock for the reply, from its submission on, reading the prompt included
tokens/s    tokens / time from the start of the first round to the end of the last
measured    time per token at the left / time per token at the right, over the rounds; pair by pair, then the median
predicted   Leviathan et al. 2023, Theorem 3.8, with the measured alpha and c, over the draft lengths that were run
saved       target passes that one token per pass would have needed more, as a share of them
work        arithmetic per token / that of one token per pass, counted; then by Theorem 3.11 from the measured alpha
a ... b     the least and the most of all runs
"""


@dataclass(frozen=True, slots=True)
class Spread:
    """A median, and what it lies between."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Spread | None:
        """Of what was measured; None if nothing was."""
        known = [value for value in values if value is not None]
        return cls(statistics.median(known), min(known), max(known)) if known else None


@dataclass(frozen=True, slots=True)
class LaneRow:
    """One lane over some trials."""

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
class Row:
    """Some trials together: a prompt in one order, or all prompts."""

    prompt: str | None
    """None for all of them."""
    order: Order
    left: LaneRow
    right: LaneRow
    measured: Spread | None
    measured_in_all: Spread | None
    """The same with the reading of the prompt included."""
    predicted: Spread | None
    cost_ratio: Spread | None
    identical: int
    """Trials whose texts are the same, token for token."""
    trials: int
    difference: int | None
    """Of the first trial with different texts: tokens before the first difference."""
    top2_gap: float | None
    """How close the target's choice was there, in logits; greedy only."""


@dataclass(frozen=True, slots=True)
class Report:
    """What `specchat compare` prints."""

    command: str
    target: str
    device: str
    dtype: str
    greedy: bool
    same_target: bool
    exact: bool | None
    """Whether fixed-shape passes give equal bits here; None where they were not asked for."""
    exact_cost: float | None
    """Time of a fixed-shape pass / time of a pass over one token."""
    rows: tuple[Row, ...]
    overall: tuple[Row, ...]
    """One per order."""
    orders_differ: float | None
    """Where both orders ran: by how much a lane's median tokens per second differ between them, at most."""
    notes: tuple[str, ...]

    def json(self) -> str:
        """One object with everything that was measured."""
        whole: dict[str, Any] = {"specchat_compare": VERSION, **asdict(self)}
        return json.dumps(whole, indent=1, ensure_ascii=False)

    def text(self) -> str:
        """A table and sentences for people, with what the columns mean."""
        head = f"{self.target} in {self.dtype} on {self.device}"
        table = "\n".join(_table([_HEADER, *(line for row in self.rows + self.overall for line in _lines(row))]))
        clocks = textwrap.fill(CLOCKS, 112)
        parts = [head, table, "\n".join(self._sentences()), _DEFINITIONS.rstrip(), clocks, *self.notes]
        return "\n\n".join(part for part in parts if part)

    def _sentences(self) -> Iterable[str]:
        if not self.same_target:
            yield "The lanes have different targets: their texts are not held against each other."
        elif not self.greedy:
            yield SAMPLED
        else:
            orders = len({row.order for row in self.rows}) > 1
            for row in self.rows:
                yield f"{_name(row)}{f' ({row.order})' if orders else ''}: {sameness(row)}"
        if self.exact is not None and self.exact_cost is not None:
            how = "give every token the same bits here" if self.exact else "do NOT give the same bits on this device"
            yield f"Exact mode: passes of fixed shape {how}; one costs {self.exact_cost:.2f} of a pass over one token."
        if self.orders_differ is not None:
            verdict = "agree" if self.orders_differ <= ORDERS_AGREE else "DISAGREE"
            yield f"Both orders {verdict}: tokens/s of a lane differ by {self.orders_differ:.1%} at most."


def make_report(
    trials: Sequence[Trial], prompts: Sequence[str], set_ups: Sequence[str], *, greedy: bool, **about: Any
) -> Report:
    """Put the trials together.

    Args:
        prompts: the texts, by number.
        set_ups: of both lanes, for people.
        greedy: whether both lanes are.
        about: the other fields of `Report`.
    """
    orders = list(dict.fromkeys(trial.order for trial in trials))
    rows = []
    for number, text in enumerate(prompts):
        for order in orders:
            some = [trial for trial in trials if trial.prompt == number and trial.order is order]
            rows.append(_row(some, text, order, set_ups))
    overall = [_row([t for t in trials if t.order is order], None, order, set_ups) for order in orders]
    return Report(
        greedy=greedy,
        rows=tuple(rows),
        overall=tuple(overall) if len(prompts) > 1 else (),
        orders_differ=_disagreement(overall) if len(orders) > 1 else None,
        **about,
    )


def sameness(row: Row) -> str:
    """Whether the texts of a prompt are the same, and where they part if not."""
    if row.identical == row.trials:
        return f"both texts are identical, token for token ({row.trials} of {row.trials} runs)"
    gap = (
        "" if row.top2_gap is None else f", where the target's two likeliest tokens are {row.top2_gap:.3f} logits apart"
    )
    return (
        f"the texts differ in {row.trials - row.identical} of {row.trials} runs, first at token {row.difference}{gap}"
    )


def _row(trials: Sequence[Trial], prompt: str | None, order: Order, set_ups: Sequence[str]) -> Row:
    both = [trial.comparison for trial in trials]
    different = next((trial for trial in trials if not trial.comparison.identical), None)
    return Row(
        prompt=prompt,
        order=order,
        left=_lane([each.left for each in both], set_ups[0]),
        right=_lane([each.right for each in both], set_ups[1]),
        measured=_spread(both, lambda each: each.measured),
        measured_in_all=_spread(both, lambda each: each.measured_in_all),
        predicted=_spread(both, lambda each: each.predicted),
        cost_ratio=_spread(both, lambda each: each.cost_ratio),
        identical=sum(each.identical for each in both),
        trials=len(trials),
        difference=different.comparison.difference if different else None,
        top2_gap=different.gap if different else None,
    )


def _lane(lanes: Sequence[LaneTally], set_up: str) -> LaneRow:
    tested = sum(lane.statistics.tested for lane in lanes)
    alphas = [(lane.alpha, lane.statistics.tested) for lane in lanes if lane.alpha is not None]
    return LaneRow(
        set_up=set_up,
        seconds=Spread.of(lane.seconds for lane in lanes),
        reading_s=Spread.of(lane.reading_s for lane in lanes),
        tokens=Spread.of(float(len(lane.tokens)) for lane in lanes),
        tokens_per_second=Spread.of(lane.tokens_per_second for lane in lanes),
        passes=sum(lane.passes for lane in lanes),
        passes_saved=sum(lane.passes_saved for lane in lanes),
        tested=tested,
        accepted=sum(lane.statistics.accepted for lane in lanes),
        alpha=sum(alpha * n for alpha, n in alphas) / tested if tested else None,
        work=Spread.of(lane.work for lane in lanes),
        predicted_work=Spread.of(lane.predicted_work for lane in lanes),
    )


def _spread(both: Sequence[Comparison], figure: Callable[[Comparison], float | None]) -> Spread | None:
    return Spread.of(figure(each) for each in both)


def _disagreement(overall: Sequence[Row]) -> float | None:
    """The largest relative difference between orders, of a lane's median tokens per second."""
    found = []
    for lanes in ([row.left for row in overall], [row.right for row in overall]):
        speeds = [lane.tokens_per_second.median for lane in lanes if lane.tokens_per_second]
        if len(speeds) == len(overall):
            found.append(max(speeds) / min(speeds) - 1)
    return max(found, default=None)


_HEADER = ("prompt", "lane", "time s", "tokens", "tokens/s", "a ... b", "measured", "a ... b", "predicted", "saved",
           "accepted", "work", "by theory")  # fmt: skip


def _lines(row: Row) -> Iterable[tuple[str, ...]]:
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


def _name(row: Row) -> str:
    if row.prompt is None:
        return "all prompts"
    words = " ".join(row.prompt.split())
    return words if len(words) <= 24 else words[:23].rstrip() + "…"


def _median(spread: Spread | None, form: str) -> str:
    return "-" if spread is None else form.format(spread.median)


def _range(spread: Spread | None, form: str) -> str:
    return "-" if spread is None else f"{form.format(spread.least)} ... {form.format(spread.most)}"


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Columns as wide as they need, names to the left and numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join([*map(str.ljust, row[:2], widths[:2]), *map(str.rjust, row[2:], widths[2:])]).rstrip() for row in rows
    ]
