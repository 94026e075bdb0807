"""Constrained answers after thinking, in the formats of models: replies as the models write them are allowed."""

import pytest

from specchat.engine import JSON_OBJECT, Request
from specchat.engine.sequence.prompt import encode
from specchat.engine.sequence.reply_formats import find_format
from specchat.engine.sequence.row_constraint import Constraints, lead_of
from tests.engine.sequence.test_reply_formats import CASES, TURNS, Case, tokenizer_of
from tests.engine.tiny import EOS

OTHERWISE = {
    "Hunyuan without thinking", "gpt-oss, which calls a tool", "gpt-oss with a preamble", "LLM-jp 4", "Muse",
    "another tag",
}  # fmt: skip
"""Replies that a constraint does not let a model write, or whose answer has no marks with it."""


def allowed(case: Case, kind: str, answer: str) -> tuple[int, int]:
    """How many tokens of a reply with this answer are allowed, and how many there are."""
    tokenizer = tokenizer_of(case, kind)
    prompt = encode(Request("r", TURNS), tokenizer)
    reply = tokenizer.encode(case.reply.partition("^")[0].replace("~", "Hm, {1: <b>}.") + answer)
    form = find_format(tokenizer)
    assert form is not None
    constraints = Constraints(tokenizer, len(tokenizer), [EOS])
    lead = lead_of(form, prompt, tokenizer, None, constraints.is_control)
    row = constraints.of(JSON_OBJECT, lead, prompt, len(prompt))
    children = [*([node] for node in range(1, len(reply) + 1)), []]
    return len(row.follow(prompt, reply, children)) - 1, len(reply)


@pytest.mark.parametrize("kind", ["control", "normal"])
@pytest.mark.parametrize("name", [name for name in CASES if name not in OTHERWISE])
def test_thinking_is_free_and_the_answer_is_not(name: str, kind: str) -> None:
    kept, whole = allowed(CASES[name], kind, '{"a": 1}')
    assert kept == whole
    kept, whole = allowed(CASES[name], kind, "Sure")
    assert kept == whole - len("Sure")
