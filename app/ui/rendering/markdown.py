"""Renders blocks of Markdown to lines; without markup of Rich, pictures, and links other than web and mail."""

from collections.abc import Callable, Iterator, Sequence
from itertools import count

from markdown_it.token import Token
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import CodeBlock, Heading, Markdown
from rich.segment import Segment
from rich.style import Style
from rich.syntax import Syntax
from rich.theme import Theme
from textual.strip import Strip

from specchat.app.chat.markdown import Part
from specchat.app.sanitize import opens_safely
from specchat.app.ui.rendering.styles import TranscriptStyles

COPY = "copy"


class _LeftHeading(Heading):
    """Rich centres headings and draws a box around the first; in a chat they are lines like others."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.text.justify = "left"
        yield self.text


class _NumberedCode(CodeBlock):
    """Code with its language and the way to copy it in the empty line above it."""

    number: int
    label: Callable[[int], Style]

    @classmethod
    def create(cls, markdown: Markdown, token: Token) -> CodeBlock:
        assert isinstance(markdown, _Markdown)
        code = super().create(markdown, token)
        assert isinstance(code, _NumberedCode)
        code.number, code.label = next(markdown.numbers), markdown.label
        return code

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        code = Syntax(str(self.text).rstrip(), self.lexer_name, theme=self.theme, word_wrap=True, padding=1)
        lines = console.render_lines(code, options)
        language = "" if self.lexer_name == "text" else f"{self.lexer_name} · "
        words = f"{language}{COPY} {self.number} "
        ground = next((part.style for part in lines[0] if part.style), Style())
        room = options.max_width - len(words)
        if room > 0:
            lines[0] = [Segment(" " * room, ground), Segment(words, ground + self.label(self.number))]
        for line in lines:
            yield from line
            yield Segment.line()


class _Markdown(Markdown):
    """Tokens that have been parsed already."""

    elements = Markdown.elements | {"heading_open": _LeftHeading, "fence": _NumberedCode, "code_block": _NumberedCode}

    def __init__(self, tokens: Sequence[Token], theme: str, first_code: int, label: Callable[[int], Style]) -> None:
        super().__init__("", code_theme=theme, inline_code_theme=theme)
        self.parsed = list(_readable(tokens))
        self.label = label
        self.numbers = count(first_code)
        """Numbers of its code blocks."""


class MarkdownRenderer:
    """Renders blocks at one width.

    Args:
        console: Measures and styles.
        width: Cells of a line.
        styles: Of the transcript.
        dark: Whether the theme is.
        copy: The action that copies a code block, by its number.
    """

    def __init__(
        self, console: Console, width: int, styles: TranscriptStyles, *, dark: bool, copy: Callable[[int], str]
    ) -> None:
        self._console = console
        self._options = console.options.update(width=width, height=None)
        self._styles = styles
        self._theme = _theme(styles)
        self._code_theme = "github-dark" if dark else "friendly"
        self._copy = copy

    def strips(self, part: Part, first_code: int) -> list[Strip]:
        """The lines of a block, whose code blocks are numbered from here on; without the empty ones around it."""
        document = _Markdown(part.tokens, self._code_theme, first_code, self._label)
        with self._console.use_theme(self._theme):
            lines = self._console.render_lines(document, self._options, style=self._styles["text"], pad=False)
        strips = [Strip(Segment.simplify(map(_clickable, line))) for line in lines]
        while strips and self._is_empty(strips[-1]):
            strips.pop()
        while strips and self._is_empty(strips[0]):
            strips.pop(0)
        return strips

    def _is_empty(self, strip: Strip) -> bool:
        """Whether a line has neither text nor a background, as code has."""
        ground = self._styles["text"].bgcolor
        return not strip.text.strip() and all(not part.style or part.style.bgcolor in (None, ground) for part in strip)

    def _label(self, number: int) -> Style:
        return Style(color=self._styles["link"].color, meta={"@click": self._copy(number)})


def _clickable(part: Segment) -> Segment:
    """A link to open with a click, instead of one that the terminal would be told of."""
    text, style, control = part
    if style is None or not style.link:
        return part
    target, plain = style.link, style.update_link(None)
    safe = opens_safely(target)
    return Segment(text, plain + Style(meta={"@click": f"open_link({target!r})"}) if safe else plain, control)


def _readable(tokens: Sequence[Token]) -> Iterator[Token]:
    """The tokens as Rich supports them: LaTeX as source, and the address after the text of a link."""
    for token in tokens:
        if token.type == "math_block":
            inline = Token("inline", "", 0, children=[_as_code(token)])
            yield from (Token("paragraph_open", "p", 1), inline, Token("paragraph_close", "p", -1))
        elif token.children:
            yield token.copy(children=list(_readable_inline(token.children)))
        else:
            yield token


def _readable_inline(tokens: Sequence[Token]) -> Iterator[Token]:
    target, said = "", ""
    for token in tokens:
        if token.type.startswith("math"):
            yield _as_code(token)
            continue
        if token.type == "image":  # never fetched: what it shows in words, and where it is
            yield from _readable_inline(_as_link(token))
            continue
        if token.type == "link_open":
            target, said = str(token.attrs.get("href", "")), ""
        elif token.type == "link_close" and said not in (target, target.removeprefix("mailto:")):
            yield Token("text", "", 0, content=f" ({target})")
        said += token.content
        yield token


def _as_link(image: Token) -> Sequence[Token]:
    address = str(image.attrs.get("src", ""))
    words = Token("text", "", 0, content=image.content or "picture")
    return Token("link_open", "a", 1, attrs={"href": address}), words, Token("link_close", "a", -1)


def _as_code(token: Token) -> Token:
    """LaTeX, with the marks around it."""
    closing = token.markup if token.markup.startswith("$") else ""
    return Token("code_inline", "code", 0, content=f"{closing}{token.content}{closing}".strip("\n"))


def _theme(styles: TranscriptStyles) -> Theme:
    accent = Style(color=styles["mark"].color, bold=True)
    quiet = Style(color=styles["figures"].color)
    parts = dict.fromkeys(("h2", "h3", "h4", "item.bullet", "item.number", "table.header"), accent)
    parts |= {"h1": accent + Style(underline=True), "code": Style(color=styles["mark"].color)}
    parts |= {"hr": quiet, "table.border": quiet, "block_quote": quiet + Style(italic=True)}
    return Theme({f"markdown.{part}": style for part, style in {**parts, "link_url": Style(underline=True)}.items()})
