"""Parsers that separate the thinking from the answer in the text of a reply, while it is written.

Marks are not part of the result, and no other text is lost.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from functools import lru_cache

from specchat.engine.round import Call

LONGEST_HEADER = 64
"""Characters of the header of a channel. A longer one is none."""
CALL, CALL_END = "\ufdd2", "\ufdd3"
"""Marks around calls of tools in the answer of a reply with channels: noncharacters of Unicode."""
ASSISTANT = "assistant"
"""What the header of a call follows."""
NAME_END = "[ARGS]"
"""What follows the name of a tool that a header has; Mistral's mark."""


@dataclass(frozen=True, slots=True)
class Tags:
    """Marks around the thinking at the start of a reply and around the answer after it. Any text may be one."""

    opening: tuple[str, ...]
    """Marks before the thinking."""
    closing: tuple[str, ...]
    """Marks after it; one at the start of a reply says that there is no thinking."""
    answer: tuple[str, ...] = ()
    """Marks that may precede the answer."""
    end: tuple[str, ...] = ()
    """Marks that may end it."""
    opened: tuple[str, ...] = ()
    """Ends of prompts after which a reply begins with thinking, besides the opening marks."""

    @property
    def marks(self) -> tuple[str, ...]:
        """All marks."""
        return (*self.opening, *self.closing, *self.answer, *self.end)


class Mark(Enum):
    """Meaning of a mark of a channel."""

    HEADER = auto()
    """A header begins or continues; its text names the channel."""
    CLOSE = auto()
    """A header begins that ends a channel."""
    BODY = auto()
    """The header ends."""
    THINKING = auto()
    """Thinking begins."""
    ANSWER = auto()
    """The answer begins, or a channel ends."""
    CALL = auto()
    """A call of a tool begins."""


@dataclass(frozen=True, slots=True)
class Channels:
    """Marks that count anywhere in a reply, as whole tokens where the vocabulary has them.

    Text outside of channels is part of the answer. Unrequested calls of tools are part of the thinking; others are
    between `CALL` and `CALL_END` in the answer.
    """

    signs: tuple[str, ...]
    """Marks that no other format has together."""
    meaning: Mapping[str, Mark]
    """Meaning of each mark."""
    thinking: str = r"(?!)"
    """Regular expression for the headers of thinking and of calls."""
    lines: bool = False
    """Whether a header ends with its line."""
    lead: tuple[str, str, str] = ("", "", "")
    """What is written before thinking, after it, and before the answer: marks, and Lark, separated by spaces."""
    calls: str = ""
    """Regular expression for the headers of calls, if they are known by them; its group is the name of the tool."""

    @property
    def marks(self) -> tuple[str, ...]:
        """All marks."""
        return tuple(self.meaning)

    @property
    def has_calls(self) -> bool:
        """Whether it has marks of calls."""
        return bool(self.calls) or Mark.CALL in self.meaning.values()

    def around_call(self, rest: str) -> tuple[str, str]:
        """The mark or text before a call, and the mark after it; empty if that ends the reply.

        Args:
            rest: what the chat template writes after the arguments of a call.
        """
        if self.calls:
            return ASSISTANT, ""
        opening = next(mark for mark, meaning in self.meaning.items() if meaning is Mark.CALL)
        ends = [mark for mark, meaning in self.meaning.items() if meaning is Mark.ANSWER and mark in rest]
        return opening, min(ends, key=rest.find, default="")


class ReplyParser(ABC):
    """Parser of one reply."""

    def __init__(self) -> None:
        self.thinking = False
        """Whether the text or the mark that was read last is part of the thinking."""
        self.fresh = False
        """Whether a part has begun that has no text yet."""
        self.calls: list[Call] = []
        """Calls of tools that are complete and were not taken yet."""
        self.parts: list[Call] = []
        """Parts of calls that were written and not taken yet: `arguments` is the text that each adds."""
        self._text = ""
        """Text that is not decided."""

    @abstractmethod
    def feed(self, piece: str) -> str:
        """Add text; return text of one part that is decided now. Text of the next part comes with the next call."""

    @abstractmethod
    def end(self) -> str:
        """The rest of the text, at the end of the reply."""

    def counts(self, mark: str) -> bool:  # noqa: ARG002  the subclass uses it
        """Whether a control token with this text may be a mark here."""
        return True

    def _release(self, text: str, held: int) -> str:
        """The text without this number of characters at its end, which stay undecided."""
        self._text = text[len(text) - held :]
        return text[: len(text) - held]

    def _started(self, text: str) -> str:
        """Text of the current part, which does not begin with white space."""
        if self.fresh:
            text = text.lstrip()
            self.fresh = not text
        return text


