"""Formats of replies of models that think: which marks each has, and which of them a model uses.

Sources: the chat templates of the models, and the parsers of llama.cpp (`common/parsers`) and vLLM (`vllm/reasoning`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from specchat.engine.events import Thinking
from specchat.engine.sequence.reply_parser import ChannelParser, Channels, Mark, ReplyParser, TagParser, Tags
from specchat.engine.sequence.template import default_template

LAST = 64
"""Number of tokens at the end of a prompt that say how its reply begins."""
_HEADER, _CLOSE, _BODY, _THINKING, _ANSWER, _CALL = Mark


def _tags(name: str) -> Tags:
    return Tags((f"<{name}>",), (f"</{name}>",))


FORMATS: tuple[Tags | Channels, ...] = (
    Channels(  # gpt-oss, LLM-jp 4: analysis, commentary, final; Muse: to=self, to=user
        ("<|start|>", "<|message|>"),
        {
            **dict.fromkeys(("<|start|>", "<|channel|>", "<|constrain|>"), _HEADER), "<|message|>": _BODY,
            **dict.fromkeys(("<|end|>", "<|return|>", "<|call|>", "<|eom|>", "<|eot|>"), _ANSWER),
        },
        r"analysis|to=(?!user\b|assistant\b)",
        lead=('<|channel|> "analysis" <|message|>', '<|end|> <|start|> "assistant"', '<|channel|> "final" <|message|>'),
        calls=r"(?:to=functions\.|^\s*(?:assistant)?\s*to=(?!(?:user|self|assistant)\b)(?=[\w.-]+\s*$))([\w.-]+)",
    ),
    Channels(  # Gemma 4
        ("<|channel>", "<channel|>"),
        {"<|channel>": _HEADER, "<channel|>": _ANSWER, "<|tool_call>": _CALL, "<tool_call|>": _ANSWER},
        r"thought",
        lines=True,
        lead=('<|channel> "thought\\n"', "<channel|>", ""),
    ),
    Channels(  # Kimi K3
        ("<|open|>", "<|close|>", "<|sep|>"),
        {"<|open|>": _HEADER, "<|close|>": _CLOSE, "<|sep|>": _BODY},
        r"^\s*(?:think|tools|call|argument|json)\b",
        lead=('<|open|> "think" <|sep|>', '<|close|> "think" <|sep|>', '<|open|> "response" <|sep|>'),
    ),
    Channels(  # Inkling
        ("<|content_thinking|>", "<|content_text|>"),
        {
            "<|message_model|>": _ANSWER, "<|content_thinking|>": _THINKING, "<|content_text|>": _ANSWER,
            "<|content_invoke_tool_json|>": _CALL, "<|end_message|>": _ANSWER,
        },
        lead=("<|content_thinking|>", "<|end_message|> <|message_model|>", "<|content_text|>"),
    ),
    Channels(  # Solar Open
        ("<|think|>", "<|content|>"),
        {
            "<|begin|>": _HEADER, "<|think|>": _THINKING, "<|content|>": _ANSWER, "<|tool_calls|>": _CALL,
            "<|calls|>": _ANSWER, "<|end|>": _ANSWER,
        },
        lead=("<|think|>", '<|end|> <|begin|> "assistant"', "<|content|>"),
    ),
    Channels(  # Command A Reasoning, Command R7B, Cohere 2 MoE
        ("<|START_THINKING|>", "<|END_THINKING|>"),
        {
            "<|START_THINKING|>": _THINKING, "<|START_ACTION|>": _CALL,
            **dict.fromkeys(("<|END_THINKING|>", "<|END_ACTION|>"), _ANSWER),
            **dict.fromkeys(("<|START_RESPONSE|>", "<|START_TEXT|>"), _ANSWER),
            **dict.fromkeys(("<|END_RESPONSE|>", "<|END_TEXT|>"), _ANSWER),
        },
        lead=("<|START_THINKING|>", "<|END_THINKING|>", "( <|START_RESPONSE|> | <|START_TEXT|> )"),
    ),
    Tags(  # Apriel
        ("Here are my reasoning steps:",), ("[BEGIN FINAL RESPONSE]",), end=("[END FINAL RESPONSE]",),
    ),
    Tags(  # Granite 3.2
        ("Here is my thought process:", "Here's my thought process:"),
        ("Here is my response:", "Here's my response:"),
    ),
    Tags(  # Seed-OSS
        ("<seed:think>",), ("</seed:think>",), opened=("<seed:think><seed:cot_budget_reflect>",),
    ),
    Tags(  # K2 Horizon, by effort
        ("<ifm|think>", "<ifm|think_fast>", "<ifm|think_faster>"),
        ("</ifm|think>", "</ifm|think_fast>", "</ifm|think_faster>"),
    ),
    Tags(("[THINK]",), ("[/THINK]",)),  # Magistral, Ministral 3
    Tags(("<|inner_prefix|>",), ("<|inner_suffix|>",)),  # Apertus
    Tags(("<|think:start|>",), ("<|think:end|>",)),  # Solar Open 2
    Tags(("<|plamo:begin_think:plamo|>",), ("<|plamo:end_think:plamo|>",)),  # PLaMo 3
    Tags(("[unused16]",), ("[unused17]",)),  # openPangu
    _tags("mm:think"),  # MiniMax M3
    _tags("longcat_think"),  # LongCat
    _tags("think:opensource"),  # Hy3
    _tags("thought"),  # EXAONE Deep
    _tags("think"),  # Qwen3, DeepSeek, GLM, Kimi K2, MiniMax M2, Nemotron, Phi-4, SmolLM3 and most others
    _tags("thinking"),
    _tags("reasoning"),
)  # fmt: skip
"""Formats of thinking; a model has the first whose marks its template or vocabulary has, so shared ones come last."""
_ANSWERS = ("answer", "response")
"""Tags around the answer in templates of models that also write `<think>`: Hunyuan; Granite 3.3."""
_NAME = re.compile(r"<([^/<>]*(?:think|thought|reason)[^<>]*)>")
"""An opening tag of a format that is not in the table, with its name."""


@dataclass(frozen=True, slots=True)
class ReplyFormat:
    """The format of a model's replies."""

    marks: Tags | Channels
    """An entry of `FORMATS`."""
    special: Mapping[int, str]
    """Tokens of its marks that a tokenizer skips when it decodes, with their text."""
    whole: bool
    """Whether the marks of channels are tokens."""
    control: frozenset[int]
    """Control tokens of the vocabulary."""

    def parser(self, prompt: Sequence[int], tokenizer: Any, *, calls: bool = False) -> ReplyParser:
        """The parser of a reply to this prompt, which may have begun it; `calls`: calls of tools are requested."""
        decode = tokenizer.backend_tokenizer.decode
        if isinstance(self.marks, Channels):
            last = [decode([token], skip_special_tokens=False) for token in prompt[-LAST:]]
            return ChannelParser(self.marks, whole=self.whole, prompt=last, calls=calls)
        end = str(decode(list(prompt[-LAST:]), skip_special_tokens=False)).rstrip()
        begun = end.endswith((*self.marks.opening, *self.marks.opened))
        return TagParser(self.marks, begun=begun or self._continued(self.marks, prompt, tokenizer.backend_tokenizer))

    def without_answer(self) -> ReplyFormat:
        """The format of replies that have something else than an answer after the thinking."""
        if isinstance(self.marks, Tags):
            return replace(self, marks=replace(self.marks, answer=(), end=()))
        return replace(self, marks=replace(self.marks, lead=(*self.marks.lead[:2], "")))

    def _continued(self, marks: Tags, prompt: Sequence[int], backend: Any) -> bool:
        """Whether the prompt ends with the beginning of a thought, which the reply continues."""
        opening, closing = ({backend.token_to_id(mark) for mark in each} for each in (marks.opening, marks.closing))
        marked = self.control | opening | closing
        last = next((token for token in reversed(prompt) if token in marked), None)
        return last is not None and last in opening


