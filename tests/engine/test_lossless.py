"""The real default model in float32: with drafts, without, and by transformers' own generate, token for token."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from specchat.engine import Engine, EngineConfig, Message, Request, models_folder
from specchat.engine.tools.runner import running
from tests.engine.prompts import PROMPTS
from tests.engine.tiny import ids_of, run_together

pytestmark = pytest.mark.model

LENGTH = 16


@pytest.fixture(scope="module")
def engine(default_model: Path) -> Iterator[Engine]:
    with running(EngineConfig(str(default_model), models_folder(), dtype="float32", context=512)) as (engine, *_):
        yield engine


def requests(drafter: str, **options: object) -> list[Request]:
    return [
        Request(f"{drafter}{i}", (Message("user", text),), drafter=drafter, max_tokens=LENGTH, **options)  # type: ignore[arg-type]
        for i, text in enumerate(PROMPTS[:10])
    ]


@pytest.mark.slow
def test_greedy_output_is_that_of_transformers_with_and_without_drafts(engine: Engine, default_model: Path) -> None:
    plain = [ids_of(events) for events in run_together(engine, requests("none"))]
    for drafter in ("suffix", "ngram", "head", "combined"):
        assert [ids_of(events) for events in run_together(engine, requests(drafter))] == plain

    tokenizer = AutoTokenizer.from_pretrained(default_model)
    model = AutoModelForCausalLM.from_pretrained(default_model, dtype=torch.float32)
    for text, ours in zip(PROMPTS[:10], plain, strict=True):
        turn = [{"role": "user", "content": text}]
        prompt = tokenizer.apply_chat_template(turn, add_generation_prompt=True, return_tensors="pt")["input_ids"]
        theirs = model.generate(prompt, max_new_tokens=LENGTH, do_sample=False, attention_mask=torch.ones_like(prompt))
        assert theirs[0, prompt.shape[1] :].tolist() == ours
