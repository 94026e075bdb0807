"""A target in the shape of a larger model and a head or block drafter that agrees with it at a share of the tokens.

Run from the repository:
    python -m benchmarks.make_predictable_pair FILE.gguf DRAFT [--agreement A] [--shape SHAPE] [--block ROWS]

For `specchat bench --target FILE.gguf --draft DRAFT --temperature 0`: what drafts bring to a model of this size, with
none at hand. All layers are computed, and add nothing, so that the target's next token is a function of its last one: a
cycle through tokens in random order. The drafter predicts it for a share A of the tokens, and is as confident of a
wrong one for the rest. So each drafted token is accepted with probability A, independently of the others, as Leviathan
et al. 2023 assume (section 3.1). With `--block` it is a DSpark drafter of one layer, whose Markov head alone predicts.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGMLQuantizationType as Type
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import nn

from benchmarks.make_random_gguf import BYTES, CONTEXT, SHAPES, STEPS, Shape, random_values, write
from specchat.engine.config import models_folder
from specchat.engine.drafters.head.folder import HeadAcceptance, HeadCard, save_head
from specchat.engine.drafters.head.network import DraftHead, HeadShape
from specchat.engine.models import ModelStore
from specchat.engine.models.formats import packed_folder
from specchat.engine.models.packed.load import load_packed
from specchat.engine.models.resolve import resolve
from specchat.engine.progress import ignore_progress

_DRAFTABLE = 12_288
"""Tokens of the cycle; the head scores as many."""
_FIRST = 1000
"""First token of the cycle: tokens before it are special, or in prompts."""
_ADDED = ("attn_output.weight", "shortconv.out_proj.weight", "ffn_down.weight")
"""Output projections, which are 0, so that layers add nothing to the hidden states."""
_RANK, _LOGIT, _BLOCK_KEYS = 64, 20.0, 8
"""Of a block drafter: rank of its Markov head, logit of its likeliest token, key heads."""
_LESS = np.float16(0.98)
"""Factor between the logit of the right token and that of the wrong one that the head drafts instead."""


def main() -> None:
    """Write both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("draft", type=Path)
    parser.add_argument("--agreement", type=float, default=0.8)
    parser.add_argument("--shape", choices=("llama-3.2-1b", "smollm2-1.7b", "lfm2.5-1.2b"), default="llama-3.2-1b")
    parser.add_argument("--block", type=int, help="rows of a block drafter; a head without it")
    options = parser.parse_args()
    shape = SHAPES[options.shape]
    output = ("output.weight", (shape.vocabulary, shape.hidden), Type.Q6_K)
    pair = _Pair(options.agreement)
    write(options.file, replace(shape, shared=(output,)), pair.values)
    if options.block:
        _save_block(options.draft, shape, pair, options.block)
    else:
        _save(options.draft, options.file, shape, pair.known)


