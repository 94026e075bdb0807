"""`specchat bench`, `verify`, `evaluate` and `theory`: their options, exit codes, and failures as one line."""

import json
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from specchat.engine.tools.bench import figures
from specchat.engine.tools.lossless import command as verification
from tests.app.cli.commands.command import command


@pytest.fixture(autouse=True)
def _small_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(figures.COPIED, "cpu", 1 << 16)


SYNTHETIC = shlex.split("bench --synthetic 0.9 --shape tiny/tiny --limit 1 --max-tokens 6 --passes 1")


CHECKED = "--dtype float32 --prompts chat --limit 1 --max-tokens 6 --samples 20 --contexts 1"


VERIFY = shlex.split(f"verify {CHECKED} --target")


def test_bench_prints_a_table() -> None:
    done = command(*SYNTHETIC, "--gamma", "2", "--gamma", "3", "--drafter", "model")
    assert done.code == 0
    assert done.err == ""
    rows = [line.split()[:2] for line in done.out.splitlines() if line.startswith(("none ", "model ", "ngram "))]
    assert rows == [["none", "-"], ["model", "2"], ["model", "3"]]
    assert "Leviathan et al. 2023, Theorem 3.8" in done.out


def test_a_person_who_waits_sees_how_far_it_is() -> None:
    done = command(*SYNTHETIC, terminal=True)
    assert "warming up" in done.err
    assert done.err.endswith("\r\x1b[K")


def test_verify_passes(tiny_model: Callable[..., Path]) -> None:
    done = command(*VERIFY, tiny_model())
    assert done.code == 0
    assert "PASSED" in done.out
    assert done.err.startswith("loading\ngreedy, none\n")  # stderr is no terminal: how far it is, line by line


def test_differences_change_the_exit_code(tiny_model: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    check = verification.checks.check_greedy
    monkeypatch.setattr(verification.checks, "check_greedy", lambda *given: replace(check(*given), worst_deficit=9.0))
    done = command(*VERIFY, tiny_model(), "--json")
    assert done.code == 1
    assert json.loads(done.out)["passed"] is False


def test_two_formats_of_one_target_are_compared(tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    said = [{"role": "user", "content": "the fox"}, {"role": "assistant", "content": "the lazy dog barks"}]
    (talk := tmp_path / "talk.jsonl").write_text(json.dumps({"messages": said}))
    done = command("evaluate", talk, "--target", tiny_model(), "--dtype", "float32", "--against-dtype", "bfloat16")
    assert done.code == 0
    assert "(float32) against" in done.out
    assert "same top-1" in done.out


def test_theory_marks_the_best_gamma_and_says_where_drafting_does_not_pay() -> None:
    table = command("theory", "--alpha", "0.8", "--c", "0.05").out
    best = next(line for line in table.splitlines() if "best" in line)
    assert best.split() == ["8", "4.33", "3.09×", "2.08×", "◂", "best"]
    assert table.endswith("Best is γ 8: 3.09× as fast as one token per pass.\n")
    assert "does not pay: α is not above c" in command("theory", "--alpha", "0.1", "--c", "0.2").out
    assert "γ above 16 would give more" in command("theory", "--alpha", "0.99").out
    found = json.loads(command("theory", "--alpha", "0.8", "--c", "0", "--json").out)
    row = found["rows"][5]
    assert (row["gamma"], round(row["speedup"], 2), round(row["operations"], 2)) == (5, 3.69, 1.63)  # Table 1
    assert found["optimal_gamma"] == 16