def marks_of(text: str) -> Thinking | None:
    """The marks around the thinking that a text begins with; None if it begins otherwise."""
    known = ((opening, marks.closing[0]) for marks in FORMATS if isinstance(marks, Tags) for opening in marks.opening)
    return next((Thinking(*pair, begun=False) for pair in known if text.lstrip().startswith(pair[0])), None)


def parser_of(marks: Thinking) -> TagParser:
    """The parser of a reply whose text has these marks."""
    return TagParser(Tags((marks.opening,), (marks.closing,)), begun=marks.begun)


def split_reply(text: str, marks: Thinking) -> tuple[str, str]:
    """Thinking and answer of a whole text that has these marks."""
    parser = parser_of(marks)
    parts = {True: "", False: ""}
    for read in (partial(parser.feed, text), partial(parser.feed, ""), parser.end):
        said = read()
        parts[parser.thinking] += said
    return parts[True], parts[False]


def find_format(tokenizer: Any) -> ReplyFormat | None:
    """The format that the chat template names, or else the vocabulary; None for a model that does not think.

    Args:
        tokenizer: a fast tokenizer of transformers, or a `PlainTokenizer`.
    """
    backend, template = tokenizer.backend_tokenizer, default_template(tokenizer.chat_template)

    def known(mark: str) -> bool:
        return backend.token_to_id(mark) is not None

    marks = _first(lambda mark: mark in template) or _first(known) or _pair(backend.get_added_tokens_decoder().values())
    if marks is None:
        return None
    answer = next((name for name in _ANSWERS if f"<{name}>" in template), None) if marks == _tags("think") else None
    if answer is not None:
        marks = replace(_tags("think"), answer=(f"<{answer}>",), end=(f"</{answer}>",))
    control = {token: each.content for token, each in backend.get_added_tokens_decoder().items() if each.special}
    special = {token: text for token, text in control.items() if any(text in mark for mark in marks.marks)}
    whole = isinstance(marks, Channels) and all(map(known, marks.signs))
    return ReplyFormat(marks, special, whole, frozenset(control))


def _first(known: Callable[[str], bool]) -> Tags | Channels | None:
    """The first entry of `FORMATS` whose signs, or one of whose tags, are known."""

    def has(marks: Tags | Channels) -> bool:
        if isinstance(marks, Channels):
            return all(map(known, marks.signs))
        return known(marks.opening[0]) or known(marks.closing[0])

    return next(filter(has, FORMATS), None)


def _pair(added: Iterable[Any]) -> Tags | None:
    """Tags among the added tokens whose name speaks of thinking."""
    texts = {each.content for each in added}
    names = (found[1] for found in map(_NAME.fullmatch, sorted(texts)) if found)
    return next((_tags(name) for name in names if f"</{name}>" in texts), None)
