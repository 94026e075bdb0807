"""Request bodies with conversations: messages, tools and calls."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from specchat.app.server.protocol import MOST_TOOLS, MOST_TOP_LOGPROBS, Body, Count, ServerModel


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
