"""Asks which of several things is meant: by number, by arrow keys, by mouse."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.events import Key
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from specchat.app.ui.keys import named


class ChoiceScreen(ModalScreen[int | None]):
    """Gives the place of what was chosen, or None."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"choice--number", "choice--aside"}
    BINDINGS: ClassVar[list[BindingType]] = named("choice", Binding("escape", "dismiss", "cancel", key_display="esc"))

    def __init__(self, title: str, options: Sequence[tuple[str, str]], sentence: str = "") -> None:
        """Make it; each option has a name and something about it that may be empty."""
        super().__init__()
        self._title, self._options, self._sentence = title, options, sentence

    def compose(self) -> ComposeResult:
        """A sentence and the list, in a frame."""
        with Vertical(id="choice") as frame:
            frame.border_title = self._title
            frame.border_subtitle = f"1–{len(self._options)} or enter chooses · esc cancels"
            if self._sentence:
                yield Static(self._sentence, id="choice-sentence", markup=False)
            yield OptionList(id="choice-list", compact=True)

    def on_mount(self) -> None:
        """The lines need the theme's styles."""
        number, aside = (self.get_component_rich_style(f"choice--{part}", partial=True) for part in ("number", "aside"))
        options = self.query_one(OptionList)
        for place, (name, about) in enumerate(self._options, start=1):
            line = Text.assemble((f"{place} ", number), name, "  ", (about, aside), no_wrap=True, overflow="ellipsis")
            options.add_option(Option(line))
        options.highlighted = 0
        options.focus()

    def on_key(self, event: Key) -> None:
        """A number chooses at once."""
        if event.key.isdecimal() and 0 < int(event.key) <= len(self._options):
            event.stop()
            self.dismiss(int(event.key) - 1)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Enter, or a click."""
        self.dismiss(event.option_index)
