"""`specchat ask`: one question, one reply, on stdout."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from specchat.app.chat.attachments import content_of, file_attachment
from specchat.app.cli.kept_reply import KeptReply, found_chat
from specchat.app.cli.printers import JsonPrinter, Printer, text_printer
from specchat.app.cli.status_line import StatusLine
from specchat.app.errors import UsageError
from specchat.app.paths import config_folder, database_file, settings_file
from specchat.app.sanitize import clean_prompt, escape_controls
from specchat.app.settings.named_files import NamedTexts, filled
from specchat.app.settings.settings import NO_SWITCH
from specchat.app.settings.settings_file import load_settings
from specchat.app.storage.attachments import Attachment
from specchat.app.storage.store import Store
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
    Totals,
    TraceWriter,
    models_folder,
)

if TYPE_CHECKING:
    from specchat.app.sources.attached import AttachedEngine

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
    files: tuple[Path, ...] = ()
    """Texts that the model gets before the question, each under its name."""
    template: str | None = None
    values: tuple[str, ...] = ()
    """NAME=VALUE for the template's variables."""
    chat: str | None = None
    """A part of the title of the chat to go on with."""
    go_on: bool = False
    """Whether to go on with the newest chat."""
    save: bool = False
    """Whether a new chat is kept."""
    show_thinking: bool = False
    """Whether thinking is printed as part of the reply."""

    def instructions(self) -> str:
        """The system prompt."""
        return clean_prompt(self.system or "").strip()

    def prompt(self) -> str:
        """What is asked: the template, the question, and text waiting on stdin.

        Raises:
            AppError: there is no question and no file, or the template cannot be read.
        """
        parts = [self._from_template(), clean_prompt(self.text or ""), clean_prompt(_piped())]
        content = "\n\n".join(part for part in parts if part.strip())
        if not content and not self.files:
            raise UsageError('there is nothing to ask: give a question, specchat ask "…", or text on stdin')
        return content

    def attachments(self) -> tuple[Attachment, ...]:
        """The files.

        Raises:
            UsageError: one cannot be read, is no text, or is too long.
        """
        return tuple(replace(file_attachment(str(path), path), name=path.name, path="") for path in self.files)

    def messages(self, prompt: str, attachments: Sequence[Attachment]) -> tuple[Message, ...]:
        """The instructions, if there are any, and the question with its files."""
        system, asked = self.instructions(), Message("user", content_of(prompt, attachments))
        return (*((Message("system", system),) if system else ()), asked)

    def _from_template(self) -> str:
        if self.template is None:
            if self.values:
                raise UsageError(f"--var {self.values[0]} goes with a template: name one with --template")
            return ""
        values = dict(value.partition("=")[::2] for value in self.values)
        return filled(NamedTexts(config_folder() / "templates", "template").read(self.template), values)

    def kept(self) -> KeptReply | None:
        """The chat that prompt and reply are stored in, if they are to be.

        Raises:
            AppError: there is no such chat, or the store cannot be opened.
        """
        if self.chat is not None and self.go_on:
            raise UsageError("--chat and --continue name two chats: leave one of them out")
        if self.chat is None and not self.go_on:
            return KeptReply(Store(database_file()), None, self.instructions()) if self.save else None
        if self.system:
            raise UsageError("--system goes with a new chat: this one has its own, change it in the app with /system")
        store = Store(database_file())
        return KeptReply(store, found_chat(store, self.chat))


def answer(
    question: Question, options: Mapping[str, object], *, as_json: bool, trace: Path | None, attach: str | None = None
) -> bool:
    """Load the model (or attach to the server of this address), ask, print. Returns whether ctrl+c ended the reply.

    Raises:
        AppError, EngineError: a sentence for the user; nothing more is printed then.
    """
    settings, notice = load_settings(settings_file(), options)
    if notice:
        print(f"specchat: {escape_controls(notice)}", file=sys.stderr)
    prompt, attachments, kept = question.prompt(), question.attachments(), question.kept()
    if kept is not None:
        messages = kept.messages(prompt, attachments)
        if options.get("thinking") is None:
            settings = settings.with_thinking(kept.thinking)
    else:
        messages = question.messages(prompt, attachments)
    request = settings.request("ask", messages, tuple(clean_prompt(text) for text in question.stop))
    request = replace(request, sampling=replace(request.sampling, logit_bias=question.logit_bias))
    with TraceWriter(trace) if trace else nullcontext() as writer:
        engine = attached(attach, options.get("target")) if attach else Engine(settings.engine_config(models_folder()))
        try:
            ready = load(engine)
        except BaseException:
            engine.close(timeout=0)  # what loads cannot be hurried
            if trace:
                trace.unlink()  # nothing is in it yet, and the same command has to work again
            raise
        try:
            if not ready.conversations:
                request = as_text(request, ready.target)
            if writer:
                writer.write(ready)
                writer.write(request)
            printer = JsonPrinter(ready, settings) if as_json else text_printer(thinking=question.show_thinking)
            if options.get("thinking") is not None and not ready.thinking_switch:
                printer.note(NO_SWITCH.format(ready.target))
            return _stream(engine, request, printer, writer, kept)
        finally:
            engine.close()


def as_text(request: Request, target: str) -> Request:
    """The request for a target that reads one text: the question as it is.

    Raises:
        UsageError: it is more than a question.
    """
    if len(request.messages) > 1:
        raise UsageError(f"{target} reads one text and nothing before it: leave --system, --chat and --continue out")
    return replace(request, messages=(), prompt=request.messages[0].content)


def _piped() -> str:
    """Text waiting on stdin; nothing where a person sits at it."""
    if sys.stdin is None or sys.stdin.isatty():
        return ""
    data = sys.stdin.buffer.read(LONGEST_INPUT + 1)
    if len(data) > LONGEST_INPUT:
        raise UsageError(f"the text on stdin is longer than {LONGEST_INPUT >> 20} MiB: no context holds that")
    return data.decode("utf-8", "replace")


def attached(url: str, model: object = None) -> AttachedEngine:
    """The server of this address as the engine, with the model of this name, if one is given.

    Raises:
        EngineError: it is no address.
    """
    from specchat.app.sources.attached import AttachedEngine

    return AttachedEngine(url, os.environ.get("SPECCHAT_API_KEY"), None if model is None else str(model))


def load(engine: Engine | AttachedEngine) -> Ready:
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


def _stream(
    engine: Engine | AttachedEngine,
    request: Request,
    printer: Printer,
    writer: TraceWriter | None,
    kept: KeptReply | None,
) -> bool:
    outbox = Outbox()
    if kept is not None:
        kept.begin()
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
            if kept is not None:
                kept.add(event)
            match event:
                case Admitted() | Round() | Totals():
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
