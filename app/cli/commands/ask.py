"""`specchat ask`: one question, one reply, on stdout."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from specchat.app.cli.printers import JsonPrinter, Printer, text_printer
from specchat.app.cli.status_line import StatusLine
from specchat.app.errors import UsageError
from specchat.app.paths import settings_file
from specchat.app.sanitize import clean_prompt, escape_controls
from specchat.app.settings.settings import load_settings
from specchat.engine import (
    Admitted,
    Died,
    Engine,
    EngineError,
    Finished,
    FinishReason,
    Loading,
    Message,
    Notice,
    Outbox,
    Ready,
    Request,
    Round,
    TraceWriter,
    models_folder,
)

LONGEST_INPUT = 16 << 20
"""Bytes of stdin that are read: far more than any context holds."""
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked, as the command line gave it."""

    text: str | None
    system: str | None
    stop: tuple[str, ...]
    logit_bias: tuple[tuple[int, float], ...]
    """Token ids, and what is added to their logits."""

    def messages(self) -> tuple[Message, ...]:
        """The conversation to send; text waiting on stdin is added behind the question.

        Raises:
            UsageError: there is no question.
        """
        parts = [clean_prompt(self.text or ""), clean_prompt(_piped())]
        content = "\n\n".join(part for part in parts if part.strip())
        if not content:
            raise UsageError('there is nothing to ask: give a question, specchat ask "…", or text on stdin')
        system = (Message("system", clean_prompt(self.system)),) if self.system else ()
        return (*system, Message("user", content))


def answer(question: Question, options: Mapping[str, object], *, as_json: bool, trace: Path | None) -> bool:
    """Load the model, ask, print. Returns whether ctrl+c ended the reply.

    Raises:
        AppError, EngineError: a sentence for the user; nothing more is printed then.
    """
    settings, notice = load_settings(settings_file(), options)
    if notice:
        print(f"specchat: {escape_controls(notice)}", file=sys.stderr)
    request = settings.request("ask", question.messages(), tuple(clean_prompt(text) for text in question.stop))
    request = replace(request, sampling=replace(request.sampling, logit_bias=question.logit_bias))
    with TraceWriter(trace) if trace else nullcontext() as writer:
        engine = Engine(settings.engine_config(models_folder()))
        try:
            ready = load(engine)
        except BaseException:
            engine.close(timeout=0)  # what loads cannot be hurried
            if trace:
                trace.unlink()  # nothing is in it yet, and the same command has to work again
            raise
        try:
            if writer:
                writer.write(ready)
                writer.write(request)
            printer = JsonPrinter(ready, settings) if as_json else text_printer()
            return _stream(engine, request, printer, writer)
        finally:
            engine.close()


def _piped() -> str:
    """Text waiting on stdin; nothing where a person sits at it."""
    if sys.stdin is None or sys.stdin.isatty():
        return ""
    data = sys.stdin.buffer.read(LONGEST_INPUT + 1)
    if len(data) > LONGEST_INPUT:
        raise UsageError(f"the text on stdin is longer than {LONGEST_INPUT >> 20} MiB: no context holds that")
    return data.decode("utf-8", "replace")


def load(engine: Engine) -> Ready:
    """Start the engine and wait until it is loaded, with a line on a terminal that says how far it is."""
    engine.start()
    with StatusLine(sys.stderr) as line:
        while True:
            match engine.outbox.get(_POLL_S):
                case Loading() as loading:
                    line.show(loading)
                case Ready() as ready:
                    return ready
                case Died(message=message):
                    raise EngineError(message)


def _stream(engine: Engine, request: Request, printer: Printer, writer: TraceWriter | None) -> bool:
    outbox = Outbox()
    engine.submit(request, outbox)
    with _interruptions() as interrupted:
        cancelled = False
        while True:
            event = outbox.get(_POLL_S)
            if interrupted.is_set() and not cancelled:
                cancelled = True
                engine.cancel(request.request_id)
            for said in engine.outbox.drain():
                if isinstance(said, Notice):
                    printer.note(said.text)
            if event is None:
                continue
            if writer:
                writer.write(event)
            match event:
                case Admitted() | Round():
                    printer.add(event)
                case Notice(text=text):
                    printer.note(text)
                case Finished(reason=FinishReason.ERROR, message=message):
                    printer.abandon()
                    raise EngineError(message)
                case Finished():
                    printer.finish(event)
                    return event.reason is FinishReason.CANCELLED


@contextmanager
def _interruptions() -> Iterator[threading.Event]:
    """Ctrl+c sets the event, so that the reply can be ended in order; a second one ends the program."""
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
