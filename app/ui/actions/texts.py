"""System prompts and prompt templates: named texts that are used, changed and saved."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from specchat.app.chat.conversation import Conversation
from specchat.app.errors import AppError
from specchat.app.settings.named_files import NamedTexts, filled, variables
from specchat.app.settings.settings import Settings
from specchat.app.ui.actions.scope import ActionScope
from specchat.app.ui.actions.settings import NOT_KEPT, SettingsActions
from specchat.app.ui.background import run_in_background
from specchat.app.ui.notices import say
from specchat.app.ui.screens.forms import SystemScreen, TemplateScreen

SYSTEM, TEMPLATE = "system prompt", "template"
OFF = "off"


class TextActions:
    """What the app does with named texts.

    Args:
        scope: What it acts on.
        settings: Stores the default.
    """

    def __init__(self, scope: ActionScope, settings: SettingsActions) -> None:
        self._scope = scope
        self.systems: NamedTexts | None = None
        self.templates: NamedTexts | None = None
        self._settings = settings

    def keep_in(self, folder: Path) -> None:
        """Where the named texts are."""
        self.systems = NamedTexts(folder / "system", SYSTEM)
        self.templates = NamedTexts(folder / "templates", TEMPLATE)

    def system(self, name: str) -> bool:
        """`/system` shows it to be changed, `/system NAME` uses a saved one, `/system off` none."""
        if not name:
            run_in_background(self._scope.app, self._edit_system, "asking")
            return True
        try:
            text = "" if name == OFF else self._named(self.systems).read(name)
        except AppError as error:
            say(self._scope.app, str(error), "error")
            return False
        self._use(self._scope.screen.conversation, text)
        return True

    def save_system(self, name: str) -> bool:
        """Save this chat's system prompt under a name."""
        return self._save(
            self.systems, name, self._system, "this chat has no system prompt to save: /system writes one"
        )

    def make_default(self) -> None:
        """Let new chats begin with this chat's system prompt."""
        preferences, settings = self._settings.preferences, self._scope.requests.settings
        if preferences is None or settings is None:
            say(self._scope.app, NOT_KEPT, "warning")
            return
        changed: Settings = settings.with_system(self._system)
        self._scope.requests.settings = changed
        preferences.remember(changed, ["system"])
        say(
            self._scope.app,
            "new chats begin with this system prompt" if self._system else "new chats have no system prompt",
        )

    def template(self, name: str) -> bool:
        """Fill a template's variables in a form; what comes of it stands in the composer."""
        try:
            text = self._named(self.templates).read(name)
        except AppError as error:
            say(self._scope.app, str(error), "error")
            return False
        if variables(text):
            run_in_background(self._scope.app, partial(self._fill, name, text), "asking")
        else:
            self._scope.screen.put(text)
        return True

    def save_template(self, name: str) -> bool:
        """Save the last prompt of this chat as a template."""
        turns = self._scope.screen.conversation.turns
        return self._save(self.templates, name, turns[-1].prompt if turns else "", "this chat has no prompt to save")

    @property
    def _system(self) -> str:
        return self._scope.screen.conversation.system_in(self._scope.requests.settings) or ""

    async def _edit_system(self) -> None:
        conversation = self._scope.screen.conversation
        text = await self._scope.app.push_screen_wait(SystemScreen(self._system))
        if text is not None:
            self._use(conversation, text)

    async def _fill(self, name: str, text: str) -> None:
        values = await self._scope.app.push_screen_wait(TemplateScreen(name, variables(text)))
        if values is not None:
            self._scope.screen.put(filled(text, values))

    def _use(self, conversation: Conversation, text: str) -> None:
        conversation.system = text
        if self._scope.archive is not None:
            self._scope.archive.set_options(conversation)
        self._scope.screen.show_title()
        when = "from the next reply on" if conversation.turns else "in this chat"
        say(self._scope.app, f"system prompt kept · {when}" if text else f"no system prompt · {when}")

    def _save(self, texts: NamedTexts | None, name: str, text: str, empty: str) -> bool:
        try:
            named = self._named(texts)
            if not text:
                raise AppError(empty)
            path = named.save(name, text)
        except AppError as error:
            say(self._scope.app, str(error), "error")
            return False
        say(self._scope.app, f"{name} saved · {path}")
        return True

    def _named(self, texts: NamedTexts | None) -> NamedTexts:
        if texts is None:
            raise AppError(NOT_KEPT)
        return texts
