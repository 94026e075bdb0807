"""Streamed answers of which the rest comes while a client takes its time with the beginning: in how many chunks."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from specchat.app.server.answer import Answer
from specchat.app.server.calls import Call
from specchat.app.server.formats import CompletionFormat
from specchat.engine import Admitted, Event, Fate, Finished, FinishReason, Request, Round


class OneCall:
    """Hands over nothing: its one call is given events by the test."""

    def begin(self, requests: Sequence[Request]) -> Call:
        self.call = Call(requests)
        self.deliver(Admitted("r", 1, 0, 0.0, 0.0), said("first"))
        return self.call

    def deliver(self, *events: Event) -> None:
        for event in events:
            self.call.add("r", event)

    def check_alive(self) -> list[str]:
        return []

    def end(self, call: Call) -> None:
        """Nothing is open."""


def said(text: str) -> Round:
    return Round("r", 0, 3, "none", 0, (), (), (), (), (), 0, 5, Fate.PLAIN, (), text, 0.0, 0.0, 0.0, 0.0, 1)


def streamed(*rest: Event, speculation: bool = False) -> list[Any]:
    """What is sent of a reply whose rest comes while the first delivery is being sent."""
    calls, sent = OneCall(), []

    async def send(message: Any) -> None:
        sent.append(message)
        if len(sent) == 2:  # the response's start, and the first delivery
            calls.deliver(*rest)

    async def receive() -> Any:
        await asyncio.Event().wait()

    form = CompletionFormat("call", "model", 7, speculation=speculation, with_logprobs=False)
    answer = Answer(calls, [Request("r", prompt="x")], form, 1, stream=True, usage=False, top=None)  # type: ignore[arg-type]
    asyncio.run(answer({}, receive, send))
    assert b'"text":"first"' in sent[1]["body"]
    assert [message["more_body"] for message in sent[1:]] == [True, False]
    return [line.removeprefix("data: ") for line in sent[2]["body"].decode().strip().split("\n\n")]


def test_the_last_text_is_sent_to_a_slow_client() -> None:
    text, end, done = streamed(said(" second"), Finished("r", FinishReason.EOS, "", "", 0.0))
    assert '"text":" second"' in text
    assert '"finish_reason":"stop"' in end
    assert done == "[DONE]"


def test_rounds_that_come_together_are_one_chunk() -> None:
    text, _, done = streamed(said(" second"), said(" third"), Finished("r", FinishReason.EOS, "", "", 0.0))
    assert '"text":" second third"' in text
    assert done == "[DONE]"


def test_rounds_that_come_together_are_a_chunk_each_where_records_are_asked_for() -> None:
    ending = Finished("r", FinishReason.EOS, "", "", 0.0)
    chunks = streamed(said(" second"), said(" third"), ending, speculation=True)
    assert ['"text":" second"' in chunks[0], '"text":" third"' in chunks[1]] == [True, True]


def test_text_that_comes_with_an_error_is_sent_before_it() -> None:
    text, error = streamed(said(" second"), Finished("r", FinishReason.ERROR, "", "out of memory", 0.0))
    assert '"text":" second"' in text
    assert "out of memory" in error
