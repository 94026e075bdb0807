"""Commands on files of chats: `specchat export`, `specchat import` and `specchat screenshot`."""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specchat.app.chat.exchange import FORMATS, in_format
from specchat.app.cli import options
from specchat.app.cli.effective_settings import effective_settings
from specchat.app.cli.options import opt
from specchat.app.cli.progress import warn
from specchat.app.errors import UsageError, explained
from specchat.app.paths import database_file
from specchat.app.storage.files import write_first_free

if TYPE_CHECKING:
    from specchat.app.chat.conversation import Conversation

_WIDTH = 100
_PERFETTO = "perfetto"
_SIZE = "140x40"
_LEAST, _MOST = (48, 12), (500, 300)
_IMPORTED = "specchat export --format json, conversations.json of ChatGPT or Claude, Open WebUI's export."
_SIZE_PATTERN = re.compile(r"(\d{1,4})x(\d{1,4})")


def export(
    chat: Annotated[str | None, typer.Argument(help="Part of the title; default: the newest chat.")] = None,
    form: Annotated[str | None, opt("--format", "|".join(FORMATS), "Default: by the name of FILE, else md.")] = None,
    out: Annotated[Path | None, opt("--out", "FILE", "A new file, instead of stdout.")] = None,
    titles: Annotated[bool, opt("--list", None, "Print the titles of all chats, newest first.")] = False,
    trace: Annotated[Path | None, opt("--trace", "FILE", "A trace instead of a chat; html or perfetto.")] = None,
    page: Annotated[bool, opt("--html", None, "A web page that replays the chat offline.")] = False,
    perfetto: Annotated[bool, opt("--perfetto", None, "A timeline of the rounds for ui.perfetto.dev.")] = False,
    thinking: Annotated[bool, opt("--thinking", None, "In Markdown, quote the thinking of each reply.")] = False,
    theme: options.Theme = None,
) -> None:
    """Write a stored chat as Markdown, JSON (with every round), an SVG picture or a page that replays it."""
    from specchat.app.chat.stored_conversation import stored_conversation
    from specchat.app.cli.question import find_chat
    from specchat.app.storage.store import Store

    flags = [name for name, given in (("html", page), (_PERFETTO, perfetto)) if given]
    if len({*flags, *([form] if form else [])}) > 1:
        raise UsageError("choose one format: give --html, --perfetto or --format alone")
    chosen = _format(flags[0] if flags else form, out, default="html" if trace else FORMATS[0])
    if trace is not None:
        if chat is not None:
            raise UsageError(f"{chat!r} and --trace are two things to export: name one")
        _write(_traced(trace, chosen), out)
        return
    with Store(database_file()) as store:
        if titles:
            warn(store.notice)
            for entry in store.chats():
                print(" ".join(entry.title.split()))
            return
        entry = find_chat(store, chat)
        conversation = stored_conversation(entry, store.messages(entry.id))
    if out is not None:
        refuse_existing(out)
    _write(_text(conversation, chosen, theme, thinking=thinking), out)


def _write(text: str, out: Path | None) -> None:
    if out is None:
        sys.stdout.write(text)
    else:
        write_new(out, text)
        print(f"exported as {out}", file=sys.stderr)


def _traced(path: Path, form: str) -> str:
    """A trace as a page or for Perfetto.

    Raises:
        UsageError: another format is requested.
    """
    from specchat.app.chat.trace import Trace

    if form not in ("html", _PERFETTO):
        raise UsageError(f"a trace cannot be exported as {form}: give --html or --perfetto")
    trace = Trace.read(path)
    return trace.page() if form == "html" else trace.perfetto()


def _format(form: str | None, out: Path | None, default: str) -> str:
    suffix = out.suffix.removeprefix(".").lower() if out else ""
    chosen = form or {"markdown": "md", "htm": "html"}.get(suffix, suffix) or default
    if chosen not in (*FORMATS, _PERFETTO):
        named = f"--format {form}" if form else f"the ending of {out}"
        raise UsageError(f"{named} is not understood: choose --format {', '.join(FORMATS)}")
    return chosen


