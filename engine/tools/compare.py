"""Comparison of two configurations on the same prompts: runs both lanes, then reports times, speedup and differences.

Importing this module loads neither torch nor transformers.
"""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Protocol

from specchat.engine.events import Event, Outbox
from specchat.engine.lanes.engine import LaneReady
from specchat.engine.lanes.order import CLOCKS, Order
from specchat.engine.request import Request
from specchat.engine.tools.lane_figures import SAMPLED, Comparison, LaneTally, top2_gap
from specchat.engine.tools.report import Table, json_report, number, paragraphs
from specchat.engine.tools.runner import Say, run_requests

ORDERS_AGREE = 0.05
"""Largest relative difference in a lane's tokens per second between orders that counts as agreement."""
WARM_UP = "Say hello."
WARM_UP_TOKENS = 8
_numbers = count()

_HEADER = ("prompt", "lane", "time s", "tokens", "tokens/s", "range", "measured", "range", "predicted", "saved",
           "accepted", "work", "theory")  # fmt: skip
_NAME = 20
"""Characters of a prompt in the table, which fits 140 columns."""
_DEFINITIONS = """\
time        the lane's clock for the reply, from its submission on, prefill included
tokens/s    tokens / time from the start of the first round to the end of the last
measured    time per token left / time per token right, over the rounds; median over pairs of runs
predicted   Leviathan et al. 2023, Theorem 3.8, with the measured alpha and c, over the draft lengths that were run
            without varying acceptance, the cost of verifying several tokens, and overhead, so what is measured differs
saved       target passes saved / target passes of plain decoding
work        arithmetic operations per token / the same of plain decoding, counted; then by Theorem 3.11 from alpha
range       least and greatest of all runs
"""

Ask = Callable[[int, str, str], Request]
"""Makes a lane's request from lane index, request id and prompt."""
Figures = dict[str, Any]
"""Figures in the form of the JSON report."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One run of one prompt in both lanes."""

    prompt: int
    """Index of the prompt."""
    order: Order
    comparison: Comparison
    gap: float | None
    """Difference of the target's two largest logits at the first difference of greedy replies; else None."""


class Lanes(Protocol):
    """Two lanes that answer requests. `LaneEngine` has them on one device."""

    order: Order

    @property
    def lanes(self) -> Sequence[LaneReady]:
        """Loaded models of each lane."""

    @property
    def same_target(self) -> bool:
        """Whether both have the same target, so that their texts can be compared."""

    def submit(self, request: Request, outbox: Outbox | None = None, lane: int = 0) -> None:
        """Submit a request to a lane."""


def run_trials(
    engine: Lanes,
    ask: Ask,
    prompts: Sequence[str],
    orders: Sequence[Order],
    repeat: int | None,
    say: Say,
    tell: Callable[[Sequence[Trial]], None] = lambda _trials: None,
) -> list[Trial]:
    """Run every prompt in every order, `repeat` times; orders alternate. ctrl+c ends it with the trials so far.

    Args:
        ask: makes the requests.
        repeat: None to repeat without end.
        say: called with one-line progress messages.
        tell: called with all trials so far after each.

    Raises:
        EngineError: a request failed.
    """
    say("warming up")
    run_lanes(engine, [replace(ask(lane, f"warm-up-{lane}", WARM_UP), max_tokens=WARM_UP_TOKENS) for lane in (0, 1)])
    trials: list[Trial] = []
    of = "" if repeat is None else f" of {repeat}"
    try:
        for run in count() if repeat is None else range(repeat):
            for prompt, text in enumerate(prompts):
                for order in orders:
                    say(f"prompt {prompt + 1} of {len(prompts)}, run {run + 1}{of}, {order}")
                    engine.order = order
                    trials.append(_trial(engine, ask, prompt, text))
                    tell(trials)
    except KeyboardInterrupt:
        if not trials:
            raise
    return trials


def _trial(engine: Lanes, ask: Ask, prompt: int, text: str) -> Trial:
    requests = [ask(lane, f"compare-{next(_numbers)}", text) for lane in (0, 1)]
    left, right = (LaneTally(lane.draft_share) for lane in engine.lanes)
    for tally, events in zip((left, right), run_lanes(engine, requests), strict=True):
        for event in events:
            tally.add(event)
    comparison = Comparison(left, right, engine.same_target)
    gap = None
    if comparison.same_target and not comparison.identical and all(request.sampling.greedy for request in requests):
        gap = top2_gap(run_requests(engine.submit, [make_probe(requests[0], comparison)], 1)[0])
    return Trial(prompt, engine.order, comparison, gap)


