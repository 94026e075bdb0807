"""Forward passes: equal to transformers' modelling code, and bit-identical for all batches, chunks and trees."""

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig

from specchat.engine.cache.prefix_tree import BLOCK
from specchat.engine.kernels.decoder import Decoder, TokenLayout
from specchat.engine.kernels.library import CHeadModel, CModel, KernelError, Library
from specchat.engine.kernels.packed_matrix import Format
from specchat.engine.models.model_config import cache_argument
from specchat.engine.models.packed.decoder_description import OtherFamilyError, describe_decoder
from tests.engine.kernels.conftest import variants
from tests.engine.kernels.tiny_decoders import CONTEXT, FAMILIES, RECURRENT, RoundingCache, tiny_decoder, tiny_network
from tests.engine.kernels.variants import Variant, use

LENGTH = 150  # more than a block of keys
PARENTS = [-1, 0, 0, 1, 1, 2, 3, 3, 5, 8]  # of each token of a tree, which the first one starts
TAPS = (0, 1, 3)
KINDS = ("llama-biased", "gemma4-moe", "gemma2 with low caps", "gpt-oss", "gemma4")
"""Families that together have every kind of layer."""
EIGHT_BIT = [f"{family} with cache q8" for family in KINDS]


@cache
def decoder_of(case: str) -> Decoder:
    return new_decoder(case)


def new_decoder(case: str, *sizes: Any) -> Decoder:
    family, _, cache_type = case.partition(" with cache ")
    return tiny_decoder(tiny_network(family), Format.Q4, *sizes, cache_type=cache_type or "f16")


def text(length: int = LENGTH) -> np.ndarray:
    return np.random.default_rng(7).integers(3, 100, length)


def feed(decoder: Decoder, tokens: np.ndarray, start: int = 0, slot: int = 0, threads: int = 2) -> np.ndarray:
    """Logits and taps of every token of a chain [n, .], as bits."""
    chain = TokenLayout.chains([slot], [start], [len(tokens)])
    return bits(*decoder.run(tokens, chain, np.arange(len(tokens), dtype=np.int32), threads, TAPS))


def bits(logits: torch.Tensor, tapped: torch.Tensor | None) -> np.ndarray:
    assert tapped is not None
    assert torch.isfinite(logits).all()
    return torch.cat([logits, tapped], 1).numpy().view(np.int32)


@pytest.mark.parametrize(("function", "model"), [("sk_decoder_new", CModel()), ("sk_head_new", CHeadModel())])
def test_a_description_that_cannot_be_is_refused(kernels: Library, function: str, model: Any) -> None:
    getattr(model, "layer", model).layer_count = -1
    with pytest.raises(KernelError):
        getattr(kernels.c, function)(model)


@pytest.mark.daily(19)
@pytest.mark.parametrize(
    ("family", "cache_type"), [*((family, "f16") for family in (*FAMILIES, *RECURRENT)), *((f, "q8") for f in KINDS)]
)
def test_a_pass_computes_what_the_modelling_code_does(family: str, cache_type: str) -> None:
    """Float weights: only the order of sums differs, and keys and values on the edge of two stored numbers."""
    network = tiny_network(family)
    decoder, tokens = tiny_decoder(network, Format.F32, cache_type=cache_type), text()
    with torch.inference_mode():
        out = network(
            torch.from_numpy(tokens)[None],
            **{cache_argument(network.forward): None if family in RECURRENT else RoundingCache(cache_type)},
            output_hidden_states=True,
        )
    chain = TokenLayout.chains([1], [0], [LENGTH])
    logits, tapped = decoder.run(tokens, chain, np.arange(LENGTH, dtype=np.int32), 2, TAPS)
    states = torch.cat([out.hidden_states[i][0] for i in TAPS], 1)
    for ours, theirs in ((logits, out.logits[0]), (tapped, states)):
        assert ((ours - theirs).norm(dim=1) / theirs.norm(dim=1)).max() < (1e-3 if cache_type == "f16" else 1e-2)


@pytest.mark.daily(16)
@pytest.mark.parametrize("family", [*KINDS, *EIGHT_BIT])
@pytest.mark.parametrize("variant", variants())
def test_every_instruction_set_gives_the_scalar_bits(kernels: Library, family: str, variant: Variant) -> None:
    decoder = decoder_of(family)
    use(kernels, Variant.SCALAR)
    wanted = feed(decoder, text(140))
    use(kernels, variant)
    assert np.array_equal(feed(decoder, text(140)), wanted)


