"""The shipped prompt sets."""

import json
from pathlib import Path

import pytest

from specchat.engine.errors import EngineError
from specchat.engine.request import Message
from specchat.engine.sequence.grammar import check_constraint
from specchat.engine.tools.prompts import CONSTRAINED, Prompt, PromptSet, load_prompts


def test_replies_of_one_set_follow_schemas() -> None:
    (prompts,) = load_prompts([CONSTRAINED])
    assert len(prompts.prompts) == 10
    for prompt in prompts.prompts:
        assert prompt.constraint is not None
        check_constraint(prompt.constraint)


def test_waves_fill_whole_batches_from_the_start_again() -> None:
    prompts = PromptSet("x", tuple(Prompt(str(i)) for i in range(3)))
    assert [prompt.text for prompt in prompts.waves(2)] == ["0", "1", "2", "0"]
    assert [prompt.text for prompt in prompts.waves(4)] == ["0", "1", "2", "0"]
    assert [prompt.text for prompt in prompts.first(2).waves(1)] == ["0", "1"]


SCHEMA = {"type": "object"}
FORM = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
TALK = [{"role": role, "content": role} for role in ("system", "user", "assistant", "user", "assistant")]
ROWS = (
    {"custom_id": "1", "url": "/v1/chat/completions", "body": {"messages": TALK[:2], "response_format": FORM}},
    {"messages": TALK, "response_format": {"type": "json_object"}},
    {"prompt": "user", "response_format": {"type": "text"}},
    {"unique_id": "2", "json_schema": json.dumps(SCHEMA)},
)


def test_a_data_set_is_a_set_of_prompts_with_what_replies_follow(tmp_path: Path) -> None:
    file = tmp_path / "asked.jsonl"
    file.write_text("\n".join(map(json.dumps, ROWS)))
    (prompts,) = load_prompts([str(file)])
    batch, talk, free, bare = prompts.prompts
    assert prompts.name == "asked"
    assert [message.role for message in batch.messages] == ["system", "user"]
    assert [message.role for message in talk.messages] == ["system", "user", "assistant", "user"]
    assert (free.messages, free.constraint) == ((Message("user", "user"),), None)
    assert json.dumps(SCHEMA) in bare.text
    for prompt in (batch, talk, bare):
        assert prompt.constraint is not None
        assert json.loads(prompt.constraint.text) == SCHEMA


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ("[", "it is not a JSON object"),
        ('{"text": "x"}', "it has no conversation that is known here"),
        ('{"messages": []}', "it has no question"),
        ('{"prompt": "x", "response_format": "json"}', "response_format needs json_schema with a name and a schema"),
        ('{"prompt": "x", "json_schema": ""}', "the JSON schema is empty"),
    ],
)
def test_a_row_that_is_no_prompt_is_named(row: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text(f'{{"prompt": "x"}}\n{row}')
    with pytest.raises(EngineError, match=f"bad.jsonl, line 2: {sentence}"):
        load_prompts([str(tmp_path / "bad.jsonl")])


def test_an_unknown_set_is_refused() -> None:
    with pytest.raises(EngineError, match="'poems' is not known: choose one of chat, code, copy, structured, schemas"):
        load_prompts(["chat", "poems"])
