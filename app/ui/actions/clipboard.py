"""Copying replies, code blocks and chats to the clipboard, and to a file beside it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from specchat.app.chat.export import as_markdown
from specchat.app.chat.markdown import code_blocks
from specchat.app.paths import state_folder
from specchat.app.sanitize import escape_controls
from specchat.app.storage.files import write_over
from specchat.app.ui.actions.scope import ActionScope
from specchat.app.ui.background import run_in_background
from specchat.app.ui.notices import say
from specchat.app.ui.screens.choice import ChoiceScreen
from specchat.app.ui.slash import COPIES

COPIED = "clipboard.txt"
NOTHING_YET = "there is no reply to copy yet"


class Clipboard:
    """What the app copies."""

    def __init__(self, scope: ActionScope) -> None:
        self._scope = scope
        self._told_of_selection = False

    def keep(self, text: str) -> None:
        """Write a copied text to a file too: a terminal does not say whether it took it."""
        self._scope.app.run_worker(partial(self._keep, text), thread=True, group="copy", exit_on_error=False)

    def tell_of_selection(self) -> None:
        """Say once which key copies what was selected with the mouse."""
        if not self._told_of_selection and self._scope.app.screen.get_selected_text():
            self._told_of_selection = True
            say(self._scope.app, "^c copies what is selected")

    def ask(self) -> None:
        """Ask what to copy: the last reply, a code block of it, or the chat."""
        run_in_background(self._scope.app, self._ask, "asking")

    def copy(self, what: str) -> bool:
        """Copy one of `COPIES`, the reply if none is named; whether it was understood."""
        what, _, number = (what or "reply").partition(" ")
        if what not in COPIES or (number and (what != "code" or not number.isdecimal())):
            given = f"{what} {number}".strip()
            sentence = f"/copy {given} is not understood: it takes {', '.join(COPIES)}, or nothing for the reply"
            say(self._scope.app, sentence, "error")
            return False
        if what == "thinking":
            self._copy_thinking()
        elif not self._reply:
            say(self._scope.app, NOTHING_YET, "warning")
        elif what == "code":
            run_in_background(self._scope.app, partial(self._copy_code, int(number or 0)), "asking")
        else:
            self._scope.app.copy_to_clipboard(self._reply if what == "reply" else self._chat)
        return True

    def _keep(self, text: str) -> None:
        path = state_folder() / COPIED
        count = f"{len(text):,} character{'' if len(text) == 1 else 's'}".replace(",", " ")
        try:
            write_over(path, text)
        except OSError as error:
            sentence = f"copied {count} (and not to {path}: {error.strerror or error})"
        else:
            sentence = f"copied {count} · if your terminal did not take them: {path}"
        self._scope.app.call_from_thread(say, self._scope.app, sentence)

    async def _ask(self) -> None:
        reply, blocks = self._reply, code_blocks(self._reply)
        if not reply:
            say(self._scope.app, NOTHING_YET, "warning")
            return
        options = [("the last reply", _first_line(reply)), *_named(blocks), ("the whole chat", "as Markdown")]
        texts = [reply, *(code for _, code in blocks), self._chat]
        chosen = await self._scope.app.push_screen_wait(ChoiceScreen("copy", options))
        if chosen is not None:
            self._scope.app.copy_to_clipboard(texts[chosen])

    def _copy_thinking(self) -> None:
        turns = reversed(self._scope.screen.conversation.turns)
        replies = (turn.reply for turn in turns if turn.reply is not None and turn.reply.has_text)
        reply = next(replies, None)
        if reply is None:
            say(self._scope.app, NOTHING_YET, "warning")
        elif thought := reply.thought.split(reply.text)[0]:
            self._scope.app.copy_to_clipboard(thought)
        else:
            say(self._scope.app, "the last reply has no thinking: /copy reply copies it", "warning")

    async def _copy_code(self, number: int) -> None:
        """Copy the code block of this number, or ask which one."""
        blocks = code_blocks(self._reply)
        if not blocks:
            say(self._scope.app, "the last reply has no code block: /copy reply copies all of it", "warning")
            return
        if number > len(blocks):
            say(self._scope.app, f"the last reply has no code block {number}: it has {len(blocks)}", "warning")
            return
        chosen: int | None = max(number - 1, 0)
        if len(blocks) > 1 and not number:
            chosen = await self._scope.app.push_screen_wait(ChoiceScreen("copy a code block", _named(blocks)))
        if chosen is not None:
            self._scope.app.copy_to_clipboard(blocks[chosen][1])

    @property
    def _reply(self) -> str:
        """The last reply that has any text."""
        return self._scope.screen.conversation.last_text()

    @property
    def _chat(self) -> str:
        """The whole chat as Markdown."""
        return as_markdown(self._scope.screen.conversation, self._scope.offer.target)


def _named(blocks: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(f"code {language}".strip(), _first_line(code)) for language, code in blocks]


def _first_line(text: str) -> str:
    line = escape_controls(text.strip().split("\n", 1)[0])
    return line if len(line) <= 60 else line[:59] + "…"
