"""From a body of the protocol to requests of the engine, without a server."""

from __future__ import annotations

import json
from typing import Any

import pytest

from specchat.app.server.protocol import ChatBody, parse
from specchat.app.server.requests import Defaults, requests_of
from specchat.app.settings.settings import Settings
from specchat.engine import Request


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
