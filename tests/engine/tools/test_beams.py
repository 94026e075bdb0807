"""Beam search: the beams of transformers, the same ones with drafts, and the measurement of both."""

import json
from collections.abc import Callable
from math import log
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from specchat.engine import EngineConfig, EngineError, Message, Request, models_folder
from specchat.engine.drafters.head.folder import CARD
from specchat.engine.models.catalog import DEFAULT_PRESET
from specchat.engine.models.load import load_tokenizer
from specchat.engine.progress import ignore_progress
from specchat.engine.research.beam_search import BeamSearch
from specchat.engine.sequence.prompt import encode
from specchat.engine.tools.beams import FoundBeams, find_beams, measure_beams
from tests.engine.families import write_family

PROMPTS = ("the quick brown fox", "the dog barks at the fox at the dog")
ENDS = [2, *range(40, 320, 12)]
"""Several, so that beams end early and at different lengths."""


def find(target: Path, prompt: str, beams: int, draft: Path | None = None, **options: object) -> FoundBeams:
    config = EngineConfig(str(target), draft=str(draft) if draft else None, dtype="float32", context=256)
    request = Request("beams", (Message("user", prompt),), **{"max_tokens": 24, **options})  # type: ignore[arg-type]
    return find_beams(config, request, beams, ignore_progress)


