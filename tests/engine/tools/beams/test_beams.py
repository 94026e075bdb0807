"""Beams of whole models: those of transformers, and the same ones whatever is drafted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from specchat.engine import EngineConfig, EngineError, Message, Request, models_folder
from specchat.engine.drafters.head.folder import CARD
from specchat.engine.kernels.library import missing
from specchat.engine.models.catalog import DEFAULT_PRESET
from specchat.engine.models.load import load_tokenizer
from specchat.engine.progress import ignore_progress
from specchat.engine.request import Sampling
from specchat.engine.sequence.prompt import encode
from specchat.engine.tools.beams import FoundBeams, find_beams
from tests.engine.families import write_family

PROMPTS = ("the quick brown fox", "the dog barks at the fox at the dog")
ENDS = [2, *range(40, 320, 12)]
"""Several, so that beams end early and at different lengths."""


def find(target: Path, prompt: str, beams: int, draft: Path | None = None, **options: object) -> FoundBeams:
    config = EngineConfig(str(target), draft=str(draft) if draft else None, dtype="float32", context=256)
    request = Request("beams", (Message("user", prompt),), **{"max_tokens": 24, **options})  # type: ignore[arg-type]
    return find_beams(config, request, beams, ignore_progress)


def of_transformers(folder: Path, prompt: str, beams: int, most: int = 24) -> list[tuple[list[int], float]]:
    """Tokens and scores of `generate(num_beams=…)`, in float32."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = torch.tensor([encode(Request("beams", (Message("user", prompt),)), load_tokenizer(folder))])
    found = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        num_beams=beams,
        num_return_sequences=beams,
        do_sample=False,
        max_new_tokens=most,
        output_scores=True,
        return_dict_in_generate=True,
        pad_token_id=0,
    )
    ends = set(model.generation_config.eos_token_id if isinstance(model.generation_config.eos_token_id, list) else [2])
    texts = []
    for row, score in zip(found.sequences[:, ids.shape[1] :].tolist(), found.sequences_scores.tolist(), strict=True):
        last = next((i for i, token in enumerate(row) if token in ends), len(row) - 1)
        texts.append((row[: last + 1], score))
    return texts


def assert_same(found: FoundBeams, expected: list[tuple[list[int], float]]) -> None:
    assert [list(beam.token_ids) for beam in found.beams] == [tokens for tokens, _ in expected]
    assert [beam.score for beam in found.beams] == pytest.approx([score for _, score in expected], abs=1e-4)


@pytest.mark.parametrize(("beams", "drafter"), [(2, "none"), (5, "model")])
def test_beams_are_those_of_transformers(tiny_model: Callable[..., Path], beams: int, drafter: str) -> None:
    folder = tiny_model(eos_token_id=ENDS)
    reasons = set()
    for prompt in PROMPTS:
        draft = folder if drafter == "model" else None
        found = find(folder, prompt, beams, drafter=drafter, draft=draft, gamma=3)
        assert_same(found, of_transformers(folder, prompt, beams))
        reasons |= {beam.finish_reason for beam in found.beams}
        if drafter == "none":
            assert found.target_passes == found.steps
    assert "eos" in reasons


@pytest.mark.parametrize("family", ["gemma2", "mistral"])
def test_every_kind_of_attention_sees_a_beam_and_no_other(family: str, tmp_path: Path) -> None:
    folder = write_family(family, tmp_path / family)
    assert_same(find(folder, PROMPTS[0], 4), of_transformers(folder, PROMPTS[0], 4))


def test_drafts_change_no_beam_and_save_passes(tiny_model: Callable[..., Path]) -> None:
    target, draft = tiny_model(eos_token_id=ENDS), tiny_model(seed=1, eos_token_id=ENDS, num_hidden_layers=1)
    plain = find(target, PROMPTS[1], 4, drafter="none", max_tokens=40)
    passes = []
    for gamma in (None, 2, 5):
        found = find(target, PROMPTS[1], 4, max_tokens=40, draft=draft, gamma=gamma)
        assert [beam.token_ids for beam in found.beams] == [beam.token_ids for beam in plain.beams]
        assert [beam.score for beam in found.beams] == pytest.approx([beam.score for beam in plain.beams], abs=1e-5)
        assert found.steps == plain.steps == plain.target_passes
        passes.append(found.target_passes)
    assert max(passes) <= plain.steps
    assert passes[2] < plain.steps


