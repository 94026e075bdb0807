"""Whole benchmarks on tiny models: the report, its text and its JSON. Nothing here looks at how fast anything is."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from specchat.engine import Admitted, EngineError, Prefilled, Ready
from specchat.engine.tools.bench import BenchOptions, command, figures, run
from specchat.engine.tools.bench.figures import Pace
from specchat.engine.tools.bench.suite import reading_pace
from specchat.engine.tools.runner import NONE, Variant, choose_variants

QUICK = {"models": Path(), "command": "bench", "limit": 1, "max_tokens": 8, "passes": 1}


@pytest.fixture(autouse=True)
def _small_copy_and_own_store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(QUICK, "models", tmp_path / "store")
    monkeypatch.setitem(figures.COPIED, "cpu", 1 << 16)


def test_a_real_pair_beside_its_peers(tiny_model: Callable[..., Path]) -> None:
    target, draft = tiny_model(), tiny_model(num_hidden_layers=1)
    options = BenchOptions(
        **QUICK, target=str(target), draft=str(draft), tokenizer=str(target), prompts=("chat",), gammas=("4",),
        batches=(1, 2), peers=("transformers", "llama.cpp"),
    )  # fmt: skip
    report = run(options, lambda _line: None)
    peers = [(peer.batch, peer.name, peer.gamma) for peer in report.peers]
    assert peers == [
        (1, "transformers", "-"),
        (1, "transformers prompt lookup", "4"),
        (1, "transformers assisted", "4"),
        (2, "transformers", "-"),
    ]
    assert any(note.startswith("llama.cpp is left out") for note in report.notes)
    assert any("drafts for a batch of 1 only" in note for note in report.notes)
    table = report.text().splitlines()
    assert any(line.startswith("transformers assisted") and line.endswith("x") for line in table)


def test_a_synthetic_pair_is_set_up_as_a_chat_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "LARGEST_BATCH", 2)
    options = BenchOptions(**QUICK, synthetic=1.0, shape="tiny/tiny")  # type: ignore[arg-type]
    found = json.loads(run(options, lambda _line: None).json())
    assert (found["specchat_bench"], found["setting"]["device"], found["command"]) == (1, "cpu", "bench")
    assert found["setting"]["synthetic"].startswith("SYNTHETIC: random weights in the shape tiny/tiny, set to agree")
    assert [(cell["drafter"], cell["gamma"]) for cell in found["cells"]] == [("none", "-"), ("model", "auto")]
    grows = replace(options, crossover=True, drafters=("model",), gammas=("4",))
    out = run(grows, lambda _line: None).text()
    assert "model, gamma 4, synthetic, temperature 0, batch by batch" in out
    assert "a batch of" in out


def test_reading_a_prompt_is_measured_for_every_drafter() -> None:
    before = torch.get_num_threads()
    options = BenchOptions(
        **QUICK, synthetic=0.8, shape="tiny/tiny", drafters=("model", "suffix"), prompt_tokens=30, threads=before + 1
    )  # type: ignore[arg-type]
    report = run(options, lambda _line: None)
    assert [each.name for each in report.readings] == ["none", "model", "suffix"]
    assert {each.prompt_tokens for each in report.readings} == {30}
    assert report.readings[0].measured_speedup == 1
    assert "reading a prompt of 30 tokens" in report.text()
    assert report.setting["threads"] == before + 1
    assert torch.get_num_threads() == before
    assert "torch" in report.setting["instruction_sets"]["specchat"]


def test_only_what_was_read_counts_as_reading() -> None:
    admitted, ends = Admitted("r", 11, 4, 0.0, 0.0), [Prefilled("r", 8, 11, 0.2, 0.0), Prefilled("r", 10, 11, 0.1, 0.0)]
    assert reading_pace([admitted, *ends]) == Pace(6, pytest.approx(0.3))
    with pytest.raises(EngineError, match="give a longer one"):
        reading_pace([Admitted("r", 2, 1, 0.0, 0.0)])


READY = Ready("t", "d", ("model", "ngram", "none"), "cpu", "CPU", "float32", 512, 4, 1, 1, 0.0)


@pytest.mark.parametrize(
    ("drafters", "gammas", "expected"),
    [
        ((), (2, None), [("model", 2), ("model", None), ("ngram", 2), ("ngram", None)]),
        (("auto",), (None,), [("model", None)]),
        (("none", "ngram", "ngram"), (0, 4, 4), [("ngram", 4)]),
        (("ngram",), (0,), []),
    ],
)
def test_variants_are_plain_decoding_and_each_drafter_with_each_gamma(
    drafters: tuple[str, ...], gammas: tuple[int | None, ...], expected: list[tuple[str, int | None]]
) -> None:
    assert choose_variants(drafters, gammas, READY) == [NONE, *(Variant(*each) for each in expected)]