def assert_as_in_transformers(found: FoundBeams, folder: Path, prompt: str, limit: int = 24) -> None:
    """Compare tokens and scores with `generate(num_beams=…)` in float32."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = torch.tensor([encode(Request("beams", (Message("user", prompt),)), load_tokenizer(folder))])
    made = model.generate(
        ids, attention_mask=torch.ones_like(ids), num_beams=len(found.beams), num_return_sequences=len(found.beams),
        do_sample=False, max_new_tokens=limit, output_scores=True, return_dict_in_generate=True, pad_token_id=0,
    )  # fmt: skip
    eos = model.generation_config.eos_token_id
    ends = eos if isinstance(eos, list) else [2]
    rows = made.sequences[:, ids.shape[1] :].tolist()
    texts = [row[: next((i + 1 for i, token in enumerate(row) if token in ends), None)] for row in rows]
    assert [list(beam.token_ids) for beam in found.beams] == texts
    assert [beam.score for beam in found.beams] == pytest.approx(made.sequences_scores.tolist(), abs=1e-4)


@pytest.mark.parametrize(("beams", "gamma"), [(2, 0), (5, 3), (4, None)])
def test_beams_are_those_of_transformers_with_drafts_and_without(
    tiny_model: Callable[..., Path], beams: int, gamma: int | None
) -> None:
    folder, draft = tiny_model(eos_token_id=ENDS), tiny_model(seed=1, eos_token_id=ENDS, num_hidden_layers=1)
    reasons, saved = set(), 0
    for prompt in PROMPTS:
        found = find(folder, prompt, beams, draft, gamma=gamma)
        assert_as_in_transformers(found, folder, prompt)
        reasons |= {beam.finish_reason for beam in found.beams}
        saved += found.passes_saved
        assert found.steps - found.target_passes == found.passes_saved >= 0
    assert "eos" in reasons
    assert saved > 0 or gamma != 3, "auto may draft nothing"


@pytest.mark.parametrize("family", ["gemma2", "mistral"])
def test_every_kind_of_attention_sees_one_beam_only(family: str, tmp_path: Path) -> None:
    folder = write_family(family, tmp_path / family)
    assert_as_in_transformers(find(folder, PROMPTS[0], 4), folder, PROMPTS[0])


@pytest.mark.parametrize("gamma", [1, 3])
def test_a_draft_that_is_the_target_is_always_right(tiny_model: Callable[..., Path], gamma: int) -> None:
    folder = tiny_model(eos_token_id=0)
    found = find(folder, PROMPTS[0], 3, folder, gamma=gamma, max_tokens=25)
    assert (found.drafter, found.steps) == ("model", 25)
    assert found.target_passes == 1 + 24 // (gamma + 1), "each pass after the prompt's gives γ + 1 steps"


@pytest.mark.usefixtures("kernels")
@pytest.mark.slow
def test_quantised_beams_have_the_same_bits_with_drafts(default_model: Path) -> None:  # noqa: ARG001 it is fetched
    config = EngineConfig(DEFAULT_PRESET, models_folder(), draft=DEFAULT_PRESET)
    for question in ("What is the capital of Portugal?", "Repeat: one two three four five six seven."):
        drafted, plain = (
            find_beams(
                config, Request("r", (Message("user", question),), max_tokens=32, gamma=gamma), 4, ignore_progress
            )
            for gamma in (4, 0)
        )
        assert drafted.beams == plain.beams
        assert drafted.passes_saved > 0 == plain.passes_saved


def test_a_prompt_that_is_too_long_and_a_draft_head_are_refused(tiny_model: Callable[..., Path]) -> None:
    folder = tiny_model()
    with pytest.raises(EngineError, match=r"the prompt has .* tokens and the context holds 256"):
        find(folder, "fox " * 300, 2)
    (folder / "head").mkdir()
    (folder / "head" / CARD).write_text("{}")
    (folder / "head" / "head.safetensors").write_text("")
    with pytest.raises(EngineError, match="is a draft head, which cannot draft for each beam: name a draft model"):
        find(folder, "fox", 2, folder / "head")


def test_texts_end_with_the_context(tiny_model: Callable[..., Path]) -> None:
    found = find(tiny_model(eos_token_id=0), "fox " * 50, 2, max_tokens=1000)
    assert {beam.finish_reason for beam in found.beams} == {"context"}
    assert found.prompt_tokens + len(found.beams[0].token_ids) == 256


def step(search: BeamSearch, *probabilities: list[float]) -> list[tuple[int, ...]]:
    """Advance by next-token probabilities [beams, V], in which 0 is EOS; the beams after that."""
    search.advance(torch.tensor(probabilities).log())
    return [text for _, text in search.beams]


def test_the_likeliest_texts_of_all_beams_continue_and_ties_keep_their_order() -> None:
    search = BeamSearch(2, {0}, 10)
    assert step(search, [0.0, 0.6, 0.3, 0.1]) == [(1,), (2,)]
    assert step(search, [0.0, 0.4, 0.3, 0.3], [0.0, 0.05, 0.05, 0.9]) == [(2, 3), (1, 1)]
    assert [score for score, _ in search.beams] == pytest.approx([log(0.27), log(0.24)])
    even = [0.0, 0.25, 0.25, 0.25, 0.25]
    search = BeamSearch(3, {0}, 2)
    assert step(search, even) == [(1,), (2,), (3,)]
    assert step(search, even, even, even) == []
    assert [(text.tokens, text.ended) for text in search.complete] == [((1, n), False) for n in (1, 2, 3)]
    with pytest.raises(EngineError, match="the target computed something that is not a number"):
        step(BeamSearch(2, {0}, 10), [torch.nan] * 4)


def test_every_prompt_set_is_measured_with_every_length(tiny_model: Callable[..., Path]) -> None:
    lines: list[str] = []
    model = str(tiny_model(eos_token_id=0, max_position_embeddings=2048))
    config = EngineConfig(model, draft=model, dtype="float32")
    report = measure_beams(config, 3, lines.append, gammas=("2", "4"), prompts=("chat", "code"), limit=1, max_tokens=10)
    assert [(cell["prompts"], cell["gamma"]) for cell in report.cells] == [
        (prompts, gamma) for prompts in ("chat", "code") for gamma in ("2", "4")
    ]
    for cell in json.loads(report.json())["cells"]:
        assert (cell["steps"], cell["searches"], cell["same"]) == (10, 1, 1)
        assert cell["plain_tokens_read"] == 1 + 9 * 3 < cell["tokens_read"]
        assert cell["saved"] == 1 - cell["target_passes"] / 10
        assert f"{cell['saved']:.0%}" in report.text()
    assert "4 of 4 searches with drafts gave the beams of those without" in report.text()
    assert lines[-1] == "code, gamma 4: prompt 1 of 1"
