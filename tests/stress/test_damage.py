"""Damaged inputs of the stress run, some of each kind; all of them: `python -m tests.stress --part damage`."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.stress.damage import SHARES, Outcome, damage, damaged, judged, one_try
from tests.stress.inputs import Inputs


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    return Inputs(tmp_path_factory.mktemp("sound") / "inputs")


@pytest.mark.parametrize("number", range(2))
@pytest.mark.parametrize("kind", SHARES)
def test_damage_gets_one_sentence(inputs: Inputs, kind: str, number: int, tmp_path: Path) -> None:
    assert one_try(inputs, kind, random.Random(f"test {kind} {number}"), tmp_path / "home")[1] == []


@pytest.mark.parametrize(
    ("kind", "seed"),
    [
        ("model folder", "0 model folder 27"),  # model_max_length that is no number
        ("model folder", "0 model folder 64"),  # config.json nested too deeply
        ("model folder", "0 model folder 200"),  # eos_token_id that is no token id
        ("head folder", "0 head folder 17"),  # head.json nested too deeply
        ("head folder", "0 head folder 75"),  # a vocabulary with tokens that the target does not have
    ],
)
def test_what_was_found_is_refused(inputs: Inputs, kind: str, seed: str, tmp_path: Path) -> None:
    done, wrong = one_try(inputs, kind, random.Random(seed), tmp_path / "home")
    assert (done.code, wrong) == (2, [])


def test_a_damaged_database_is_named(inputs: Inputs, tmp_path: Path) -> None:
    done, wrong = one_try(inputs, "database", random.Random("x database 0"), tmp_path / "home")
    assert (done.code, wrong) == (2, [])
    assert "specchat.db.broken-1" in done.err


@pytest.mark.slow
def test_fifty_of_all_kinds() -> None:
    assert [failure for row in damage(50, seed=1) for failure in row.failures] == []


def test_wounds_change_the_content() -> None:
    sound = bytes(range(256)) * 20
    assert len({damaged(sound, random.Random(number), text=False) for number in range(50)} - {sound}) > 40


@pytest.mark.parametrize(
    "done",
    [
        Outcome(None, "", ""),
        Outcome(-11, "", ""),
        Outcome(1, "", ""),
        Outcome(2, "", ""),
        Outcome(2, "", "specchat: one\nspecchat: two\n"),
        Outcome(0, "", "a warning of a library\n"),
        Outcome(2, "", "specchat: the engine stopped on an internal error (KeyError: 'x')\n"),
        Outcome(2, "", "Traceback (most recent call last):\nValueError\n"),
    ],
)
def test_a_bad_ending_is_seen(done: Outcome) -> None:
    assert judged(done)