@pytest.mark.parametrize("family", [*FAMILIES, *EIGHT_BIT])
def test_chunks_slots_and_threads_do_not_change_a_bit(family: str) -> None:
    decoder, tokens = decoder_of(family), text()
    whole = feed(decoder, tokens)
    for slot, threads, cuts in ((1, 1, [40, 41, 139]), (2, 3, [1, 2, 3, 128, 129]), (0, 2, list(range(120, 150)))):
        edges = [0, *cuts, LENGTH]
        parts = [feed(decoder, tokens[a:b], a, slot, threads) for a, b in pairwise(edges)]
        assert np.array_equal(np.concatenate(parts), whole)


def test_tokens_on_both_sides_of_a_block_of_keys_have_their_bits_from_many_threads() -> None:
    """Many times, as threads seldom meet at the same place."""
    decoder, tokens = decoder_of("qwen3 of other sizes"), text()
    whole = feed(decoder, tokens, threads=1)
    for _ in range(2000):
        assert np.array_equal(feed(decoder, tokens[126:132], 126, threads=8), whole[126:132])


@pytest.mark.parametrize("family", [*KINDS, *EIGHT_BIT])
def test_rows_of_a_batch_do_not_change_each_other(family: str) -> None:
    decoder, tokens = decoder_of(family), text()
    whole = feed(decoder, tokens)
    feed(decoder, tokens[:130], slot=2)
    feed(decoder, tokens[:7], slot=1)
    lengths, starts = [9, 20, 3], [130, 7, 100]
    both = TokenLayout.chains([2, 1, 0], starts, lengths)
    fed = np.concatenate([tokens[s : s + n] for s, n in zip(starts, lengths, strict=True)])
    wanted = np.concatenate([whole[s : s + n] for s, n in zip(starts, lengths, strict=True)])
    assert np.array_equal(bits(*decoder.run(fed, both, np.arange(32, dtype=np.int32), 2, TAPS)), wanted)
    only, _ = decoder.run(fed, both, np.array([30, 5], dtype=np.int32), 1)
    assert np.array_equal(only.numpy().view(np.int32), wanted[[30, 5], : only.shape[1]])


@pytest.mark.parametrize(
    ("family", "start"),
    [*((family, 126) for family in (*FAMILIES, *EIGHT_BIT)), *(("gemma2", start) for start in (1, 20, 140))],
)
def test_tokens_of_a_tree_have_the_bits_of_their_chains(family: str, start: int) -> None:
    decoder, tokens = decoder_of(family), text()
    offered = np.random.default_rng(start).integers(3, 100, len(PARENTS))
    paths = [path_to(i) for i in range(len(PARENTS))]
    feed(decoder, tokens[:start])
    tree = tree_at(start, paths)
    got = bits(*decoder.run(offered, tree, np.arange(len(PARENTS), dtype=np.int32), 2, TAPS))
    for token, path in enumerate(paths):
        chain = np.concatenate([tokens[:start], offered[path]])
        assert np.array_equal(got[token], feed(decoder, chain, slot=1)[-1])


