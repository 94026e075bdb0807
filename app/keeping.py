"""The app's part that hands things out: to the clipboard, to files, as pictures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, count
from pathlib import Path

from textual import work
from textual.events import TextSelected

from app.chats import ChatsApp
from app.export import as_json, as_markdown, code_blocks, file_stem
from app.paths import state_folder
from app.picture import conversation_svg
from app.sanitize import visible
from app.screens.choice import ChoiceScreen
from app.slash import COPIES, FORMATS
from app.widgets.transcript import Transcript
from app.written import write_first_free, write_over

COPIED = "clipboard.txt"


class KeepingApp(ChatsApp):
    """What the app does with what was said."""

    target = ""
    pictures: Path | None = None
    """The folder that pictures and exports go to; the current one where there is none."""
    _told_of_selection = False

    # The clipboard

    def copy_to_clipboard(self, text: str) -> None:
        """Hand a text to the terminal, and write it to a file, as nobody can know whether the terminal took it."""
        super().copy_to_clipboard(text)
        self._keep_copy(text)

    @work(thread=True, group="copy", exit_on_error=False)
    def _keep_copy(self, text: str) -> None:
        path = state_folder() / COPIED
        count = f"{len(text):,} character{'' if len(text) == 1 else 's'}".replace(",", " ")
        try:
            write_over(path, text)
        except OSError as error:
            reason = error.strerror or error
            self.call_from_thread(self.say, f"copied {count} (and not to {path}: {reason})")
        else:
            self.call_from_thread(self.say, f"copied {count} · if your terminal did not take them: {path}")

    def on_transcript_copy_wanted(self, event: Transcript.CopyWanted) -> None:
        """A click below a reply."""
        self.copy_to_clipboard(event.reply.text.strip())

    def on_text_selected(self, event: TextSelected) -> None:  # noqa: ARG002 the handler's signature
        """Say once which key copies what was selected with the mouse."""
        if not self._told_of_selection and self.screen.get_selected_text():
            self._told_of_selection = True
            self.say("^c copies what is selected")

    @work(exclusive=True, group="asking", exit_on_error=False)
    async def action_copy(self) -> None:
        """Ask what to copy: the last reply, a code block of it, or the chat."""
        reply, blocks = self._reply_text(), self._blocks()
        if not reply:
            self.say("there is no reply to copy yet", "warning")
            return
        options = [("the last reply", _first_line(reply)), *_named(blocks), ("the whole chat", "as Markdown")]
        texts = [reply, *(code for _, code in blocks), self._markdown()]
        chosen = await self.push_screen_wait(ChoiceScreen("copy", options))
        if chosen is not None:
            self.copy_to_clipboard(texts[chosen])

    def copy_part(self, what: str) -> bool:
        """Copy one of `COPIES`; whether it was understood."""
        if what not in COPIES:
            self.say(f"/copy {what} is not understood: it takes {', '.join(COPIES)}, or nothing for the reply", "error")
            return False
        if not self._reply_text():
            self.say("there is no reply to copy yet", "warning")
        elif what == "code":
            self._copy_code()
        else:
            self.copy_to_clipboard(self._reply_text() if what == "reply" else self._markdown())
        return True

    @work(exclusive=True, group="asking", exit_on_error=False)
    async def _copy_code(self) -> None:
        blocks = self._blocks()
        if not blocks:
            self.say("the last reply has no code block: /copy reply copies all of it", "warning")
            return
        chosen: int | None = 0
        if len(blocks) > 1:
            chosen = await self.push_screen_wait(ChoiceScreen("copy a code block", _named(blocks)))
        if chosen is not None:
            self.copy_to_clipboard(blocks[chosen][1])

    # Files

    def export(self, form: str) -> bool:
        """Write the chat to the first free file name in one of `FORMATS`; whether it was understood."""
        conversation = self.chat_screen.conversation
        if form not in FORMATS:
            self.say(f"/export {form} is not understood: it takes {', '.join(FORMATS)}", "error")
            return False
        if not conversation.turns:
            self.say("there is nothing to export yet", "warning")
            return True
        match form:
            case "md":
                text = self._markdown()
            case "json":
                text = as_json(conversation, self.target)
            case _:
                text = conversation_svg(visible(conversation.title), *self.chat_screen.drawn())
        stem = file_stem(conversation.title)
        names = chain([f"{stem}.{form}"], (f"{stem}-{number}.{form}" for number in count(2)))
        self._write(names, text, "exported", "not exported")
        return True

    def action_save_picture(self) -> None:
        """Write the screen to the first free file name; nothing is ever overwritten."""
        names = (f"specchat-{number}.svg" for number in count(1))
        self._write(names, self.export_screenshot(title="specchat"), "picture saved", "no picture")

    def _write(self, names: Iterable[str], text: str, done: str, failed: str) -> None:
        folder = self.pictures or Path.cwd()
        try:
            path = write_first_free(folder, names, text)
        except OSError as error:
            self.say(f"{failed}: {folder} cannot be written ({error.strerror or error})", severity="error")
        else:
            self.say(f"{done} as {path}")

    def _markdown(self) -> str:
        return as_markdown(self.chat_screen.conversation, self.target)

    def _reply_text(self) -> str:
        """The last reply that has any text."""
        replies = [turn.reply.text for turn in self.chat_screen.conversation.turns if turn.reply is not None]
        return next((text.strip() for text in reversed(replies) if text.strip()), "")

    def _blocks(self) -> list[tuple[str, str]]:
        return code_blocks(self._reply_text())


def _named(blocks: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(f"code {language}".strip(), _first_line(code)) for language, code in blocks]


def _first_line(text: str) -> str:
    line = visible(text.strip().split("\n", 1)[0])
    return line if len(line) <= 60 else line[:59] + "…"
