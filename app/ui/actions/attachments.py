"""What is sent along with prompts: attach a file, list, open, expand, remove; and how full the context is with it."""

from __future__ import annotations

from pathlib import Path

from specchat.app.chat.attachments import file_attachment
from specchat.app.chat.tray import mention
from specchat.app.errors import AppError
from specchat.app.settings.controls import BY_NAME
from specchat.app.storage.attachments import PASTE, Attachment
from specchat.app.ui.actions.scope import ActionScope
from specchat.app.ui.actions.settings import SettingsActions
from specchat.app.ui.background import run_in_background
from specchat.app.ui.notices import say
from specchat.app.ui.screens.attachments import AttachmentAction, AttachmentScreen, AttachmentsScreen
from specchat.app.ui.screens.context import ContextScreen


class AttachmentActions:
    """What the app does with attachments.

    Args:
        scope: What it acts on.
        settings: Changes what happens when the context is full.
    """

    def __init__(self, scope: ActionScope, settings: SettingsActions) -> None:
        self._scope = scope
        self._settings = settings

    def attach(self, typed: str) -> bool:
        """`/attach PATH`: name the file in the prompt; whether it can be sent along."""
        name = typed.strip().strip('"')
        try:
            file_attachment(name, Path(name).expanduser())
        except (AppError, RuntimeError) as error:
            say(self._scope.app, str(error), "error")
            return False
        self._scope.screen.put(f"{mention(name)} ")
        return True

    def show(self) -> None:
        """List what is attached to this prompt and to earlier ones."""
        run_in_background(self._scope.app, self._show, "asking")

    def open(self, attachment: Attachment) -> None:
        """Show the text of one."""
        self._scope.app.push_screen(AttachmentScreen(attachment))

    def context(self) -> None:
        """Show how full the context is, and let what happens then be chosen."""
        run_in_background(self._scope.app, self._context, "asking")

    async def _show(self) -> None:
        unsent, turns = self._scope.screen.writing.attached, self._scope.screen.conversation.turns
        sent = [(n, one) for n, turn in enumerate(turns, start=1) for one in turn.attachments]
        if not unsent and not sent:
            say(
                self._scope.app,
                "nothing is attached: @PATH in a prompt, or /attach PATH, sends a file along",
                "warning",
            )
            return
        wanted = await self._scope.app.push_screen_wait(AttachmentsScreen(unsent, sent[::-1]))
        if wanted is None:
            return
        action, place = wanted
        one = [*unsent, *(one for _, one in sent[::-1])][place]
        match action:
            case AttachmentAction.OPEN:
                self.open(one)
            case AttachmentAction.EXPAND if one.kind == PASTE:
                self._scope.screen.writing.expand_paste(one)
            case AttachmentAction.EXPAND:
                say(self._scope.app, f"{one.name} is a file: enter opens it", "warning")
            case AttachmentAction.REMOVE:
                self._scope.screen.writing.detach(one)

    async def _context(self) -> None:
        gauge = self._scope.screen.writing.gauge
        chosen = await self._scope.app.push_screen_wait(ContextScreen(gauge.usage, gauge.when_full))
        if chosen is not None and chosen != gauge.when_full:
            self._settings.change(BY_NAME["when_full"], chosen)
            gauge.show()
