"""Calls of tools: what the user decides about them, and how far the calls of a reply are."""

import asyncio
from collections.abc import Iterable, Sequence
from enum import StrEnum
from itertools import takewhile

from specchat.app.errors import UsageError
from specchat.engine import FinishReason, Message, MessagePart, PartKind

MOST_REPLIES = 32
"""Replies with calls to one prompt: a model that calls without end is stopped."""
DECLINED = "error: the user declined this call"
NO_RESULT = "error: there is no result: the call was not made, or was stopped"
COMPLETE = (FinishReason.EOS, FinishReason.STOP)
"""How a reply ends whose calls are made."""


class Decision(StrEnum):
    """What the user decides about a call, and about later calls of the same tool."""

    ONCE = "once"
    ALWAYS = "always"
    NEVER = "never"


class Decisions:
    """The decisions about the tools of a chat.

    Args:
        allowed: names of tools that are called without a question.
    """

    def __init__(self, allowed: Iterable[str] = ()) -> None:
        self.by_tool = dict.fromkeys(allowed, Decision.ALWAYS)
        """The decisions that hold for later calls."""

    def allows(self, name: str) -> bool | None:
        """Whether a tool is called without a question; None if the user is asked."""
        return None if name not in self.by_tool else self.by_tool[name] is Decision.ALWAYS

    def take(self, name: str, decision: Decision) -> bool:
        """Keep a decision about a tool; return whether the present call is made."""
        if decision is not Decision.ONCE:
            self.by_tool[name] = decision
        return decision is not Decision.NEVER

    def forget(self, names: Iterable[str]) -> None:
        """Ask about these tools again."""
        for name in names:
            self.by_tool.pop(name, None)


class Calling:
    """The calls of an ended reply, while they are asked about and made."""

    def __init__(self) -> None:
        self.call: MessagePart | None = None
        """The call that is asked about or made."""
        self.asks = False
        """Whether it waits for the user's decision."""
        self.stopped = False
        """Whether the user has stopped the reply."""
        self.woken = asyncio.Event()
        """Set when what `wait` waits for has happened."""

    def stop(self) -> None:
        """Make no further call."""
        self.stopped = True
        self.woken.set()

    async def wait(self) -> None:
        """Wait until the user can be asked, the call has returned, or the reply is stopped."""
        await self.woken.wait()
        self.woken.clear()

    @property
    def state(self) -> str:
        """What happens now."""
        name = self.call.name if self.call is not None else "tools"
        return f"{name} waits for your decision" if self.asks else f"calling {name}"

    def words(self, call: MessagePart) -> str:
        """What happens to a call, if anything does."""
        return "" if call != self.call else "waits for your decision" if self.asks else "running"


def result_of(call: MessagePart, text: str) -> MessagePart:
    """What a call returned."""
    return MessagePart(PartKind.RESULT, text, call.name, call.call_id)


def check_replies(messages: Sequence[Message]) -> None:
    """Check that a reply to these messages may have calls.

    Raises:
        UsageError: too many replies before it had calls.
    """
    prompts = [message for message in messages if message.role == "user"]
    before = sum(1 for _ in takewhile(lambda each: each.parts_of(PartKind.RESULT) and not each.content, prompts[::-1]))
    if before >= MOST_REPLIES:
        raise UsageError(f"the model has called tools in {MOST_REPLIES} replies: ask for less at once")


def with_results(messages: Iterable[Message]) -> tuple[Message, ...]:
    """The messages with a result for each call, which models expect: a sentence for calls that were not answered."""
    made: list[Message] = []
    for message in messages:
        calls = made[-1].parts_of(PartKind.CALL) if made and message.role == "user" else ()
        results = message.parts_of(PartKind.RESULT)
        known = {result.call_id for result in results}
        missing = [result_of(call, NO_RESULT) for call in calls if call.call_id not in known]
        said = [part for part in message.parts if part.kind is not PartKind.RESULT]
        made.append(Message(message.role, parts=(*results, *missing, *said)) if missing else message)
    return tuple(made)
