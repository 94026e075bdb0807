"""Actions on the prompt: attachments, the context, an external editor, system prompts and templates."""

import os
import shlex
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from textual.app import SuspendNotSupported

from specchat.app.chat.attachments import file_attachment, read_text_file
from specchat.app.chat.constraints import constraint_of
from specchat.app.chat.conversation import Conversation
from specchat.app.chat.tray import begun, mention
from specchat.app.errors import AppError, UsageError, explained
from specchat.app.settings.controls import BY_NAME
from specchat.app.settings.named_files import NamedTexts, filled, variables
from specchat.app.storage.attachments import PASTE, Attachment
from specchat.app.ui.actions.scope import ActionGroup, UnavailableError, in_background
from specchat.app.ui.actions.settings import SettingsActions
from specchat.app.ui.event_loop import release_core
from specchat.app.ui.screens.dialogs import ContextScreen, SystemScreen, TemplateScreen
from specchat.app.ui.screens.lists import AttachmentScreen, AttachmentsScreen
from specchat.engine import WHEN_FULL

OFF = "off"
EDITOR_VARIABLES = ("VISUAL", "EDITOR")
NO_EDITOR = "no editor is set: set VISUAL or EDITOR, for example with export EDITOR=nano"


@dataclass(eq=False)
class PromptActions(ActionGroup):
    """Actions on the prompt that is being written, and on the system prompt of the chat."""

    _controls: SettingsActions

    # Attachments and the context

    def attach(self, typed: str = "") -> None:
        """`/attach PATH`: name the file in the prompt; without a path, begin to name one: tab completes it."""
        composer, name = self._scope.screen.widgets.composer, typed.strip().strip('"')
        if not name:
            row, column = composer.cursor_location
            before = composer.document.get_line(row)[:column]
            self._insert("@" if begun(f"{before}@") == "" else " @")
            return
        try:
            file_attachment(name, Path(name).expanduser())
        except RuntimeError as error:  # a user without a home folder
            raise UsageError(str(error)) from None
        composer.take_back([f"{mention(name)} "])

    @in_background("asking")
    async def attachments(self) -> None:
        """List the attachments of this prompt and of earlier ones."""
        composer, prompts = self._scope.screen.widgets.composer, self._scope.conversation.prompts
        unsent = composer.attached
        sent = [(n, one) for n, prompt in enumerate(prompts, start=1) for one in prompt.attachments][::-1]
        if not unsent and not sent:
            raise UnavailableError("nothing is attached: @PATH in a prompt, or /attach PATH, attaches a file")
        wanted = await self._scope.ask(AttachmentsScreen(unsent, sent))
        if wanted is None:
            return
        action, place = wanted
        one = [*unsent, *(one for _, one in sent)][place]
        if action == "open":
            self.open_attachment(one)
        elif action == "remove":
            composer.detach(one)
        elif one.kind == PASTE:
            composer.put(composer.text.replace(one.name, one.text, 1))
        else:
            raise UnavailableError(f"{one.name} is a file: enter opens it")

    def open_attachment(self, attachment: Attachment) -> None:
        """Show the text of an attachment."""
        self._scope.app.push_screen(AttachmentScreen(attachment))

    def context(self, when_full: str = "") -> None:
        """`/context`: set its size (N) or what happens when it is full; without an argument, show how full it is."""
        if when_full.isdecimal():
            self._controls.change(BY_NAME["context"], when_full)
        elif when_full:
            self._controls.change(BY_NAME["when_full"], when_full)
        else:
            self._show_context()

    @in_background("asking")
    async def _show_context(self) -> None:
        gauge = self._scope.screen.writing.gauge
        chosen = await self._scope.ask(ContextScreen(gauge.usage, gauge.when_full))
        if chosen is not None and WHEN_FULL[chosen] != gauge.when_full:
            self._controls.change(BY_NAME["when_full"], WHEN_FULL[chosen])
            gauge.show()

    # An external editor

    def edit(self) -> None:
        """Open the prompt in the user's editor; if that fails, the prompt is not changed."""
        before = self._scope.screen.typed
        try:
            after = self._edited(before, editor_command())
        except SuspendNotSupported:
            raise UnavailableError("an editor cannot take over the screen here: write in the composer") from None
        except AppError as error:
            raise UsageError(f"{error} · the prompt was not changed") from None
        if after == before:
            self._scope.say("the editor changed nothing")
        else:
            self._scope.screen.put(after)

    def _edited(self, text: str, command: list[str]) -> str:
        """Edit a text in a temporary file that only its owner can read.

        Raises:
            UsageError: the editor cannot be run, failed, or left no text.
            SuspendNotSupported: the app has no terminal that an editor could use.
        """
        with tempfile.TemporaryDirectory(prefix="specchat-") as folder:
            path = Path(folder) / "prompt.md"
            path.touch(0o600)
            path.write_text(text, encoding="utf-8", errors="replace", newline="\n")
            with explained(f"{command[0]} cannot be run"), self._scope.app.suspend():
                release_core()
                code = subprocess.run([*command, str(path)], check=False).returncode
            if code:
                raise UsageError(f"{command[0]} ended with status {code}")
            if not path.exists():
                raise UsageError(f"{command[0]} left no file")
            return read_text_file(path, f"what {command[0]} left").removesuffix("\n")

    # System prompts and templates

    def systems(self) -> list[str]:
        """Possible arguments of `/system`."""
        return [OFF, *(self._scope.preferences.systems.names() if self._scope.preferences else ())]

    def templates(self) -> list[str]:
        """Possible arguments of `/template`."""
        return self._scope.preferences.templates.names() if self._scope.preferences else []

    def system(self, name: str) -> None:
        """`/system` opens this chat's system prompt; `/system NAME` uses a saved one, else the text; off none."""
        if name:
            saved = name != OFF and name in self.systems()
            text = "" if name == OFF else self._scope.stored.systems.read(name) if saved else name
            self._use_system(self._scope.conversation, text)
        else:
            self._edit_system()

    def schema(self, name: str) -> None:
        """`/schema FILE`: the next replies of this chat follow a JSON schema; off: they no longer do."""
        conversation = self._scope.conversation
        if name:
            path = None if name.lower() == OFF else Path(name.strip('"')).expanduser()
            conversation.constraint = constraint_of(schema=read_text_file(path, str(path)) if path else None)
            conversation.constraint_name = path.name if path else ""
            self._scope.screen.widgets.show_frame()
        told = "JSON that follows its schema · /schema off ends that" if conversation.constraint else "free text"
        self._scope.say(f"replies in this chat: {told}")

    def save_system(self, name: str) -> None:
        """Save this chat's system prompt under a name."""
        missing = "this chat has no system prompt to save: /system writes one"
        self._save(self._scope.stored.systems, name, self._present_system, missing)

    def make_default(self) -> None:
        """Use this chat's system prompt for new chats."""
        text = self._present_system
        self._controls.remember(system=text)
        self._scope.say("new chats begin with this system prompt" if text else "new chats have no system prompt")

    def template(self, name: str) -> None:
        """`/template NAME`: put a template into the composer after asking for its variables; else choose."""
        if not name:
            self._choose_template()
            return
        text = self._scope.stored.templates.read(name)
        if variables(text):
            self._fill(name, text)
        else:
            self._insert(text)

    @in_background("asking")
    async def _choose_template(self) -> None:
        missing = "/template-save NAME saves the last prompt as one"
        if name := await self._scope.choose_name("template", self.templates(), missing):
            self.template(name)

    @in_background("asking")
    async def _fill(self, name: str, text: str) -> None:
        values = await self._scope.ask(TemplateScreen(name, variables(text)))
        if values is not None:
            self._insert(filled(text, values))

    def save_template(self, name: str) -> None:
        """Save the last prompt of this chat as a template."""
        prompts, missing = self._scope.conversation.prompts, "this chat has no prompt to save"
        self._save(self._scope.stored.templates, name, prompts[-1].text if prompts else "", missing)

    def _insert(self, text: str) -> None:
        """Insert a text at the cursor of the composer."""
        self._scope.screen.widgets.composer.insert(text, maintain_selection_offset=False)

    @property
    def _present_system(self) -> str:
        return self._scope.conversation.system_in(self._scope.requests.settings) or ""

    @in_background("asking")
    async def _edit_system(self) -> None:
        conversation = self._scope.conversation
        saved = self._scope.preferences.systems if self._scope.preferences else None
        text = await self._scope.ask(SystemScreen(self._present_system, saved))
        if text is not None:
            self._use_system(conversation, text)

    def _use_system(self, conversation: Conversation, text: str) -> None:
        conversation.system = text
        self._scope.archive.set_options(conversation)
        self._scope.screen.widgets.show_frame()
        when = "from the next reply on" if conversation.prompts else "in this chat"
        self._scope.say(f"system prompt set · {when}" if text else f"no system prompt · {when}")

    def _save(self, texts: NamedTexts, name: str, text: str, missing: str) -> None:
        if not text:
            raise UsageError(missing)
        self._scope.say(f"{name} saved · {texts.save(name, text)}")


def editor_command() -> list[str]:
    """The command line of the user's editor.

    Raises:
        UsageError: none is set, or it cannot be parsed.
    """
    lines = ((name, os.environ.get(name, "")) for name in EDITOR_VARIABLES)
    name, line = next(((name, line) for name, line in lines if line.strip()), ("", ""))
    try:
        command = shlex.split(line)
    except ValueError as error:
        raise UsageError(f"{name} is {line!r}, which is not a command line ({error})") from None
    if not command:
        raise UsageError(NO_EDITOR)
    return command
