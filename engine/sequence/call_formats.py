"""Formats of calls of tools: the marks around them, and which of them a model uses.

Sources: the chat templates of the models, and the parsers of llama.cpp (`common/parsers`) and vLLM
(`vllm/tool_parsers`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specchat.engine.request import Tool
from specchat.engine.sequence.call_parser import CHANNEL, CallMarks, CallParser
from specchat.engine.sequence.reply_formats import ReplyFormat, find_format
from specchat.engine.sequence.reply_parser import ASSISTANT, Channels
from specchat.engine.sequence.template import default_template
from specchat.engine.sequence.template_traits import SAMPLE_ARGUMENTS, SAMPLE_CALL, SAMPLE_TOOL, traits_of

_CONTROL_TOKEN = re.compile(r"(?:<\|\w+\|>|</s>|<end_of_turn>)\s*")
"""Control tokens in a template; the vocabulary may lack them, where the template is another model's."""
START = CallMarks("")
"""Calls without marks."""
MARKS = (
    CallMarks("<tool_call>", "</tool_call>", bare="<function="),  # Qwen3 Coder, Qwen3.5
    CallMarks("<tool_call>", "</tool_call>"),  # Hermes, Qwen3, GLM, SmolLM3, Granite 4
    CallMarks("[TOOL_CALLS]"),  # Mistral, Ministral
    CallMarks("<|tool_call_start|>", "<|tool_call_end|>"),  # LFM2
    CallMarks("<|tool_call|>", "<|/tool_call|>"),  # Granite 3, which ends them with the reply; Phi-4 mini
    CallMarks("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),  # DeepSeek
    CallMarks("<｜DSML｜function_calls>", "</｜DSML｜function_calls>"),  # DeepSeek V3.2
    CallMarks("<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>"),  # DeepSeek V4
    CallMarks("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),  # Kimi K2
    CallMarks("<minimax:tool_call>", "</minimax:tool_call>"),
    CallMarks("<seed:tool_call>", "</seed:tool_call>"),
    CallMarks("<longcat_tool_call>", "</longcat_tool_call>"),
    CallMarks("<tool_calls:opensource>", "</tool_calls:opensource>"),  # Hy3
    CallMarks("<tool_calls>", "</tool_calls>"),  # Hunyuan, Apriel, MiniMax M1
    CallMarks("<function_calls>", "</function_calls>"),  # OLMo 3
    CallMarks("<TOOLCALL>", "</TOOLCALL>"),  # Nemotron Nano 2
    CallMarks("<|tools_prefix|>", "<|tools_suffix|>"),  # Apertus
    CallMarks("<|function_call|>"),  # GigaChat 3.1
    CallMarks("", "</function>", bare="<function="),  # Functionary
    CallMarks("", "</function>", bare="<function name="),  # MiniCPM 5
    CallMarks("", bare="functools["),  # FireFunction, Phi-4 mini
    START,  # Llama 3 and 4
)
"""Marks of calls; a model has the first with which its template writes a call."""
_OF_PYTHON = "<|tool_call_start|>"
"""The mark before calls in Python's syntax of models whose template may leave out calls."""


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
        if not sample and opening == _OF_PYTHON:
            given = ", ".join(f"{key}={value!r}" for key, value in SAMPLE_ARGUMENTS.items())
            sample = f"{opening}[{SAMPLE_CALL.name}({given})]{closing}"
        elif not sample:
            sample = f'{opening}[{{"name": "{SAMPLE_CALL.name}", "arguments": {SAMPLE_CALL.arguments}}}]{closing}'
        before, _, after = sample.partition(SAMPLE_CALL.name)
        value = str(SAMPLE_ARGUMENTS["count7f"])
        arguments, value, rest = after.partition(value)
        if self.reply is not None and isinstance(self.reply.marks, Channels):
            opening, closing = self.reply.marks.around_call(rest)
        begun = before.rpartition(opening)[2] if opening else _CONTROL_TOKEN.split(before)[-1].lstrip()
        end = rest.find(closing) + len(closing) if closing else -1
        if end < len(closing):
            marks = *self.special.values(), *_CONTROL_TOKEN.findall(rest)
            end = min((at for text in marks if (at := rest.find(text)) >= 0), default=len(rest))
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
    template, marked = default_template(tokenizer.chat_template), [each for each in MARKS if each.opening]

    def may_be(marks: CallMarks) -> bool:
        return not (traits.call and marks.closing)  # what is between such marks would have been read

    if reply is not None and isinstance(reply.marks, Channels):
        marks = CHANNEL if reply.marks.has_calls else None
    else:
        marks = (
            next((each for each in MARKS if _reads(each, traits.call)), None)
            or next((each for each in marked if each.opening in (traits.call or template) and may_be(each)), None)
            or next((each for each in marked if backend.token_to_id(each.opening) is not None and may_be(each)), None)
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
    if not all(start in text for start in marks.starts):
        return False
    parser = CallParser(marks, [SAMPLE_TOOL])
    before, mark, after = text.partition(marks.opening) if marks.opening else ("", "", text)
    parser.feed(before + mark + _first_text(after) if not marks.closing else text)
    parser.end()
    read = [json.loads(call.arguments) for call in parser.calls]  # a template may write every value as text
    expected = {key: str(value) for key, value in SAMPLE_ARGUMENTS.items()}
    return [{key: str(value) for key, value in each.items()} for each in read] == [expected]
