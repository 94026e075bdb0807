"""Request bodies of OpenAI's API: fields that are used, ignored and refused."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, create_model
from pydantic_core import ErrorDetails

from specchat.app.server.errors import ApiError
from specchat.app.server.json_body import BodyError, read_body
from specchat.app.settings.settings import OF_ENGINE, TABLE
from specchat.app.settings.settings_file import KINDS
from specchat.engine import Applies

MOST_CHOICES = 128
MOST_BIASES = 1024
MOST_TOP_LOGPROBS = 20
MOST_PROMPTS = 128
MOST_TOOLS = 128
Stop = Annotated[str, StringConstraints(min_length=1, max_length=256)]
Count = Annotated[int, Field(ge=1, le=1 << 31)]
Ids = Annotated[list[Annotated[int, Field(ge=0, le=1 << 31)]], Field(fail_fast=True, min_length=1)]
_LONGEST_PLACE = 120
"""Characters of a field's place in an error; a place may contain what the client sent."""
_TOKEN_DIGITS = 10

IGNORED = frozenset((
    "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
    "prompt_cache_options", "verbosity", "include",
))  # fmt: skip
"""Fields without effect on a reply of this server."""
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "echo": (None, False), "suffix": (None, ""), "best_of": (None,),
    "functions": (None, []), "function_call": (None, "none", "auto"),
    "modalities": (None, ["text"]),
    "continue_final_message": (None,), "add_generation_prompt": (None,),
    "previous_response_id": (None,), "conversation": (None,), "prompt": (None,), "max_tool_calls": (None,),
    "background": (None, False), "truncation": (None, "disabled"),
    "audio": (None,), "moderation": (None,), "prediction": (None,), "web_search_options": (None,),
}  # fmt: skip
"""Fields of the protocol that are not supported, and the values that are accepted as they have no effect."""


class ServerModel(BaseModel):
    """A part of a body: unknown fields are ignored."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)


class StreamOptions(ServerModel):
    """Parts of a stream besides the text."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class StrictModel(ServerModel):
    """A part of a body whose unknown fields are refused: without them a reply would be free."""

    model_config = ConfigDict(extra="forbid")


class NamedSchema(StrictModel):
    """A JSON schema of replies."""

    name: str
    json_schema: dict[str, Any] = Field(alias="schema")
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(StrictModel):
    """What a reply has to follow."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None


class StructuredOutputs(StrictModel):
    """What a reply has to follow, as in vLLM: one of these."""

    json_schema: dict[str, Any] | str | None = Field(None, alias="json")
    json_object: bool | None = None
    regex: str | None = None
    choice: Annotated[list[str], Field(min_length=1)] | None = None
    grammar: str | None = None


_NOT_SERVED = ("lenience", "when_full")
"""The choice of whoever runs the server: replies are lossless, and a conversation that does not fit is refused."""
SERVED: dict[str, Any] = {
    name: (KINDS[each.type] | None, None)
    for name, each in TABLE.items()
    if each.applies in (Applies.REQUEST, Applies.ROUND) and name in OF_ENGINE and name not in _NOT_SERVED
}
"""Settings that are fields of a request, with their types and defaults."""
_Settings: Any = create_model("_Settings", __base__=ServerModel, **SERVED)


class Body(_Settings):  # type: ignore[misc]
    """Common fields of both kinds of completion, besides `SERVED`; the last ones are specchat's own."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=MOST_CHOICES)] | None = None
    stop: Stop | Annotated[list[Stop], Field(fail_fast=True, max_length=16)] | None = None
    seed: Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)] | None = None
    logit_bias: Annotated[dict[str, float], Field(max_length=MOST_BIASES)] | None = None
    max_tokens: Count | None = None

    speculation: bool | None = None
    """Whether every chunk carries its record of the trace format (`assets/trace.schema.json`)."""
    top_k: Annotated[int, Field(ge=0, le=1 << 31)] | None = None
    dry_sequence_breakers: Annotated[list[Stop], Field(fail_fast=True, max_length=64)] | None = None
    stop_repeats: bool | None = None
    """Whether a reply that repeats itself ends."""
    gamma: int | Literal["auto"] | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    """Constraint in the form of vLLM."""

    def stops(self) -> tuple[str, ...]:
        """The stop strings."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    def biases(self) -> tuple[tuple[int, float], ...]:
        """The logit biases, by token id.

        Raises:
            ApiError: a key is not a token id.
        """
        biases = self.logit_bias or {}
        if not all(token.isdecimal() and len(token) <= _TOKEN_DIGITS for token in biases):
            raise ApiError(400, "logit_bias maps token ids to numbers: give whole numbers", param="logit_bias")
        return tuple((int(token), bias) for token, bias in biases.items())


class CompletionBody(Body):
    """POST /v1/completions."""

    prompt: (
        str
        | Annotated[list[str], Field(fail_fast=True, min_length=1, max_length=MOST_PROMPTS)]
        | Ids
        | Annotated[list[Ids], Field(fail_fast=True, min_length=1, max_length=MOST_PROMPTS)]
    )
    logprobs: Annotated[int, Field(ge=0, le=MOST_TOP_LOGPROBS)] | None = None
    max_tokens: Annotated[int, Field(ge=0, le=1 << 31)] | None = None
    echo: bool | None = None
    """Whether the text begins with the prompt."""

    def prompts(self) -> list[str | list[int]]:
        """Each prompt, as text or as token ids."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if isinstance(self.prompt[0], int):
            return [[token for token in self.prompt if isinstance(token, int)]]
        return [each for each in self.prompt if not isinstance(each, int)]


