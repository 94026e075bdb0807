"""Streamed answers to slow clients: all of the text, in order, in few chunks."""

import asyncio
from collections.abc import Sequence
from typing import Any

from specchat.app.server.answer import Answer
from specchat.app.server.calls import Call
from specchat.app.server.formats import CompletionFormat
from specchat.app.server.protocol import CompletionBody
from specchat.engine import Admitted, Fate, Finished, FinishReason, Request, Round


class OneCall:
    """Submits nothing: the test adds events to its one call."""

    def begin(self, requests: Sequence[Request]) -> Call:
        self.call = Call(requests)
        self.deliver(Admitted("r", 1, 0, 0.0, 0.0), said("first"))
        return self.call

    def deliver(self, *events: Admitted | Round | Finished) -> None:
        for event in events:
            self.call.add(event.request_id, event)

    def check_alive(self) -> list[str]:
        return []

    def end(self, call: Call) -> None:
        """Nothing is open."""


def said(text: str, name: str = "r", number: int = 0) -> Round:
    return Round(name, number, 3, "none", 0, (), (), (), (), (), 0, 5, Fate.PLAIN, (), text, 0.0, 0.0, 0.0, 0.0, 1)


def streamed(*rest: Admitted | Round | Finished, choices: str = "r") -> list[Any]:
    """What is sent of a reply whose rest comes while the first delivery, of its first choice, is being sent."""
    calls, sent = OneCall(), []

    async def send(message: Any) -> None:
        sent.append(message)
        if len(sent) == 2:  # the response's start, and the first delivery
            calls.deliver(*rest)

    async def receive() -> Any:
        await asyncio.Event().wait()

    form = CompletionFormat("call", "model", 7, speculation=False)
    requests = [Request(choice, prompt="x") for choice in choices]
    answer = Answer(calls, requests, form, CompletionBody(prompt="x", n=len(choices), stream=True), None)  # type: ignore[arg-type]
    asyncio.run(answer({}, receive, send))
    assert b'"text":"first"' in sent[1]["body"]
    assert [message["more_body"] for message in sent[1:]] == [True, False]
    return [line.removeprefix("data: ") for line in sent[2]["body"].decode().strip().split("\n\n")]


def test_rounds_of_several_choices_are_one_chunk_of_each() -> None:
    rounds = [said(text, choice) for text in (" second", " third") for choice in "rs"]
    endings = [Finished(choice, FinishReason.EOS, "", "", 0.0) for choice in "rs"]
    one, one_ends, other, other_ends, done = streamed(*rounds, *endings, choices="rs")
    assert ['"index":0,"text":" second third"' in one, '"index":1,"text":" second third"' in other] == [True, True]
    assert ['"index":0,"text":""' in one_ends, '"index":1,"text":""' in other_ends, done] == [True, True, "[DONE]"]


def test_the_text_of_every_choice_is_sent_before_an_error() -> None:
    failure = Finished("s", FinishReason.ERROR, "", "out of memory", 0.0)
    one, other, error = streamed(said(" second"), said(" other", "s"), said(" third"), failure, choices="rs")
    assert ['"text":" second third"' in one, '"text":" other"' in other, "out of memory" in error] == [True] * 3