class _Place(Enum):
    """Position in a reply with tags."""

    BEFORE = auto()
    OPENED = auto()
    """After an opening mark of the prompt, which the model may repeat."""
    INSIDE = auto()
    AFTER = auto()
    """After a closing mark; a mark of the answer may follow."""
    OUTSIDE = auto()


class TagParser(ReplyParser):
    """Parser of a reply with `Tags`, independent of how the text is cut into pieces.

    Args:
        tags: the marks.
        begun: whether the prompt ends with an opening mark.
    """

    def __init__(self, tags: Tags, *, begun: bool = False) -> None:
        super().__init__()
        self._tags = tags
        self._end = () if tags.answer else tags.end
        """Marks that may end the answer."""
        self._place = _Place.OPENED if begun else _Place.BEFORE
        self.thinking = self.fresh = begun

    def feed(self, piece: str) -> str:
        """See the base class."""
        self._text += piece
        if self._place is _Place.BEFORE and not self._begin():
            return ""
        if self._place is _Place.OPENED:
            if self._skip(self._tags.opening) is None:
                return ""
            self._place = _Place.INSIDE
        if self._place is _Place.INSIDE:
            thought = self._thought()
            if thought or self._place is _Place.INSIDE:
                return thought
        if self._place is _Place.AFTER:
            skipped = self._skip(self._tags.answer) if self._text.strip() else None
            if skipped is None:
                return ""
            self._answer(marked=bool(skipped))
        text = self._started(self._text)
        return self._release(text, _ending(text, self._end) if self._end else 0)

    def end(self) -> str:
        """See the base class."""
        text = self.feed("")
        left, self._text = self._text, ""
        if self._place is _Place.OUTSIDE:
            return text + ("" if left.lstrip().startswith(self._end or ("\0",)) else left)
        if self._place is _Place.AFTER:
            self.thinking = self.thinking and not left.strip()
        return left if self._place is _Place.BEFORE else text + self._started(left)

    def counts(self, mark: str) -> bool:
        """See the base class: after the start of the answer, only the mark at its end counts."""
        return self._place is not _Place.OUTSIDE or mark in self._end

    def _begin(self) -> bool:
        """Decide how the reply begins; False if that is not clear yet."""
        mark = self._skip(self._tags.marks)
        if mark is None:
            return False
        if mark in self._tags.opening:
            self._place, self.thinking, self.fresh = _Place.INSIDE, True, True
        elif mark in self._tags.closing:
            self._place, self.fresh = _Place.AFTER, True
        elif mark:
            self._answer(marked=True)
            self.fresh = True
        else:
            self._place = _Place.OUTSIDE
        return True

    def _thought(self) -> str:
        """Text of the thinking, up to a closing mark or what may become one."""
        text = self._started(self._text)
        found = [(text.index(mark), mark) for mark in self._tags.closing if mark in text]
        if not found:
            return self._release(text, overlap(text, self._tags.closing))
        at, mark = min(found)
        self._text, self._place, self.fresh = text[at + len(mark) :], _Place.AFTER, True
        return text[:at]

    def _answer(self, *, marked: bool) -> None:
        """Begin the answer; `marked` says whether a mark precedes it, which another one then follows."""
        self._place, self.thinking = _Place.OUTSIDE, False
        self._end = self._tags.end if marked else self._end

    def _skip(self, marks: Iterable[str]) -> str | None:
        """Drop a mark at the start of the text, and return it; empty without one, None if more text must decide."""
        text = self._text.lstrip()
        mark = next((mark for mark in marks if text.startswith(mark)), "")
        if mark:
            self._text = text[len(mark) :]
        return None if not mark and any(each.startswith(text) for each in marks) else mark


