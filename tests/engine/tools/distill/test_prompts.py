"""Prompts that a user gives to a distillation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specchat.engine import EngineError, Message, Request
from specchat.engine.sequence.prompt import encode
from specchat.engine.tools.distill.text import read_prompts
from tests.engine.tiny import tiny_model


def test_turns_of_a_line_are_put_together_as_the_template_does(tmp_path: Path) -> None:
    tokenizer = tiny_model().tokenizer
    file = tmp_path / "asked.jsonl"
    file.write_text(json.dumps({"turns": ["one", "two"]}) + "\n\n" + json.dumps({"turns": ["three"]}) + "\n")
    both, single = read_prompts(file, tokenizer, "tiny", 60)
    messages = (Message("user", "one"), Message("assistant", "yes"), Message("user", "two"))
    reply = tokenizer.encode("yes", add_special_tokens=False)
    assert [*both.prompt, *reply, *both.follow_ups[0]] == encode(Request("", messages=messages), tokenizer)
    assert list(single.prompt) == encode(Request("", messages=(Message("user", "three"),)), tokenizer)
    assert single.follow_ups == ()


@pytest.mark.parametrize(
    "line", ["hello", '{"turns": []}', '{"turns": "hello"}', '{"turns": [1]}', "[1]", '{"turn": 1}']
)
def test_a_line_that_is_no_conversation_is_named(line: str, tmp_path: Path) -> None:
    file = tmp_path / "asked.jsonl"
    file.write_text('{"turns": ["one"]}\n' + line + "\n")
    with pytest.raises(EngineError, match=r"asked\.jsonl, line 2: write an object such as"):
        read_prompts(file, tiny_model().tokenizer, "tiny", 60)


def test_a_line_ends_where_the_file_says_so_and_nowhere_within_a_text(tmp_path: Path) -> None:
    tokenizer, turn = tiny_model().tokenizer, "one\u2028two\x85three"
    file = tmp_path / "asked.jsonl"
    file.write_bytes(f'{{"turns": ["{turn}"]}}\r\n{{"turns": ["four"]}}\r\n'.encode())
    first, _ = read_prompts(file, tokenizer, "tiny", 60)
    assert list(first.prompt) == encode(Request("", messages=(Message("user", turn),)), tokenizer)
