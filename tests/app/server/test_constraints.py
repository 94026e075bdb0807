"""`response_format` of OpenAI's API, and `structured_outputs` of vLLM: replies that follow them."""

import json
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel

from specchat.app.server.constraints import constraint_of
from specchat.app.server.errors import ApiError
from specchat.app.server.protocol import ChatBody, parse
from specchat.engine import JSON_OBJECT, Constraint, ConstraintKind, one_of
from tests.app.server.served import Served, chat

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}


class Opinion(BaseModel):
    """What `parse` of OpenAI's client makes a schema of."""

    verdict: Literal["good", "bad"]
    certain: bool


def named(schema: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}}


def outputs(**values: Any) -> dict[str, Any]:
    return {"structured_outputs": values}


def body(more: dict[str, Any]) -> ChatBody:
    return parse(ChatBody, json.dumps({"messages": [{"role": "user", "content": "hi"}], **more}).encode())


@pytest.mark.parametrize(
    ("more", "constraint"),
    [
        ({}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, JSON_OBJECT),
        (named(SCHEMA), Constraint(ConstraintKind.SCHEMA, json.dumps(SCHEMA))),
        (outputs(json=SCHEMA), Constraint(ConstraintKind.SCHEMA, json.dumps(SCHEMA))),
        (outputs(regex="a+"), Constraint(ConstraintKind.REGEX, "a+")),
        (outputs(choice=["a", "b"]), one_of(["a", "b"])),
        (outputs(grammar='root ::= "a"'), Constraint(ConstraintKind.GRAMMAR, 'root ::= "a"')),
        (outputs(json_object=True), JSON_OBJECT),
    ],
)
def test_a_body_states_a_constraint(more: dict[str, Any], constraint: Constraint | None) -> None:
    assert constraint_of(body(more)) == constraint


BAD = [
    (
        named({"$ref": "https://example.com/x.json"}),
        "response_format",
        "refers to https://example.com/x.json, which is never fetched",
    ),
    (outputs(grammar='start: "a" start'), "structured_outputs.grammar", "no finite text follows it"),
    (named({"type": "array", "items": {"$ref": "#"}, "minItems": 1}), "response_format", "requires itself without end"),
    (named({"enum": ["x" * 1_000_000]}), "response_format", "at most 200000"),
    ({"response_format": {"type": "json_schema"}}, "response_format", "a name and a schema"),
    ({"response_format": {"type": "xml"}}, "response_format.type", "should be 'text'"),
    (outputs(regex="("), "structured_outputs.regex", "unclosed group"),
    (outputs(grammar="start: foo"), "structured_outputs.grammar", "unknown name"),
    (outputs(choice=["a", ""]), "structured_outputs.choice", "a choice is empty"),
    (outputs(), "structured_outputs", "one of json, json_object, regex, choice, grammar"),
    (outputs(json_object=False), "structured_outputs", "states no constraint"),
    (outputs(regexp="a"), "structured_outputs.regexp", "structured_outputs.regexp is not a parameter"),
    ({"response_format": {"type": "text", "regex": "a"}}, "response_format.regex", "is not a parameter"),
    (outputs(regex="a", choice=["b"]), "structured_outputs", "a reply follows one constraint"),
    (outputs(regex="a") | named(SCHEMA), "response_format", "a reply follows one constraint"),
]


@pytest.mark.parametrize(("more", "field", "words"), BAD)
def test_a_bad_constraint_is_refused_by_the_name_of_its_field(more: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(ApiError) as refused:
        constraint_of(body(more))
    assert (refused.value.status, refused.value.param) == (400, field)
    assert words in refused.value.message


def test_the_official_client_parses_replies(served: Served) -> None:
    client = served.openai()
    (model,), chat = client.models.list().data, client.chat.completions
    create = {"model": model.id, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 60}
    reply = chat.parse(response_format=Opinion, n=3, temperature=1.0, **create)  # type: ignore[arg-type]
    assert all(isinstance(choice.message.parsed, Opinion) for choice in reply.choices)
    assert {choice.finish_reason for choice in reply.choices} == {"stop"}
    with client.chat.completions.stream(response_format=Opinion, **create) as stream:  # type: ignore[arg-type]
        assert isinstance(stream.get_final_completion().choices[0].message.parsed, Opinion)
    with pytest.raises(openai.BadRequestError, match="Unsatisfiable schema") as refused:
        chat.create(**create, **named({"type": "string", "minLength": 2, "maxLength": 1}))
    assert refused.value.param == "response_format"
    cut = chat.create(**{**create, "max_tokens": 5}, **named(SCHEMA))
    assert (cut.choices[0].finish_reason, cut.choices[0].message.content) == ("length", '{"a":')


HARD = {"structured_outputs": {"regex": "Well, ([a-z]{1,1000}){900,1000}"}}


def test_a_constraint_that_fails_keeps_the_text(served: Served) -> None:
    asked = chat("hi", max_tokens=400, temperature=0, **HARD)
    with served.http() as client:
        whole = client.post("/v1/chat/completions", json=asked)
        *parts, failure, done, _ = client.post("/v1/chat/completions", json=asked | {"stream": True}).text.split("\n\n")
    (choice,), error = whole.json()["choices"], whole.json()["error"]
    assert (whole.status_code, choice["finish_reason"]) == (200, "error")
    assert choice["message"]["content"].startswith("Well, ")
    assert error["message"].startswith("the regular expression takes too much work")
    assert '"finish_reason":"error"' in parts[-1]
    assert (json.loads(failure.removeprefix("data: ")), done) == ({"error": error}, "data: [DONE]")