def make_probe(request: Request, comparison: Comparison) -> Request:
    """A request for one token after the common part of both replies, with top-2 detail."""
    return Request(
        f"probe-{next(_numbers)}",
        request.messages,
        sampling=request.sampling,
        drafter="none",
        gamma=0,
        max_tokens=1,
        detail=2,
        reply_ids=tuple(comparison.left.tokens[: comparison.difference]),
        constraint=request.constraint,
    )


def run_lanes(engine: Lanes, requests: Sequence[Request]) -> list[list[Event]]:
    """Run one request in each lane; returns the events of each.

    Raises:
        EngineError: a request failed.
    """
    lanes = count()
    return run_requests(lambda request, outbox: engine.submit(request, outbox, next(lanes)), requests, len(requests))


def spread_line(trials: Sequence[Trial]) -> str:
    """The last of several trials, and the spread of all."""
    latest, spread = trials[-1].comparison.measured, _spread(trial.comparison.measured for trial in trials)
    if latest is None or spread is None:
        return f"run {len(trials)}: no speedup can be measured between these lanes"
    of_all = f"{spread['median']:.2f}x, {spread['least']:.2f}x ... {spread['most']:.2f}x"
    return f"run {len(trials)}: {latest:.2f}x measured; of all runs {of_all}"


def _spread(values: Iterable[float | None]) -> Figures | None:
    """Median, least and greatest of the known values; None if all are None."""
    known = [value for value in values if value is not None]
    return {"median": statistics.median(known), "least": min(known), "most": max(known)} if known else None


def _spreads(items: Sequence[object], *names: str) -> Figures:
    """The spread of each attribute of the items, by its name."""
    return {name: _spread(getattr(each, name) for each in items) for name in names}


@dataclass(frozen=True, slots=True)
class ComparisonReport:
    """Result of `specchat compare`."""

    figures: Figures

    def json(self) -> str:
        """The whole report as one JSON object."""
        return json_report("compare", self.figures)

    def text(self) -> str:
        """The report as text, with definitions of the columns."""
        figures = self.figures
        lines = [line for row in figures["rows"] + figures["overall"] for line in _lines(row)]
        return paragraphs(
            f"{figures['target']} in {figures['dtype']} on {figures['device']}",
            Table(_HEADER, lines, names=2).text(),
            "\n".join(self._sentences()),
            _DEFINITIONS,
            textwrap.fill(CLOCKS, 112),
            *figures["notes"],
        )

    def _sentences(self) -> Iterable[str]:
        figures = self.figures
        exact, differ = figures["exact"], figures["orders_differ"]
        if not figures["same_target"]:
            yield "The lanes have different targets: their texts are not compared."
        else:
            if not figures["greedy"]:
                yield SAMPLED
            orders = len({row["order"] for row in figures["rows"]}) > 1
            for row in figures["rows"]:
                order = f" ({row['order']})" if orders else ""
                yield f"{_name(row)}{order}: {_sameness(row)}"
        if exact is not None and figures["exact_cost"] is not None:
            how = "give every token the same bits here" if exact else "do NOT give the same bits on this device"
            cost = f"one takes {figures['exact_cost']:.2f} times an ordinary pass"
            yield f"Exact mode: batch-invariant passes {how}; {cost}."
        if differ is not None:
            verdict = "agree" if differ <= ORDERS_AGREE else "DISAGREE"
            yield f"Both orders {verdict}: tokens/s of a lane differ by {differ:.1%} at most."


def make_report(
    trials: Sequence[Trial], prompts: Sequence[str], set_ups: Sequence[str], **about: Any
) -> ComparisonReport:
    """Build the report from the trials.

    Args:
        trials: runs of all prompts.
        prompts: the prompts, by index.
        set_ups: descriptions of both lanes.
        about: command, target, device, dtype, greedy (whether both lanes decode greedily), same_target, exact (whether
            passes are batch-invariant on this device; None if not asked for), exact_cost (time of a batch-invariant
            pass / time of an ordinary pass over one token) and notes.
    """
    orders = list(dict.fromkeys(trial.order for trial in trials))
    rows = [
        _row([trial for trial in trials if (trial.prompt, trial.order) == (place, order)], text, order, set_ups)
        for place, text in enumerate(prompts)
        for order in orders
    ]
    overall = [_row([trial for trial in trials if trial.order is order], None, order, set_ups) for order in orders]
    differ = _disagreement(overall) if len(orders) > 1 else None
    whole = overall if len(prompts) > 1 else []
    return ComparisonReport({**about, "rows": rows, "overall": whole, "orders_differ": differ})


