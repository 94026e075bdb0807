"""How full the context is, part by part, and what happens when it is."""

from __future__ import annotations

from typing import ClassVar

from rich.style import Style
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.events import Key
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from specchat.app.chat.context_meter import Usage
from specchat.app.ui.rendering.figures import EMPTY, FULL, GOES, context_rows
from specchat.engine import WHEN_FULL

CELLS = 24
UNKNOWN = "The models are being loaded: how full the context is will be known when they are."


class ContextScreen(ModalScreen[str | None]):
    """Gives what is to happen when the context is full, or None."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"context--full", "context--empty", "context--aside"}
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,alt+c", "dismiss", "close", key_display="esc")]

    def __init__(self, usage: Usage | None, when_full: str) -> None:
        super().__init__()
        self._usage, self._when_full = usage, when_full

    def compose(self) -> ComposeResult:
        """A line for each part, and a list of what can be chosen."""
        with Vertical(id="choice") as frame:
            frame.border_title = "context"
            frame.border_subtitle = f"1–{len(WHEN_FULL)} or enter chooses · esc closes"
            yield Static(id="context-parts")
            yield Static("when it is full", id="context-heading")
            yield OptionList(id="choice-list", compact=True)

    def on_mount(self) -> None:
        """The lines need the theme's styles."""
        self.query_one("#context-parts", Static).update(self._parts())
        options = self.query_one(OptionList)
        aside = self._style("aside")
        for number, name in enumerate(WHEN_FULL, start=1):
            sign = "●" if name == self._when_full else "○"
            line = Text.assemble((f"{number} ", aside), f"{sign} {name:<13}", (GOES[name], aside))
            line.no_wrap, line.overflow = True, "ellipsis"
            options.add_option(Option(line))
        options.highlighted = WHEN_FULL.index(self._when_full)
        options.focus()

    def on_key(self, event: Key) -> None:
        """A number chooses at once."""
        if event.key.isdecimal() and 0 < int(event.key) <= len(WHEN_FULL):
            event.stop()
            self.dismiss(WHEN_FULL[int(event.key) - 1])

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Enter, or a click."""
        self.dismiss(WHEN_FULL[event.option_index])

    def _parts(self) -> Text:
        usage = self._usage
        if usage is None:
            return Text(UNKNOWN, self._style("aside"))
        rows = [(name, tokens) for name, tokens in context_rows(usage)]
        lines = []
        for name, tokens in [*rows, ("context", usage.context)]:
            cells = min(round(CELLS * tokens / usage.context), CELLS)
            bar = (FULL * cells, self._style("full")), (EMPTY * (CELLS - cells), self._style("empty"))
            lines.append(Text.assemble((f"{name:<19}", self._style("aside")), f"{tokens:>9,}  ", *bar))
        if usage.room <= 0:
            lines.append(Text(f"{-usage.room:,} tokens too many" if usage.room else "no room for a reply"))
        return Text("\n", no_wrap=True, overflow="crop").join(lines)

    def _style(self, part: str) -> Style:
        return self.get_component_rich_style(f"context--{part}", partial=True)
