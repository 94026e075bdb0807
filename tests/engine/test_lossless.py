"""The real default model in float32: with drafts, without, and by transformers' own generate, token for token."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from specchat.engine import EngineConfig, Message, Request, models_folder
from specchat.engine.tools.prompts import load_prompts
from specchat.engine.tools.runner import running
from tests.engine.tiny import ids_of, run_together

PROMPTS = [prompt.text for prompt in load_prompts(["chat"])[0].first(6).prompts]
LENGTH = 16


@pytest.mark.model
@pytest.mark.slow
def test_greedy_output_is_that_of_transformers_with_and_without_drafts(default_model: Path) -> None:
    turns, said = [Message("user", text) for text in PROMPTS], {}
    with running(EngineConfig(str(default_model), models_folder(), dtype="float32", context=512)) as (engine, *_):
        for name in ("none", "head", "combined"):
            asked = [Request(f"{i}", (turn,), drafter=name, max_tokens=LENGTH) for i, turn in enumerate(turns)]
            said[name] = [ids_of(events) for events in run_together(engine, asked)]
    assert said["none"] == said["head"] == said["combined"]

    tokenizer = AutoTokenizer.from_pretrained(default_model)
    model = AutoModelForCausalLM.from_pretrained(default_model, dtype=torch.float32)
    for text, ours in zip(PROMPTS, said["none"], strict=True):
        turn = [{"role": "user", "content": text}]
        prompt = tokenizer.apply_chat_template(turn, add_generation_prompt=True, return_tensors="pt")["input_ids"]
        theirs = model.generate(prompt, max_new_tokens=LENGTH, do_sample=False, attention_mask=torch.ones_like(prompt))
        assert theirs[0, prompt.shape[1] :].tolist() == ours
