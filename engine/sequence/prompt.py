"""Prompts: from a request to token ids by the model's chat template, and truncation to the context.

Messages are put in the form that the template accepts. Only the template writes control tokens, such as <|im_end|>.
Names of control tokens in messages are encoded as text, so that they end no turn: a separator is put into such a name
before the template is rendered, and what lies between two control tokens is encoded without it, every name as text.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from specchat.engine.errors import EngineError, check, first_line
from specchat.engine.request import KEEP_ENDS, STOP, Message, MessagePart, PartKind, Request, Tool
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
    if (whole := tuple(map(_with_properties, request.tools))) != request.tools:
        return _render(replace(request, tools=whole), tokenizer)
    *before, last = request.messages
    if before and last.role == "assistant" and last.content and not last.thinking:  # a template may end with questions
        begun: str = separate(last.content, tokenizer)
        with suppress(EngineError):
            return _render(replace(request, messages=tuple(before)), tokenizer) + begun
    reason = first_line(refusals[0]) if refusals else "it is empty"
    raise EngineError(_sentence(request.messages, tokenizer, reason))


def _with_properties(tool: Tool) -> Tool:
    """The tool with `properties` among its parameters, as Seed-OSS's template needs them."""
    given = json.loads(tool.parameters)
    return tool if "properties" in given else replace(tool, parameters=json.dumps({**given, "properties": {}}))


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
    """A message with each result of a call as a separate message, and the parts between results as others."""
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


REPLY_SHARE = 4
"""Room is reserved for `max_tokens`, but at most the context divided by this."""
_ROLES = ("User", "Assistant", "System")
"""Labels of the plain template."""
Length = Callable[[tuple[Message, ...]], int]
"""Number of prompt tokens of some messages."""


@dataclass(frozen=True, slots=True)
class FittedPrompt:
    """A prompt for the model."""

    ids: list[int]
    """Token ids."""
    left_out: tuple[int, ...] = ()
    """Indices in `Request.messages` of the messages that were left out."""


def encode(request: Request, tokenizer: Any) -> list[int]:
    """Token ids of a request's prompt.

    Args:
        tokenizer: a `PlainTokenizer`.

    Raises:
        EngineError: the chat template refuses the conversation, or the prompt is empty.
    """
    if request.prompt_ids:
        return list(request.prompt_ids)
    if request.prompt is not None:
        ids = tokenizer.encode(request.prompt)
    elif tokenizer.chat_template:
        ids = _with_bos(encode_chat(request, tokenizer), tokenizer)
    else:
        ids = tokenizer.encode(plain_template(request.messages))
    check(ids, "the prompt is empty: ask something")
    return list(ids)


def _with_bos(ids: list[int], tokenizer: Any) -> list[int]:
    """The ids of a chat prompt after the BOS token, where the file of the model asks for one and no template wrote it.

    A template of a folder decides alone, as in transformers.
    """
    bos = getattr(tokenizer, "begins", None)
    return ids if bos is None or ids[:1] == [bos] else [bos, *ids]


def check_tokens(ids: Sequence[int], tokenizer: Any, size: int) -> None:
    """Check that a model of V = `size` tokens has all tokens of a prompt: a vocabulary may have more than its model.

    Raises:
        EngineError: it lacks one.
    """
    if (largest := max(ids, default=0)) >= size:
        name = tokenizer.convert_ids_to_tokens(largest)
        raise EngineError(
            f"the prompt holds the token {name!r} ({largest}), and the model has {size} tokens: take it out"
        )


def check_conversation(request: Request, name: str, *, conversations: bool) -> None:
    """Check that a request to the model `name` is a single text, unless the model holds conversations.

    Raises:
        EngineError: it is a conversation.
    """
    if request.messages and not conversations:
        raise EngineError(
            f"{name} reads one text and holds no conversation: give it a prompt, as specchat ask and /v1/completions "
            "do, or choose a model that continues text"
        )


