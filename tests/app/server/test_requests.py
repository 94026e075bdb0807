"""From a body of the protocol to requests of the engine, without a server."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from specchat.app.server.protocol import ApiError, ChatBody, CompletionBody, parse
from specchat.app.server.requests import Defaults, requests_of
from specchat.app.settings.settings import Settings
from specchat.engine import Engine, Request, Sampling
from tests.engine.tiny import ids_of, tiny_engine
from tests.engine.tiny_t5 import tiny_t5, tiny_t5_tokenizer


class ReadingEngine:
    """Reads every prompt as one token, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[Request] = []

    def prompt_ids(self, request: Request) -> list[int]:
        self.asked.append(request)
        return [1]


@pytest.mark.parametrize(
    ("setting", "body", "expected"),
    [("auto", {}, None), ("off", {}, False), ("off", {"thinking": True}, True), ("auto", {"thinking": False}, False)],
)
def test_a_prompt_is_read_with_thinking_as_the_body_or_else_the_settings_say(
    setting: str, body: dict[str, object], expected: bool | None
) -> None:
    engine: Any = ReadingEngine()
    asked = parse(ChatBody, json.dumps({"messages": [{"role": "user", "content": "hi"}], **body}).encode())
    requests_of(asked, "c", Defaults(engine, Settings(thinking=setting), 100))
    assert [request.thinking for request in engine.asked] == [expected]


def test_a_value_that_the_body_lacks_is_that_of_the_defaults() -> None:
    engine: Any = ReadingEngine()
    settings = Settings(top_k=5).with_model(Sampling(0.6, 20, 0.9))
    body = {"messages": [{"role": "user", "content": "hi"}], "top_p": 0.5}
    (request,) = requests_of(parse(ChatBody, json.dumps(body).encode()), "c", Defaults(engine, settings, 100))
    assert request.sampling == Sampling(0.6, 5, 0.5)


@pytest.fixture(scope="module")
def t5() -> Iterator[Engine]:
    with tiny_engine(tiny_t5()) as engine:
        yield engine


def test_a_t5_answers_completions_and_refuses_conversations(t5: Engine) -> None:
    defaults = Defaults(t5, Settings(), t5.wait_ready().context)
    completion = parse(CompletionBody, json.dumps({"prompt": "summarize: abc", "max_tokens": 8}).encode())
    (request,) = requests_of(completion, "c", defaults)
    assert request.prompt_ids == tuple(tiny_t5_tokenizer().encode("summarize: abc"))
    expected = ids_of(list(t5.stream(Request("r", prompt="summarize: abc", max_tokens=8))))
    assert ids_of(list(t5.stream(request))) == expected
    chat = parse(ChatBody, json.dumps({"messages": [{"role": "user", "content": "hi"}]}).encode())
    with pytest.raises(ApiError, match="tiny-t5 reads one text and holds no conversation: give it a prompt"):
        requests_of(chat, "c", defaults)
