"""A reply in a transcript: its tokens by fate, or its Markdown, and the notes below it."""

from collections.abc import Iterator
from itertools import groupby

from rich.cells import cell_len
from rich.segment import Segment
from textual.strip import Strip

from specchat.app.chat.reply import CHOSEN, Reply
from specchat.app.chat.reply_figures import ReplyFigures
from specchat.app.chat.reply_stage import Stage
from specchat.app.settings.settings import FOLD, HIDE, SHOW
from specchat.app.sources.observed import drawn_text
from specchat.app.sources.source import Part
from specchat.app.ui.rendering.block import INDENT, Block, Look
from specchat.app.ui.rendering.live_markdown import LiveMarkdown
from specchat.app.ui.rendering.reply_notes import call_lines, links_width, note_lines, reply_links, thought_title
from specchat.app.ui.rendering.styles import TranscriptStyles, stepped
from specchat.app.ui.rendering.token_lines import FOLDED, TokenLines
from specchat.app.ui.rendering.tool_lines import ToolLines
from specchat.engine import Fate, MessagePart, Round


class ReplyBlock(Block):
    """A reply: its tokens or its Markdown, a line of figures, and an empty line.

    Thinking at its beginning is folded into a title unless `thoughts` are shown. `by_round` gives each round a line of
    its own, as Figure 1 of Leviathan et al. 2023 does, and folds nothing.
    """

    def __init__(self, reply: Reply, width: int, look: Look, markdown: LiveMarkdown | None) -> None:
        super().__init__(width)
        self.reply, self._look = reply, look
        self._unfolded: set[int] = set()
        self._tokens = TokenLines(width - INDENT, rejected=look.rejected)
        self._wrapped_as: tuple[object, ...] | None = None
        """`_wrapping` as of the last update."""
        self._touched = False
        """Whether a token was selected, or a stretch unfolded, since then."""
        self._markdown = markdown
        self._thoughts = look.thoughts
        self._rounds = 0
        self._stepping: tuple[Round, Part] | None = None
        """The round that is being stepped through, as of the last update."""
        self._cursor: int | None = None
        self._stage: tuple[Stage, *tuple[object, ...]] | None = None
        self._figures: ReplyFigures | None = None
        """The figures of the current notes."""
        self._title = ""
        self._notes: list[tuple[str, bool]] = []
        self._calls = ToolLines(width - INDENT, opened=look.thoughts or look.by_round)
        self._called: tuple[tuple[MessagePart, str], ...] = ()

    def update(self) -> int | None:
        """Wrap the new rounds' tokens; everything below the first changed line moves, so it is drawn again."""
        reply, figures = self.reply, self.reply.figures
        if not reply.running or figures is not self._figures:
            self._called = call_lines(reply)
        stopping = reply.stopping or reply.held
        stage = (reply.stage, reply.prefilled[0], stopping, reply.names_model, self._called, self._calls.toggled)
        same_notes = stage == self._stage and figures is self._figures
        same_rounds = len(reply.rounds) == self._rounds and reply.stepping == self._stepping
        behind = self._markdown is not None and self._markdown.behind
        if same_notes and same_rounds and not self._touched and not behind:
            return None
        changed = None
        if self._markdown is not None and reply.has_text:
            changed = self._markdown.update(lambda: reply.text, complete=not reply.running)
            if changed is None and same_notes and not self._touched and not reply.thought.running:
                return None
        self._touched = False
        if self._wrapping != self._wrapped_as or reply.stepping or self._stepping:
            self._wrap_anew()  # also without the tokens of a round that is being stepped through
        dirty = 0 if self._stage is None else self.height - len(self._notes) - 2
        before, self._title = self._title, thought_title(reply, opened=self._thoughts) if self._titled else ""
        if self._title:
            self._tokens.title(self._title)
        for index in range(self._rounds, len(reply.rounds)):
            record, start = reply.rounds[index], reply.starts[index]
            chosen = record.drafter == CHOSEN
            tokens = [(drawn_text(record, each), CHOSEN if chosen else each.fate) for each in record.tokens()]
            for part in self._shown(range(start, start + len(tokens))):
                if reply.thought.ends_at(part.start) and not self._look.by_round:
                    self._tokens.paragraph()
                mine = tokens[part.start - start : part.stop - start]
                self._tokens.append(mine, part.start, alone=self._look.by_round)
        ended = not reply.running and (self._stage is None or self._stage[0] is not reply.stage)
        if ended and reply.tail and self._markdown is None:
            self._tokens.append([(reply.tail, Fate.PLAIN)], reply.tokens, alone=self._look.by_round)
        if reply.stepping is not None and self._shows(reply.tokens):
            self._tokens.append(stepped(*reply.stepping), reply.tokens, alone=self._look.by_round)
        self._rounds, self._stage, self._stepping = len(reply.rounds), stage, reply.stepping
        self._figures = figures
        if changed is not None:
            dirty = min(dirty, self._token_height + changed)
        if not same_notes:
            self._calls.show(self._called)
            notes = note_lines(reply, self.width - INDENT - links_width(reply, forkable=self._look.forkable))
            self._notes = [*((line, False) for line in self._calls.lines), *notes]
        self.height = self._body_height + len(self._notes) + 1
        return 0 if self._title != before else max(dirty, 0)

    def plain(self, y: int, start: int, end: int, styles: TranscriptStyles) -> tuple[str, str]:
        """The reply's own text, without what was rejected and without the ends that only the width makes."""
        if y >= self._token_height:
            return super().plain(y, max(start, INDENT), max(end, INDENT), styles)
        return self._tokens.plain(y, start - INDENT, end - INDENT)

    @property
    def visible_tokens(self) -> list[int]:
        """The tokens to look at, in order; Markdown has none."""
        if self._markdown is not None:
            return []
        shown = dict.fromkeys(piece.token for line in self._tokens.lines for piece in line)
        return [token for token in shown if 0 <= token < self.reply.tokens]

    def select(self, token: int | None) -> None:
        """Mark this token, by the numbers of `Reply.starts`, and its round; None marks nothing.

        With the next update, everything is unfolded while a token is selected.
        """
        self._cursor, self._touched = token, True
        self._thoughts = self._thoughts or (token is not None and self.reply.thought.holds(token))

    def unfold(self, y: int, column: int) -> bool:
        """Unfold the stretch whose mark is in this cell, with the next update; returns whether there is one.

        A title shows the thinking, and a call its arguments, or folds it again.
        """
        if self._calls.toggle(y - self._body_height):
            self._touched = True
            return True
        if y == 0 and self._titled:
            self._thoughts, self._touched = not self._thoughts, True
            return True
        token = self.token_at(y, column)
        folded = token is not None and any(p.token == token and p.fate == FOLDED for p in self._tokens.lines[y])
        if token is not None and folded:
            self._unfolded.add(token)
            self._touched = True
        return folded

    def line_of(self, token: int) -> int | None:
        """The line a token begins on; None if it is not shown."""
        return None if self._markdown is not None else self._tokens.line_of(token)

    def column_of(self, token: int, y: int) -> int:
        """The column of line `y` at which a token begins."""
        return INDENT + self._tokens.column_of(token, y)

    def token_at(self, y: int, column: int, *, nearest: bool = False) -> int | None:
        """The token in a cell; with `nearest`, otherwise the last one before it on the line."""
        if self._markdown is not None:
            return None
        token = self._tokens.token_at(y, column - INDENT, tokens=self.reply.tokens, nearest=nearest)
        return token if token is not None and token >= 0 else None

    @property
    def _titled(self) -> bool:
        """Whether the first line is the title of the thinking."""
        return self.reply.thought.there and not self._look.by_round

    def _shown(self, tokens: range) -> Iterator[range]:
        """The stretches of these tokens that are drawn; the answer begins one after the thinking."""
        for (shows, *_), stretch in groupby(tokens, lambda token: (self._shows(token), self._part(token))):
            numbers = list(stretch)
            if shows:
                yield range(numbers[0], numbers[-1] + 1)

    def _part(self, token: int) -> bool:
        return not self._look.by_round and self.reply.thought.holds(token)

    def _shows(self, token: int) -> bool:
        """Whether a token is drawn as one: thinking may be folded, and Markdown has none but that."""
        if self._look.by_round:
            return True
        return self._thoughts if self.reply.thought.holds(token) else self._markdown is None

    @property
    def _wrapping(self) -> tuple[object, ...]:
        """What becomes of rejected tokens and of thinking, what is unfolded, and whether rounds became others."""
        whole = (self.reply.running and self._look.drafts) or self._look.by_round or self._cursor is not None
        rejected = SHOW if whole and self._look.rejected == FOLD else self._look.rejected
        if rejected == FOLD and self._called and not self.reply.text:
            rejected = HIDE
        return rejected, len(self._unfolded), self._titled, self._thoughts, self.reply.told

    def _wrap_anew(self) -> None:
        """Begin again with no token wrapped."""
        self._wrapped_as = self._wrapping
        rejected = str(self._wrapped_as[0])
        self._tokens = TokenLines(self.width - INDENT, rejected=rejected, unfolded=self._unfolded)
        self._rounds, self._stage = 0, None

    @property
    def _token_height(self) -> int:
        lines, alone = self._tokens.lines, self._markdown is not None
        if lines[-1] or (self.reply.stage is Stage.ANSWERING and not alone):
            return len(lines)
        return len(lines) - (len(lines) == 1 or alone or bool(self._title))

    @property
    def _body_height(self) -> int:
        return self._token_height + (len(self._markdown.strips) if self._markdown is not None else 0)

    def _draw(self, y: int, styles: TranscriptStyles) -> Strip:
        gutter = Segment(" " * INDENT, styles.base)
        if y < self._body_height:
            if self._markdown is not None and y >= self._token_height:
                line, caret = self._markdown.strips[y - self._token_height], list(self._caret(y, styles))
                if caret and line.text.strip():
                    line = Strip([*line.crop(0, cell_len(line.text.rstrip())), *caret])
                return Strip([gutter, *line])
            number = self._number(y, styles) if self._look.by_round else gutter
            tokens = styles.segments(self._tokens.lines[y], self._cursor, self._cursor_round)
            return Strip([number, *tokens, *self._caret(y, styles)])
        if y - self._body_height < len(self._notes):
            text, failed = self._notes[y - self._body_height]
            note = Segment(text, styles["error"] if failed else styles["figures"])
            links = reply_links(self.reply, styles, forkable=self._look.forkable) if y == self.height - 2 else ()
            return Strip([gutter, note, *links])
        return Strip([])

    def _caret(self, y: int, styles: TranscriptStyles) -> Iterator[Segment]:
        """The caret at the end of a growing reply."""
        if self.reply.stage is Stage.ANSWERING and y == self._body_height - 1:
            yield Segment("▌", styles["caret"])

    @property
    def _cursor_round(self) -> range:
        """The tokens of the round that is looked at."""
        if self._cursor is None:
            return range(0)
        starts, index = self.reply.starts, self.reply.round_of(self._cursor)
        return range(starts[index], starts[index + 1] if index + 1 < len(starts) else self.reply.tokens)

    def _number(self, y: int, styles: TranscriptStyles) -> Segment:
        """The round that begins on this line."""
        first = next((piece.token for piece in self._tokens.lines[y]), None)
        above = y and next((piece.token for piece in reversed(self._tokens.lines[y - 1])), 0)
        if first is None or first > self.reply.tokens or (y and first == above):
            return Segment(" " * INDENT, styles.base)
        index = self.reply.round_of(first) if first < self.reply.tokens else len(self.reply.rounds)
        if y and self.reply.round_of(above) == index:
            return Segment(" " * INDENT, styles.base)
        return Segment(f"{index + 1:>{INDENT - 1}} "[-INDENT:], styles["number"])
