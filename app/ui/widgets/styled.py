"""What most widgets of the app have in common that draw themselves."""

from __future__ import annotations

from rich.style import Style
from textual.widget import Widget


class StyledWidget(Widget):
    """A widget that draws itself in the styles of its component classes; its text cannot be selected."""

    ALLOW_SELECT = False

    def style_of(self, name: str) -> Style:
        """The style of a component class."""
        return self.get_component_rich_style(name, partial=True)
