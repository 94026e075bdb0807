"""`specchat import`: chats from files of specchat, ChatGPT and Open WebUI."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from specchat.app.errors import UsageError
from specchat.app.paths import database_file
from specchat.app.sanitize import escape_controls


def import_chats(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE", help="specchat export --format json, ChatGPT's conversations.json, Open WebUI's export."
        ),
    ],
) -> None:
    """Add the chats of other programs' exports; whole chats come in, the rest is named."""
    from specchat.app.chat.chat_import import read_chats
    from specchat.app.storage.store import Store

    read = []
    for file in files:
        try:
            text = file.read_text(encoding="utf-8-sig", errors="replace")
        except OSError as error:
            raise UsageError(f"{file} cannot be read: {error.strerror or error}") from error
        read.append((file, *read_chats(text)))
    with Store(database_file()) as store:
        if store.notice:
            print(f"specchat: {escape_controls(store.notice)}", file=sys.stderr)
        store.import_chats([chat for _, chats, _ in read for chat in chats])
    for file, chats, problems in read:
        for problem in problems:
            print(f"specchat: {escape_controls(f'{file}: {problem}')}", file=sys.stderr)
        print(f"{len(chats)} chat{'' if len(chats) == 1 else 's'} imported from {escape_controls(str(file))}")
    if not any(chats for _, chats, _ in read):
        raise UsageError("nothing was imported")
