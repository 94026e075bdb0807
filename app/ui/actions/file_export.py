"""Writing the chat, or a picture of the screen, to a new file."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, count
from pathlib import Path

from specchat.app.chat.export import FORMATS, as_json, as_markdown, file_stem
from specchat.app.chat.web_page.data import chat_data, render
from specchat.app.paths import exports_folder
from specchat.app.sanitize import escape_controls
from specchat.app.storage.files import write_first_free
from specchat.app.ui.actions.scope import ActionScope
from specchat.app.ui.notices import say
from specchat.app.ui.rendering.line_painter import conversation_svg
from specchat.engine import make_folder


class FileExport:
    """What the app writes for other programs. No file is ever overwritten.

    Args:
        scope: What it acts on.
        folder: Where files go; specchat's own folder for None.
    """

    def __init__(self, scope: ActionScope, folder: Path | None) -> None:
        self._scope = scope
        self._folder = folder

    def chat(self, form: str) -> bool:
        """Write the chat to the first free file name in one of `FORMATS`; whether it was understood."""
        conversation = self._scope.screen.conversation
        if form not in FORMATS:
            say(self._scope.app, f"/export {form} is not understood: it takes {', '.join(FORMATS)}", "error")
            return False
        if not conversation.turns:
            say(self._scope.app, "there is nothing to export yet", "warning")
            return True
        match form:
            case "md":
                text = as_markdown(conversation, self._scope.offer.target)
            case "json":
                text = as_json(conversation, self._scope.offer.target)
            case "html":
                text = render(chat_data(conversation, self._scope.offer.target))
            case _:
                text = conversation_svg(escape_controls(conversation.title), *self._scope.screen.drawn())
        stem = file_stem(conversation.title)
        names = chain([f"{stem}.{form}"], (f"{stem}-{number}.{form}" for number in count(2)))
        self._write(names, text, "exported", "not exported")
        return True

    def screen(self) -> None:
        """Write a picture of the screen to the first free file name."""
        names = (f"specchat-{number}.svg" for number in count(1))
        self._write(names, self._scope.app.export_screenshot(title="specchat"), "picture saved", "no picture")

    def _write(self, names: Iterable[str], text: str, done: str, failed: str) -> None:
        folder = self._folder or exports_folder()
        try:
            make_folder(folder)
            path = write_first_free(folder, names, text)
        except OSError as error:
            say(self._scope.app, f"{failed}: {folder} cannot be written ({error.strerror or error})", "error")
        else:
            say(self._scope.app, f"{done} as {path}")
