"""`specchat export`: a stored chat as Markdown, JSON or SVG, on stdout or in a new file."""

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


def export(
    chat: Annotated[
        str | None, typer.Argument(metavar="CHAT", help="A part of its title; the newest chat if left out.")
    ] = None,
    form: Annotated[
        str | None, typer.Option("--format", metavar="|".join(FORMATS), help="That of FILE, else md, if left out.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="A new file, instead of stdout.")] = None,
    titles: Annotated[bool, typer.Option("--list", help="Print the titles of all chats, newest first.")] = False,
    theme: Theme = None,
) -> None:
    """Write a stored chat as Markdown, JSON (with every round) or an SVG picture."""
    from specchat.app.chat.stored_conversation import stored_conversation
    from specchat.app.cli.kept_reply import found_chat
    from specchat.app.storage.store import Store

    chosen = _format(form, out)
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
    text = _text(conversation, chosen, theme)
    if out is None:
        sys.stdout.write(escape_controls(text) if sys.stdout.isatty() else text)
    else:
        write_new(out, text)
        print(f"exported as {escape_controls(str(out))}", file=sys.stderr)


def _format(form: str | None, out: Path | None) -> str:
    suffix = out.suffix.removeprefix(".").lower() if out else ""
    chosen = form or {"markdown": "md"}.get(suffix, suffix) or FORMATS[0]
    if chosen not in FORMATS:
        named = f"--format {form}" if form else f"the ending of {out}"
        raise UsageError(f"{named} is not understood: choose --format {', '.join(FORMATS)}")
    return chosen


def _text(conversation: Conversation, form: str, theme: str | None) -> str:
    if form == "svg":
        from specchat.app.ui.headless import chat_svg

        return chat_svg(conversation, WIDTH, known_theme(theme))
    return as_markdown(conversation, "") if form == "md" else as_json(conversation, "")
