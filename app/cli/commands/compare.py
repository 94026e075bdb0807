"""`specchat compare`: one prompt, or many, in two set-ups; times, speedup, and whether the texts are equal."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from specchat.app.cli.commands import options
from specchat.app.cli.commands.ask import attached
from specchat.app.cli.commands.bench import Json, typed
from specchat.app.cli.status_line import StatusLine
from specchat.app.errors import UsageError
from specchat.app.paths import settings_file
from specchat.app.sanitize import clean_prompt
from specchat.app.settings.settings import Settings
from specchat.app.settings.settings_file import load_settings
from specchat.app.side_by_side.attached_lanes import OWN_STREAM, SPECCHAT_SERVER, AttachedLanes
from specchat.app.side_by_side.set_up import label, lane_config, lanes, with_seed
from specchat.engine import LaneEngine, Message, Notice, Order, Request
from specchat.engine.tools.compare import ComparisonReport, Trial, make_report, run_trials, spread_line

BOTH = "both"
MAX_TOKENS = 128
"""Of a reply, where neither an option nor a variable says otherwise."""
LONGEST_FILE = 4 << 20

SetUpLeft = Annotated[
    str | None, typer.Option("--left", metavar="SETUP", help="DRAFTER[:gamma=N|auto,draft=MODEL,target=MODEL].")
]
SetUpRight = Annotated[
    str | None,
    typer.Option("--right", metavar="SETUP", help="The same for the other lane; the best drafter if left out."),
]
Exact = Annotated[
    bool, typer.Option("--exact", help="Target passes of fixed shape: equal texts bit by bit, a little slower.")
]


def compare(
    prompt: Annotated[str | None, typer.Argument(help="What both lanes are asked.")] = None,
    left: SetUpLeft = None,
    right: SetUpRight = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", metavar="FILE", help="Prompts, one a line; or JSON with a list of texts under prompts."),
    ] = None,
    repeat: Annotated[int, typer.Option("--repeat", metavar="N", help="Medians are over so many runs.")] = 3,
    watch: Annotated[
        bool,
        typer.Option("--watch", help="Run it again and again, and show the spread; ctrl+c ends it with the report."),
    ] = False,
    order: Annotated[
        str | None,
        typer.Option("--order", metavar="ORDER", help="interleaved, sequential, or both of them. [interleaved]"),
    ] = None,
    exact: Exact = False,
    attach: Annotated[
        str | None,
        typer.Option("--attach", metavar="URL", help="A server as the right lane, asked when the left one has ended."),
    ] = None,
    target: options.Target = None,
    draft: options.Draft = None,
    temperature: options.Temperature = None,
    top_k: options.TopK = None,
    top_p: options.TopP = None,
    min_p: options.MinP = None,
    seed: options.Seed = None,
    max_tokens: options.MaxTokens = None,
    context: options.Context = None,
    dtype: options.Dtype = None,
    quantize: options.Quantize = None,
    device: options.Device = None,
    as_json: Json = False,
) -> None:
    """Run a prompt in two set-ups that share the device fairly, and say what each took and whether they agree.

    With --attach, one set-up here is compared with a server, which is timed by its own stream.
    """
    given = {
        "target": target,
        "draft": options.joined(draft),
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "seed": seed,
        "max_tokens": max_tokens or MAX_TOKENS,
        "context": context,
        "dtype": dtype,
        "quantize": quantize,
        "device": device,
    }
    shared, _ = load_settings(settings_file(), given)
    options.check_lanes(attach, right, order)
    pair = lanes(left or (shared.drafter if attach else None), right, with_seed(shared))
    prompts = _prompts(prompt, file)
    if repeat < 1:
        raise UsageError(f"--repeat is {repeat}: it must be at least 1")
    orders = [Order.SEQUENTIAL] if attach else _orders(order or Order.INTERLEAVED)
    report = _run(pair, prompts, orders, None if watch else repeat, exact=exact, attach=attach)
    print(report.json() if as_json else report.text())


def _orders(order: str) -> list[Order]:
    if order not in (*Order, BOTH):
        raise UsageError(f"--order {order!r} is not known: choose interleaved, sequential or both")
    return list(Order) if order == BOTH else [Order(order)]


def _run(
    pair: Sequence[Settings],
    prompts: Sequence[str],
    orders: Sequence[Order],
    repeat: int | None,
    *,
    exact: bool,
    attach: str | None,
) -> ComparisonReport:
    def ask(lane: int, request_id: str, text: str) -> Request:
        return pair[lane].request(request_id, (Message("user", text),))

    here = LaneEngine([lane_config(settings, exact=exact) for settings in (pair[:1] if attach else pair)])
    engine = AttachedLanes(here, attached(attach), live=False) if attach else here
    with StatusLine(sys.stderr) as line:
        line.say("loading")
        try:
            engine.start()
            ready = engine.wait_ready()

            def tell(trials: Sequence[Trial]) -> None:
                line.clear()
                print(spread_line(trials), file=sys.stderr, flush=True)

            watched = {"tell": tell} if repeat is None else {}
            trials = run_trials(engine, ask, prompts, orders, repeat, line.say, **watched)
            notes = [notice.text for notice in here.outbox.drain() if isinstance(notice, Notice)]
        finally:
            engine.close()
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
        command=typed(),
        target=" and ".join(targets),
        device=ready.device_name,
        dtype=ready.dtype,
        exact=min((lane.exact for lane in engine.lanes if lane.exact is not None), default=None),
        exact_cost=engine.lanes[0].exact_cost,
        notes=tuple(dict.fromkeys([*notes, *([OWN_STREAM.format(attach)] if attach else [])])),
    )


def _prompts(prompt: str | None, file: Path | None) -> list[str]:
    """What is asked, in order.

    Raises:
        UsageError: nothing is, or the file cannot be read as prompts.
    """
    if (prompt is None) is (file is None):
        both = "both a prompt and --file are given: leave one of them out"
        none = 'there is nothing to ask: give a prompt, specchat compare "…", or --file FILE'
        raise UsageError(none if file is None else both)
    texts = [prompt] if prompt is not None else _read(file)  # type: ignore[arg-type]
    cleaned = [text for text in (clean_prompt(each).strip() for each in texts) if text]
    if not cleaned:
        raise UsageError(
            "the prompt is empty: write one" if file is None else f"{file} holds no prompt: write one a line"
        )
    return cleaned


def _read(file: Path) -> list[str]:
    try:
        data = file.read_bytes()
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror or error}") from None
    if len(data) > LONGEST_FILE:
        raise UsageError(f"{file} is longer than {LONGEST_FILE >> 20} MiB: these are not prompts, one a line")
    text = data.decode("utf-8", "replace")
    if file.suffix != ".json":
        return text.splitlines()
    try:
        texts = json.loads(text)["prompts"]
        if not all(isinstance(each, str) for each in texts):
            raise TypeError
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UsageError(f"{file} is no file of prompts: it must hold a list of texts under the key prompts") from None
    return list(texts)
