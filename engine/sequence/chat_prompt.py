"""Prompt of a conversation: the messages in the form that the model's chat template accepts, rendered and encoded.

Only the template writes control tokens, such as <|im_end|>. Names of control tokens in messages are encoded as text, so
that they end no turn: a separator is put into such a name before the template is rendered, and what lies between two
control tokens is encoded without it, with every name as text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from specchat.engine.errors import EngineError, check, first_line
from specchat.engine.message import Message, MessagePart, PartKind
from specchat.engine.request import Request
from specchat.engine.sequence.call_formats import find_call_format
from specchat.engine.sequence.template import default_template, render
from specchat.engine.sequence.template_traits import (
    as_parts,
    thinking_variables,
    tool_of,
    traits_of,
    turn_of,
    with_responses,
)

if TYPE_CHECKING:
    from tokenizers import Tokenizer

CONTROL_FORM = re.compile(r"<\|.+\|>|<｜.+｜>", re.DOTALL)
"""Form of a control token, whatever its type."""
_ENDS = """
    <|eot_id|> <|im_end|> <|end|> <|return|> <|call|> <|flush|> <|calls|> <end_of_turn> <|endoftext|> </s> <|eom_id|>
    <EOT> _<EOT> [EOT] [EOS] <|end_of_text|> <end_of_utterance> <eos> <turn|> <|tool_response> <｜end▁of▁sentence｜>
    [e~[ <|eot|> <|eom|> <|eos|> <|end_of_turn|> <|END_OF_TURN_TOKEN|> [|endofturn|] <|role_end|> <seed:eos>
    <|fim_pad|> <fim-pad> <fim_pad> <PAD> [PAD] <|fim_repo|> <|repo_name|> <fim-repo> <REPO> <reponame> <|file_sep|>
"""
END_TEXTS = frozenset(_ENDS.split())
"""Texts of tokens that end a turn, a text or a file: llama.cpp's list (llama-vocab.cpp), and a few like them."""
_SEPARATOR = "\ufdd0"
"""A noncharacter of Unicode: no text contains it."""
_END = "\ufdd1"
"""A noncharacter of Unicode, put at the end of a message that the reply continues."""
_GAP = "\n\n"
"""Text between messages that become one."""
_HELLO = Message("user", "Hello")
_NO_TOOLS = (
    "the model's chat template has no place for tools, or an unknown format of calls: choose a model that was trained "
    "to call tools, or give a template with --chat-template"
)


def encode_chat(request: Request, tokenizer: Any) -> list[int]:
    """Token ids of a conversation. A last message of the assistant is continued.

    Raises:
        EngineError: the chat template refuses the conversation.
    """
    return encode_separated(_render(request, tokenizer), tokenizer)


def _render(request: Request, tokenizer: Any) -> str:
    traits, variables = traits_of(tokenizer), dict(thinking_variables(tokenizer, request.thinking))
    if request.tools or any(_has_calls(message) for message in request.messages):
        check(find_call_format(tokenizer) is not None, _NO_TOOLS, "tools")
        variables["tools"] = separate(list(map(tool_of, request.tools)), tokenizer)
    refusals: list[Exception] = []
    for messages, tools in _accepted_forms(request.messages, system=traits.system):
        try:
            return _text(messages, tokenizer, {**tools, **variables})
        except EngineError:
            raise
        except Exception as error:  # a template may raise anything
            refusals.append(error)
    *before, last = request.messages
    if before and last.role == "assistant" and last.content and not last.thinking:  # a template may end with questions
        begun: str = separate(last.content, tokenizer)
        with suppress(EngineError):
            return _render(replace(request, messages=tuple(before)), tokenizer) + begun
    reason = first_line(refusals[0]) if refusals else "it is empty"
    raise EngineError(_sentence(request.messages, tokenizer, reason))


def _text(messages: Sequence[Message], tokenizer: Any, variables: Mapping[str, object]) -> str:
    """The prompt up to where the reply begins or continues."""
    *before, last = (turn for message in messages for turn in _turns(message))
    if continues := last.role == "assistant" and not _has_calls(last):
        *said, final = last.parts or (MessagePart(PartKind.TEXT, ""),)
        last = Message(last.role, parts=(*said, replace(final, text=final.text + _END)))
    traits = traits_of(tokenizer)
    turns = [turn_of(message, tokenizer.chat_template, call_text=traits.call_text) for message in (*before, last)]
    turns = separate(with_responses(turns, tokenizer.chat_template), tokenizer)
    if traits.parts:
        turns = list(map(as_parts, turns))
    text = render(tokenizer, turns, **variables, add_generation_prompt=not continues)
    if not continues:
        return text
    end = text.rfind(_END)
    if end < 0:
        raise ValueError("it leaves out the beginning of the reply")
    return text[:end]


def _accepted_forms(
    messages: tuple[Message, ...], *, system: bool
) -> Iterator[tuple[tuple[Message, ...], Mapping[str, object]]]:
    """The conversation, then forms of it that more templates accept, with the template variables to try.

    Args:
        messages: the conversation.
        system: whether the template writes a system prompt; otherwise it becomes part of the first question.
    """
    first = messages if system else _without_system(messages)
    if any(map(_has_calls, messages)):  # nothing else may be left out or joined
        yield from ((form, {}) for form in dict.fromkeys((first, tuple(each for each in first if each.parts))))
        return
    joined = _joined(first)
    bare = _without_system(joined)
    answers = [message for message in bare[:-1] if message.content.strip()]
    forms = dict.fromkeys((first, joined, _joined(bare), _joined((*answers, *bare[-1:]))))
    no_tools: tuple[dict[str, object], ...] = {}, {"tools": []}
    yield from ((form, tools) for tools in no_tools for form in forms if form)


def _without_system(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The conversation with each system prompt as part of the question after it."""
    result: list[Message] = []
    before: list[str] = []
    for message in messages:
        if message.role == "system":
            before.append(message.content)
        elif message.role == "user" and before:
            result.append(Message("user", _GAP.join([*before, message.content])))
            before = []
        else:
            result.append(message)
    return (*result, *([Message("user", _GAP.join(before))] if before else []))


def _joined(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The conversation without empty messages, with messages of one role that follow each other as one."""
    filled = [message for message in messages if message.content.strip() or message.thinking]
    groups = (list(group) for _, group in groupby(filled, key=lambda message: message.role))
    return tuple(
        Message(
            same[0].role,
            _GAP.join(filter(None, (each.content for each in same))),
            _GAP.join(filter(None, (each.thinking for each in same))),
        )
        for same in groups
    )


def _turns(message: Message) -> Iterator[Message]:
    """A message with each result of a call as a message of its own, and the parts between results as others."""
    if message.role == "tool" or not message.parts_of(PartKind.RESULT):
        yield message
        return
    for is_result, parts in groupby(message.parts, key=lambda part: part.kind is PartKind.RESULT):
        if is_result:
            yield from (Message("tool", parts=[part]) for part in parts)
        else:
            yield Message(message.role, parts=parts)


def _has_calls(message: Message) -> bool:
    return any(part.kind in (PartKind.CALL, PartKind.RESULT) for part in message.parts)


def _sentence(messages: Sequence[Message], tokenizer: Any, reason: str) -> str:
    """What the template refuses, and what to do."""

    def accepts(*tried: Message) -> bool:
        try:
            return bool(_text(tried, tokenizer, {}))
        except Exception:  # a template may raise anything
            return False

    spoken = _joined(_without_system(messages))
    if not spoken:
        return f"the model's chat template refuses an empty message ({reason}): write something"
    if not accepts(_HELLO):
        return f"the model's chat template refuses every conversation ({reason}): use another one with --chat-template"
    if spoken[0].role == "assistant" and accepts(_HELLO, *spoken):
        return f"the model's chat template refuses a chat that begins with a reply ({reason}): begin with a prompt"
    return f"the model's chat template refuses this conversation ({reason}): change it, or use another --chat-template"


class _Marks(NamedTuple):
    ids: frozenset[int]
    """The control tokens."""
    names: re.Pattern[str] | None
    """Pattern that finds their names; None without control tokens."""
    before: frozenset[str]
    """Names that take in the white space before them."""
    after: frozenset[str]
    """Names that take in the white space after them."""


def is_control(text: str, template: str) -> bool:
    """Whether a token of a vocabulary is a control token by its text, whatever its type.

    `</s>` is also a tag of HTML, and counts if the chat template writes it.
    """
    return bool(CONTROL_FORM.fullmatch(text)) or (text in END_TEXTS and (text != "</s>" or text in template))


def separate(value: Any, tokenizer: Any) -> Any:
    """A text, or lists and mappings with texts, with a separator in every name of a control token."""
    names = _marks_of(tokenizer).names
    if names is None:
        return value
    if isinstance(value, str):
        return names.sub(lambda found: found[0][0] + _SEPARATOR + found[0][1:], value)
    if isinstance(value, dict):
        return {separate(key, tokenizer): separate(each, tokenizer) for key, each in value.items()}
    return [separate(each, tokenizer) for each in value] if isinstance(value, list) else value


def encode_separated(text: str, tokenizer: Any) -> list[int]:
    """Token ids of a prompt that a template wrote from values of `separate`, without separators."""
    marks = _marks_of(tokenizer)
    if _SEPARATOR not in text or marks.names is None:
        return list(tokenizer.encode(text, add_special_tokens=False))
    pieces = ["", *marks.names.split(text), ""]  # every second one is the name of a control token
    ids: list[int] = []
    usual: list[str] = []
    for before, piece, after in zip(pieces, pieces[1:], pieces[2:], strict=False):
        if _SEPARATOR not in piece:
            usual.append(piece)
            continue
        said = piece.replace(_SEPARATOR, "")
        said = said.lstrip() if before in marks.after else said
        said = said.rstrip() if after in marks.before else said
        backend = _as_text(tokenizer.backend_tokenizer, marks.ids)
        ids += tokenizer.encode("".join(usual), add_special_tokens=False)
        ids += backend.encode_batch_fast([said], add_special_tokens=False)[0].ids
        usual = []
    return ids + list(tokenizer.encode("".join(usual), add_special_tokens=False))


def _marks_of(tokenizer: Any) -> _Marks:
    rows, template = getattr(tokenizer, "rows", None), default_template(tokenizer.chat_template)
    return _marks(tokenizer.backend_tokenizer, rows, template)


@lru_cache(maxsize=4)
def _marks(backend: Tokenizer, rows: int | None, template: str) -> _Marks:
    """Control tokens of a model with this number of tokens; names of others stay, and the prompt is refused."""
    control = {
        token: added
        for token, added in backend.get_added_tokens_decoder().items()
        if (added.special or is_control(added.content, template)) and (rows is None or token < rows)
    }
    names = sorted((each.content for each in control.values() if len(each.content) > 1), key=len, reverse=True)
    return _Marks(
        frozenset(control),
        re.compile(f"({'|'.join(map(re.escape, names))})") if names else None,
        frozenset(each.content for each in control.values() if each.lstrip),
        frozenset(each.content for each in control.values() if each.rstrip),
    )


@lru_cache(maxsize=2)
def _as_text(backend: Tokenizer, control: frozenset[int]) -> Tokenizer:
    """A copy of a tokenizer that encodes names of control tokens as text, as if it followed such a token."""
    content = json.loads(backend.to_str().replace('"prepend_scheme":"first"', '"prepend_scheme":"never"'))
    for added in content["added_tokens"]:
        added["special"] = added["special"] or added["id"] in control
    copy = type(backend).from_str(json.dumps(content))
    copy.encode_special_tokens = True
    return copy
