"""`specchat compare`: prompts in two setups; times, speedup, and whether the texts are equal."""

import json
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from specchat.app.chat.constraints import constraint_of
from specchat.app.cli import options
from specchat.app.cli.commands.ask import attached
from specchat.app.cli.effective_settings import effective_settings
from specchat.app.cli.options import opt
from specchat.app.cli.progress import StatusLine
from specchat.app.errors import UsageError, explained
from specchat.app.sanitize import clean_prompt, without_password
from specchat.app.settings.settings import Settings
from specchat.app.side_by_side.lanes import OWN_STREAM, SPECCHAT_SERVER, AttachedLanes
from specchat.app.side_by_side.set_up import label, lane_config, lanes, with_seed
from specchat.engine import SAMPLING, Constraint, LaneEngine, Message, Notice, Order, Request
from specchat.engine.tools.compare import ComparisonReport, Trial, make_report, run_trials, spread_line

_BOTH = "both"
_MAX_TOKENS = 128
"""Default length of a reply."""
_LONGEST_FILE = 4 << 20
_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "seed", "max_tokens")
_OPTIONS = {
    **options.settings(*options.MODELS, *_SAMPLING),
    **options.table(SAMPLING, temperature=(float, "T", "0, the default, is greedy.")),
}


@options.collect(given=_OPTIONS, form=options.CONSTRAINTS)
def compare(
    given: options.Given,
    form: options.Given,
    prompt: Annotated[str | None, typer.Argument(help="The prompt of both lanes.")] = None,
    left: options.SetUpLeft = None,
    right: options.SetUpRight = None,
    file: Annotated[Path | None, opt("--file", "FILE", "Prompts, one per line; or JSON with a list prompts.")] = None,
    repeat: Annotated[int, opt("--repeat", "N", "Runs of which the median is taken.")] = 3,
    watch: Annotated[bool, opt("--watch", None, "Repeat until ctrl+c, show the spread, then the report.")] = False,
    order: Annotated[str | None, opt("--order", "ORDER", "interleaved (default), sequential, or both of them.")] = None,
    exact: options.Exact = False,
    attach: options.AttachRight = None,
    as_json: options.Json = False,
) -> None:
    """Run a prompt in two setups that share the device fairly; report their times and whether the texts agree.

    By default greedy, without the penalties that a model recommends and chats use.
    With --attach, one setup on this machine is compared with a server, which is timed by its own stream.
    """
    given = {"max_tokens": _MAX_TOKENS, **given}
    shared = effective_settings(given)
    options.check_lanes(attach, right, order)
    pair = lanes(left or (shared.drafter if attach else None), right, with_seed(shared))
    prompts = _prompts(prompt, file)
    if repeat < 1:
        raise UsageError(f"--repeat is {repeat}: it must be at least 1")
    orders = [Order.SEQUENTIAL] if attach else _orders(order or Order.INTERLEAVED)
    constraint = constraint_of(**form)
    report = _run(pair, prompts, orders, None if watch else repeat, exact=exact, attach=attach, constraint=constraint)
    print(report.json() if as_json else report.text())


def _orders(order: str) -> list[Order]:
    if order not in (*Order, _BOTH):
        raise UsageError(f"--order {order!r} is not known: choose interleaved, sequential or both")
    return list(Order) if order == _BOTH else [Order(order)]


def _run(
    pair: Sequence[Settings],
    prompts: Sequence[str],
    orders: Sequence[Order],
    repeat: int | None,
    *,
    exact: bool,
    attach: str | None,
    constraint: Constraint | None,
) -> ComparisonReport:
    def ask(lane: int, request_id: str, text: str) -> Request:
        return replace(pair[lane].request(request_id, (Message("user", text),)), constraint=constraint)

    here = LaneEngine([lane_config(settings, exact=exact) for settings in (pair[:1] if attach else pair)])
    engine = AttachedLanes(here, attached(attach), live=False) if attach else here
    with StatusLine() as line, closing(engine):
        line.say("loading")
        engine.start()
        ready = engine.wait_ready()
        if repeat is None:
            line.clear()
            print("running until you press ctrl+c, then the report is printed", file=sys.stderr, flush=True)

        def tell(trials: Sequence[Trial]) -> None:
            line.clear()
            print(spread_line(trials), file=sys.stderr, flush=True)

        watched = {"tell": tell} if repeat is None else {}
        trials = run_trials(engine, ask, prompts, orders, repeat, line.say, **watched)
        notes = [notice.text for notice in here.outbox.drain() if isinstance(notice, Notice)]
    sampling = pair[0].sampling()
    targets = list(dict.fromkeys(lane.ready.target for lane in engine.lanes))
    return make_report(
        trials,
        prompts,
        [
            lane.ready.observed or SPECCHAT_SERVER if attach and number else label(settings, lane.ready.drafters)
            for number, (settings, lane) in enumerate(zip(pair, engine.lanes, strict=True))
        ],
        greedy=sampling.greedy,
        same_target=engine.same_target,
        command=options.command_line(),
        target=" and ".join(targets),
        device=ready.device_name,
        dtype=ready.dtype,
        exact=min((lane.exact for lane in engine.lanes if lane.exact is not None), default=None),
        exact_cost=engine.lanes[0].exact_cost,
        notes=tuple(dict.fromkeys([*notes, *([OWN_STREAM.format(without_password(attach))] if attach else [])])),
    )


def _prompts(prompt: str | None, file: Path | None) -> list[str]:
    """The prompts, in order.

    Raises:
        UsageError: there are none, or the file cannot be read as prompts.
    """
    if (prompt is None) is (file is None):
        both = "both a prompt and --file are given: leave one of them out"
        none = 'there is nothing to ask: give a prompt, specchat compare "…", or --file FILE'
        raise UsageError(none if file is None else both)
    texts = [prompt] if prompt is not None else _read(file)  # type: ignore[arg-type]
    cleaned = [text for text in (clean_prompt(each).strip() for each in texts) if text]
    if not cleaned:
        raise UsageError("the prompt is empty: write one" if file is None else f"{file} holds no prompt: write some")
    return cleaned


def _read(file: Path) -> list[str]:
    with explained(f"{file} cannot be read"):
        data = file.read_bytes()
    if len(data) > _LONGEST_FILE:
        raise UsageError(f"{file} is longer than {_LONGEST_FILE >> 20} MiB: these are not prompts, one a line")
    text = data.decode("utf-8-sig", "replace")
    if file.suffix != ".json":
        return text.splitlines()
    try:
        texts = json.loads(text)["prompts"]
        if not isinstance(texts, list) or not all(isinstance(each, str) for each in texts):
            raise TypeError
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UsageError(f"{file} is not a file of prompts: it needs a list of texts under the key prompts") from None
    return texts
