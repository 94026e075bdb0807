"""Calls that are forced, and calls of strict tools: they follow the tool's schema, in the model's format."""

import json
import random
from dataclasses import replace
from typing import Any

import jsonschema
import pytest

from specchat.engine import EngineError, Request, Tool
from specchat.engine.sequence.call_formats import find_call_format
from specchat.engine.sequence.call_grammar import call_constraint
from specchat.engine.sequence.prompt import encode
from specchat.engine.sequence.row_constraint import Constraints, RowConstraint
from tests.engine.sequence.call_cases import CALLED, CASES, CLOCK, TOOLS, WEATHER, streamed, tokenizer_of
from tests.engine.tiny import EOS

PLACES = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "enum": ["Oslo", "Łódź"]}, "at": {"$ref": "#/$defs/at"}, "now": {"type": "boolean"},
    },
    "required": ["at"], "$defs": {"at": {"enum": [1, 2]}},
}  # fmt: skip


PLACE = Tool("place", "Shows a place.", json.dumps(PLACES))


def constrained(tokenizer: Any, tools: tuple[Tool, ...], choice: str) -> RowConstraint:
    """The constraint of a reply that has to call a tool."""
    constraints = Constraints(tokenizer, len(tokenizer), [EOS])
    request = Request("r", CALLED[:1], tools=tools, tool_choice=choice)
    constraint = call_constraint(request, tokenizer, constraints.is_control)
    assert constraint is not None
    return constraints.of(constraint, "", [], 0)


@pytest.mark.parametrize(
    ("name", "special"),
    [(name, special) for name, case in CASES.items() for special in {True, None, "</tool_call>" not in case.call}],
)
def test_a_forced_call_is_one_valid_call_of_the_chosen_tool(name: str, special: bool | None) -> None:
    tokenizer, draws = tokenizer_of(CASES[name], special=special), random.Random(name)
    for choice in ("required", "place", "clock"):
        row = constrained(tokenizer, (PLACE, CLOCK), choice)
        text: list[int] = []
        while not text or text[-1] != EOS:
            (mask,) = row.masks(text)
            text.append(draws.choice([token for token in range(len(tokenizer)) if mask[token // 32] >> token % 32 & 1]))
        thought, answer, calls = streamed(tokenizer, text[:-1], tools=(PLACE, CLOCK))
        (call,) = calls
        assert (thought, answer.strip()) == ("", "")
        assert call.name in ((choice,) if choice != "required" else ("place", "clock"))
        if call.name == "place":
            jsonschema.validate(json.loads(call.arguments), PLACES)


@pytest.mark.parametrize("special", [None, False, True])
@pytest.mark.parametrize("ends", ["</think>\n\n", ""])
def test_a_forced_call_follows_the_thinking_or_ends_it(ends: str, special: bool | None) -> None:
    tokenizer = tokenizer_of(CASES["Qwen3, which thinks"], special=special)
    request = Request("r", CALLED[:1], tools=(CLOCK,), tool_choice="required")
    prompt = encode(request, tokenizer)
    row = Constraints(tokenizer, len(tokenizer), [EOS]).of_request(request, prompt, [])
    assert row is not None
    call = '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'
    reply = tokenizer.encode(f"<think>\nHm.\n{ends}{call}")
    (mask,) = row.masks([*prompt, *reply])
    assert bool(mask[EOS // 32] >> EOS % 32 & 1) is (ends != "" or special is not None)  # else a part of the thought
    if ends or special is not None:
        assert [each.name for each in streamed(tokenizer, reply, tools=(CLOCK,))[2]] == ["clock"]


@pytest.mark.parametrize("name", ["Hermes, Qwen3", "Qwen3.5, Qwen3 Coder"])
def test_calls_of_strict_tools_follow_their_schema_and_text_is_free(name: str) -> None:
    tokenizer = tokenizer_of(CASES[name], special=True)
    call, tools = CASES[name].reply.rpartition("\n<tool_call>")[0] or CASES[name].reply, (WEATHER, CLOCK)
    strict = tuple(replace(tool, strict=True) for tool in tools)
    for text in ("Hm.", f"I look.\n{call}", f"{call}\nSo < that."):
        constrained(tokenizer, strict, "auto").read([*tokenizer.encode(text), EOS])
    with pytest.raises(EngineError, match="does not follow"):
        constrained(tokenizer, strict, "auto").read(tokenizer.encode(call.replace("city", "town")))
    request = Request("r", CALLED[:1], tools=tools)
    assert call_constraint(request, tokenizer, lambda _: True) is None


@pytest.mark.parametrize("name", ["Qwen3.5, Qwen3 Coder", "Gemma 4", "LFM2.5", "GLM", "MiniMax M2"])
def test_a_forced_call_may_have_any_text(name: str) -> None:
    tokenizer = tokenizer_of(CASES[name], special=True)
    form = find_call_format(tokenizer)
    assert form is not None
    written = tokenizer.decode(encode(Request("r", CALLED[:2], tools=TOOLS), tokenizer))
    start, end = form.marks.opening, form.marks.closing
    if name == "Gemma 4":
        start, end = "<|tool_call>", "<tool_call|>"
    call = start + written.rpartition(start)[2].partition(end)[0] + end
    for city in ("Paris", "a < b > c, {d: [e]} / \n\n é"):
        if name == "LFM2.5":
            city = city.replace("\n", " ")
        row = constrained(tokenizer, TOOLS, "get_weather")
        row.read(tokenizer.encode(call.replace("Paris", city)))  # raises if it is forbidden
        (_, _, (read,)) = streamed(tokenizer, tokenizer.encode(call.replace("Paris", city)))
        assert json.loads(read.arguments) == {"city": city}