@pytest.mark.parametrize("gamma", [1, 3])
def test_a_draft_that_is_the_target_is_always_right(tiny_model: Callable[..., Path], gamma: int) -> None:
    folder = tiny_model(eos_token_id=0)
    found = find(folder, PROMPTS[0], 3, draft=folder, gamma=gamma, max_tokens=25)
    assert (found.drafter, found.steps) == ("model", 25)
    assert found.target_passes == 1 + 24 // (gamma + 1), "γ steps and one more with each pass behind the prompt's"


@pytest.mark.skipif(missing() is not None, reason=missing() or "")
@pytest.mark.slow
def test_quantised_beams_have_the_same_bits_with_drafts(default_model: Path) -> None:  # noqa: ARG001 it is fetched
    config = EngineConfig(DEFAULT_PRESET, models_folder(), draft=DEFAULT_PRESET)
    for question in ("What is the capital of Portugal?", "Repeat: one two three four five six seven."):
        request = Request("beams", (Message("user", question),), max_tokens=32, gamma=4)
        drafted = find_beams(config, request, 4, ignore_progress)
        plain = find_beams(config, Request("p", request.messages, max_tokens=32, gamma=0), 4, ignore_progress)
        assert drafted.beams == plain.beams
        assert drafted.passes_saved > 0 == plain.passes_saved


@pytest.mark.slow
def test_the_default_model_has_the_beams_of_transformers(default_model: Path) -> None:
    question = "What is the capital of Portugal?"
    assert_same(find(default_model, question, 4), of_transformers(default_model, question, 4))


@pytest.mark.parametrize(
    ("beams", "options", "sentence"),
    [
        (1, {}, "beams is 1: it must be from 2 to 16"),
        (17, {}, "beams is 17: it must be from 2 to 16"),
        (4, {"sampling": Sampling(temperature=0.7)}, "temperature 0.7 draws texts by chance: set it to 0, or leave"),
        (4, {"sampling": Sampling(presence_penalty=1.0)}, "leave penalties and logit biases out"),
        (4, {"sampling": Sampling(logit_bias=((5, 1.0),))}, "leave penalties and logit biases out"),
        (4, {"sampling": Sampling(lenience=0.5)}, "leave lenience out"),
        (4, {"stop": ("end",)}, "leave stop strings out"),
        (4, {"drafter": "head"}, "the drafter head cannot draft for each beam: choose one of auto, none, model"),
        (4, {"drafter": "model"}, "drafter model needs a draft model: name one with --draft"),
    ],
)
def test_what_beams_cannot_have_is_refused_at_once(beams: int, options: dict[str, object], sentence: str) -> None:
    with pytest.raises(EngineError, match=sentence):
        find(Path("/nowhere"), "x", beams, **options)  # type: ignore[arg-type]


def test_a_prompt_that_is_too_long_and_a_draft_head_are_refused(tiny_model: Callable[..., Path]) -> None:
    folder = tiny_model()
    with pytest.raises(EngineError, match=r"the prompt has .* tokens and the context holds 256"):
        find(folder, "fox " * 300, 2)
    (folder / "head").mkdir()
    (folder / "head" / CARD).write_text("{}")
    (folder / "head" / "head.safetensors").write_text("")
    with pytest.raises(EngineError, match="is a draft head, which cannot draft for each beam: name a draft model"):
        find(folder, "fox", 2, draft=folder / "head")


def test_texts_end_with_the_context(tiny_model: Callable[..., Path]) -> None:
    found = find(tiny_model(eos_token_id=0), "fox " * 50, 2, max_tokens=1000)
    assert {beam.finish_reason for beam in found.beams} == {"context"}
    assert found.prompt_tokens + len(found.beams[0].token_ids) == 256
