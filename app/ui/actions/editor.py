"""The prompt in an editor of the user's own."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from pathlib import Path

from textual.app import SuspendNotSupported

from specchat.app.chat.attachments import read_text_file
from specchat.app.errors import AppError, UsageError
from specchat.app.ui.actions.scope import ActionScope
from specchat.app.ui.event_loop import release_core
from specchat.app.ui.notices import say

NAMES = ("VISUAL", "EDITOR")
UNNAMED = "no editor is named: set VISUAL or EDITOR, for example with export EDITOR=nano"


class EditorActions:
    """Hands the prompt to the editor, and takes it back."""

    def __init__(self, scope: ActionScope) -> None:
        self._scope = scope

    def edit(self) -> None:
        """Edit the prompt; where that fails it stays, and one sentence says why."""
        before = self._scope.screen.typed
        try:
            after = self._edited(before, editor())
        except SuspendNotSupported:
            say(self._scope.app, "an editor cannot take over the screen here: write in the composer", "warning")
        except AppError as error:
            say(self._scope.app, f"{error} · the prompt is as it was", "error")
        else:
            if after == before:
                say(self._scope.app, "the editor changed nothing")
            else:
                self._scope.screen.put(after)

    def _edited(self, text: str, command: list[str]) -> str:
        """What the editor makes of a text, in a file that only its owner can read.

        Raises:
            UsageError: the editor cannot be run, failed, or left no text.
            SuspendNotSupported: there is no terminal to hand over.
        """
        with tempfile.TemporaryDirectory(prefix="specchat-") as folder:
            path = Path(folder) / "prompt.md"
            path.touch(0o600)
            path.write_text(text, encoding="utf-8", errors="replace", newline="\n")
            try:
                with self._scope.app.suspend():
                    release_core()
                    code = subprocess.run([*command, str(path)], check=False).returncode
            except OSError as error:
                raise UsageError(f"{command[0]} cannot be run: {error.strerror or error}") from None
            if code:
                raise UsageError(f"{command[0]} ended with status {code}")
            if not path.exists():
                raise UsageError(f"{command[0]} left no file")
            return read_text_file(path, f"what {command[0]} left").removesuffix("\n")


def editor() -> list[str]:
    """The editor's command line.

    Raises:
        UsageError: none is named, or its name cannot be read.
    """
    name, line = next(((name, os.environ[name]) for name in NAMES if os.environ.get(name, "").strip()), ("", ""))
    if not name:
        raise UsageError(UNNAMED)
    try:
        command = shlex.split(line, posix=os.name == "posix")
    except ValueError as error:
        raise UsageError(f"{name} is {line!r}, which is no command line ({error})") from None
    if not command:
        raise UsageError(UNNAMED)
    return command
