"""A finished reply as Markdown, rendered to lines."""

from __future__ import annotations

from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import Heading, Markdown
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from rich.theme import Theme
from textual.strip import Strip

from specchat.app.sanitize import escape_controls
from specchat.app.ui.widgets.transcript_styles import TranscriptStyles


class _LeftHeading(Heading):
    """Rich centres headings and draws a box around the first; in a chat they are lines like others."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.text.justify = "left"
        if self.tag == "h1":
            yield Text("")
        yield self.text


class _Markdown(Markdown):
    elements = Markdown.elements | {"heading_open": _LeftHeading}


def markdown_strips(console: Console, text: str, width: int, styles: TranscriptStyles, *, dark: bool) -> list[Strip]:
    """The lines of a Markdown text at a width, without the empty ones around it."""
    theme = "github-dark" if dark else "friendly"
    document = _Markdown(escape_controls(text.strip()), code_theme=theme, inline_code_theme=theme, hyperlinks=False)
    options = console.options.update(width=width, height=None)
    with console.use_theme(_theme(styles)):
        lines = console.render_lines(document, options, style=styles.text, pad=False)
    strips = [Strip(Segment.simplify(line)) for line in lines]
    while strips and not strips[-1].text.strip():
        strips.pop()
    while strips and not strips[0].text.strip():
        strips.pop(0)
    return strips


def _theme(styles: TranscriptStyles) -> Theme:
    accent = Style(color=styles.mark.color, bold=True)
    quiet = Style(color=styles.figures.color)
    return Theme(
        {
            "markdown.h1": accent + Style(underline=True),
            "markdown.h2": accent,
            "markdown.h3": accent,
            "markdown.h4": accent,
            "markdown.item.bullet": accent,
            "markdown.item.number": accent,
            "markdown.hr": quiet,
            "markdown.block_quote": quiet + Style(italic=True),
            "markdown.code": Style(color=styles.mark.color),
            "markdown.table.border": quiet,
            "markdown.table.header": accent,
        }
    )
