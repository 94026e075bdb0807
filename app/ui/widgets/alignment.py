"""Two drafters on one reply: its tokens coloured by who matched them, the details of one, and how many each matched."""

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any, ClassVar

from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.binding import Binding, BindingType
from textual.events import Click
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from specchat.app.chat.second_reading import AlignedReply, Had
from specchat.app.ui.keys import registered
from specchat.app.ui.rendering.figures import percent
from specchat.app.ui.rendering.styles import StyledWidget
from specchat.app.ui.rendering.token_lines import END, LINE_END, Piece, TokenLines, draft_text

HAD_STYLES = {had: f"had--{had.value.lower().replace(' ', '-')}" for had in Had}
"""The component class of each class of aligned tokens."""
UNREAD, CURSOR, QUIET = "had--unread", "had--cursor", "had--quiet"
HAD_CLASSES = {*HAD_STYLES.values(), UNREAD, CURSOR, QUIET}
LETTERS = "A", "B"
"""Names of the two drafters."""
ALONE = Had.ONLY_A, Had.ONLY_B
"""The class of the tokens that only one drafter matches."""
BARS = {Had.BOTH: "█", Had.ONLY_A: "▓", Had.ONLY_B: "▒", Had.NEITHER: "░"}
WIDE = 46
"""Cells from which on each drafter has one line."""
MEANING = "A drafter matches a token if its own draft along this reply contains it, as specchat evaluate counts."
_PART = "‥"
"""A token that is no whole character."""
_ORDINALS = "first", "second", "third"


