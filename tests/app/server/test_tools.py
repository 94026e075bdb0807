"""Tools in the server: bodies become requests with tools, and calls become the fields of OpenAI's API."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from tokenizers import AddedToken

from specchat.app.server.choice import Choice
from specchat.app.server.errors import ApiError
from specchat.app.server.formats import ChatFormat
from specchat.app.server.protocol import ChatBody, parse
from specchat.app.server.requests import Defaults, requests_of
from specchat.app.settings.settings import Settings
from specchat.engine import Admitted, Call, Finished, FinishReason, PartKind
from tests.app.server.replies import request_of, round_of
from tests.engine.tiny import reciting_model, tiny_engine, tiny_tokenizer

CLOCK = {"type": "function", "function": {"name": "clock", "description": "Tells the time."}}
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS, "strict": True}}
BROKEN = {"type": "function", "function": {"name": "f", "strict": True, "parameters": {"type": "strng"}}}
CHOSEN = {"type": "function", "function": {"name": "clock"}}
DANCE = {"type": "function", "function": {"name": "dance"}}
CALL = {"id": "abcdefgh1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Paris"}'}}
TURNS = [
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "abcdefgh1", "content": [{"type": "text", "text": "18 °C"}]},
]
TOOLS = (
    "{% for t in tools or [] %}{{ t.function.name }}: {{ t.function.description }}{% endfor %}"
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}"
    '{% for c in m.tool_calls or [] %}<tool_call>{"name": "{{ c.function.name }}", "arguments": '
    "{{ c.function.arguments | tojson }}}</tool_call>{% endfor %}{% endfor %}[assistant]"
)
"""A template with tools, in the format of Hermes."""


ARGUMENTS = "messages.1.tool_calls.0.function.arguments"


def called(arguments: str) -> dict[str, Any]:
    """A reply that called a tool with these arguments."""
    return {"role": "assistant", "tool_calls": [{"id": "x", "function": {"name": "clock", "arguments": arguments}}]}


def body(**more: object) -> ChatBody:
    """A chat with a call of a tool."""
    return parse(ChatBody, json.dumps({"messages": TURNS, "tools": [CLOCK, WEATHER], **more}).encode())


def test_tools_calls_and_results_reach_the_engine() -> None:
    request, reading = request_of(body(tool_choice={"type": "function", "function": {"name": "clock"}}))
    assert [tool.name for tool in request.tools] == [tool.name for tool in reading.tools] == ["clock", "weather"]
    assert json.loads(request.tools[1].parameters) == PARAMETERS
    assert [tool.strict for tool in request.tools] == [False, True]
    assert (request.tool_choice, request.parallel_calls) == ("clock", True)
    call, result = reading.messages[1].parts[0], reading.messages[2].parts[0]
    assert (call.kind, call.name, call.text) == (PartKind.CALL, "weather", '{"city": "Paris"}')
    assert (result.kind, result.name, result.text) == (PartKind.RESULT, "weather", "18 °C")
    assert call.call_id == result.call_id == "abcdefgh1"


@pytest.mark.parametrize(
    ("more", "field", "words"),
    [
        ({"tools": [{"type": "function", "function": {"name": "no name"}}]}, "tools", "tool name 'no name' is invalid"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools.0.function.name", "required"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools.0.type", "function"),
        ({"tools": [CLOCK, CLOCK]}, "tools", "clock is given more than once"),
        ({"tools": [CLOCK] * 129}, "tools", "at most 128"),
        ({"tool_choice": "sometimes"}, "tool_choice", "required"),
        ({"tool_choice": DANCE}, "tool_choice", "none, auto, required, clock, weather"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice", "'required', but `tools` is missing"),
        ({"tools": None, "tool_choice": CHOSEN}, "tool_choice", "'clock', but `tools` is missing"),
        ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [DANCE]}}}, "tool_choice",
         "'dance': it must be one of"),
        ({"tools": [BROKEN]}, "tools", "the parameters of the tool f: the JSON schema cannot be used"),
        ({"messages": [TURNS[0], called("not json")]}, ARGUMENTS, "not the text of a JSON object"),
        ({"messages": [TURNS[0], called("[1]")]}, ARGUMENTS, "not the text of a JSON object"),
        ({"messages": TURNS[::2]}, "messages.1.tool_call_id", "messages.1 is the result of no call"),
        ({"messages": [TURNS[0], {"role": "tool", "content": "x"}]}, "messages.1.tool_call_id", "of no call"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_tools_is_said_with_the_field(more: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(ApiError, match=words) as error:
        request_of(body(**more))
    assert (error.value.status, error.value.param) == (400, field)


def events(*said: str | Call, reason: FinishReason = FinishReason.EOS) -> Iterator[Any]:
    """The events of a reply of these texts and calls."""
    yield Admitted("r", 1, 0, 0.0, 0.0)
    for number, each in enumerate(said):
        yield round_of(number=number, calls=(each,)) if isinstance(each, Call) else round_of(each, number=number)
    yield Finished("r", reason, "", "", 0.0)


def answered(events: Sequence[Any]) -> tuple[list[Any], Any]:
    """Choices of the chunks of a streamed reply, and the choice of a whole one."""
    form = ChatFormat("call", "model", 7, speculation=False)
    streaming, whole = Choice(0, None), Choice(0, None)
    chunks = [form.chunk(streaming, streaming.add(event)) for event in events]
    sent = [json.loads(chunk[6:])["choices"][0] for chunk in chunks if chunk]
    return sent, json.loads(form.whole([whole], [[whole.add(event) for event in events]], 1))["choices"][0]


def test_calls_are_streamed_and_whole() -> None:
    first, second = Call("abcdefgh1", "weather", '{"city": "Paris"}'), Call("abcdefgh2", "clock", "{}")
    sent, whole = answered(list(events("I look.", first, second)))
    calls = [call for chunk in sent for call in chunk["delta"].get("tool_calls", ())]
    assert calls == [{"index": place, **call} for place, call in enumerate(whole["message"]["tool_calls"])]
    assert whole["message"]["tool_calls"][0] == CALL
    assert whole["message"]["content"] == "I look."
    assert whole["finish_reason"] == sent[-1]["finish_reason"] == "tool_calls"


def test_arguments_are_streamed_as_they_are_written() -> None:
    whole = Call("abcdefgh1", "weather", '{"city": "Paris"}')
    pieces = ['{"ci', 'ty": ', '"Par']
    rounds = [round_of(parts=(whole._replace(arguments=piece),)) for piece in ["", *pieces]]
    other = Call("abcdefgh2", "clock", "{}")
    last = round_of(calls=(whole, other), parts=(whole._replace(arguments="is"), other._replace(arguments="")))
    sent, made = answered([*list(events("I look."))[:-1], *rounds, last, Finished("r", FinishReason.EOS, "", "", 0.0)])
    deltas = [call for chunk in sent for call in chunk["delta"].get("tool_calls", ())]
    first, *more = [each for each in deltas if each["index"] == 0]
    assert first == {"index": 0, **CALL, "function": {"name": "weather", "arguments": ""}}
    assert more == [{"index": 0, "function": {"arguments": piece}} for piece in (*pieces, 'is"}')]
    assert deltas[-1]["function"] == {"name": "clock", "arguments": "{}"}
    assert [call["function"]["arguments"] for call in made["message"]["tool_calls"]] == [whole.arguments, "{}"]
    assert made["message"]["content"] == "I look."


def test_a_call_that_is_cut_has_the_arguments_so_far() -> None:
    begun = Call("abcdefgh1", "weather", '{"city": "Pa')
    sent, whole = answered([
        Admitted("r", 1, 0, 0.0, 0.0), round_of(parts=(begun,)),
        Finished("r", FinishReason.LENGTH, '<tool_call>{"name": "weather", "arguments": {"city": "Pa', "", 0.0),
    ])  # fmt: skip
    assert "".join(chunk["delta"].get("content", "") for chunk in sent) == ""
    assert whole["message"]["content"] is None
    assert whole["message"]["tool_calls"][0]["function"]["arguments"] == begun.arguments
    assert whole["finish_reason"] == sent[-1]["finish_reason"] == "length"


def test_allowed_tools_are_the_ones_that_may_be_called() -> None:
    allowed = {"mode": "required", "tools": [CHOSEN]}
    request, reading = request_of(body(tool_choice={"type": "allowed_tools", "allowed_tools": allowed}))
    assert [tool.name for tool in request.tools] == [tool.name for tool in reading.tools] == ["clock"]
    assert request.tool_choice == "required"


def test_the_model_calls_a_tool() -> None:
    tokenizer = tiny_tokenizer()
    call = ["<tool_call>", '{"name": "weather", ', '"arguments": {"city": ', '"Paris"}}', "</tool_call>"]
    pieces = ["Let me look.", *call]
    tokenizer.add_tokens([AddedToken(piece, special=False, normalized=False) for piece in pieces])
    tokenizer.chat_template = TOOLS
    recited = [tokenizer.convert_tokens_to_ids(piece) for piece in pieces]
    with tiny_engine(reciting_model(tokenizer, [*tokenizer.encode("]"), *recited])) as engine:
        assert engine.wait_ready().tools
        defaults = Defaults(engine, Settings(drafter="none"), engine.wait_ready().context)
        weather = {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}
        (request,) = requests_of(body(messages=TURNS[:1], tools=[CLOCK, weather]), "c", defaults)
        assert "clock: Tells the time." in tokenizer.decode(request.prompt_ids)
        sent, whole = answered(list(engine.stream(request)))
        (call,) = whole["message"]["tool_calls"]
        assert call["function"] == CALL["function"]
        assert whole["message"]["content"] == "Let me look."
        assert sent[-1]["finish_reason"] == "tool_calls"
        (request,) = requests_of(body(messages=TURNS[:1], tools=[CLOCK]), "d", defaults)
        kept = answered(list(engine.stream(request)))[1]
        assert kept["message"]["content"] == "".join(pieces)  # a tool that does not exist
        assert kept["finish_reason"] == "stop"
        (request,) = requests_of(body(tools=[]), "e", defaults)
        assert "[tool]18 °C[assistant]" in tokenizer.decode(request.prompt_ids)


def test_a_template_without_tools_refuses_them_with_the_field() -> None:
    with tiny_engine() as engine:
        defaults = Defaults(engine, Settings(), 1000)
        assert not engine.wait_ready().tools
        for made in (body(messages=TURNS[:1]), body(tools=[])):
            with pytest.raises(ApiError, match="no place for tools") as error:
                requests_of(made, "c", defaults)
            assert (error.value.status, error.value.param) == (400, "tools")
