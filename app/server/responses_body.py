"""Bodies of /v1/responses, as conversations of /v1/chat/completions."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from specchat.app.server import protocol
from specchat.app.server.errors import ApiError
from specchat.app.server.requests import check_arguments

_PLACES = {"messages": "input", "max_tokens": "max_output_tokens", "response_format": "text.format"}
"""Fields of /v1/chat/completions that have another name here."""


class Text(protocol.ServerModel):
    """A text in an item."""

    type: Literal["input_text", "output_text", "text", "reasoning_text", "summary_text"]
    text: str


Texts = str | Annotated[list[Text], Field(fail_fast=True)]


class MessageItem(protocol.ServerModel):
    """A message."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Texts


class CallItem(protocol.ServerModel):
    """A call of a function."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str


class ResultItem(protocol.ServerModel):
    """What a call returned."""

    type: Literal["function_call_output"]
    call_id: str
    output: Texts


class ReasoningItem(protocol.ServerModel):
    """The thinking before the next item."""

    type: Literal["reasoning"]
    summary: list[Text] = Field(default_factory=list)
    content: list[Text] | None = None


Items = Annotated[list[MessageItem | CallItem | ResultItem | ReasoningItem], Field(fail_fast=True, min_length=1)]


class FunctionTool(protocol.FunctionBody):
    """A function that the model may call."""

    type: Literal["function"]


class ChosenFunctionTool(protocol.ChosenFunction):
    """The function that must be called."""

    type: Literal["function"]


class AllowedFunctionTools(protocol.ServerModel):
    """The tools of the request that may be called now."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[ChosenFunctionTool], Field(min_length=1)]


class ReasoningBody(protocol.ServerModel):
    """Settings of the thinking."""

    effort: str | None = None


class TextFormat(protocol.StrictModel):
    """What the answer has to follow."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    json_schema: dict[str, Any] | None = Field(None, alias="schema")
    description: str | None = None
    strict: bool | None = None

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        if self.type == "json_schema" and (self.name is None or self.json_schema is None):
            raise PydanticCustomError("incomplete", "json_schema needs a name and a schema")
        return self

    def chat(self) -> protocol.ResponseFormat:
        """The format for /v1/chat/completions."""
        named = {"name": self.name, "schema": self.json_schema} if self.type == "json_schema" else None
        return protocol.ResponseFormat.model_validate({"type": self.type, "json_schema": named})


class TextBody(protocol.ServerModel):
    """Settings of the answer."""

    format: TextFormat | None = None


def _moved(value: object) -> None:
    if value is not None:
        raise PydanticCustomError("moved", "/v1/responses does not have it: use text.format")


Choice = Annotated[ChosenFunctionTool | AllowedFunctionTools, Field(discriminator="type")]


class ResponsesBody(protocol.Body):
    """POST /v1/responses."""

    input: str | Items
    instructions: str | None = None
    max_output_tokens: protocol.Count | None = None
    tools: Annotated[list[FunctionTool], Field(fail_fast=True, max_length=protocol.MOST_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | Choice | None = None
    parallel_tool_calls: bool | None = None
    reasoning: ReasoningBody | None = None
    text: TextBody | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=protocol.MOST_TOP_LOGPROBS)] | None = None
    thinking: bool | str | None = None
    n: Literal[1] | None = None
    response_format: Annotated[Any, AfterValidator(_moved)] = None

    def chat(self) -> protocol.ChatBody:
        """Request body for /v1/chat/completions."""
        given = {name: getattr(self, name) for name in protocol.Body.model_fields if name in self.model_fields_set}
        choice, form = self.tool_choice, self.text.format if self.text else None
        return protocol.ChatBody(
            **{name: value for name, value in given.items() if name not in ("n", "stream_options", "response_format")},
            messages=self._messages(),
            response_format=form and form.chat(),
            max_completion_tokens=self.max_output_tokens,
            tools=[protocol.ToolBody(type="function", function=tool) for tool in self.tools or ()] or None,
            tool_choice=_choice(choice),
            parallel_tool_calls=self.parallel_tool_calls,
            reasoning_effort=self.reasoning.effort if self.reasoning else None,
            thinking=self.thinking,
        )

    def _messages(self) -> list[protocol.MessageBody]:
        messages = [protocol.MessageBody(role="system", content=self.instructions)] if self.instructions else []
        if isinstance(self.input, str):
            return [*messages, protocol.MessageBody(role="user", content=self.input)]
        called = set[str]()
        for place, item in enumerate(self.input):
            match item:
                case MessageItem(role="assistant"):
                    said = _reply(messages)
                    said.content = said.text() + _text(item.content)
                case MessageItem():
                    messages.append(protocol.MessageBody(role=item.role, content=_text(item.content)))
                case ReasoningItem():
                    _reply(messages).reasoning_content = _text(item.content or item.summary)
                case CallItem():
                    function = protocol.CalledFunction(name=item.name, arguments=item.arguments)
                    said = _reply(messages)
                    said.tool_calls = [*(said.tool_calls or ()), protocol.CallBody(id=item.call_id, function=function)]
                    check_arguments(item.arguments, f"input.{place}.arguments")
                    called.add(item.call_id)
                case ResultItem():
                    if item.call_id not in called:
                        told = f"input.{place} is the result of no call before it: give it the call_id of one"
                        raise ApiError(400, told, param=f"input.{place}.call_id")
                    text = _text(item.output)
                    messages.append(protocol.MessageBody(role="tool", content=text, tool_call_id=item.call_id))
        return messages


def _choice(choice: Any) -> Any:
    """`tool_choice` of /v1/chat/completions."""
    if isinstance(choice, ChosenFunctionTool):
        return protocol.ChosenTool(type="function", function=choice)
    if isinstance(choice, AllowedFunctionTools):
        allowed = protocol.AllowedTools(mode=choice.mode, tools=list(map(_choice, choice.tools)))
        return protocol.AllowedChoice(type="allowed_tools", allowed_tools=allowed)
    return choice


def renamed(error: ApiError) -> ApiError:
    """An error about a field of /v1/chat/completions, with the name that it has here."""
    first = (error.param or "").partition(".")[0]
    return ApiError(error.status, error.message, param=_PLACES.get(first, error.param), code=error.code)


def _reply(messages: list[protocol.MessageBody]) -> protocol.MessageBody:
    """The reply that an item is part of: the last message, or a new one."""
    if not messages or messages[-1].role != "assistant":
        messages.append(protocol.MessageBody(role="assistant"))
    return messages[-1]


def _text(content: str | Sequence[Text]) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)
