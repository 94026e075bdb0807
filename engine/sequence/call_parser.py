"""Parser that separates calls of tools from the answer in the text of a reply, while it is written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from specchat.engine.request import Tool
from specchat.engine.sequence.call_stream import CallStream
from specchat.engine.sequence.call_syntax import NoCallError, read_calls
from specchat.engine.sequence.reply_parser import CALL, CALL_END, ReplyParser, overlap

_MANY = 1 << 31


@dataclass(frozen=True, slots=True)
class CallMarks:
    """Marks around one call or several."""

    opening: str
    """The mark before them; with neither it nor `bare`, a reply that begins as a call is one."""
    closing: str = ""
    """The mark after them; a call may also end with the reply or with the next opening mark."""
    bare: str = ""
    """How a call begins that has no opening mark, always or where a model has left it out; it is part of the call."""

    @property
    def starts(self) -> tuple[str, ...]:
        """What a call may begin with."""
        return tuple(filter(None, (self.opening, self.bare)))

    @property
    def ends(self) -> tuple[str, ...]:
        """What a call may end before."""
        return tuple(filter(None, (self.closing, self.opening or self.bare)))


CHANNEL = CallMarks(CALL, CALL_END)
"""What the parser of channels makes of the marks of calls."""


class CallParser(ReplyParser):
    """Parser of a reply that may call tools. What looks like a call and is none stays in the answer.

    Args:
        marks: around calls.
        tools: what may be called.
        inner: separates the thinking; None for a model that does not think.
        known: control tokens that may be marks of the thinking.
        several: whether there may be more than one call; otherwise the others are left out.
    """

    def __init__(
        self,
        marks: CallMarks,
        tools: Sequence[Tool],
        inner: ReplyParser | None = None,
        known: Iterable[str] = (),
        *,
        several: bool = True,
    ) -> None:
        super().__init__()
        self._marks = marks
        self._tools = tools
        self._inner = inner
        self._known = frozenset(known)
        self._most = _MANY if several else 1
        """Calls that may follow."""
        self._inside = False
        """Whether the text that is not decided follows the start of a call."""
        self._opened = ""
        """The opening mark before that text."""
        self._passed = 0
        """Characters of that text in which no mark ends the call."""
        self._stream = CallStream((), 0)
        """Reads that text."""
        self._thought = ""
        """Thinking that is not decided: it may be a call."""
        self._begun = False
        """Whether the answer has text; after that, calls without marks are none."""
        self.thinking = inner is not None and inner.thinking

    def feed(self, piece: str) -> str:
        """See the base class."""
        text = piece if self._inner is None else self._inner.feed(piece)
        return self._taken(text, self._inner is not None and self._inner.thinking)

    def end(self) -> str:
        """See the base class."""
        text = "" if self._inner is None else self._inner.end()
        said = self._taken(text, self._inner is not None and self._inner.thinking)
        if self._thought:
            said += self._read_thought()
        left, self._text = self._text, ""
        if self._inside:
            left, self._inside = self._read(left, ""), False
        if left:
            self.thinking = False
        return said + left

    def counts(self, mark: str) -> bool:
        """See the base class: between the marks of calls, all control tokens count."""
        if self._inside or self._thought or any(mark in each for each in (*self._marks.starts, self._marks.closing)):
            return True
        return self._inner is not None and mark in self._known and self._inner.counts(mark)

    def _taken(self, text: str, thinking: bool) -> str:
        """What a text of the inner parser adds to the thinking or the answer."""
        if thinking:
            self.thinking = self.thinking or bool(text)
            return self._thinking(text)
        self._text += text
        if self._thought:  # no call: the answer follows with the next text
            said, self._thought, self.thinking = self._thought, "", True
            return said
        self.thinking = False
        said = self._answer()
        self._begun = self._begun or bool(said.strip())
        return said

    def _thinking(self, text: str) -> str:
        """Text of the thinking that is decided: some models call instead of ending the thinking."""
        marks = self._marks
        if marks is CHANNEL or not (marks.opening and marks.closing):
            return text
        text, said = self._thought + text, ""
        while marks.opening in text and not self._is_rest(text[text.index(marks.opening) :]):
            before, mark, text = text.partition(marks.opening)
            said += before + mark
        at = text.find(marks.opening)
        held = overlap(text, (marks.opening,)) if at < 0 else len(text) - at
        self._thought = text[len(text) - held :]
        return said + text[: len(text) - held]

    def _is_rest(self, text: str) -> bool:
        """Whether a text after an opening mark may be calls up to the end of the reply."""
        while text.startswith(self._marks.opening):
            text = text.partition(self._marks.closing)[2].lstrip()
        return self._marks.opening.startswith(text)

    def _read_thought(self) -> str:
        """Take in the calls with which the thinking ends; return their text if they are none."""
        text, self._thought = self._thought, ""
        if self._marks.opening not in text:
            return text
        self._text = text
        left = self._answer()
        if self._inside:
            left += self._read(self._text, "")
        self._text, self._inside = "", False
        return left

    def _answer(self) -> str:
        """Text of the answer that is decided, without calls."""
        said = ""
        while True:
            if self._inside:
                end = self._end_of_call()
                if end is None:
                    return said
                body, closing, self._text = end
                said += self._read(body, closing)
                self._inside = False
                if not closing and self._marks.opening:  # another opening mark ended it
                    self._start(self._marks.opening)
                continue
            before, begins = self._start_of_call()
            said += self._started(before)
            if not begins:
                return said

    def _start_of_call(self) -> tuple[str, bool]:
        """Text before the next call, and whether there is one; what may become a mark stays undecided."""
        if not self._marks.starts:
            begins = not self._begun and self._text.lstrip()[:1] in ("{", "[")
            if begins:
                self._start("")
            return ("", True) if begins else (self._release(self._text, 0), False)
        text = self._text
        at, mark = _first(text, self._marks.starts)
        if not mark:
            return self._release(text, overlap(text, self._marks.starts)), False
        opened = mark if mark == self._marks.opening else ""
        self._text = text[at + len(opened) :]
        self._start(opened)
        return text[:at], True

    def _start(self, opened: str) -> None:
        """Begin a call after an opening mark, or without one."""
        self._inside, self._opened, self._passed = True, opened, 0 if opened else len(self._marks.bare)
        self._stream = CallStream(self._tools, self._most)

    def _end_of_call(self) -> tuple[str, str, str] | None:
        """The text between the marks, the closing mark, and the rest; None before its end.

        Neither a mark within a text in JSON ends a call, nor an opening one before the call is complete.
        """
        while True:
            at, mark = _first(self._text, self._marks.ends, self._passed)
            if not mark:
                self._read_on(self._text[: len(self._text) - overlap(self._text, self._marks.ends)])
                return None
            self._read_on(self._text[:at])
            closing = mark if mark == self._marks.closing else ""
            if not self._stream.in_string and (closing or self._is_call(self._text[:at])):
                return self._text[:at], closing, self._text[at + (0 if mark == self._marks.bare else len(mark)) :]
            self._passed = at + len(mark)

    def _read_on(self, text: str) -> None:
        self._stream.read(text)
        self.parts += self._stream.parts
        self._stream.parts.clear()

    def _is_call(self, text: str) -> bool:
        try:
            return bool(read_calls(text, self._tools))
        except NoCallError:
            return False

    def _read(self, body: str, closing: str) -> str:
        """Take in the text of calls; return it with its marks if it is none."""
        try:
            calls = read_calls(body, self._tools)
        except NoCallError:
            opening = self._marks.opening
            before, mark, rest = body.rpartition(opening) if opening else ("", "", "")
            if mark and self._is_call(rest):  # the mark before was none
                said, opened = self._no_call(before, ""), self._opened
                self._start(opening)
                return (said if opened else before) + self._read(rest, closing)
            return self._no_call(body, closing)
        self._read_on(body)
        made = [self._stream.complete(number, *call) for number, call in enumerate(calls[: self._most])]
        self._most -= len(made)
        self.calls += made
        self.fresh = True
        return ""

    def _no_call(self, body: str, closing: str) -> str:
        return body if self._marks is CHANNEL else self._opened + body + closing


def _first(text: str, marks: Iterable[str], at: int = 0) -> tuple[int, str]:
    """Place of the first of some marks in a text, and the mark; empty without one."""
    found = [(place, mark) for mark in marks if (place := text.find(mark, at)) >= 0]
    return min(found, default=(-1, ""))