@pytest.mark.daily(16)
@pytest.mark.parametrize("family", [*KINDS, *EIGHT_BIT])
@pytest.mark.parametrize("seed", range(3))
def test_rows_that_share_blocks_have_the_bits_that_they_have_alone(family: str, seed: int) -> None:
    draw, slots, width = np.random.default_rng(seed), 6, CONTEXT // BLOCK
    tables = draw.permutation(slots * width).astype(np.int32).reshape(slots, width)
    decoder, alone = new_decoder(family, slots, tables), decoder_of(family)
    texts = [text(400)]
    feed(decoder, texts[0])
    for slot in range(1, slots):  # forks of forks
        parent = int(draw.integers(slot))
        shared = int(draw.integers(len(texts[parent]) // BLOCK + 1))
        tables[slot, :shared] = tables[parent, :shared]
        own = draw.integers(3, 100, draw.integers(1, 400 - shared * BLOCK))
        texts.append(np.concatenate([texts[parent][: shared * BLOCK], own]))
        feed(decoder, own, shared * BLOCK, slot)
    rows = [(int(slot), int(draw.integers(1, len(PARENTS) + 1))) for slot in draw.permutation(slots)]
    offered = draw.integers(3, 100, len(PARENTS))
    batch = TokenLayout.of(
        (slot, start + len(path) - 1, start + node, start, [start + before for before in path[:-1]])
        for slot, count in rows
        for start in [len(texts[slot])]
        for node, path in enumerate(map(path_to, range(count)))
    )
    ids = np.concatenate([offered[:count] for _, count in rows])
    got = iter(bits(*decoder.run(ids, batch, range(len(ids)), 2, TAPS)))
    for slot, count in rows:
        feed(alone, texts[slot])
        for node in range(count):
            assert np.array_equal(next(got), feed(alone, offered[path_to(node)], len(texts[slot]))[-1])


@pytest.mark.parametrize("family", [*KINDS, *EIGHT_BIT])
def test_a_prompt_may_be_read_without_logits(family: str) -> None:
    """Layers that keep nothing for later tokens are then left out."""
    decoder, tokens = decoder_of(family), text()
    whole = feed(decoder, tokens)
    decoder.run(tokens[:140], TokenLayout.chains([1], [0], [140]), [], 2)
    assert np.array_equal(feed(decoder, tokens[140:], 140, 1), whole[140:])


def test_decoders_may_be_used_from_several_threads_at_once() -> None:
    families = ["llama", "gemma3", "qwen3"]
    wanted = [feed(decoder_of(family), text()) for family in families]

    def work(family: str) -> list[np.ndarray]:
        return [feed(decoder_of(family), text(), threads=1 + i % 3) for i in range(10)]

    with ThreadPoolExecutor(3) as pool:
        for results, expected in zip(pool.map(work, families), wanted, strict=True):
            assert all(np.array_equal(result, expected) for result in results)


def test_what_does_not_fit_is_refused() -> None:
    decoder = decoder_of("llama")
    chain, judged = TokenLayout.chains([0], [0], [3]), np.zeros(1, dtype=np.int32)
    for tokens, chains, sentence in (
        ([5, 6, 320], chain, "the id of token 2 is not in the vocabulary"),
        ([5, 6, 7], TokenLayout.chains([3], [0], [3]), "the slot of token 0 is not in the cache"),
        ([5, 6, 7], TokenLayout.chains([0], [510], [3]), "the column of token 2 is not in the cache"),
        (
            [5, 6, 7],
            TokenLayout.chains([0, 1, 0], [0, 0, 1], [1, 1, 1]),
            "the tokens of slot 0 are not next to each other",
        ),
        ([5, 6], chain, "the layout does not fit a pass over 2 tokens"),
        ([5, 6, 7], tree_at(4, [[0], [0, 1], [2, 2]]), "an ancestor of token 2 does not come before it"),
    ):
        with pytest.raises(KernelError, match=sentence):
            decoder.run(np.array(tokens), chains, judged, 1)
    with pytest.raises(KernelError, match="a tapped depth is not in the model"):
        decoder.run(np.array([5, 6, 7]), chain, judged, 1, [5])
    with pytest.raises(KernelError, match="must be contiguous float16"):
        decoder.attach(np.zeros((1, 1), np.int32), [torch.zeros(1, 2, 8, 16)] * 3, [torch.zeros(1, 2, 8, 16)] * 3)


@pytest.mark.parametrize(
    "settings",
    [
        {"model_type": "gpt2"},
        {"model_type": "gpt_oss", "swiglu_limit": 9.0},
        {"model_type": "gpt_oss", "num_local_experts": 2, "num_experts_per_tok": 3},
        {"model_type": "llama", "hidden_act": "relu"},
        {"model_type": "llama", "hidden_size": 72, "num_attention_heads": 3, "num_key_value_heads": 3},
        {"model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 5},
        {"model_type": "qwen3_moe", "moe_intermediate_size": 24},
        {"model_type": "gemma4_text", "use_bidirectional_attention": "all"},
        {"model_type": "llama", "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
    ],
)
def test_what_the_decoder_does_not_support_is_refused(settings: dict) -> None:
    with pytest.raises((OtherFamilyError, KernelError), match="quantised kernels"):
        describe_decoder(AutoConfig.for_model(**settings))


def path_to(token: int) -> list[int]:
    path = [token]
    while PARENTS[path[0]] >= 0:
        path.insert(0, PARENTS[path[0]])
    return path


def tree_at(start: int, paths: list[list[int]]) -> TokenLayout:
    """A tree in slot 0 whose first token has the position `start`; every path ends with the token itself."""
    before = [path[:-1] for path in paths]
    return TokenLayout(
        slots=np.zeros(len(paths), dtype=np.int32),
        positions=np.array([start + len(path) for path in before], dtype=np.int32),
        columns=np.arange(start, start + len(paths), dtype=np.int32),
        prefixes=np.full(len(paths), start, dtype=np.int32),
        ancestor_offsets=np.cumsum([0, *map(len, before)], dtype=np.int32),
        ancestors=np.array([start + i for path in before for i in path], dtype=np.int32),
    )
