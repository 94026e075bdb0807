"""Compares two drafters on a finished reply: which tokens each of them proposes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Container, Vertical

from specchat.app.chat.second_reading import AlignedReply
from specchat.app.sanitize import escape_controls
from specchat.app.settings.controls import gamma_limit
from specchat.app.ui.keys import registered
from specchat.app.ui.screens.dialogs import ChoiceScreen, SubScreen, framed
from specchat.app.ui.widgets.alignment import LETTERS, AlignedTokens, AlignmentCard, AlignmentLegend
from specchat.app.ui.widgets.bars import NoticeLine
from specchat.app.ui.widgets.key_bar import KeyBar

if TYPE_CHECKING:
    from specchat.engine.tools.evaluate import Alignment

_READING = "the target reads the reply again while both drafters draft …"


class AlignmentScreen(SubScreen[None]):
    """Lets the engine read the reply again with the two chosen drafters, and shows who proposed each token.

    Args:
        texts: texts of the reply's tokens.
        drafters: drafters of the engine.
        chosen: the two drafters that are compared first.
        gamma: draft length of both.
        begin: starts the reading with two drafters.
    """

    HORIZONTAL_BREAKPOINTS = [(0, "-column"), (110, "-columns")]  # noqa: RUF012
    BINDINGS = registered(
        "alignment",
        Binding("escape,q", "dismiss", "back", key_display="esc"),
        Binding("1", "choose(0)", "drafter A"),
        Binding("2", "choose(1)", "drafter B"),
        Binding("x", "swap", "swap"),
        Binding("d", "app.run('figures')", "figures", show=False),
        Binding("question_mark", "app.run('keys')", "keys"),
    )

    def __init__(
        self,
        texts: Sequence[str],
        drafters: Sequence[str],
        chosen: tuple[str, str],
        gamma: int,
        begin: Callable[[tuple[str, str]], Future[Alignment]],
    ) -> None:
        super().__init__()
        self.chosen = chosen
        self.aligned: AlignedReply | None = None
        """None until the reply has been read."""
        self._texts = [escape_controls(text) for text in texts]
        self._drafters, self._gamma, self._begin = drafters, gamma, begin
        self._tokens = AlignedTokens(self._texts, self._show_token, id="aligned")
        self._legend = AlignmentLegend(id="alignment-legend")
        self._card = AlignmentCard(id="alignment-card")

    def compose(self) -> ComposeResult:
        """The tokens; next to them (on a narrow screen above and below) drafters and details."""
        with Container(id="alignment"):
            with framed(Vertical(id="alignment-text"), "tokens that A or B proposes", ""):
                yield self._tokens
            yield framed(self._legend, "drafters", "")
            yield framed(self._card, "token", "")
        yield NoticeLine()
        yield KeyBar()

    def on_mount(self) -> None:
        """Begin with the requested drafters."""
        self._tokens.focus()
        self._read()

    def _show_token(self, place: int) -> None:
        self._card.show(self.aligned, place)

    @work(group="asking")
    async def action_choose(self, which: int) -> None:
        """Ask for another drafter A or B; the present other one is swapped."""
        now = {name: f"now {letter}" for name, letter in zip(self.chosen, LETTERS, strict=False)}
        options = [(name, now.get(name, "")) for name in self._drafters]
        place = await self.app.push_screen_wait(ChoiceScreen(f"drafter {LETTERS[which]}", options))
        before, other = self.chosen[which], self.chosen[1 - which]
        if place is None or self._drafters[place] == before:
            return
        wanted = self._drafters[place]
        other = before if wanted == other else other
        self.chosen = (other, wanted) if which else (wanted, other)
        self._read()

    def action_swap(self) -> None:
        """Swap A and B."""
        self.chosen = self.chosen[1], self.chosen[0]
        self._read()

    @work(exclusive=True, group="reading")
    async def _read(self) -> None:
        """Read the reply with the chosen drafters; a reading for others is cancelled."""
        self._show(None, _READING)
        try:
            alignment = await asyncio.wrap_future(self._begin(self.chosen))
        except Exception as error:
            self._show(None, str(error))
        else:
            self._show(AlignedReply(self._texts, alignment))

    def _show(self, aligned: AlignedReply | None, instead: str = "") -> None:
        self.aligned = aligned
        self._tokens.show(aligned)
        self._legend.show(self.chosen, aligned, instead)
        self._card.show(aligned, self._tokens.place)
        frame = self.query_one("#alignment-text")
        says = [gamma_limit(str(self._gamma)), "read again afterwards"]
        if aligned is not None:
            at = aligned.alignment.temperature
            says.insert(1, f"expected at temperature {at:g}" if at else "greedy")
            if len(aligned.had) < len(self._texts):
                says.append(f"its first {len(aligned.had)} tokens")
        frame.border_subtitle = " · ".join(says)
