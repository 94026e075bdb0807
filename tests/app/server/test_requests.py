"""Conversion of bodies of the protocol to requests of the engine, and streamed answers to slow clients."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from tokenizers import AddedToken

from specchat.app.server.answer import Answer
from specchat.app.server.calls import Call
from specchat.app.server.choice import Choice
from specchat.app.server.formats import ChatFormat, CompletionFormat
from specchat.app.server.protocol import ChatBody, CompletionBody, parse
from specchat.app.server.requests import Defaults, requests_of
from specchat.app.settings.settings import Settings
from specchat.engine import Admitted, Finished, FinishReason, Request, Round, Sampling
from tests.app.server.replies import request_of, round_of
from tests.engine.tiny import reciting_model, tiny_engine, tiny_tokenizer


def chat(**more: object) -> ChatBody:
    """The body of a chat of one turn."""
    return parse(ChatBody, json.dumps({"messages": [{"role": "user", "content": "hi"}], **more}).encode())


def test_what_the_body_lacks_is_that_of_the_defaults() -> None:
    settings = Settings(top_k=5, thinking="off").with_model(Sampling(0.6, 20, 0.9))
    request, reading = request_of(chat(top_p=0.5), settings)
    assert (request.sampling, reading.thinking) == (Sampling(0.6, 5, 0.5), False)
    assert request_of(chat(thinking=True), settings)[1].thinking is True


class OneCall:
    """Submits nothing: the test adds events to its one call."""

    def begin(self, requests: Sequence[Request]) -> Call:
        self.call = Call(requests)
        self.deliver(Admitted("r", 1, 0, 0.0, 0.0), round_of("first"))
        return self.call

    def deliver(self, *events: Admitted | Round | Finished) -> None:
        for event in events:
            self.call.add(event.request_id, event)

    def check_alive(self) -> list[str]:
        return []

    def end(self, call: Call) -> None:
        """Nothing is open."""


def streamed(*rest: Admitted | Round | Finished, choices: str = "r") -> list[Any]:
    """What is sent of a reply whose rest comes while the first delivery, of its first choice, is being sent.

    Without a rest the server is closed then, which cancels the task.
    """
    calls, sent = OneCall(), []

    async def send(message: Any) -> None:
        sent.append(message)
        if len(sent) == 2:  # the response's start, and the first delivery
            if rest:
                calls.deliver(*rest)
            else:
                asyncio.current_task().cancel()

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
    rounds = [round_of(text, choice) for text in (" second", " third") for choice in "rs"]
    endings = [Finished(choice, FinishReason.EOS, "", "", 0.0) for choice in "rs"]
    one, one_ends, other, other_ends, done = streamed(*rounds, *endings, choices="rs")
    assert ['"index":0,"text":" second third"' in one, '"index":1,"text":" second third"' in other] == [True, True]
    assert ['"index":0,"text":""' in one_ends, '"index":1,"text":""' in other_ends, done] == [True, True, "[DONE]"]


def test_the_text_of_every_choice_is_sent_before_an_error() -> None:
    failures = [Finished(choice, FinishReason.ERROR, "", "out of memory", 0.0) for choice in "rs"]
    rounds = round_of(" second"), round_of(" other", "s"), round_of(" third")
    one, one_ends, other, other_ends, error, done = streamed(*rounds, *failures, choices="rs")
    assert ['"text":" second third"' in one, '"text":" other"' in other, "out of memory" in error] == [True] * 3
    assert ['"finish_reason":"error"' in end for end in (one_ends, other_ends)] == [True, True]
    assert done == "[DONE]"


def test_a_reply_that_is_ended_by_a_closing_server_says_so() -> None:
    (error,) = streamed()
    assert "the reply was ended: the server is closing" in error


def test_thinking_is_a_field_of_its_own_in_answers_and_in_requests() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens([AddedToken("</think>", special=False)])
    tokenizer.chat_template = (
        "{% for m in messages %}[{{ m.role }}]{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>"
        "{% endif %}{{ m.content }}{% endfor %}[assistant]{{ '<think>\n' }}"
    )
    said = {"role": "assistant", "content": "Yes", "reasoning_content": "Hm."}
    turns = [{"role": "user", "content": "hi"}, said, {"role": "user", "content": "so", "reasoning": "no assistant's"}]
    with tiny_engine(reciting_model(tokenizer, tokenizer.encode("\nHm.</think>\rYes"))) as engine:
        defaults = Defaults(engine, Settings(drafter="none"), engine.wait_ready().context)
        (request,) = requests_of(parse(ChatBody, json.dumps({"messages": turns}).encode()), "c", defaults)
        prompt = "[user]hi[assistant]<think>Hm.</think>Yes[user]so[assistant]<think>\n"
        assert tokenizer.decode(request.prompt_ids) == prompt
        choice, form = Choice(0, None), ChatFormat("call", "model", 7, speculation=False)
        deltas = [choice.add(event) for event in engine.stream(request)]
        sent = [
            json.loads(chunk[6:])["choices"][0]["delta"] for delta in deltas if (chunk := form.chunk(choice, delta))
        ]
        for field in ("reasoning_content", "content"):
            assert "".join(delta.get(field, "") for delta in sent) == said[field]
        assert json.loads(form.whole([choice], [deltas], 1))["choices"][0]["message"] == said | {"refusal": None}
        body = parse(CompletionBody, json.dumps({"prompt": prompt, "max_tokens": 40}).encode())
        (request,) = requests_of(body, "raw", defaults)
        raw = CompletionFormat("call", "model", 7, speculation=False)
        whole = raw.whole([choice], [[choice.add(event) for event in engine.stream(request)]], 1)
        assert json.loads(whole)["choices"][0]["text"] == "Hm.</think>\rYes"