def encode_reply(request: Request, tokenizer: Any) -> list[int]:
    """Token ids of the beginning of the reply that the request prescribes."""
    text = tokenizer.encode(request.reply_text, add_special_tokens=False) if request.reply_text else []
    return [*request.reply_ids, *text]


def plain_template(messages: Sequence[Message]) -> str:
    """Prompt text for a model without a chat template: one labelled line per turn. A last reply is continued."""
    lines = [f"{message.role.capitalize()}: {message.content}" for message in messages]
    return "\n".join(lines if messages[-1].role == "assistant" else [*lines, "Assistant:"])


def stops_of(request: Request, tokenizer: Any) -> tuple[str, ...]:
    """Texts that end the reply: the request's stop strings, and the labels of the plain template where that is used."""
    plain = bool(request.messages) and not tokenizer.chat_template
    return (*request.stop, *(f"\n{role}:" for role in _ROLES if plain))


def fit(request: Request, tokenizer: Any, given: int, context: int) -> FittedPrompt:
    """Encode a prompt, and leave out turns until it fits, as `Request.when_full` allows. It may still be too long.

    Args:
        tokenizer: a `PlainTokenizer`.
        given: number of tokens that the reply begins with.
        context: maximum number of tokens of prompt and reply together.

    Raises:
        EngineError: the chat template refuses the conversation, or the prompt is empty.
    """
    encoded: dict[tuple[Message, ...], list[int]] = {}

    def length(messages: tuple[Message, ...]) -> int:
        encoded[messages] = encode(replace(request, messages=messages), tokenizer)
        return len(encoded[messages])

    gone = left_out(request, length, given, context)
    kept = without(request.messages, gone)
    if kept not in encoded:
        length(kept)
    return FittedPrompt(encoded[kept], tuple(gone))


def check_length(prompt: int, context: int, *, of_chat: bool = False) -> None:
    """Check that a prompt of `prompt` tokens leaves room for a reply.

    Args:
        of_chat: whether earlier turns of a chat could be left out.

    Raises:
        EngineError: it does not.
    """
    if prompt >= context:
        turns = "let the engine leave out earlier turns (alt+c: drop-oldest or keep-ends), " if of_chat else ""
        raise EngineError(
            f"the prompt has {prompt} tokens and the context holds {context}: "
            f"shorten it, {turns}start a new chat or raise --context"
        )


def left_out(request: Request, length: Length, given: int, context: int) -> range:
    """Indices in `Request.messages` of the turns to leave out; empty if all fit or none may be left out.

    A turn is a user message without results of calls, and the messages up to the next one. Messages before the first
    turn, and the last turn, always stay. The tokens left out are rounded up to a multiple of half the room, if at least
    that many can be left out: the prompts of the next messages then begin as this one does, and what it has in the
    cache is reused. With n turns, `length` is called about log n times.
    """
    turns = _earlier_turns(request.messages)[request.when_full == KEEP_ENDS :]
    room = context - given - min(request.max_tokens, context // REPLY_SHARE)
    if request.when_full == STOP or not turns or (whole := length(request.messages)) <= room:
        return range(0)

    def first(count: int) -> range:
        return range(turns[0].start, turns[count - 1].stop)  # turns follow each other without a gap

    def left(count: int) -> int:
        return length(without(request.messages, first(count)))

    step = max(room // 2, 1)
    most = whole - -(-(whole - room) // step) * step
    if left(len(turns)) > most:
        most = room
    return first(1 + bisect_left(range(1, len(turns)), True, key=lambda count: left(count) <= most))


def without(messages: tuple[Message, ...], gone: range) -> tuple[Message, ...]:
    """The messages except those at these indices."""
    return messages[: gone.start] + messages[gone.stop :]


def _begins_turn(message: Message) -> bool:
    """Whether a turn begins here: results of calls stay with the calls before them."""
    return message.role == "user" and not message.parts_of(PartKind.RESULT)


def _earlier_turns(messages: Sequence[Message]) -> list[range]:
    """Indices of the messages of each turn except the last."""
    starts = [place for place, message in enumerate(messages) if _begins_turn(message)]
    return [range(start, end) for start, end in pairwise(starts)]