class ChannelParser(ReplyParser):
    """Parser of a reply with `Channels`.

    Args:
        channels: the marks.
        whole: whether each mark is one token: then it counts only at the end of a piece.
        prompt: texts of the prompt's last tokens.
        calls: whether calls of tools are requested.
    """

    def __init__(
        self, channels: Channels, *, whole: bool = True, prompt: Iterable[str] = (), calls: bool = False
    ) -> None:
        super().__init__()
        self._channels = channels
        self._whole = whole
        self._calls = calls
        self._calling = False
        """Whether the current part is a call."""
        self._header: str | None = None
        """The header so far; None outside of one."""
        self._closes = False
        """Whether the header ends a channel."""
        self._inside = False
        """Whether the current part is thinking."""
        self._implied = False
        """Whether the prompt ends in a header, which the reply may fail to continue."""
        for piece in prompt:
            self.feed(piece)
        self._implied = self._header is not None
        self._header, self._text = "" if self._implied else None, ""
        self.thinking = self.fresh = self._inside

    def feed(self, piece: str) -> str:
        """See the base class."""
        self._text += piece
        self.thinking = self._inside
        while True:
            text, mark = self._next()
            said = self._said(text)
            if mark:
                said += self._read(mark)
            if said or not mark:
                return said

    def end(self) -> str:
        """See the base class."""
        text = self.feed("")
        left, self._text = self._text, ""
        text += self._said(left)
        return text + (self._header or "" if self._implied else "")

    def _next(self) -> tuple[str, str]:
        """The decided text up to the next mark, and the mark; empty without one."""
        text = self._text
        if self._whole:
            self._text, mark = "", next((mark for mark in self._channels.marks if text.endswith(mark)), "")
            return text.removesuffix(mark), mark
        found = [(text.index(mark), -len(mark), mark) for mark in self._channels.marks if mark in text]
        if found:
            at, _, mark = min(found)
            self._text = text[at + len(mark) :]
            return text[:at], mark
        return self._release(text, overlap(text, self._channels.marks)), ""

    def _said(self, text: str) -> str:
        """What text between two marks adds to the current part."""
        if self._header is None:
            return self._started(text)
        self._header += text
        name, end, rest = self._header.partition("\n")
        if end and self._channels.lines:
            left = self._enter(name)
            self.thinking = self.thinking or self._inside
            return left + self._started(rest)
        if end or len(name) > LONGEST_HEADER:
            rest, self._header = self._header if self._implied else self._header.lstrip(), None
            self._implied = self._inside = self.thinking = False
            return rest
        return ""

    def _read(self, mark: str) -> str:
        """Take in a mark; return a text that turns out to be no header, and marks of calls."""
        meaning, header, marks = self._channels.meaning[mark], self._header, ""
        if meaning in (Mark.HEADER, Mark.CLOSE):
            self._header = f"{header or ''} "
            self._closes = meaning is Mark.CLOSE
        elif meaning is Mark.BODY:
            marks = self._enter(header)
        else:
            marks = self._enter(None)
            self._calling = self._calls and meaning is Mark.CALL
            self._inside = meaning in (Mark.THINKING, Mark.CALL) and not self._calling
            marks += CALL if self._calling else ""
        no_header = self._implied and meaning in (Mark.THINKING, Mark.ANSWER, Mark.CALL)
        self._implied = False
        self.thinking = (self.thinking or self._inside) and not marks
        return (header or "" if no_header else "") + marks

    def _enter(self, header: str | None) -> str:
        """Begin the channel with this header; without one, the answer. Returns marks of calls."""
        marks = CALL_END if self._calling else ""
        named = None if header is None or self._closes else header
        called = re.search(self._channels.calls, named) if named and self._calls and self._channels.calls else None
        self._calling = called is not None
        self._inside = not called and named is not None and bool(re.search(self._channels.thinking, named))
        self._header, self._closes, self.fresh = None, False, True
        return f"{marks}{CALL}{called[1]}{NAME_END}" if called else marks


def overlap(text: str, marks: Iterable[str]) -> int:
    """Length of the longest end of a text that is the beginning of a mark, without being all of it."""
    return max((_overlap(text, mark) for mark in marks), default=0)


def _overlap(text: str, mark: str) -> int:
    return next((n for n in range(min(len(text), len(mark) - 1), 0, -1) if mark.startswith(text[-n:])), 0)


def _ending(text: str, marks: tuple[str, ...]) -> int:
    """Length of the end of a text that is white space, marks, and the beginning of a mark."""
    found = _ending_pattern(marks).search(text)
    return len(found[0]) if found else 0


@lru_cache(maxsize=8)
def _ending_pattern(marks: tuple[str, ...]) -> re.Pattern[str]:
    parts = sorted({mark[:n] for mark in marks for n in range(1, len(mark))}, key=len, reverse=True)
    whole, part = ("|".join(map(re.escape, each)) for each in (marks, parts))
    return re.compile(rf"\s*(?:(?:{whole})\s*)*(?:{part})?\Z")
