"""`specchat ask`: one question, and the reply, or with `--beams` the likeliest replies, on stdout."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from specchat import engine
from specchat.app.chat.parts import joined, parts_of
from specchat.app.chat.tool_calls import COMPLETE
from specchat.app.cli.effective_settings import effective_settings
from specchat.app.cli.printers import JsonPrinter, Printer, text_printer
from specchat.app.cli.progress import StatusLine, warn
from specchat.app.cli.question import Question, StoredTurn
from specchat.app.cli.tools import continued
from specchat.app.errors import UsageError
from specchat.app.sanitize import escape_controls
from specchat.app.settings.settings import NO_SWITCH, Settings
from specchat.engine import PartKind
from specchat.engine.models import downloads

if TYPE_CHECKING:
    from specchat.app.cli.tools import OfferedTools
    from specchat.app.sources.attached import AttachedEngine
    from specchat.engine.tools.beams import FoundBeams

_CUT = (engine.FinishReason.LENGTH, engine.FinishReason.CONTEXT)
_POLL_S = 0.05
_WIDTH = 100
"""Columns of a line about a beam, outside a terminal."""


def answer(
    question: Question,
    options: Mapping[str, object],
    *,
    as_json: bool,
    trace: Path | None,
    attach: str | None = None,
    offered: OfferedTools | None = None,
) -> bool:
    """Load the model or attach to the server at this address, ask, and print. Returns whether ctrl+c ended the reply.

    Raises:
        AppError, EngineError: a sentence for the user; nothing else was printed.
    """
    settings = effective_settings(options, profiled=attach is None)
    prompt, attachments, turn = question.prompt(), question.attachments(), question.stored_turn()
    if turn is None:
        messages = question.messages(prompt, attachments)
    else:
        messages = turn.messages(prompt, attachments)
        if options.get("thinking") is None:
            settings = settings.with_thinking(turn.thinking)
    question.request(settings, messages)  # refused before the models are loaded
    source = attached(attach, options.get("target")) if attach else make_engine(settings)
    with engine.TraceWriter(trace) if trace else nullcontext() as writer, source:
        ready = load(source)
        settings = settings.with_model(ready.sampling)
        request = question.request(settings, messages)
        if offered is not None:
            request = replace(request, tools=offered.tools(ready))
        if not ready.conversations:
            request = as_text(request, ready.target)
        if writer:
            writer.write(ready)
        thinks = question.show_thinking

        def new_printer() -> Printer:
            return JsonPrinter(ready, settings) if as_json else text_printer(thinking=thinks, ready=ready)

        printer = new_printer()
        if options.get("thinking") is not None and not ready.thinking_switch:
            printer.note(NO_SWITCH.format(ready.target))
        if not attach and (notice := settings.context_notice(ready)):
            printer.note(notice)
        if turn is not None:
            turn.begin(ready.target if attach else settings.target)
        while True:
            ended, reply = _stream(source, request, printer, writer, turn)
            if request.constraint and ended.reason in _CUT:
                limit = "by the end of the context"
                if ended.reason is engine.FinishReason.LENGTH:
                    limit = f"at {request.max_tokens} tokens (--max-tokens)"
                printer.note(f"the reply was cut off {limit} and is not complete")
            if offered is None or not reply.parts_of(PartKind.CALL) or ended.reason not in COMPLETE:
                return ended.reason is engine.FinishReason.CANCELLED
            results = offered.results(request, reply)
            if turn is not None:
                turn.follow(results)
            request = continued(request, reply, results)
            printer = new_printer()


def as_text(request: engine.Request, target: str) -> engine.Request:
    """The request for a target that reads one text (an encoder-decoder): the question without a chat template.

    Raises:
        UsageError: the request has more than one message.
    """
    if len(request.messages) > 1:
        raise UsageError(f"{target} reads one text and nothing before it: leave --system, --chat and --continue out")
    return replace(request, messages=(), prompt=request.messages[0].content)


def attached(url: str, model: object = None) -> AttachedEngine:
    """The server at this address as an engine, with the model of this name, if any.

    Raises:
        EngineError: it is not an address.
    """
    from specchat.app.sources.attached import AttachedEngine

    return AttachedEngine(url, os.environ.get("SPECCHAT_API_KEY"), None if model is None else str(model))


def make_engine(settings: Settings) -> engine.Engine:
    """An engine for these settings; stderr states what it will download.

    Raises:
        EngineError: the hub does not answer, or has no such model.
    """
    config = settings.engine_config(engine.models_folder())
    for name, size in downloads(config).items():
        warn(f"downloading {name}: {engine.size_text(size)}")
    return engine.Engine(config)


def load(source: engine.Engine | AttachedEngine) -> engine.Ready:
    """Wait until an engine that has been started is loaded; a terminal shows the progress."""
    with StatusLine() as line:
        while True:
            match source.outbox.get(_POLL_S):
                case engine.Loading() as loading:
                    line.show(loading)
                case engine.Ready() as ready:
                    return ready
                case engine.Died(message=message):
                    raise engine.EngineError(message)


def _stream(
    source: engine.Engine | AttachedEngine,
    request: engine.Request,
    printer: Printer,
    writer: engine.TraceWriter | None,
    turn: StoredTurn | None,
) -> tuple[engine.Finished, engine.Message]:
    """Print one reply; return how it ended, and its message.

    Raises:
        EngineError: it failed; what there is of it is printed.
    """
    outbox = engine.Outbox()
    said: list[engine.MessagePart] = []
    if writer:
        writer.write(request)
    source.submit(request, outbox)
    with _interruptions() as interrupted:
        cancelled = False
        while True:
            event = outbox.get(_POLL_S)
            if interrupted.is_set() and not cancelled:
                cancelled = True
                source.cancel(request.request_id)
            for told in source.outbox.drain():
                if isinstance(told, engine.Notice):
                    printer.note(told.text)
            if event is None:
                continue
            if writer:
                writer.write(event)
            if turn is not None:
                turn.add(event)
            if isinstance(event, engine.Round | engine.Finished):
                said += parts_of(event)
            match event:
                case engine.Admitted() | engine.Round() | engine.Totals():
                    printer.add(event)
                case engine.Notice(text=text):
                    printer.note(text)
                case engine.Finished():
                    failed = event.reason is engine.FinishReason.ERROR
                    reply = engine.Message("assistant", parts=joined(said))
                    if reply.parts or not failed:
                        printer.finish(event)
                    if failed:
                        raise engine.EngineError(event.message)
                    return event, reply


@contextmanager
def _interruptions() -> Iterator[threading.Event]:
    """The first ctrl+c sets the event, which cancels the reply; the second one ends the program."""
    interrupted = threading.Event()

    def note(_number: int, _frame: object) -> None:
        if interrupted.is_set():
            raise KeyboardInterrupt
        interrupted.set()

    before = signal.signal(signal.SIGINT, note)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, before)


def answer_with_beams(question: Question, options: Mapping[str, object], beams: int, *, as_json: bool) -> None:
    """Search for the beams and print them: the best text on stdout, a table of all of them on stderr.

    Args:
        question: the question.
        options: options of the settings that were given.
        beams: number of beams.
        as_json: whether one JSON object is printed instead.

    Raises:
        AppError, EngineError: a sentence for the user; nothing was printed.
    """
    settings = effective_settings(options)
    request = question.request(settings, question.messages(question.prompt(), question.attachments()))
    from specchat.engine.tools.beams import find_beams

    with StatusLine() as line:
        found = find_beams(
            settings.engine_config(engine.models_folder()),
            request,
            beams,
            lambda stage, text, fraction: line.show(engine.Loading(stage, text, fraction, 0.0)),
        )
    for text in found.notices:
        warn(text)
    if options.get("thinking") is not None and not found.thinking_switch:
        warn(NO_SWITCH.format(found.target))
    if as_json:
        print(json.dumps(found.json()))
        return
    best = found.beams[0]
    text_printer().finish(engine.Finished("ask", best.finish_reason, best.text, "", 0.0))
    print("\n".join(_beam_table(found)), file=sys.stderr)


def _beam_table(found: FoundBeams) -> list[str]:
    """A line for each beam, cut to the terminal's width, and a summary of the search."""
    from rich.text import Text

    columns = shutil.get_terminal_size((_WIDTH, 24)).columns
    lines = ["", "beam  log p per token  tokens  end      text"]
    for number, beam in enumerate(found.beams, 1):
        text = escape_controls(" ".join(beam.text.split()))
        line = Text(f"{number:>4}  {beam.score:>15.4f}  {len(beam.token_ids):>6}  {beam.finish_reason:<7}  {text}")
        line.truncate(columns, overflow="ellipsis")
        lines.append(line.plain)
    return [*lines, "", found.summary()]
