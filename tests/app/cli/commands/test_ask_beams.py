"""`specchat ask --beams` on a model of random weights: what is printed, and what is refused."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from specchat.app.sanitize import escape_controls
from tests.app.cli.commands.command import Done


def test_the_best_text_is_printed_and_all_beams_beside_it(ask: Callable[..., Done], model: Path) -> None:
    options = ("the quick brown fox", "--beams", 3, "--max-tokens", 20, "--gamma", 4, "--draft", model)
    values = json.loads(ask(*options, "--json").out)
    done = ask(*options)
    assert done.code == 0
    assert done.out == escape_controls(values["text"]).rstrip("\n") + "\n"
    lines = done.err.strip().splitlines()
    assert [line.split()[0] for line in lines[:4]] == ["beam", "1", "2", "3"]
    assert f"{values['beams'][0]['score']:.4f}" in lines[1]
    assert lines[-1].startswith(
        f"{values['target_passes']} target passes instead of 20: {values['passes_saved']} saved"
    )
    assert all(len(line) <= 100 for line in lines)


def test_json_has_the_same_beams_with_and_without_drafts(ask: Callable[..., Done], model: Path) -> None:
    options = ("0123 0123 01", "--beams", 3, "--max-tokens", 20, "--json", "--draft", model)
    drafted, auto, plain = (json.loads(ask(*options, "--gamma", gamma).out) for gamma in (4, "auto", 0))
    assert [beam["token_ids"] for beam in drafted["beams"]] == [beam["token_ids"] for beam in plain["beams"]]
    assert [beam["score"] for beam in drafted["beams"]] == pytest.approx([beam["score"] for beam in plain["beams"]])
    assert drafted["steps"] == plain["steps"] == plain["target_passes"] == 20
    assert drafted["passes_saved"] == 20 - drafted["target_passes"] >= 0 == plain["passes_saved"]
    assert (drafted["drafter"], drafted["gamma"], drafted["draft_width"]) == ("model", 4, 6)
    assert auto["gamma"] == "auto"
    assert [beam["token_ids"] for beam in auto["beams"]] == [beam["token_ids"] for beam in plain["beams"]]
    assert (plain["drafter"], plain["gamma"], plain["draft_width"]) == ("none", 0, 0)
    assert drafted["tokens_read"] > plain["tokens_read"]


def test_a_model_that_cannot_be_told_to_think_is_said(ask: Callable[..., Done]) -> None:
    done = ask("the", "--beams", 2, "--max-tokens", 3, "--thinking", "--json")
    assert done.code == 0
    assert "has no switch for thinking" in done.err
