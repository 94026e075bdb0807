"""Tools are offered to other servers, their calls are put together, and results go back as messages."""

import json
import time
from typing import Any

import pytest

from specchat.app.sources.servers import messages
from specchat.app.sources.servers.kinds import KINDS
from specchat.app.sources.servers.messages import turns
from specchat.app.sources.servers.protocol import Listing, observed_ready
from specchat.engine import (
    Call,
    Constraint,
    ConstraintKind,
    EngineError,
    FinishReason,
    Message,
    MessagePart,
    PartKind,
    Request,
    Tool,
    to_json,
)
from tests.app.sources.servers import recorded as shapes
from tests.app.sources.servers.recorded import CHAT, chunk

PARIS = '{"city": "Paris"}'
READY = json.loads(to_json(observed_ready("", "m")))
SPECCHAT = {"/v1/models": shapes.models("specchat", speculation=READY)}
KNOWN = (shapes.LLAMA_CPP, shapes.VLLM, shapes.SGLANG, shapes.LM_STUDIO, shapes.PLAIN)


def part(arguments: Any = "", **more: Any) -> dict[str, Any]:
    """A part of a call."""
    function = {"arguments": arguments} | ({"name": more.pop("name")} if "name" in more else {})
    return {"function": function, **more}


def read(*parts: list[dict[str, Any]], reason: str = "tool_calls", kind: Any = shapes.PLAIN) -> Any:
    """The end of a reply that consists of these parts of calls, a list in each chunk."""
    listing = Listing("url", kind["/v1/models"]["data"], None, lambda path, _: kind.get(path))
    reader = next(server for find in KINDS if (server := find(listing))).reader("r", time.monotonic)
    for chunk_ in (*(chunk(choice={"delta": {"tool_calls": each}}) for each in parts), chunk(None, reason)):
        list(reader.read(chunk_))
    return reader.ended(reader.finished)


@pytest.mark.parametrize("kind", KNOWN)
def test_calls_are_put_together_from_their_parts(kind: Any) -> None:
    streamed = [part(index=0, id="a", name="weather"), part('{"city": ', index=0)], [part('"Paris"}', index=0)]
    assert read(*streamed, [part(index=1, id="b", name="hang")], kind=kind).calls == (
        Call("a", "weather", PARIS),
        Call("b", "hang", "{}"),
    )


@pytest.mark.parametrize(
    "parts",
    [
        [part(PARIS, id="a", name="weather"), part(PARIS, id="b", name="weather")],  # without an index
        [part(PARIS, id="a", name="weather", index=0), part(PARIS, id="b", name="weather", index=0)],
        [part(json.loads(PARIS), id=name, name="weather", index=place) for place, name in enumerate("ab")],
        [part("{", id="a", name="weather", index=0), part(PARIS[1:], id="a", name="weather", index=0)],  # repeated
        [part(PARIS, name="weather", index=0)],
    ],
)
def test_other_ways_to_stream_calls_are_read(parts: list[dict[str, Any]]) -> None:
    ended = read(parts, reason="stop")
    assert [call[1:] for call in ended.calls] == [("weather", PARIS)] * len({each.get("id") for each in parts})
    assert len({call.id for call in ended.calls} - {""}) == len(ended.calls)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (part("[1]", name="weather"), "the arguments of weather are no JSON object"),
        (part('{"city"', name="weather"), "Expecting"),
        (part(PARIS), "the tool name '' is invalid"),
        (part(PARIS, name="\x1b[2J"), "the tool name '\\x1b[2J' is invalid"),
        (part("[" * 100_000, name="weather"), "recursion"),
    ],
)
def test_a_call_that_cannot_be_made_is_an_error(made: dict[str, Any], words: str) -> None:
    ended = read([made])
    assert (ended.reason, ended.calls) == (FinishReason.ERROR, ())
    assert words in ended.message
    assert read([made], reason="length").message == ""  # the reply was cut


@pytest.mark.parametrize("made", [part(name=["x"]), part(id=5), part(5), {"function": 5}, 5])
def test_what_is_no_call_is_refused(made: Any) -> None:
    with pytest.raises(EngineError, match="not a chunk of a reply"):
        read([made])


def test_endless_calls_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "MOST_CALLED", 100)
    with pytest.raises(EngineError, match="calls of more than 100 characters"):
        read(*[[part("x" * 9, index=0, name="weather")]] * 20)


def test_calls_and_results_become_messages() -> None:
    call = MessagePart(PartKind.CALL, PARIS, "weather", "a")
    result = MessagePart(PartKind.RESULT, "18 °C", "weather", "a")
    said = MessagePart(PartKind.TEXT, "And now?")
    function = {"name": "weather", "arguments": PARIS}
    assert turns((Message("assistant", parts=[call]), Message("user", parts=[result, said]))) == [
        {"role": "assistant", "content": None, "tool_calls": [{"id": "a", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": "a", "content": "18 °C"},
        {"role": "user", "content": "And now?"},
    ]
    assert turns((Message("tool", parts=[result]),))[0]["role"] == "tool"


@pytest.mark.parametrize("kind", [*KNOWN, SPECCHAT])
def test_tools_and_schemas_are_asked_for_in_a_chat(kind: Any) -> None:
    listing = Listing("url", kind["/v1/models"]["data"], None, lambda path, _: kind.get(path))
    server = next(server for find in KINDS if (server := find(listing)))
    tool = Tool("weather", "Of a city.", '{"type": "object"}')
    schema = Constraint(ConstraintKind.SCHEMA, "{}")
    path, body = server.call(Request("r", shapes.ASKED, tools=(tool,), constraint=schema), listing.ask)
    assert path == CHAT
    about = {"name": "weather", "description": "Of a city.", "parameters": {"type": "object"}}
    assert body["tools"] == [{"type": "function", "function": about}]
    assert body["response_format"]["json_schema"]["schema"] == {}
