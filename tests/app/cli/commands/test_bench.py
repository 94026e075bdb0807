"""`specchat bench` and `specchat verify`: their options, exit codes, and failures as one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from specchat.engine.tools.bench import command as benching
from specchat.engine.tools.bench import roofline
from specchat.engine.tools.lossless import command as verification
from tests.app.cli.commands.command import command


@pytest.fixture(autouse=True)
def _small_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(roofline._COPIED, "cpu", 1 << 16)


SYNTHETIC = (
    "bench",
    "--synthetic",
    "0.9",
    "--shape",
    "tiny/tiny",
    "--limit",
    "1",
    "--max-tokens",
    "6",
    "--passes",
    "1",
)


def test_bench_prints_a_table() -> None:
    done = command(*SYNTHETIC, "--gamma", "2", "--gamma", "3", "--drafter", "model")
    assert done.code == 0
    assert done.err == ""
    rows = [line.split()[:2] for line in done.out.splitlines() if line.startswith(("none ", "model ", "ngram "))]
    assert rows == [["none", "-"], ["model", "2"], ["model", "3"]]
    assert "Leviathan et al. 2023, Theorem 3.8" in done.out


def test_bench_prints_json() -> None:
    done = command(*SYNTHETIC, "--batch", "2", "--temperature", "0.5", "--json")
    found = json.loads(done.out)
    assert {(cell["batch"], cell["temperature"]) for cell in found["cells"]} == {(2, 0.5)}
    assert found["setting"]["synthetic"].startswith("SYNTHETIC")


@pytest.mark.slow
def test_drafts_race_batch_by_batch(
    tiny_model: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(benching, "LARGEST_BATCH", 2)
    picture = tmp_path / "race.svg"
    arguments = ("bench", "--target", tiny_model(max_position_embeddings=2048), "--dtype", "float32", "--crossover")
    short = ("--prompts", "chat", "--limit", "1", "--max-tokens", "6", "--passes", "1", "--picture", picture)
    done = command(*arguments, *short, "--drafts", "suffix,copy", "--drafts", tiny_model(num_hidden_layers=1))
    assert done.code == 0
    table = done.out[done.out.index("speedup over plain decoding, by batch") :]
    assert [line.split()[0] for line in table.splitlines()[1:4]] == ["batch", "suffix", "copy"]
    assert [sign for sign in "●■▲" if sign not in table] == []
    assert "at a batch of 1: " in table
    assert "requests at once" in table
    assert "\x1b" not in done.out
    assert "speedup" in picture.read_text()
    again = command(*arguments, *short, "--drafts", "suffix")
    assert "exists already: name another picture" in again.sentence


def test_a_person_who_waits_sees_how_far_it_is() -> None:
    done = command(*SYNTHETIC, terminal=True)
    assert "warming up" in done.err
    assert done.err.endswith("\r\x1b[K")


def test_verify_passes(tiny_model: Callable[..., Path]) -> None:
    arguments = ("verify", "--target", tiny_model(), "--dtype", "float32", "--prompts", "chat", "--limit", "1")
    done = command(*arguments, "--max-tokens", "6", "--samples", "20", "--contexts", "1")
    assert done.code == 0
    assert "PASSED" in done.out
    assert done.err.startswith("loading\ngreedy, none\n")  # stderr is no terminal: how far it is, line by line


def test_verify_says_by_its_exit_code_that_something_differs(
    tiny_model: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    check = verification.check_greedy
    monkeypatch.setattr(verification, "check_greedy", lambda *given: replace(check(*given), worst_deficit=9.0))
    arguments = ("verify", "--target", tiny_model(), "--dtype", "float32", "--prompts", "chat", "--limit", "1")
    done = command(*arguments, "--max-tokens", "6", "--samples", "20", "--contexts", "1", "--json")
    assert done.code == 1
    assert json.loads(done.out)["passed"] is False


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("bench", "--gamma", "-1"), "gamma is -1"),
        (("bench", "--gamma", "many"), "gamma is 'many'"),
        (("bench", "--batch", "0"), "batch is 0"),
        (("bench", "--temperature", "-1"), "temperature is -1"),
        (("bench", "--peer", "vllm"), "peer 'vllm' is not known"),
        (("bench", "--prompts", "poems"), "prompt set 'poems' is not known"),
        (("bench", "--synthetic", "2"), "agreement is 2"),
        (("bench", "--synthetic", "0.5", "--shape", "huge"), "shape 'huge' is not known"),
        (("bench", "--shape", "tiny"), "--shape goes with --synthetic"),
        (("bench", "--target", "/nowhere/at/all"), "there is no file or folder /nowhere/at/all"),
        (("bench", "--drafts", "suffix,copy"), "--drafts and --picture go with --crossover"),
        (
            ("bench", "--crossover", "--drafts", "suffix", "--drafter", "head"),
            "--drafts contradicts --draft, --drafter",
        ),
        (("bench", "--crossover", "--drafts", "suffix", "--picture", "x.png"), "give it a name that ends in .svg"),
        (("bench", "--device", "abacus"), "device 'abacus' is not known"),
        (("bench", "--beams", "4", "--peer", "loop"), "--peer does not go with --beams"),
        (("bench", "--beams", "4", "--batch", "2"), "--batch does not go with --beams"),
        (("bench", "--beams", "4", "--drafter", "ngram", "--drafter", "head"), "--beams measures one drafter"),
        (("bench", "--beams", "4", "--gamma", "0"), "leave gamma 0 and drafter none out"),
        (("verify", "--temperature", "0"), "sampling needs one above 0"),
        (("verify", "--samples", "1"), "samples is 1"),
        (("verify", "--target", "/nowhere/at/all"), "there is no file or folder /nowhere/at/all"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments: tuple[str, ...], sentence: str) -> None:
    assert sentence in command(*arguments).sentence


def test_a_missing_draft_is_named(tiny_model: Callable[..., Path]) -> None:
    assert "it needs --draft" in command("bench", "--target", tiny_model(), "--drafter", "model").sentence
