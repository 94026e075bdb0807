"""A has it, B has not: which of two drafters had each token of a reply that has ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Vertical
from textual.message import Message
from textual.screen import Screen

from specchat.app.chat.second_reading import AlignedReply
from specchat.app.sanitize import escape_controls
from specchat.app.ui.keys import named
from specchat.app.ui.rendering.styles import LETTERS
from specchat.app.ui.screens.choice import ChoiceScreen
from specchat.app.ui.widgets.aligned_tokens import AlignedTokens
from specchat.app.ui.widgets.alignment import AlignmentCard, AlignmentLegend
from specchat.app.ui.widgets.bars import NoticeLine
from specchat.app.ui.widgets.key_bar import KeyBar

if TYPE_CHECKING:
    from specchat.engine.tools.evaluate import Alignment

_READING = "the target reads the reply again, and both draft along …"


class AlignmentScreen(Screen[None]):
    """Reads the reply again whenever another drafter is chosen. Escape leaves.

    Args:
        texts: of the reply's tokens.
        drafters: those that the engine can run.
        chosen: the two that are compared first.
        gamma: draft length that both have.
        begin: begins to read the reply with two drafters.
    """

    HORIZONTAL_BREAKPOINTS = [(0, "-column"), (110, "-columns")]  # noqa: RUF012
    BINDINGS: ClassVar[list[BindingType]] = named(
        "alignment",
        Binding("escape,q", "leave", "back", key_display="esc"),
        Binding("1", "choose(0)", "drafter A"),
        Binding("2", "choose(1)", "drafter B"),
        Binding("x", "swap", "swap"),
        Binding("f12", "app.open('definitions')", "Figures", show=False),
        Binding("question_mark", "app.open('keys')", "keys"),
        Binding("ctrl+s", "app.open('save_picture')", "Save the screen", show=False),
    )

    @dataclass
    class Read(Message):
        """The reply has been read, or cannot be."""

        result: Future[Alignment]

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
        self._reading: Future[Alignment] | None = None
        self._tokens = AlignedTokens(self._texts, id="aligned")
        self._legend = AlignmentLegend(id="alignment-legend")
        self._card = AlignmentCard(id="alignment-card")

    def compose(self) -> ComposeResult:
        """The tokens, and beside them (in a narrow terminal above and below) what there is to say of them."""
        with Container(id="alignment"):
            with Vertical(id="alignment-text") as frame:
                frame.border_title = "A has it, B has not"
                yield self._tokens
            yield self._legend
            yield self._card
        self._legend.border_title, self._card.border_title = "drafters", "token"
        yield NoticeLine()
        yield KeyBar()

    def on_mount(self) -> None:
        """Begin with the drafters that were asked for."""
        self._tokens.focus()
        self._read()

    def on_unmount(self) -> None:
        """Nobody waits any more."""
        if self._reading is not None:
            self._reading.cancel()

    def on_aligned_tokens_moved(self, event: AlignedTokens.Moved) -> None:
        """Another token is looked at."""
        self._card.show(self.aligned, event.place)

    def on_alignment_screen_read(self, event: Read) -> None:
        """Show what came of the latest reading."""
        if event.result is not self._reading or event.result.cancelled():
            return
        error = event.result.exception()
        if error is not None:
            self._show(None, str(error))
        else:
            self._show(AlignedReply(self._texts, event.result.result()))

    def action_leave(self) -> None:
        """Back to the chat."""
        self.dismiss(None)

    def action_choose(self, which: int) -> None:
        """Ask for another drafter in the place of A or of B."""
        self.app.push_screen(
            ChoiceScreen(f"drafter {LETTERS[which]}", [(name, self._role(name)) for name in self._drafters]),
            partial(self._choose, which),
        )

    def action_swap(self) -> None:
        """A for B."""
        self.chosen = self.chosen[1], self.chosen[0]
        self._read()

    def _role(self, name: str) -> str:
        return f"now {LETTERS[self.chosen.index(name)]}" if name in self.chosen else ""

    def _choose(self, which: int, place: int | None) -> None:
        if place is None or self._drafters[place] == self.chosen[which]:
            return
        name, other = self._drafters[place], self.chosen[1 - which]
        if name == other:  # who wants B for A means to swap them
            self.action_swap()
            return
        self.chosen = (name, other) if which == 0 else (other, name)
        self._read()

    def _read(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
        self._show(None, _READING)
        self._reading = reading = self._begin(self.chosen)
        reading.add_done_callback(lambda result: self.post_message(self.Read(result)))

    def _show(self, aligned: AlignedReply | None, instead: str = "") -> None:
        self.aligned = aligned
        self._tokens.show(aligned)
        self._legend.show(self.chosen, aligned, escape_controls(instead))
        self._card.show(aligned, self._tokens.place)
        frame = self.query_one("#alignment-text")
        says = [f"γ {self._gamma}", "read again afterwards"]
        if aligned is not None:
            at = aligned.alignment.temperature
            says.insert(1, f"expected at temperature {at:g}" if at else "greedy")
            if len(aligned.had) < len(self._texts):
                says.append(f"its first {len(aligned.had)} tokens")
        frame.border_subtitle = " · ".join(says)
