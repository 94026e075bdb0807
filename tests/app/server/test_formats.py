"""Chunks of a stream as the protocol defines them."""

from __future__ import annotations

import json

import pytest

from specchat.app.server.formats import ChatFormat, Choice, CompletionFormat, Delta, Format, TokenLogprob
from specchat.engine import Admitted, Fate, Round, from_json


@pytest.mark.parametrize("kind", [ChatFormat, CompletionFormat])
@pytest.mark.parametrize("speculation", [False, True])
@pytest.mark.parametrize("text", ['"quoted" \\ \n', "\0", "żółw 🐢", "\ud83d"])
def test_a_chunk_is_the_object_of_the_protocol(kind: type[Format], speculation: bool, text: str) -> None:
    form = kind("call-\0-1", 'a "model"', 7, speculation=speculation, with_logprobs=True)
    event = Round("r", 0, 3, "none", 0, (), (), (), (), (), 0, 5, Fate.PLAIN, (), "x", 0.0, 0.0, 0.0, 0.0, 1)
    said = form.chunk(Choice(3, 0), Delta(event, text))
    assert said.startswith(b"data: ")
    assert said.endswith(b"\n\n")
    chunk = json.loads(said[6:])
    if speculation:
        assert from_json(json.dumps(chunk.pop("speculation"))) == event
    part = {"delta": {"content": text}} if kind is ChatFormat else {"text": text}
    assert chunk == {
        "id": "call-\0-1",
        "created": 7,
        "model": 'a "model"',
        "object": form.chunk_kind,
        "choices": [{"index": 3, **part, "logprobs": None, "finish_reason": None}],
    }
    logprobs = json.loads(form.chunk(Choice(0, 1), Delta(event, "x", (TokenLogprob("x", -1.0, ()),)))[6:])
    assert logprobs["choices"][0]["logprobs"] is not None
    opening = form.chunk(Choice(0, None), Delta(Admitted("r", 1, 0, 0.0, 0.0)))
    assert (b'"role":"assistant"' in opening) == (kind is ChatFormat)