AnyBody = TypeVar("AnyBody", bound=ServerModel)


def parse(kind: type[AnyBody], data: bytes) -> AnyBody:
    """Parse a body.

    Raises:
        ApiError: it is not JSON, or a field is missing, unknown, not supported, or invalid.
    """
    try:
        values = read_body(data)
    except BodyError as error:
        raise ApiError(400, str(error), param=error.place, code="invalid_json") from None
    try:
        body = kind.model_validate(values)
    except ValidationError as error:
        raise _refusal(error) from None
    extra = body.model_extra or {}
    for name, value in extra.items():
        if name in NEUTRAL and value not in NEUTRAL[name] and not _is_neutral(name, value, extra, values):
            raise ApiError(400, f"{name} is not served here: leave it out", param=name, code="unsupported_parameter")
        if name not in NEUTRAL and name not in IGNORED:
            raise ApiError(400, f"{name!a:.80} is not a parameter: leave it out", param=None, code="unknown_parameter")
    return body


def _is_neutral(name: str, value: Any, extra: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
    """Whether a field has no effect because of another one.

    So have functions that may not be called, the best n of n choices, and what says that a last reply is continued.
    """
    if name == "best_of":
        return bool(value == (values.get("n") or 1))
    if name in ("continue_final_message", "add_generation_prompt") and "messages" in values:
        continues = values["messages"][-1]["role"] == "assistant"
        return value is (continues if name == "continue_final_message" else not continues)
    return isinstance(value, list) and name == "functions" and extra.get("function_call") == "none"


def _refusal(error: ValidationError) -> ApiError:
    """The first error, as a sentence; of a union, that of the member that the value matches best."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    same_field = [each for each in found if each["loc"][:1] == found[0]["loc"][:1]]
    best = max(same_field, key=lambda each: (not _mismatch(each), each["loc"][-1] == "type", len(each["loc"])))
    unknown = best["type"] == "extra_forbidden"
    place = ".".join(str(part) for part in best["loc"] if unknown or not _names_a_type(part))[:_LONGEST_PLACE]
    if unknown:
        return ApiError(400, f"{place} is not a parameter: leave it out", param=place, code="unknown_parameter")
    text = str(best["msg"])
    message = f"{place or 'the body'}: {text[0].lower()}{text[1:]}".replace(": input should", " should")
    return ApiError(400, message, param=place or None, code="invalid_value")


def _mismatch(error: ErrorDetails) -> bool:
    """Whether a value has another type, or is not the literal of a union."""
    return error["type"].endswith("_type") or any(str(part).startswith("literal[") for part in error["loc"][-1:])


def _names_a_type(part: int | str) -> bool:
    """Whether a part of an error's location names a member of a union instead of a field."""
    return isinstance(part, str) and (
        "[" in part or part[:1].isupper() or part in ("str", "constrained-str", "int", "float")
    )


class TextPart(ServerModel):
    """One part of a message's content."""

    type: Literal["text"]
    text: str


class CalledFunction(ServerModel):
    """Name and arguments of a call."""

    name: str
    arguments: str = ""


class CallBody(ServerModel):
    """A call of a tool in an earlier reply."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class MessageBody(ServerModel):
    """One turn of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[TextPart], Field(fail_fast=True)] | None = None
    tool_calls: Annotated[list[CallBody], Field(fail_fast=True)] | None = None
    tool_call_id: str | None = None
    """The call whose result a message of a tool is."""
    reasoning_content: str | None = None
    """Thinking of an assistant, as in this server's answers; `reasoning` is another name for it."""
    reasoning: str | None = None

    def thinking(self) -> str:
        """The thinking; empty for other roles."""
        return (self.reasoning_content or self.reasoning or "") if self.role == "assistant" else ""

    def text(self) -> str:
        """The content as one text."""
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""


class FunctionBody(ServerModel):
    """A function that the model may call."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolBody(ServerModel):
    """A tool: a function."""

    type: Literal["function"]
    function: FunctionBody


class ChosenFunction(ServerModel):
    """The name of a function."""

    name: str


class ChosenTool(ServerModel):
    """The tool that must be called."""

    type: Literal["function"]
    function: ChosenFunction


class AllowedTools(ServerModel):
    """The tools of the request that may be called now."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[ChosenTool], Field(min_length=1)]


class AllowedChoice(ServerModel):
    """A choice of several tools."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


Choice = Annotated[ChosenTool | AllowedChoice, Field(discriminator="type")]
Messages = Annotated[list[MessageBody], Field(fail_fast=True, min_length=1)]


class ChatBody(Body):
    """POST /v1/chat/completions."""

    messages: Messages
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MOST_TOP_LOGPROBS)] | None = None
    tools: Annotated[list[ToolBody], Field(fail_fast=True, max_length=MOST_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | Choice | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    """Sets the chat template's thinking switch, if the template knows the word."""
    thinking: bool | str | None = None
    """Specchat's own: the same, also on (true) or off (false)."""


class TokenizeBody(ServerModel):
    """POST /tokenize: a text, or a conversation in the model's chat template."""

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
