"""`specchat export`: a stored chat or a trace for other programs, on stdout or in a new file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specchat.app.chat.export import FORMATS, as_json, as_markdown
from specchat.app.cli.commands.screenshot import Theme, known_theme, refuse_existing, write_new
from specchat.app.errors import StoreError, UsageError
from specchat.app.paths import database_file
from specchat.app.sanitize import escape_controls

if TYPE_CHECKING:
    from specchat.app.chat.conversation import Conversation

WIDTH = 100
PERFETTO = "perfetto"


def export(
    chat: Annotated[
        str | None, typer.Argument(metavar="CHAT", help="A part of its title; the newest chat if left out.")
    ] = None,
    form: Annotated[
        str | None, typer.Option("--format", metavar="|".join(FORMATS), help="That of FILE, else md, if left out.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="A new file, instead of stdout.")] = None,
    titles: Annotated[bool, typer.Option("--list", help="Print the titles of all chats, newest first.")] = False,
    trace: Annotated[
        Path | None,
        typer.Option("--trace", metavar="FILE", help="A recorded trace instead of a chat; html or perfetto."),
    ] = None,
    page: Annotated[
        bool, typer.Option("--html", help="A page that replays it in a browser, without a network.")
    ] = False,
    perfetto: Annotated[
        bool, typer.Option("--perfetto", help="Rounds on a line of time, for ui.perfetto.dev.")
    ] = False,
    thinking: Annotated[
        bool, typer.Option("--thinking", help="In Markdown, quote what was thought before each reply.")
    ] = False,
    theme: Theme = None,
) -> None:
    """Write a stored chat as Markdown, JSON (with every round), an SVG picture or a page that replays it."""
    from specchat.app.chat.stored_conversation import stored_conversation
    from specchat.app.cli.kept_reply import found_chat
    from specchat.app.storage.store import Store

    flags = [name for name, given in (("html", page), (PERFETTO, perfetto)) if given]
    if len({*flags, *([form] if form else [])}) > 1:
        raise UsageError("one form at a time: give --html, --perfetto or --format alone")
    chosen = _format(flags[0] if flags else form, out, default="html" if trace else FORMATS[0])
    if trace is not None:
        if chat is not None:
            raise UsageError(f"{chat!r} and --trace are two things to export: name one")
        _write(_traced(trace, chosen), out)
        return
    with Store(database_file()) as store:
        if titles:
            if store.notice:
                print(f"specchat: {escape_controls(store.notice)}", file=sys.stderr)
            for entry in store.chats():
                print(escape_controls(" ".join(entry.title.split())))
            return
        if not store.chats() and store.notice:
            raise StoreError(store.notice)
        entry = found_chat(store, chat)
        conversation = stored_conversation(entry, store.messages(entry.id))
    if out is not None:
        refuse_existing(out)
    _write(_text(conversation, chosen, theme, thinking=thinking), out)


def _write(text: str, out: Path | None) -> None:
    if out is None:
        sys.stdout.write(escape_controls(text) if sys.stdout.isatty() else text)
    else:
        write_new(out, text)
        print(f"exported as {escape_controls(str(out))}", file=sys.stderr)


def _traced(path: Path, form: str) -> str:
    """A trace, as a page or for Perfetto.

    Raises:
        UsageError: it is wanted in another form.
    """
    from specchat.app.chat.trace import Trace

    if form not in ("html", PERFETTO):
        raise UsageError(f"a trace cannot be exported as {form}: give --html or --perfetto")
    trace = Trace.read(path)
    return trace.page() if form == "html" else trace.perfetto()


def _format(form: str | None, out: Path | None, default: str) -> str:
    suffix = out.suffix.removeprefix(".").lower() if out else ""
    chosen = form or {"markdown": "md", "htm": "html"}.get(suffix, suffix) or default
    if chosen not in (*FORMATS, PERFETTO):
        named = f"--format {form}" if form else f"the ending of {out}"
        raise UsageError(f"{named} is not understood: choose --format {', '.join(FORMATS)}")
    return chosen


def _text(conversation: Conversation, form: str, theme: str | None, *, thinking: bool) -> str:
    if form == "svg":
        from specchat.app.ui.headless import chat_svg

        return chat_svg(conversation, WIDTH, known_theme(theme))
    if form == "html":
        from specchat.app.chat.web_page.data import chat_data, render

        return render(chat_data(conversation))
    if form == PERFETTO:
        from specchat.app.chat.trace import as_perfetto

        rounds = [record for turn in conversation.turns if turn.reply for record in turn.reply.own_rounds]
        return as_perfetto(rounds, conversation.title)
    return as_markdown(conversation, "", thinking=thinking) if form == "md" else as_json(conversation, "")
