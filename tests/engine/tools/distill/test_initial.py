"""The first guess of a draft head, fitted on text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from specchat.engine.tools.distill.corpus import Conversation
from specchat.engine.tools.distill.initial import head_shape, initial_head


def test_a_conversation_that_has_ended_is_fitted_without_its_last_state(tiny_model: Callable[..., Path]) -> None:
    target = AutoModelForCausalLM.from_pretrained(tiny_model())
    shape = head_shape(target, "tiny")
    tokens, length = torch.arange(3, 40), 37
    features = torch.randn(length, len(shape.taps) * shape.hidden)
    features[-1] = 0  # nothing is read behind the token that ends it
    talk = Conversation(tokens.int(), torch.ones(length, dtype=torch.bool), features, torch.ones(length))
    head = initial_head(target, shape, [talk])
    assert all(weight.isfinite().all() for weight in head.parameters())
    assert head.fuse.weight.abs().max() > 0
