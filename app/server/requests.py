"""Converts a body of the protocol to requests of the engine."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from specchat.app.server.constraints import constraint_of
from specchat.app.server.errors import ApiError
from specchat.app.server.protocol import (
    MOST_CHOICES,
    SERVED,
    AllowedChoice,
    Body,
    ChatBody,
    ChosenTool,
    CompletionBody,
    MessageBody,
)
from specchat.app.settings.settings import Settings
from specchat.engine import (
    ANY_TOOL,
    THINKING_WORDS,
    Constraint,
    ConstraintKind,
    Engine,
    EngineError,
    Message,
    MessagePart,
    PartKind,
    Request,
    Sampling,
    Tool,
    check_constraint,
    message_parts,
)

COMPLETION_TOKENS = 16
"""The protocol's default of max_tokens for /v1/completions."""
_FIELDS = {False: "messages", True: "prompt"}
_NO_PARAMETERS = {"type": "object", "properties": {}}


@dataclass(frozen=True, slots=True)
class Defaults:
    """Defaults for requests, and the engine that tokenizes prompts."""

    engine: Engine
    settings: Settings
    context: int
    stop_repeats: bool = False
    """`Request.stop_repeats`."""


def requests_of(body: ChatBody | CompletionBody, call_id: str, defaults: Defaults) -> list[Request]:
    """One request for each choice, by prompt and then by number, with tokenized prompts.

    Tokenizing a long prompt takes time: do not call it on the loop.

    Raises:
        ApiError: a value is out of range, or a prompt does not fit.
    """
    prompts: Sequence[tuple[Message, ...] | str | list[int]]
    if isinstance(body, ChatBody):
        prompts, top = [conversation(body.messages)], (body.top_logprobs or 1) if body.logprobs else 0
        if body.top_logprobs and not body.logprobs:
            raise ApiError(400, "top_logprobs needs logprobs: true", param="top_logprobs")
        longest = body.max_completion_tokens or body.max_tokens or defaults.settings.max_tokens
    else:
        prompts, top = body.prompts(), 0 if body.logprobs is None else max(1, body.logprobs)
        longest = COMPLETION_TOKENS if body.max_tokens is None else max(1, body.max_tokens)
    choices = body.n or 1
    if len(prompts) * choices > MOST_CHOICES:
        raise ApiError(400, f"prompts times n is {len(prompts) * choices}: at most {MOST_CHOICES}", param="n")
    try:
        model = _model_request(body, call_id, longest, defaults)
        model = replace(model, detail=top, raw=isinstance(body, CompletionBody), constraint=constraint_of(body))
        if isinstance(body, ChatBody):
            model = replace(model, thinking=_thinking(body, model.thinking), **_tools(body))
        read = [_read(prompt, call_id, defaults, model) for prompt in prompts]
        seeds = (_seed(body.seed, defaults.settings, number % choices) for number in range(len(prompts) * choices))
        drawn = [replace(model.sampling, seed=seed) for seed in seeds]
        return [
            replace(model, request_id=f"{call_id}/{n}", prompt=None, prompt_ids=read[n // choices], sampling=each)
            for n, each in enumerate(drawn)
        ]
    except EngineError as error:
        raise ApiError(400, str(error), param=error.field) from None


def echoed(body: CompletionBody, requests: Sequence[Request], engine: Engine) -> list[tuple[str, list[str]]]:
    """Text of each prompt, and the texts of its tokens; takes as long as `requests_of`."""
    pieces = [engine.prompt_texts(request.prompt_ids) for request in requests[:: body.n or 1]]
    prompts = zip(body.prompts(), pieces, strict=True)
    return [(prompt if isinstance(prompt, str) else "".join(each), each) for prompt, each in prompts]


def conversation(messages: Sequence[MessageBody]) -> tuple[Message, ...]:
    """Messages of the engine.

    Raises:
        ApiError: the result of a call does not follow the call.
    """
    names: dict[str, str] = {}
    return tuple(_message(turn, names, f"messages.{place}") for place, turn in enumerate(messages))


def check_arguments(arguments: str, place: str) -> None:
    """Check the arguments of a call in an earlier reply; none are an empty text.

    Raises:
        ApiError: they are not a JSON object.
    """
    try:
        if isinstance(json.loads(arguments or "{}"), dict):
            return
    except (ValueError, RecursionError):
        pass
    raise ApiError(400, f"{place} is not the text of a JSON object: write the arguments as one", param=place)


def _message(turn: MessageBody, names: dict[str, str], place: str) -> Message:
    """A message of the engine; `names` are those of the tools that were called before it, by the ids of the calls."""
    if turn.role == "tool":
        if turn.tool_call_id not in names:
            text = f"{place} is the result of no call before it: give it the tool_call_id of one"
            raise ApiError(400, text, param=f"{place}.tool_call_id")
        name = names[turn.tool_call_id]
        return Message("tool", parts=[MessagePart(PartKind.RESULT, turn.text(), name, turn.tool_call_id)])
    given = turn.tool_calls or () if turn.role == "assistant" else ()
    for number, call in enumerate(given):
        check_arguments(call.function.arguments, f"{place}.tool_calls.{number}.function.arguments")
    calls = [MessagePart(PartKind.CALL, call.function.arguments or "{}", call.function.name, call.id) for call in given]
    names.update((call.call_id, call.name) for call in calls)
    role = {"developer": "system"}.get(turn.role, turn.role)
    return Message(role, parts=[*message_parts(turn.text(), turn.thinking()), *calls])


def _tools(body: ChatBody) -> dict[str, Any]:
    """Fields of `Request` for tools."""
    choice, names = body.tool_choice or ANY_TOOL, [tool.function.name for tool in body.tools or ()]
    allowed = names
    if isinstance(choice, AllowedChoice):
        only = choice.allowed_tools
        choice, allowed = only.mode, [tool.function.name for tool in only.tools]
    elif isinstance(choice, ChosenTool):
        choice = choice.function.name
    if not names and choice not in ("none", ANY_TOOL):
        raise ApiError(400, f"tool_choice is {choice!a:.80}, but `tools` is missing: list them", param="tool_choice")
    choices = ("none", ANY_TOOL, "required", *names)
    if unknown := next((each for each in (choice, *allowed) if each not in choices), None):
        text = f"tool_choice is {unknown!a:.80}: it must be one of {', '.join(choices)}"
        raise ApiError(400, text, param="tool_choice")
    given = [tool.function for tool in body.tools or ()]
    functions = [] if choice == "none" else [each for each in given if each.name in allowed]
    tools = tuple(
        Tool(each.name, each.description or "", json.dumps(each.parameters or _NO_PARAMETERS), each.strict or False)
        for each in functions
    )
    for tool in tools:
        if tool.strict or choice != ANY_TOOL:
            _check_parameters(tool)
    wanted = ANY_TOOL if choice == "none" else choice
    return {"tools": tools, "tool_choice": wanted, "parallel_calls": body.parallel_tool_calls is not False}


def _check_parameters(tool: Tool) -> None:
    """Check the schema that a tool's arguments will follow.

    Raises:
        ApiError: it is not valid.
    """
    try:
        check_constraint(Constraint(ConstraintKind.SCHEMA, tool.parameters))
    except EngineError as error:
        raise ApiError(400, f"the parameters of the tool {tool.name}: {error}", param="tools") from None


def read_prompt(prompt: tuple[Message, ...] | str, engine: Engine, settings: Request | None = None) -> list[int]:
    """Token ids of a text or a conversation, with the thinking switch and the tools of another request, if given.

    Raises:
        ApiError: the model cannot read it.
    """
    try:
        if isinstance(prompt, str):
            return engine.prompt_ids(Request("read", prompt=prompt))
        if settings is None:
            return engine.prompt_ids(Request("read", prompt))
        return engine.prompt_ids(Request("read", prompt, thinking=settings.thinking, tools=settings.tools))
    except EngineError as error:
        raise ApiError(400, str(error), param=error.field) from None


def _read(
    prompt: tuple[Message, ...] | str | list[int], call_id: str, defaults: Defaults, settings: Request
) -> tuple[int, ...]:
    ids = prompt if isinstance(prompt, list) else read_prompt(prompt, defaults.engine, settings)
    if len(ids) >= defaults.context:
        message = f"the prompt has {len(ids)} tokens and the context holds {defaults.context}: shorten it"
        raise ApiError(400, message, param=_FIELDS[settings.raw], code="context_length_exceeded")
    Request(call_id, prompt_ids=tuple(ids)).check_prompt()
    return tuple(ids)


def _thinking(body: ChatBody, default: bool | str | None) -> bool | str | None:
    """`Request.thinking`; a `reasoning_effort` that is no word of any template has no effect."""
    effort = body.reasoning_effort if body.reasoning_effort in THINKING_WORDS else None
    return next((value for value in (body.thinking, effort) if value is not None), default)


def _model_request(body: Body, call_id: str, longest: int, defaults: Defaults) -> Request:
    """A request with a placeholder for its prompt."""
    settings = defaults.settings
    model = settings.request(call_id, (Message("user", "?"),), body.stops())
    given = body.model_dump(include={*SERVED, "stop_repeats", "dry_sequence_breakers"}, exclude_none=True)
    given = {"stop_repeats": defaults.stop_repeats, **given, "max_tokens": longest}
    given["drafter"] = body.drafter or settings.drafter
    if body.gamma == "auto":
        given["gamma"] = None
    if body.dry_sequence_breakers is not None:
        given["dry_sequence_breakers"] = tuple(body.dry_sequence_breakers)
    drawn = {field.name: given.pop(field.name) for field in fields(Sampling) if field.name in given}
    sampling = replace(model.sampling, logit_bias=body.biases(), **drawn)
    return replace(model, messages=(), prompt="?", sampling=sampling, **given)


def _seed(seed: int | None, settings: Settings, number: int) -> int | None:
    """The seed of a choice: the choices differ, and the first equals that of n = 1."""
    seed = settings.seed if seed is None else seed
    return None if seed is None else seed + number