class AlignedTokens(ScrollView, can_focus=True):
    """Text with a cursor on one token; arrows move it, and letters jump to tokens that one drafter alone had."""

    COMPONENT_CLASSES: ClassVar[set[str]] = HAD_CLASSES
    BINDINGS: ClassVar[list[BindingType]] = registered(
        "aligned-tokens",
        Binding("a", "only('only A', 1)", "next only A"),
        Binding("b", "only('only B', 1)", "next only B"),
        Binding("A,shift+a", "only('only A', -1)", "only A before", show=False),
        Binding("B,shift+b", "only('only B', -1)", "only B before", show=False),
        Binding("n", "only('neither', 1)", "next neither", show=False),
        Binding("left", "move(-1)", "token before", show=False),
        Binding("right", "move(1)", "token after", show=False),
        Binding("up", "move_line(-1)", "line above", show=False),
        Binding("down", "move_line(1)", "line below", show=False),
        Binding("home", "move_end(0)", "first token", show=False),
        Binding("end", "move_end(-1)", "last token", show=False),
    )
    ALLOW_SELECT = False

    def __init__(self, texts: Sequence[str], moved: Callable[[int], None], **options: Any) -> None:
        """Show the texts of the reply's tokens, which have no class yet; `moved` is called with the selected token."""
        super().__init__(**options)
        self._moved = moved
        self._signs = [_sign(text, last=place == len(texts) - 1) for place, text in enumerate(texts)]
        self._aligned: AlignedReply | None = None
        self.place = 0
        """The token with the cursor."""
        self._lines = TokenLines(1)

    def show(self, aligned: AlignedReply | None) -> None:
        """Colour the tokens; None shows them without."""
        self._aligned = aligned
        self._wrap()

    def render_line(self, y: int) -> Strip:
        """One line of tokens."""
        width, number = self.scrollable_content_region.width, y + self.scroll_offset.y
        pieces = self._lines.lines[number] if number < len(self._lines.lines) else []
        strip = Strip([Segment(piece.text, self._style(piece)) for piece in pieces])
        return strip.adjust_cell_length(width, self.rich_style)

    def on_click(self, event: Click) -> None:
        """The token below the mouse."""
        if (offset := event.get_content_offset(self)) is not None:
            found = self._lines.token_at(offset.y + self.scroll_offset.y, offset.x, nearest=True)
            if found is not None:
                self.go_to(found)

    def go_to(self, place: int) -> None:
        """Put the cursor on a token and bring that into sight."""
        self.place = min(max(place, 0), max(self._count - 1, 0))
        self._bring_into_sight()
        self.refresh()
        self._moved(self.place)

    def action_only(self, had: str, step: int) -> None:
        """The next token of a class, or the one before."""
        if self._aligned is None:
            return
        found = self._aligned.next(self.place, Had(had), step)
        if found is None:
            self.notify(f"no token {'after' if step > 0 else 'before'} this one that {had} has")
        else:
            self.go_to(found)

    def action_move(self, step: int) -> None:
        """The next token, or the one before."""
        self.go_to(self.place + step)

    def action_move_end(self, which: int) -> None:
        """The first token, or the last."""
        self.go_to(range(self._count)[which] if self._count else 0)

    def action_move_line(self, step: int) -> None:
        """The nearest token on a line above or below."""
        lines = self._lines.lines
        own = [y for y, line in enumerate(lines) if any(piece.token == self.place for piece in line)]
        if not own:
            return
        last = own[-1]  # a token of line ends stands on several
        column = self._lines.column_of(self.place, last)
        others = range(last + 1, len(lines)) if step > 0 else range(last - 1, -1, -1)
        found = (self._lines.token_at(y, column, nearest=True) for y in others)
        if (place := next((token for token in found if token not in (None, self.place)), None)) is not None:
            self.go_to(place)

    @property
    def _count(self) -> int:
        return len(self._signs) if self._aligned is None else len(self._aligned.had)

    def _wrap(self) -> None:
        """Make the lines, and show where the cursor is."""
        read = [UNREAD] * len(self._signs)
        names = read if self._aligned is None else [HAD_STYLES[had] for had in self._aligned.had]
        self._lines = TokenLines(self.scrollable_content_region.width)
        self._lines.append(zip(self._signs, names, strict=False), 0)
        self.virtual_size = Size(self._lines.width, len(self._lines.lines))
        self._bring_into_sight()
        self.refresh()

    on_resize = _wrap

    def _bring_into_sight(self) -> None:
        line, height = self._lines.line_of(self.place), self.scrollable_content_region.height
        if line is not None and not self.scroll_offset.y <= line < self.scroll_offset.y + height:
            self.scroll_to(y=max(line - height // 2, 0), animate=False, immediate=True, force=True)

    def _style(self, piece: Piece) -> Style:
        style = self.get_component_rich_style(piece.fate)
        if piece.blank:
            style += Style(underline=False)
        if piece.token == self.place and self._aligned is not None:
            style += self.get_component_rich_style(CURSOR, partial=True)
        return style


def _sign(text: str, *, last: bool) -> str:
    """A token's text as it is drawn: invisible characters are signs."""
    if not text:
        return END if last else _PART
    return text.replace("\n", f"{LINE_END}\n") if text.strip(" \t") else draft_text(text)


class AlignmentText(StyledWidget):
    """Lines about both drafters; in a wide place fewer and longer ones."""

    COMPONENT_CLASSES: ClassVar[set[str]] = HAD_CLASSES
    aligned: AlignedReply | None = None
    """None until the reply has been read."""

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:  # noqa: ARG002 the base class names them
        """Number of lines at this width."""
        return len(self.text(width).wrap(self.app.console, width))

    def render(self) -> Text:
        """The lines in the present width."""
        return self.text(self.content_size.width)

    def text(self, width: int) -> Text:
        """The lines in this width."""
        raise NotImplementedError

    def style_of(self, name: str | Had) -> Style:
        """The style of a component class, or of a class of tokens."""
        return super().style_of(HAD_STYLES[name] if isinstance(name, Had) else name)


class AlignmentCard(AlignmentText):
    """The token, its class, and a line or two for each drafter."""

    _place = 0

    def show(self, aligned: AlignedReply | None, place: int) -> None:
        """Show a token by its place; nothing where nothing is known yet."""
        self.aligned, self._place = aligned, place
        self.refresh(layout=True)

    def text(self, width: int) -> Text:
        """The token, then A, then B."""
        if (aligned := self.aligned) is None:
            return Text()
        had, text, quiet = aligned.had[self._place], draft_text(aligned.texts[self._place]) or END, self.style_of(QUIET)
        about = f"token {self._place + 1} of {len(aligned.had)}  "
        lines = [Text.assemble((about, quiet), (text, self.style_of(had)), (f"  {had.value}", quiet))]
        names = [figures.drafter for figures in aligned.alignment.figures]
        for drafter, (letter, name) in enumerate(zip(LETTERS, names, strict=True)):
            gap = " " * (max(map(len, names)) - len(name) + 2) if width >= WIDE else "\n  "
            says = self._says(aligned, drafter)
            lines.append(Text.assemble((letter, self.style_of(ALONE[drafter])), f" {name}{gap}", (says, quiet)))
        return Text("\n").join(lines)

    def _says(self, aligned: AlignedReply, drafter: int) -> str:
        """What the drafter proposed for the token, and what became of it."""
        alignment = aligned.alignment
        place = alignment.places[drafter][self._place]
        if not place.offered:
            return "its draft had ended" if place.depth else "drafted nothing"
        names = [draft_text(alignment.names[token]) for token in place.offered]
        if alignment.temperature:
            return f"proposed {_listed(names)} · accepted here with probability {place.beta:.2f}"
        if not place.predicted:
            return f"proposed {_listed(names)}"
        order = _ORDINALS[place.depth] if place.depth < len(_ORDINALS) else f"{place.depth + 1}th"
        others = f" · besides {_listed(names[:-1])}" if len(names) > 1 else ""
        return f"has it, {order} of its draft{others}"


def _listed(names: list[str]) -> str:
    """Tokens in quotation marks, since they begin with spaces."""
    return ", ".join(f"‘{name}’" for name in names)


class AlignmentLegend(AlignmentText):
    """How many tokens each drafter matched, and the shares of the classes."""

    _drafters = "", ""
    _instead = ""

    def show(self, drafters: tuple[str, str], aligned: AlignedReply | None, instead: str = "") -> None:
        """Show figures, or a sentence if they are missing."""
        self._drafters, self.aligned, self._instead = drafters, aligned, instead
        self.refresh(layout=True)

    def text(self, width: int) -> Text:
        """The drafters, the bar, the classes."""
        wide, aligned = width >= WIDE, self.aligned
        drafters = [self._drafter(place, wide=wide) for place in range(2)]
        if aligned is None:
            return Text("\n").join([*drafters, Text(self._instead, self.style_of(QUIET))])
        bar, classes = self._bar(aligned, width), [self._class(aligned, had, column=not wide) for had in Had]
        if not wide:
            return Text("\n").join([*drafters, Text(), bar, *classes, Text(), Text(MEANING, self.style_of(QUIET))])
        rows = [classes] if sum(each.cell_len + 2 for each in classes) <= width + 2 else [classes[:2], classes[2:]]
        return Text("\n").join([*drafters, bar, *(Text("  ").join(row) for row in rows)])

    def _drafter(self, place: int, *, wide: bool) -> Text:
        name = self._drafters[place]
        longest = max(map(len, self._drafters))
        line = Text.assemble((LETTERS[place], self.style_of(ALONE[place])), " ", name.ljust(longest) if wide else name)
        if self.aligned is not None:
            figures = self.aligned.alignment.figures[place]
            had = sum(self.aligned.counts[each] for each in (Had.BOTH, ALONE[place]))
            gap = "  " if wide else "\n  "
            says = f"{gap}τ {figures.tau:.2f} · α {figures.alpha:.2f} · has {had} of {len(self.aligned.had)}"
            line.append(says, self.style_of(QUIET))
        return line

    def _bar(self, aligned: AlignedReply, width: int) -> Text:
        """The shares side by side, as many cells as there are."""
        counts = [aligned.counts[had] for had in Had]
        ends = [round(width * part / sum(counts)) for part in accumulate(counts, initial=0)]
        bar = Text(no_wrap=True)
        for had, (start, end) in zip(Had, pairwise(ends), strict=True):
            bar.append(BARS[had] * (end - start), Style(color=self.style_of(had).color))
        return bar

    def _class(self, aligned: AlignedReply, had: Had, *, column: bool) -> Text:
        count, style = aligned.counts[had], self.style_of(had)
        share = percent(count / len(aligned.had))
        figures = f"{'':{9 - len(had.value)}}{count:>5}{share:>7}" if column else f" {count} {share}"
        return Text.assemble((BARS[had], Style(color=style.color)), " ", (had.value, style), figures)
