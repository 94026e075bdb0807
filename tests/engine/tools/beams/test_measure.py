"""The measurement of beam search with and without drafts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from specchat.engine import EngineConfig, EngineError
from specchat.engine.tools.beams import measure_beams


def test_every_set_is_measured_with_every_length(tiny_model: Callable[..., Path]) -> None:
    lines: list[str] = []
    model = str(tiny_model(eos_token_id=0, max_position_embeddings=2048))
    config = EngineConfig(model, draft=model, dtype="float32")
    report = measure_beams(config, 3, lines.append, gammas=("2", "4"), prompts=("chat", "code"), limit=1, max_tokens=10)
    assert [(cell.prompts, cell.gamma) for cell in report.cells] == [
        ("chat", "2"),
        ("chat", "4"),
        ("code", "2"),
        ("code", "4"),
    ]
    for cell in report.cells:
        assert (cell.steps, cell.searches, cell.same) == (10, 1, 1)
        assert cell.plain_tokens_read == 1 + 9 * 3
        assert cell.target_passes <= cell.steps
        assert cell.tokens_read > cell.plain_tokens_read
    text, whole = report.text(), json.loads(report.json())
    assert "4 of 4 searches with drafts gave the beams of those without" in text
    assert f"{report.cells[1].saved:.0%}" in text
    assert whole["cells"][1]["saved"] == report.cells[1].saved
    assert lines[-1] == "code, gamma 4: prompt 1 of 1"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"gammas": ("0",)}, "leave gamma 0 and drafter none out"),
        ({"drafter": "none"}, "leave gamma 0 and drafter none out"),
        ({"gammas": ("x",)}, "gamma is 'x': it must be a whole number or auto"),
        ({"limit": 0}, "limit is 0: it must be at least 1"),
        ({"prompts": ("poems",)}, "prompt set 'poems' is not known"),
        ({}, "name one with --draft"),
        ({"drafter": "head"}, "the drafter head cannot draft for each beam"),
    ],
)
def test_what_cannot_be_measured_is_refused_at_once(options: dict[str, object], sentence: str) -> None:
    with pytest.raises(EngineError, match=sentence):
        measure_beams(EngineConfig("/nowhere"), 4, lambda _: None, **options)  # type: ignore[arg-type]
