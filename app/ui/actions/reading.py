"""Reading replies: their thinking, their code blocks, their links."""

from __future__ import annotations

from specchat.app.chat.markdown import code_blocks, links
from specchat.app.chat.reply import Reply
from specchat.app.sanitize import escape_controls, opens_safely
from specchat.app.settings.settings import NO_SWITCH, THINKING
from specchat.app.ui.actions.scope import ActionScope
from specchat.app.ui.background import run_in_background
from specchat.app.ui.notices import say
from specchat.app.ui.screens.choice import ChoiceScreen


class ReadingActions:
    """What the app does for who reads."""

    def __init__(self, scope: ActionScope) -> None:
        self._scope = scope

    def think(self, how: str) -> bool:
        """Switch thinking in this chat; without a word say how it is. Whether it was understood."""
        conversation = self._scope.screen.conversation
        if how and how not in THINKING:
            say(self._scope.app, f"/thinking {how} is not understood: it takes {', '.join(THINKING)}", "error")
            return False
        if how:
            conversation.thinking = THINKING[how]
            if self._scope.archive is not None:
                self._scope.archive.set_options(conversation)
        kept = next(word for word, value in THINKING.items() if value is conversation.thinking)
        if self._scope.offer.target and not self._scope.offer.thinking_switch:
            say(self._scope.app, NO_SWITCH.format(self._scope.offer.target), "warning")
        elif conversation.thinking is None:
            default = self._scope.requests.settings.thinking if self._scope.requests.settings else kept
            say(self._scope.app, f"thinking {default}, as the settings have it · /thinking on|off for this chat")
        else:
            say(self._scope.app, f"thinking {kept} in this chat · from the next reply on")
        return True

    def switch_thinking(self) -> None:
        """On where it is off, off where it is on."""
        self.think("on" if self._scope.screen.conversation.thinks_in(self._scope.requests.settings) is False else "off")

    def copy_code(self, number: int, reply: Reply | None = None) -> None:
        """Copy a code block by its number from 1, of this reply or of the lowest one in sight that has so many."""
        replies = [reply] if reply is not None else self._scope.screen.replies_in_sight
        found = [code_blocks(each.answer) for each in replies]
        code = next((blocks[number - 1][1] for blocks in found if len(blocks) >= number), None)
        if code is not None:
            self._scope.app.copy_to_clipboard(code)
        else:
            most = max(map(len, found), default=0)
            has = "no code block is" if not most else "one code block is" if most == 1 else f"{most} code blocks are"
            say(self._scope.app, f"there is no code block {number}: {has} in sight", "warning")

    def open_link(self, which: str) -> bool:
        """Open a link of the last replies by its number, or ask which one; whether it was understood."""
        if not which:
            run_in_background(self._scope.app, self._ask_link, "asking")
            return True
        found = self._links
        if not which.isdecimal() or not 0 < int(which) <= len(found):
            count = f"1 to {len(found)}" if found else "the number of a link, and there is none in sight"
            say(self._scope.app, f"/open {which} is not understood: it takes {count}", "error")
            return False
        self.open_address(found[int(which) - 1])
        return True

    def open_address(self, address: str) -> None:
        """Hand an address to the browser: pages and mail alone, since a model wrote it."""
        if opens_safely(address):
            self._scope.app.open_url(address)
            say(self._scope.app, f"opened {address}")
        else:
            say(self._scope.app, f"{address} is not opened: only http, https and mailto are", "warning")

    async def _ask_link(self) -> None:
        found = self._links
        if not found:
            say(self._scope.app, "there is no link in sight", "warning")
            return
        names = [(escape_controls(address), "") for address in found]
        chosen = await self._scope.app.push_screen_wait(ChoiceScreen("open a link", names))
        if chosen is not None:
            self.open_address(found[chosen])

    @property
    def _links(self) -> list[str]:
        """Where the links of the replies in sight lead, from top to bottom."""
        found = (link for reply in reversed(self._scope.screen.replies_in_sight) for link in links(reply.answer))
        return [address for address in dict.fromkeys(found) if opens_safely(address)]
