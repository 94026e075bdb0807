"""`specchat evaluate` as a command: what it prints, and bad input as one line."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.app.cli.commands.command import command

TALK = {"messages": [{"role": "user", "content": "the fox"}, {"role": "assistant", "content": "the lazy dog barks"}]}


@pytest.fixture(scope="module")
def target(tiny_model: Callable[..., Path]) -> Path:
    return tiny_model()


@pytest.fixture
def talk(tmp_path: Path) -> Path:
    file = tmp_path / "talk.jsonl"
    file.write_text(json.dumps(TALK))
    return file


def test_two_formats_of_one_target_are_compared(target: Path, talk: Path) -> None:
    done = command("evaluate", talk, "--target", target, "--dtype", "float32", "--against-dtype", "bfloat16")
    assert done.code == 0
    assert "(float32) against" in done.out
    assert "same top-1" in done.out