def _text(conversation: Conversation, form: str, theme: str | None, *, thinking: bool) -> str:
    if form == "svg":
        from specchat.app.ui.headless import chat_svg

        return chat_svg(conversation, _WIDTH, _theme(theme))
    if form == _PERFETTO:
        from specchat.app.chat.trace import as_perfetto

        rounds = [record for reply in conversation.replies for record in reply.own_rounds]
        return as_perfetto(rounds, conversation.title)
    return in_format(conversation, form, thinking=thinking)


def import_chats(
    files: Annotated[list[Path], typer.Argument(metavar="FILE", help=_IMPORTED)],
) -> None:
    """Import chats from exports of this and other programs. Damaged chats are reported and left out.

    A chat that was imported before gets the messages that are new in the file.
    """
    from specchat.app.chat.exchange import read_chats
    from specchat.app.storage import imports
    from specchat.app.storage.store import Store

    read = []
    for file in files:
        with explained(f"{file} cannot be read"):
            text = file.read_text(encoding="utf-8-sig", errors="replace")
        read.append((file, *read_chats(text)))
    with Store(database_file()) as store:
        warn(store.notice)
        outcomes = imports.import_chats(store, [chat for _, chats, _ in read for chat in chats])
    for file, chats, problems in read:
        for problem in problems:
            warn(f"{file}: {problem}")
        counts, outcomes = Counter(outcomes[: len(chats)]), outcomes[len(chats) :]
        found = ", ".join(f"{counts[each]} {each}" for each in imports.Outcome if counts[each])
        known = f" ({found})" if counts[imports.Outcome.NEW] < len(chats) else ""
        print(f"{len(chats)} chat{'' if len(chats) == 1 else 's'} imported from {file}{known}")
    if not any(chats for _, chats, _ in read):
        raise UsageError("nothing was imported")


def screenshot(
    trace: Annotated[Path, typer.Argument(metavar="TRACE", help="A trace that ask --trace recorded.")],
    out: Annotated[Path, opt("--out", "FILE.svg", "The picture; it must not exist yet.")],
    size: Annotated[str, opt("--size", "COLUMNSxLINES", "Size of the terminal.")] = _SIZE,
    theme: options.Theme = None,
) -> None:
    """Draw the end of a recorded trace as an SVG picture, without a terminal and without a model."""
    from specchat.engine import EngineError, read_trace

    columns, lines = _size(size)
    records = list(read_trace(trace))
    if not records:
        raise EngineError(f"{trace} holds no records: there is nothing to show")
    check_picture(out)
    from specchat.app.ui.headless import trace_svg

    write_new(out, trace_svg(records, trace.name, (columns, lines), _theme(theme)))
    print(f"picture saved as {out}")


def _theme(given: str | None) -> str:
    settings = effective_settings()
    return given or options.known_theme(settings.theme) or ""


def refuse_existing(path: Path) -> None:
    """Check that a file does not exist, nor a link of that name.

    Raises:
        UsageError: it does.
    """
    if os.path.lexists(path):
        raise UsageError(f"{path} exists already: name another file")


def check_picture(path: Path) -> None:
    """Check that a picture can be written, before the work on it begins.

    Raises:
        UsageError: it exists, its name does not end in .svg, or its folder does not exist.
    """
    refuse_existing(path)
    if path.suffix.lower() != ".svg":
        raise UsageError(f"the picture {path} would be SVG: give it a name that ends in .svg")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"there is no folder {path.absolute().parent} for the picture {path.name}")


def write_new(path: Path, text: str) -> None:
    """Write a new file.

    Raises:
        UsageError: it exists, or cannot be written.
    """
    refuse_existing(path)
    with explained(f"{path} cannot be written"):
        write_first_free(path.parent, [path.name], text)


def _size(text: str) -> tuple[int, int]:
    found = _SIZE_PATTERN.fullmatch(text)
    columns, lines = (int(found[1]), int(found[2])) if found else (0, 0)
    if not (_LEAST[0] <= columns <= _MOST[0] and _LEAST[1] <= lines <= _MOST[1]):
        least, most = ("x".join(map(str, limit)) for limit in (_LEAST, _MOST))
        raise UsageError(f"--size {text} is not understood: give columns x lines, {least} to {most}, as in {_SIZE}")
    return columns, lines
