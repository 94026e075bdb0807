"""/v1/responses: items become conversations, and replies become items and events that OpenAI's own package reads."""

import json
from collections.abc import Sequence
from typing import Any

import openai
import pytest
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from specchat.app.server.choice import Choice
from specchat.app.server.constraints import constraint_of
from specchat.app.server.errors import ApiError
from specchat.app.server.protocol import parse
from specchat.app.server.requests import conversation
from specchat.app.server.responses import ResponsesFormat
from specchat.app.server.responses_body import ResponsesBody
from specchat.engine import Admitted, Call, Finished, FinishReason, PartKind
from tests.app.server.replies import round_of
from tests.app.server.served import Served

WEATHER = {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": True}
CALL = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city": "Paris"}', "id": "fc_1"}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "18 °C"}]}


def body(given: object, **more: object) -> ResponsesBody:
    return parse(ResponsesBody, json.dumps({"input": given, **more}).encode())


def test_a_text_is_a_conversation() -> None:
    schema = {"type": "json_schema", "name": "n", "schema": {"type": "object"}}
    more = {"max_output_tokens": 7, "temperature": 0.5, "reasoning": {"effort": "low"}, "text": {"format": schema}}
    chat = body("hi", instructions="Be brief.", **more).chat()
    assert [(turn.role, turn.content) for turn in chat.messages] == [("system", "Be brief."), ("user", "hi")]
    assert constraint_of(chat).text == '{"type": "object"}'
    assert (chat.max_completion_tokens, chat.temperature, chat.reasoning_effort) == (7, 0.5, "low")


def test_items_of_a_reply_are_one_message() -> None:
    thought = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}
    said = {
        "type": "message", "role": "assistant", "id": "msg_1", "status": "completed",
        "content": [{"type": "output_text", "text": "I look.", "annotations": []}],
    }  # fmt: skip
    asked = {"role": "user", "content": [{"type": "input_text", "text": "Weather?"}]}
    chosen = {"type": "function", "name": "weather"}
    chat = body([asked, thought, said, CALL, RESULT], tools=[WEATHER], tool_choice=chosen).chat()
    _, reply, result = conversation(chat.messages)
    assert (reply.thinking, reply.content, result.parts[0].text) == ("Hm.", "I look.", "18 °C")
    (call,) = reply.parts_of(PartKind.CALL)
    assert (call.name, call.text, call.call_id) == ("weather", '{"city": "Paris"}', "c1")
    assert chat.tools[0].function.strict
    assert chat.tool_choice.function.name == "weather"


@pytest.mark.parametrize(
    ("given", "more", "field"),
    [
        ([], {}, "input"),
        ([{"type": "item_reference", "id": "x"}], {}, "input.0.type"),
        ("hi", {"previous_response_id": "resp_1"}, "previous_response_id"),
        ("hi", {"tools": [{"type": "web_search"}]}, "tools.0.type"),
        ("hi", {"n": 2}, "n"),
        ("hi", {"response_format": {"type": "json_object"}}, "response_format"),
        ("hi", {"text": {"format": {"type": "json_schema", "schema": {}}}}, "text.format"),
        ("hi", {"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format"),
        ("hi", {"text": {"format": {"type": "json_object", "Regex": "a"}}}, "text.format.Regex"),
        ([{"role": "user", "content": "hi"}, RESULT], {}, "input.1.call_id"),
        ([CALL | {"arguments": "not json"}], {}, "input.0.arguments"),
        ("hi", {"max_output_tokens": 0}, "max_output_tokens"),
    ],
)
def test_what_is_not_served_is_refused_with_the_field(given: object, more: dict[str, object], field: str) -> None:
    with pytest.raises(ApiError) as error:
        body(given, **more).chat()
    assert error.value.status == 400
    assert error.value.param == field
    for name in ("messages", "tool_call_id", "json_schema.name"):
        assert name not in error.value.message


def events(*said: tuple[str, str] | Call, reason: FinishReason = FinishReason.EOS) -> list[Any]:
    """The events of a reply of thinking, texts and calls."""
    made: list[Any] = [Admitted("r", 4, 1, 0.0, 0.0)]
    for number, each in enumerate(said):
        if isinstance(each, Call):
            begun = each._replace(arguments=each.arguments[:4])
            made += [round_of(number=number, parts=(begun,)), round_of(number=number, calls=(each,))]
        else:
            made.append(round_of(each[1], number=number, thinking=each[0] == "thinking"))
    return [*made, Finished("r", reason, "", "", 0.0)]


def written(engine_events: Sequence[Any]) -> tuple[list[Any], Response]:
    """The events of a streamed reply and a whole one, as the package reads them."""
    asked = body("hi", tools=[WEATHER], temperature=0.5)
    streaming, choice = ResponsesFormat("resp_1", "m", 7, asked), Choice(0, None)
    chunks = b"".join(streaming.chunk(choice, choice.add(event)) for event in engine_events)
    lines = [line[6:] for line in chunks.decode().splitlines() if line.startswith("data: ")]
    read = [TypeAdapter(ResponseStreamEvent).validate_json(line) for line in lines]
    choice = Choice(0, None)
    whole = ResponsesFormat("resp_1", "m", 7, asked).whole([choice], [[choice.add(each) for each in engine_events]], 1)
    return read, Response.model_validate_json(whole)


def test_a_reply_is_items_and_the_stream_adds_up_to_it() -> None:
    call = Call("c1", "weather", '{"city": "Paris"}')
    texts = (("text", text) for text in ("\n", "I ", "look.", "\n"))
    said = (("thinking", "Hm"), ("thinking", "."), *texts, call)
    read, whole = written(events(*said, ("text", "\n"), Call("c2", "weather", "{}")))
    assert [item.type for item in whole.output] == ["reasoning", "message", "function_call", "function_call"]
    assert whole.output[0].content[0].text == "Hm."
    assert whole.output_text == "I look.\n"
    usage = whole.usage  # calls take two rounds
    assert (whole.status, usage.input_tokens, usage.output_tokens) == ("completed", 4, len(said) + 4)
    assert read[-1].response == whole
    assert [event.sequence_number for event in read] == list(range(len(read)))
    state = ResponseStreamState(input_tools=[], text_format=openai.omit)  # raises if events contradict each other
    for event in read:
        state.handle_event(event)
    assert "".join(event.delta for event in read if event.type == "response.output_text.delta") == whole.output_text


def test_a_call_that_is_cut_is_incomplete() -> None:
    call = Call("c1", "weather", '{"city": "Pa')
    read, whole = written(
        [Admitted("r", 4, 1, 0.0, 0.0), round_of(parts=(call,)), Finished("r", FinishReason.LENGTH, "x", "", 0.0)]
    )
    (item,) = whole.output
    assert (whole.status, item.status, item.arguments) == ("incomplete", "incomplete", call.arguments)
    assert read[-1].type == "response.incomplete"


def test_the_server_answers_the_package(served: Served) -> None:
    client = served.openai()
    model = client.models.list().data[0].id
    whole = client.responses.create(model=model, input="fox", max_output_tokens=5, temperature=0)
    assert (whole.status, whole.usage.output_tokens) == ("incomplete", 5)
    *_, last = client.responses.create(model=model, input="fox", max_output_tokens=5, temperature=0, stream=True)
    assert last.response.output_text == whole.output_text
