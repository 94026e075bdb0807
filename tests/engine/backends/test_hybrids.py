"""Recurrent layers, whose state after a rollback is that of a text without what was rejected; and latent attention."""

import copy
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from specchat.engine import Admitted, EngineError, Message, Request
from specchat.engine.backends.transformers_backend import TransformersBackend
from tests.engine.cache.copies import copy_text
from tests.engine.hybrids import HYBRIDS, LATENT, hybrid
from tests.engine.sampled import check_distribution, sampled, says
from tests.engine.tiny import VOCABULARY, assert_drafters_agree, ids_of, text_of, tiny_engine

ALL = pytest.mark.parametrize("kind", HYBRIDS)

LENGTHS, SLOTS = (40, 13, 27), (3, 0, 2)


def texts(more: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(3, VOCABULARY - 4, (length + more,), generator=generator) for length in LENGTHS]


@torch.inference_mode()
def uncached(network: Any, tokens: torch.Tensor, count: int) -> torch.Tensor:
    """Logits [count, V] after the last tokens of a text, in one pass of transformers without a cache."""
    logits: torch.Tensor = network(input_ids=tokens[None], use_cache=False).logits[0, -count:]
    return logits


@ALL
def test_logits_after_any_rollback_are_those_of_transformers(kind: str) -> None:
    network = hybrid(kind).model
    reference = copy.deepcopy(network)
    reference.set_attn_implementation("eager")
    backend = TransformersBackend(network, 4, 96, 17)
    prompts = texts(9)
    for text, slot, length in zip(prompts, SLOTS, LENGTHS, strict=True):  # in two chunks
        for first, end in ((0, length - 5), (length - 5, length)):
            backend.prefill(text[None, first:end], [slot], [first])
    for kept in (5, 3, 1, 0):  # a pass over five tokens, of which `kept` are kept, and one over what follows
        passed = torch.stack([text[length : length + 5] for text, length in zip(prompts, LENGTHS, strict=True)])
        backend.forward(passed, SLOTS, LENGTHS)
        others = [torch.cat([text[: length + kept], text[:4]]) for text, length in zip(prompts, LENGTHS, strict=True)]
        found = backend.forward(
            torch.stack([other[-4:] for other in others]), SLOTS, [length + kept for length in LENGTHS]
        )
        for row, other in zip(found, others, strict=True):
            torch.testing.assert_close(row, uncached(reference, other, 4), rtol=2e-3, atol=2e-3)


@ALL
def test_a_state_after_a_rollback_has_the_bits_of_one_without(kind: str) -> None:
    backend = TransformersBackend(hybrid(kind).model, 2, 96, 17)
    text = texts(9)[0]
    backend.prefill(text[None, :40], [0], [0])
    copy_text(backend.cache, 0, 1, 40)
    backend.forward(text[None, 40:45], [0], [40])
    backend.forward(torch.cat([text[40:42], text[:3]])[None], [1], [40])  # as many tokens, of which two are the same
    states = backend.states
    assert states.shapes
    known = [states.at(slot, 42) for slot in (0, 1)]
    assert known[0] is not None
    assert known[1] is not None
    # The experts of transformers round differently where other tokens choose them too.
    off = 1e-5 if "num_experts" in HYBRIDS[kind] else 0.0
    for key in states.shapes:
        torch.testing.assert_close(known[0][key], known[1][key], rtol=off, atol=off)


@ALL
@pytest.mark.daily(1)
def test_greedy_replies_are_the_same_for_all_drafters_and_batches(kind: str) -> None:
    with tiny_engine(hybrid(kind), hybrid(kind, seed=1), slots=4, chunk=8) as engine:
        replies = assert_drafters_agree(engine, ("suffix", "model", "hierarchical"))
    assert len({tuple(reply) for reply in replies}) > 1


def test_prompts_go_on_from_a_snapshot() -> None:
    """A second turn, another second turn, and the first again: what is reused changes no token."""
    target = hybrid("qwen3_5_text")
    first = Message("user", "What is a river? " * 4)
    with tiny_engine(target, slots=2, chunk=16) as engine:
        reply = list(engine.stream(Request("a", (first,), max_tokens=20)))
        talk = (first, Message("assistant", text_of(reply)), Message("user", "And a lake?"))
        for name, messages in (
            ("next", talk),
            ("edited", (*talk[:2], Message("user", "And a sea?"))),
            ("again", (first,)),
        ):
            events = list(engine.stream(Request(name, messages, max_tokens=20)))
            admitted = next(event for event in events if isinstance(event, Admitted))
            assert 0 < admitted.reused_tokens < admitted.prompt_tokens
            with tiny_engine(target, slots=1, chunk=32) as fresh:
                assert ids_of(events) == ids_of(fresh.stream(Request(name, messages, max_tokens=20))), name


def test_a_hybrid_of_attention_alone_has_no_states() -> None:
    """Granite 4 dense is published as a hybrid."""
    network = hybrid("granitemoehybrid", layer_types=["full_attention"] * 4, num_local_experts=0)
    backend = TransformersBackend(network.model, 1, 64, 17)
    assert backend.states is None
    assert backend.capabilities.trees


@pytest.mark.parametrize(
    ("kind", "words"),
    [("recurrent_gemma", "keep a recurrent state .*: "), ("hrm_text", "keep a state that is not supported: ")],
)
def test_states_that_cannot_be_taken_back_are_refused_by_name(kind: str, words: str) -> None:
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 3}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4}
    network = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **sizes | heads))
    with pytest.raises(EngineError, match=f"models of type {kind} {words}choose another model.*--attach"):
        TransformersBackend(network.eval(), 1, 64, 17)


@pytest.mark.slow
@pytest.mark.parametrize("drafter", ["model", "ngram"])
def test_sampled_replies_have_the_targets_distribution(drafter: str) -> None:
    kind, prompt = "qwen3_5_text", tuple(b"abcabcab")
    with tiny_engine(hybrid(kind, sharpness=15.0), hybrid(kind, seed=1), slots=8) as engine:
        events = sampled(engine, drafter, prompt, 1500)
    assert check_distribution(events, prompt, says(hybrid(kind, sharpness=15.0))) >= 2


@pytest.mark.parametrize("kind", LATENT)
def test_the_cache_holds_compressed_vectors(kind: str) -> None:
    network = hybrid(kind).model
    reference, config = copy.deepcopy(network), network.config
    backend = TransformersBackend(network, 2, 96, 17)
    text = torch.randint(3, VOCABULARY - 4, (1, 60), generator=torch.Generator().manual_seed(1))
    for first, end in ((0, 31), (31, 50)):
        backend.prefill(text[:, first:end], [1], [first])
    found = backend.forward(text[:, 50:], [1], [50])
    with torch.inference_mode():
        expected = reference(input_ids=text, use_cache=False).logits[:, 50:]
    torch.testing.assert_close(found, expected, rtol=2e-3, atol=2e-3)
    of_a_token = config.kv_lora_rank + config.qk_rope_head_dim  # float32, whatever the number of heads
    assert backend.cache.column_bytes == 4 * config.num_hidden_layers * of_a_token


def test_replies_over_a_latent_cache_are_the_same_for_all_drafters_and_batches() -> None:
    kind = "deepseek_v3"
    with tiny_engine(hybrid(kind), hybrid(kind, seed=1), slots=4, chunk=8) as engine:
        replies = assert_drafters_agree(engine, ("suffix", "model-tree"))
    assert len({tuple(reply) for reply in replies}) > 1
