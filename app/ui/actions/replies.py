"""Actions on replies: copy, open links, switch thinking, and write the chat or the screen to a file."""

import asyncio
from collections.abc import Iterable
from itertools import chain, count

from specchat.app.chat.exchange import FORMATS, as_markdown, file_stem, in_format
from specchat.app.chat.markdown import code_blocks, links
from specchat.app.chat.reply import Reply
from specchat.app.errors import UsageError
from specchat.app.paths import exports_folder, state_folder
from specchat.app.sanitize import escape_controls, opens_safely
from specchat.app.settings.settings import NO_SWITCH, THINKING, thinking_word
from specchat.app.storage.files import write_first_free, write_over
from specchat.app.ui.action_table import COPIES
from specchat.app.ui.actions.scope import ActionGroup, UnavailableError, in_background
from specchat.app.ui.rendering.pictures import conversation_svg
from specchat.engine import make_folder

COPIED = "clipboard.txt"
NOTHING_YET = "there is no reply to copy yet"


class ReplyActions(ActionGroup):
    """Actions on the replies of the open chat. No exported file is ever overwritten."""

    _explained_selection = False

    # Copying

    @in_background("copy")
    async def keep_copy(self, text: str) -> None:
        """Also write a copied text to a file: a terminal does not report whether it took the text."""
        path = state_folder() / COPIED
        size = f"{len(text):,} character{'' if len(text) == 1 else 's'}".replace(",", " ")
        try:
            await asyncio.to_thread(write_over, path, text)
        except OSError as error:
            self._scope.say(f"copied {size}; no copy in {path}: {error.strerror or error}")
        else:
            self._scope.say(f"copied {size} · if they are not in the clipboard: {path}")

    def explain_selection(self) -> None:
        """Say once which key copies text that was selected with the mouse."""
        if not self._explained_selection and self._scope.app.screen.get_selected_text():
            self._explained_selection = True
            self._scope.say("^c copies what is selected")

    @in_background("asking")
    async def ask_copy(self) -> None:
        """Ask what to copy: the last reply, a code block of it, or the chat."""
        reply, blocks = self._last_text(), self._code_of_last()
        texts = [reply, *(code for _, code in blocks), self._chat_text()]
        options = [("the last reply", _first_line(reply)), *_named(blocks), ("the whole chat", "as Markdown")]
        chosen = await self._scope.choose("copy", options)
        if chosen is not None:
            self._scope.app.copy_to_clipboard(texts[chosen])

    def copy(self, what: str) -> None:
        """`/copy`, with one of `COPIES`; by default the reply."""
        what, _, number = (what or "reply").partition(" ")
        if what not in COPIES or (number and (what != "code" or not number.isdecimal())):
            given = f"{what} {number}".strip()
            raise UsageError(f"/copy {given} is not understood: it takes {', '.join(COPIES)}, or nothing for the reply")
        match what:
            case "thinking":
                self._copy_thinking()
            case "code":
                self._copy_code_of_last(int(number or 0))
            case "chat":
                self._last_text()
                self._scope.app.copy_to_clipboard(self._chat_text())
            case _:
                self._scope.app.copy_to_clipboard(self._last_text())

    def copy_code(self, number: int, reply: Reply | None = None) -> None:
        """Copy code block `number` (from 1) of this reply, or of the lowest visible reply that has `number` blocks."""
        replies = [reply] if reply is not None else self._scope.screen.transcript.in_sight
        found = [code_blocks(each.text) for each in replies]
        code = next((blocks[number - 1][1] for blocks in found if len(blocks) >= number), None)
        if code is None:
            most = max(map(len, found), default=0)
            visible = {0: "no code block is", 1: "one code block is"}.get(most, f"{most} code blocks are")
            raise UnavailableError(f"there is no code block {number}: {visible} visible")
        self._scope.app.copy_to_clipboard(code)

    # Links

    def open_link(self, which: str = "") -> None:
        """`/open`: open a link of the visible replies by its number, or ask which one."""
        visible = [link for reply in reversed(self._scope.screen.transcript.in_sight) for link in links(reply.text)]
        found = [address for address in dict.fromkeys(visible) if opens_safely(address)]
        if not which:
            self._ask_link(found)
        elif not which.isdecimal() or not 0 < int(which) <= len(found):
            takes = f"1 to {len(found)}" if found else "the number of a link, and no link is visible"
            raise UsageError(f"/open {which} is not understood: it takes {takes}")
        else:
            self.open_address(found[int(which) - 1])

    def open_address(self, address: str) -> None:
        """Open a web or mail address in the browser; others are refused, because a model wrote them."""
        if not opens_safely(address):
            raise UnavailableError(f"{address} is not opened: only http, https and mailto are")
        self._scope.app.open_url(address)
        self._scope.say(f"opened {address}")

    # Thinking

    def think(self, how: str) -> None:
        """`/thinking`: switch thinking in this chat; without an argument, show the present setting."""
        conversation = self._scope.conversation
        known = self._scope.thinking_values
        if how and how not in known:
            raise UsageError(f"/thinking {how} is not understood: it takes {', '.join(known)}")
        if how:
            conversation.thinking = THINKING[how]
            self._scope.archive.set_options(conversation)
        kept = thinking_word(conversation.thinking)
        if self._scope.loaded.target and not self._scope.loaded.thinking_switch:
            self._scope.say(NO_SWITCH.format(self._scope.loaded.target), "warning")
        elif conversation.thinking is None:
            default = self._scope.requests.settings.thinking if self._scope.requests.settings else kept
            self._scope.say(f"thinking {default}, from the settings · /thinking {'|'.join(known[1:])} for this chat")
        else:
            self._scope.say(f"thinking {kept} in this chat · from the next reply on")

    def switch_thinking(self) -> None:
        """Switch thinking on if it is off, else off."""
        self.think("on" if self._scope.conversation.thinks_in(self._scope.requests.settings) is False else "off")

    # Files

    def export(self, form: str) -> None:
        """`/export`: write the chat in one of `FORMATS`."""
        conversation, target = self._scope.conversation, self._scope.loaded.target
        if form not in FORMATS:
            raise UsageError(f"/export {form} is not understood: it takes {', '.join(FORMATS)}")
        if not conversation.prompts:
            raise UnavailableError("there is nothing to export yet")
        if form == "svg":
            text = conversation_svg(escape_controls(conversation.title), *self._scope.screen.transcript.all_lines())
        else:
            text = in_format(conversation, form, target)
        stem = file_stem(conversation.title)
        names = chain([f"{stem}.{form}"], (f"{stem}-{number}.{form}" for number in count(2)))
        self._write(names, text, "exported", "not exported")

    def save_screen(self) -> None:
        """Write a picture of the screen."""
        names = (f"specchat-{number}.svg" for number in count(1))
        self._write(names, self._scope.app.export_screenshot(title="specchat"), "picture saved", "no picture")

    def _write(self, names: Iterable[str], text: str, done: str, failed: str) -> None:
        """Write a text to the first of these names that is free."""
        folder = self._scope.pictures or exports_folder()
        try:
            make_folder(folder)
            path = write_first_free(folder, names, text)
        except OSError as error:
            self._scope.say(f"{failed}: {folder} cannot be written ({error.strerror or error})", "error")
        else:
            self._scope.say(f"{done} as {path}")

    def _copy_thinking(self) -> None:
        replies = [reply for reply in self._scope.conversation.replies if reply.has_text]
        if not replies:
            raise UnavailableError(NOTHING_YET)
        if not replies[-1].thinking:
            raise UnavailableError("the last reply has no thinking: /copy reply copies it")
        self._scope.app.copy_to_clipboard(replies[-1].thinking)

    @in_background("asking")
    async def _copy_code_of_last(self, number: int) -> None:
        """Copy this code block of the last reply; for 0 the only one, or ask which."""
        blocks = self._code_of_last()
        if not blocks:
            raise UnavailableError("the last reply has no code block: /copy reply copies all of it")
        if number > len(blocks):
            raise UnavailableError(f"the last reply has no code block {number}: it has {len(blocks)}")
        chosen: int | None = max(number - 1, 0)
        if len(blocks) > 1 and not number:
            chosen = await self._scope.choose("copy a code block", _named(blocks))
        if chosen is not None:
            self._scope.app.copy_to_clipboard(blocks[chosen][1])

    @in_background("asking")
    async def _ask_link(self, found: list[str]) -> None:
        if not found:
            raise UnavailableError("no link is visible")
        chosen = await self._scope.choose("open a link", [(escape_controls(address), "") for address in found])
        if chosen is not None:
            self.open_address(found[chosen])

    def _last_text(self) -> str:
        """The last reply with any text.

        Raises:
            UnavailableError: there is none.
        """
        text = self._scope.conversation.last_text()
        if not text:
            raise UnavailableError(NOTHING_YET)
        return text

    def _code_of_last(self) -> list[tuple[str, str]]:
        return list(code_blocks(self._last_text()))

    def _chat_text(self) -> str:
        return as_markdown(self._scope.conversation, self._scope.loaded.target)


def _named(blocks: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Code blocks as options to choose from."""
    return [(f"code {language}".strip(), _first_line(code)) for language, code in blocks]


def _first_line(text: str) -> str:
    line = escape_controls(text.strip().split("\n", 1)[0])
    return line if len(line) <= 60 else line[:59] + "…"
