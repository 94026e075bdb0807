"""Parser that separates calls of tools from the answer in the text of a reply, while it is written."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from specchat.engine.message import Tool
from specchat.engine.round import Call
from specchat.engine.sequence.call_syntax import NoCallError, read_calls
from specchat.engine.sequence.reply_formats import ReplyFormat, find_format
from specchat.engine.sequence.reply_parser import ASSISTANT, CALL, CALL_END, Channels, ReplyParser, overlap
from specchat.engine.sequence.template import default_template
from specchat.engine.sequence.template_traits import SAMPLE_ARGUMENTS, SAMPLE_CALL, SAMPLE_TOOL, traits_of

_CONTROL_TOKEN = re.compile(r"<\|\w+\|>\s*")
ID_CHARACTERS = 9
"""Characters of the id of a call; templates of Mistral want this number."""


@dataclass(frozen=True, slots=True)
class CallMarks:
    """Marks around one call or several."""

    opening: str
    """The mark before them; empty if a reply that begins as a call is one."""
    closing: str = ""
    """The mark after them; a call may also end with the reply or with the next opening mark."""


_CHANNEL = CallMarks(CALL, CALL_END)
"""What the parser of channels makes of the marks of calls."""
_START = CallMarks("")
"""Calls without marks."""
MARKS = (
    CallMarks("<tool_call>", "</tool_call>"),  # Hermes, Qwen, GLM, SmolLM3, Granite 4
    CallMarks("[TOOL_CALLS]"),  # Mistral, Ministral
    CallMarks("<|tool_call_start|>", "<|tool_call_end|>"),  # LFM2
    CallMarks("<|tool_call|>", "<|/tool_call|>"),  # Granite 3, which ends them with the reply; Phi-4 mini
    CallMarks("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),  # DeepSeek
    CallMarks("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),  # Kimi K2
    CallMarks("<minimax:tool_call>", "</minimax:tool_call>"),
    CallMarks("<seed:tool_call>", "</seed:tool_call>"),
    CallMarks("<longcat_tool_call>", "</longcat_tool_call>"),
    CallMarks("<function_calls>", "</function_calls>"),  # OLMo 3
    CallMarks("<TOOLCALL>", "</TOOLCALL>"),  # Nemotron Nano 2
    _START,  # Llama 3 and 4
)
"""Marks of calls; a model has the first with which its template writes a call."""


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
        self._several = several
        self._called = False
        self._inside = False
        """Whether the text that is not decided follows an opening mark."""
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
        left, self._text = self._text, ""
        if self._inside:
            left, self._inside = self._read(left, ""), False
        if left:
            self.thinking = False
        return said + left

    def counts(self, mark: str) -> bool:
        """See the base class: between the marks of calls, all control tokens count."""
        if self._inside or mark in self._ends:
            return True
        return self._inner is not None and mark in self._known and self._inner.counts(mark)

    @property
    def _ends(self) -> tuple[str, ...]:
        """Marks that end a call."""
        return tuple(filter(None, (self._marks.closing, self._marks.opening)))

    def _taken(self, text: str, thinking: bool) -> str:
        """What a text of the inner parser adds to the thinking or the answer."""
        if text or not thinking:
            self.thinking = thinking
        if thinking:
            return text
        self._text += text
        said = self._answer()
        self._begun = self._begun or bool(said.strip())
        return said

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
                self._inside = bool(self._marks.opening) and not closing  # another opening mark ended it
                continue
            before, mark = self._start_of_call()
            said += self._started(before)
            if not mark:
                return said
            self._inside = True

    def _start_of_call(self) -> tuple[str, bool]:
        """Text before the next call, and whether there is one; what may become a mark stays undecided."""
        if not self._marks.opening:
            begins = not self._begun and self._text.lstrip()[:1] in ("{", "[")
            return ("", True) if begins else (self._release(self._text, 0), False)
        before, mark, after = self._text.partition(self._marks.opening)
        if mark:
            self._text = after
            return before, True
        return self._release(before, overlap(before, (self._marks.opening,))), False

    def _end_of_call(self) -> tuple[str, str, str] | None:
        """The text between the marks, the closing mark, and the rest; None before its end."""
        found = [(self._text.find(mark), mark) for mark in self._ends]
        at, mark = min(((at, mark) for at, mark in found if at >= 0), default=(-1, ""))
        if at < 0:
            return None
        closing = mark if mark == self._marks.closing else ""
        return self._text[:at], closing, self._text[at + len(mark) :]

    def _read(self, body: str, closing: str) -> str:
        """Take in the text of calls; return it with its marks if it is none."""
        try:
            calls = read_calls(body, self._tools)
        except NoCallError:
            marks = (self._marks.opening, closing) if self._marks is not _CHANNEL else ("", "")
            return marks[0] + body + marks[1]
        wanted = calls if self._several else calls[: not self._called]
        self._called = self.fresh = True
        self.calls.extend(Call(uuid4().hex[:ID_CHARACTERS], name, arguments) for name, arguments in wanted)
        return ""


@dataclass(frozen=True, slots=True)
class CallFormat:
    """How a model calls tools."""

    marks: CallMarks
    """An entry of `MARKS`, or the one of channels."""
    reply: ReplyFormat | None
    """The format of its replies; None for a model that does not think."""
    special: Mapping[int, str]
    """Control tokens, with their text: they may be marks of calls or in them."""

    def around_name(self, sample: str) -> tuple[str, str]:
        """What the model writes before and after the name of a tool.

        Args:
            sample: `Traits.call`.
        """
        opening, closing = self.marks.opening, self.marks.closing
        if not sample:
            sample = f'{opening}[{{"name": "{SAMPLE_CALL.name}", "arguments": {SAMPLE_CALL.arguments}}}]{closing}'
        before, _, after = sample.partition(SAMPLE_CALL.name)
        value = str(SAMPLE_ARGUMENTS["count7f"])
        arguments, value, rest = after.partition(value)
        if self.reply is not None and isinstance(self.reply.marks, Channels):
            opening, closing = self.reply.marks.around_call(rest)
        begun = before.rpartition(opening)[2] if opening else _CONTROL_TOKEN.split(before)[-1].lstrip()
        end = rest.find(closing) + len(closing) if closing else -1
        if end < len(closing):
            end = min((at for text in self.special.values() if (at := rest.find(text)) >= 0), default=len(rest))
        return ("" if opening == ASSISTANT else opening) + begun, arguments + value + rest[:end]

    def parser(self, prompt: Sequence[int], tokenizer: Any, tools: Sequence[Tool], *, several: bool) -> CallParser:
        """The parser of a reply to this prompt."""
        if self.reply is None:
            return CallParser(self.marks, tools, several=several)
        inner = self.reply.parser(prompt, tokenizer, calls=True)
        return CallParser(self.marks, tools, inner, self.reply.special.values(), several=several)


def find_call_format(tokenizer: Any) -> CallFormat | None:
    """The format of calls with which the chat template writes one, or else the one whose mark it or the vocabulary has.

    None for a template without tools, or with an unknown format.
    """
    traits = traits_of(tokenizer)
    if not traits.tools:
        return None
    reply, backend = find_format(tokenizer), tokenizer.backend_tokenizer
    template, marked = default_template(tokenizer.chat_template), MARKS[:-1]
    if reply is not None and isinstance(reply.marks, Channels):
        marks = _CHANNEL if reply.marks.has_calls else None
    else:
        marks = (
            next((each for each in MARKS if _reads(each, traits.call)), None)
            or next((each for each in marked if each.opening in template), None)
            or next((each for each in marked if backend.token_to_id(each.opening) is not None), None)
        )
    if marks is None:
        return None
    control = {token: each.content for token, each in backend.get_added_tokens_decoder().items() if each.special}
    return CallFormat(marks, reply, control)


def _first_text(text: str) -> str:
    """The first text between control tokens."""
    return next(filter(str.strip, _CONTROL_TOKEN.split(text)), "")


def _reads(marks: CallMarks, text: str) -> bool:
    """Whether the sample of a call that a template wrote is read with these marks."""
    parser = CallParser(marks, [SAMPLE_TOOL])
    parser.feed(text if marks.opening else _first_text(text))
    parser.end()
    return [json.loads(call.arguments) for call in parser.calls] == [json.loads(SAMPLE_CALL.arguments)]