class _Pair:
    """The weights of the target, and what the head can draft.

    Args:
        agreement: share of the tokens that the head knows.
    """

    def __init__(self, agreement: float) -> None:
        draws = np.random.default_rng(2)
        self._cycle = draws.permutation(_DRAFTABLE) + _FIRST
        self._wrong = draws.permutation(_DRAFTABLE)[: round((1 - agreement) * _DRAFTABLE)]
        """Places in the cycle after which the head is wrong."""
        self._decoys = np.arange(len(self._wrong)) + _FIRST + _DRAFTABLE
        following = np.roll(self._cycle, -1)
        self.known = np.sort([*np.delete(following, self._wrong), *self._decoys])
        self._embedding: NDArray[np.uint8] = np.empty(0, np.uint8)

    def markov(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Embeddings [V, rank] of tokens, and what they are multiplied with: that of the token before, if any."""
        codes = torch.nn.functional.normalize(torch.randn(_DRAFTABLE, _RANK), dim=1)
        before, after = torch.zeros(2, len(self._embedding), _RANK)
        following = np.roll(self._cycle, -1)
        before[self._cycle], after[following] = _LOGIT * codes, codes
        after[following[self._wrong]] *= float(_LESS)
        after[self._decoys] = codes[self._wrong]
        return before, after

    def values(self, draws: np.random.Generator, name: str, sizes: tuple[int, ...], kind: Type) -> NDArray[Any]:
        """A tensor of the target."""
        if name == "output.weight":
            return self._output()
        found = random_values(draws, name, sizes, kind)
        if name == "token_embd.weight":
            found[:_FIRST] = found[self._cycle[:_FIRST]]  # so that the cycle is entered after any prompt
            self._embedding = found
        elif name.endswith(_ADDED):
            found.reshape(-1, BYTES[kind])[:, STEPS[kind]] = 0
        return found

    def _output(self) -> NDArray[np.uint8]:
        """Rows of the output layer: of each token the embedding of its predecessor."""
        rows = self._embedding.copy()
        size, step = BYTES[Type.Q6_K], STEPS[Type.Q6_K]
        rows[:_FIRST].reshape(-1, size)[:, step] = 0
        rows[np.roll(self._cycle, -1)] = self._embedding[self._cycle]
        taken = self._embedding[self._cycle[self._wrong]]
        steps = taken.reshape(-1, size)[:, step].copy().view(np.float16) * _LESS
        taken.reshape(-1, size)[:, step] = steps.view(np.uint8)
        rows[self._decoys] = taken
        return rows


def _save(folder: Path, target: Path, shape: Shape, known: NDArray[np.int64]) -> None:
    """Write a head with the sizes of a target's layer, whose output is the embedding of the last token."""
    about = shape.metadata
    heads, size = about["attention.head_count"], about["rope.dimension_count"]
    taps = (shape.layers // 4, shape.layers // 2, shape.layers)
    head_shape = HeadShape(
        *(shape.hidden, heads, about["attention.head_count_kv"], size, about["feed_forward_length"], taps),
        *(about["rope.freq_base"], about["attention.layer_norm_rms_epsilon"]),
    )
    torch.manual_seed(0)
    head = DraftHead(head_shape).requires_grad_(False)
    for part in (head.fuse, head.again, head.out, head.down):
        part.weight.zero_()
    head.token.weight.copy_(nn.init.eye_(torch.empty(shape.hidden, shape.hidden)))
    found = packed_folder(resolve(str(target), ModelStore(models_folder()), ignore_progress), "auto")
    loaded = load_packed(found, ignore_progress)
    unknown = HeadAcceptance(0.0, (), 1.0)
    card = HeadCard(
        *(loaded.name, loaded.fingerprint, head_shape, 0, 0, 0.0, 4, unknown, unknown), codes="q4", norms=loaded.norms
    )
    save_head(folder, head, torch.from_numpy(known), card)


def _save_block(folder: Path, shape: Shape, pair: _Pair, rows: int) -> None:
    """Write a DSpark drafter of one layer, whose layer and output layer are computed and say nothing."""
    about, hidden = shape.metadata, shape.hidden
    heads, keys, size, inner = about["attention.head_count"], _BLOCK_KEYS, about["rope.dimension_count"], 3 * hidden
    taps = [round(1 + i * (shape.layers - 4) / 4) for i in range(5)]
    config = {
        "architectures": ["Qwen3DSparkModel"], "model_type": "qwen3", "hidden_act": "silu", "hidden_size": hidden,
        "intermediate_size": inner, "num_attention_heads": heads, "num_key_value_heads": keys, "head_dim": size,
        "num_hidden_layers": 1, "layer_types": ["full_attention"], "rms_norm_eps": 1e-5, "rope_theta": 1e6,
        "vocab_size": shape.vocabulary, "max_position_embeddings": CONTEXT, "block_size": rows, "mask_token_id": 16,
        "target_layer_ids": taps, "markov_rank": _RANK, "markov_head_type": "vanilla",
    }  # fmt: skip
    torch.manual_seed(0)
    sizes = {
        "fc": (hidden, len(taps) * hidden), "layers.0.self_attn.q_proj": (heads * size, hidden),
        "layers.0.self_attn.k_proj": (keys * size, hidden), "layers.0.self_attn.v_proj": (keys * size, hidden),
        "layers.0.self_attn.o_proj": (hidden, heads * size), "layers.0.mlp.gate_proj": (inner, hidden),
        "layers.0.mlp.up_proj": (inner, hidden), "layers.0.mlp.down_proj": (hidden, inner),
    }  # fmt: skip
    tensors = {name: 0.02 * torch.randn(each) for name, each in sizes.items()}
    norms = ("hidden_norm", "layers.0.input_layernorm", "layers.0.post_attention_layernorm")
    tensors |= {name: torch.ones(hidden) for name in norms} | {"norm": torch.zeros(hidden)}
    tensors |= {f"layers.0.self_attn.{name}_norm": torch.ones(size) for name in "qk"}
    tensors["markov_head.markov_w1"], tensors["markov_head.markov_w2"] = pair.markov()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({f"{name}.weight": each.bfloat16() for name, each in tensors.items()}, folder / "model.safetensors")


if __name__ == "__main__":
    main()