def _row(trials: Sequence[Trial], prompt: str | None, order: Order, set_ups: Sequence[str]) -> Figures:
    """Figures of several trials: of one prompt in one order, or of all prompts (None)."""
    both = [trial.comparison for trial in trials]
    different = next((trial for trial in trials if not trial.comparison.identical), None)
    return {
        "prompt": prompt,
        "order": order,
        "left": _lane([each.left for each in both], set_ups[0]),
        "right": _lane([each.right for each in both], set_ups[1]),
        **_spreads(both, "measured", "measured_in_all", "predicted", "cost_ratio"),
        "identical": sum(each.identical for each in both),
        "trials": len(trials),
        # Of the first trial with different replies: equal tokens before, and the target's top-2 gap there.
        "difference": different.comparison.difference if different else None,
        "top2_gap": different.gap if different else None,
    }


def _lane(lanes: Sequence[LaneTally], set_up: str) -> Figures:
    """Figures of one lane over several trials."""
    metrics = [lane.metrics for lane in lanes]
    tested = sum(each.tested for each in metrics)
    alphas = [each.alpha * each.tested for each in metrics if each.alpha is not None]
    return {
        "set_up": set_up,
        **_spreads(lanes, "seconds", "reading_s", "tokens_per_second", "work", "predicted_work"),
        "tokens": _spread(float(each.emitted) for each in metrics),
        "passes": sum(lane.passes for lane in lanes),
        "passes_saved": sum(lane.passes_saved for lane in lanes),
        "tested": tested,
        "accepted": sum(each.accepted for each in metrics),
        "alpha": sum(alphas) / tested if alphas else None,
    }


def _disagreement(overall: Sequence[Figures]) -> float | None:
    """Largest relative difference between orders of a lane's median tokens per second; None if it is not known."""
    found = []
    for side in ("left", "right"):
        speeds = [row[side]["tokens_per_second"] for row in overall]
        if all(speeds):
            medians = [speed["median"] for speed in speeds]
            found.append(max(medians) / min(medians) - 1)
    return max(found, default=None)


def _sameness(row: Figures) -> str:
    """Text on whether the replies to a prompt are equal, and where they differ."""
    runs, same, gap = row["trials"], row["identical"], row["top2_gap"]
    if same == runs:
        return f"both texts are identical, token for token ({runs} of {runs} runs)"
    close = "" if gap is None else f", where the target's two likeliest tokens are {gap:.3f} logits apart"
    return f"the texts differ in {runs - same} of {runs} runs, first at token {row['difference']}{close}"


def _lines(row: Figures) -> Iterable[tuple[str, ...]]:
    """Table lines of both lanes."""
    speed = (*_median_and_range(row["measured"], "{:.2f}x", "{:.2f}"), _median(row["predicted"], "{:.2f}x"))
    sides = ((_name(row), row["left"], ("", "", "")), (f"  {row['order']}", row["right"], speed))
    for name, lane, speedups in sides:
        passes = lane["passes"] + lane["passes_saved"]
        yield (
            name,
            lane["set_up"],
            _median(lane["seconds"], "{:.2f}"),
            _median(lane["tokens"], "{:.0f}"),
            *_median_and_range(lane["tokens_per_second"], "{:.1f}", "{:.1f}"),
            *speedups,
            number(lane["passes_saved"] / passes if passes else None, "{:.0%}"),
            number(lane["accepted"] / lane["tested"] if lane["tested"] else None, "{:.0%}"),
            _median(lane["work"], "{:.2f}"),
            _median(lane["predicted_work"], "{:.2f}"),
        )


def _name(row: Figures) -> str:
    if row["prompt"] is None:
        return "all prompts"
    words = " ".join(row["prompt"].split())
    return words if len(words) <= _NAME else words[: _NAME - 1].rstrip() + "…"


def _median(spread: Figures | None, form: str) -> str:
    return number(spread["median"] if spread else None, form)


def _median_and_range(spread: Figures | None, form: str, form_of_range: str) -> tuple[str, str]:
    if spread is None:
        return "-", "-"
    return form.format(spread["median"]), "-".join(form_of_range.format(spread[name]) for name in ("least", "most"))
