"""Sizes and choices of a block drafter, read from its config.json and tensors and checked against its target.

config.json has the fields of Qwen3. What is special to block drafters is at the top level or in `dflash_config`
(authors of DFlash, SpecForge, DeepSpec, Liquid AI), or next to `transformer_layer_config` (library speculators). Heads
are known by their tensors, since their fields differ.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from specchat.engine.drafters.published.find import BLOCK_KINDS, NESTED, SPECULATORS
from specchat.engine.drafters.published.weights import UnfitError, require, rotary_frequencies
from specchat.engine.errors import first_line

_SLIDING, _FULL = "sliding_attention", "full_attention"
_MOST_ROWS = 64
_MARKOV, _SELECTOR = "markov_head.markov_w1.weight", "candidate_selector.successor_codebook.weight"
_CONFIDENCE, _CONVOLUTION = "confidence_head.proj.weight", "layers.0.attention_conv.base_kernel"
_OF_CODES = re.compile(r"_proj\.(?!(weight|bias)$)")
"""Tensors that only quantised linear layers have."""
_BIAS, _OF_GEMMA = "layers.0.self_attn.q_proj.bias", "layers.0.pre_feedforward_layernorm.weight"
_GATE = "markov_head.gate_proj.weight"


@dataclass(frozen=True, slots=True)
class BlockShape:
    """Sizes and choices of a block drafter.

    A draft is one pass over a block of B rows, the last token and B − 1 mask tokens, at the positions from that of the
    last token on. Row i attends to the context, which is all tokens before the last one, and to the block.
    """

    hidden: int
    """d, also the target's."""
    intermediate: int
    heads: int
    key_heads: int
    head_size: int
    epsilon: float
    frequencies: tuple[float, ...]
    """[head size / 2], inverse frequencies of rotary embeddings, which pair the two halves of a head; as it is read, of
    the dimensions that are turned."""
    rotation_factor: float
    """Factor of cosine and sine."""
    windows: tuple[int | None, ...]
    """Number of positions that a row sees, its own included, per layer; None for all."""
    causal: tuple[bool, ...]
    """Whether a row sees only rows before it and itself, per layer; else all rows of the block."""
    rows: int
    """B, the block size of the training, which no pass may change."""
    first: int
    """The first row that proposes a token: 0, or 1 if row 0 stands for the last token."""
    mask: int
    """Mask token."""
    taps: tuple[int, ...]
    """Depths of the target's hidden states that it reads: 0 the embeddings, i the output of layer i − 1, the last one
    normed."""
    vocabulary: int
    """V, of the target."""
    draft_vocabulary: int
    """V', tokens that it scores."""
    bias: bool = False
    """Whether the projections of attention have biases."""
    markov_rank: int = 0
    """Rank of the bias that the token before adds to the logits of a position; 0 for none."""
    markov_gate: bool = False
    """Whether that bias depends on what the position is scored with too."""
    confidence: bool = False
    """Whether a head predicts the acceptance of each position."""
    confidence_reads_markov: bool = False
    """Whether that head reads the token before, by the Markov head."""
    kernel: int = 0
    """Rows that each row of the convolutions around attention and MLP reads; 0 for no convolutions."""
    kernel_group: int = 1
    """Neighbouring dimensions that share a dynamic weight of the convolutions."""
    selector_rank: int = 0
    """Rank of the scores between neighbouring candidates; 0 without a candidate selector."""
    candidates: int = 0
    """Likeliest tokens of a position that the selector chooses from."""
    embedding_scale: float = 1.0
    """Factor of the target's embeddings."""
    logit_scale: float = 1.0
    """Factor of the output layer's results."""
    softcap: float = 0.0
    """Largest logit, c · tanh(x / c); 0 for no limit."""
    gemma: bool = False
    """Whether it has layers of Gemma 4, which differ in norms, activation, and scale of attention."""
    values_are_keys: bool = False
    """Whether its values are the keys, before their norm and rotary embedding."""

    @property
    def layers(self) -> int:
        """Number of layers."""
        return len(self.windows)

    @property
    def proposals(self) -> int:
        """Positions that a draft may have."""
        return self.rows - self.first

    @property
    def reach(self) -> int | None:
        """Positions before the last token that some layer sees; None for all."""
        windows = [window for window in self.windows if window is not None]
        return max(windows) - 1 if len(windows) == len(self.windows) else None


def read_shape(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> BlockShape:
    """The shape of a drafter from its config.json and its tensors, by the names of `engine.drafters.block.network`.

    Raises:
        UnfitError: it is of an unknown kind, or config.json lacks something or contradicts itself.
    """
    try:
        return _Reader(config, tensors).shape()
    except KeyError as error:
        raise UnfitError(f"cannot be used: its config.json does not state {error}: fetch it again") from None
    except (AttributeError, TypeError, ValueError) as error:
        reason = f"has a config.json with a value that cannot be used ({first_line(error)}): fetch it again"
        raise UnfitError(reason) from None


class _Reader:
    """Reads a config.json; methods raise KeyError where a value is missing, others where it is impossible."""

    def __init__(self, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        self._kind = config.get(SPECULATORS)
        self._config, self._tensors = config, tensors
        self._layer: Mapping[str, Any] = config["transformer_layer_config"] if self._kind else config
        self._nested: Mapping[str, Any] = config.get(NESTED) or {}
        self._gemma = _OF_GEMMA in tensors

    def shape(self) -> BlockShape:
        self._check_kind()
        hidden, heads = self._positive("hidden_size"), self._positive("num_attention_heads")
        rows, windows = self._rows(), self._windows()
        if self._gemma:
            self._layer = self._of_gemma(windows)
        size = int(self._layer.get("head_dim") or hidden // heads)
        frequencies, factor = rotary_frequencies(self._layer, hidden, heads, size)
        vocabulary = self._positive("vocab_size")
        return BlockShape(
            hidden=hidden,
            intermediate=self._positive("intermediate_size"),
            heads=heads,
            key_heads=int(self._layer.get("num_key_value_heads") or heads),
            head_size=size,
            epsilon=float(self._layer.get("rms_norm_eps", 1e-6)),
            frequencies=tuple(frequencies.tolist()),
            rotation_factor=float(factor),
            windows=windows,
            causal=self._causal(windows),
            rows=rows,
            first=self._first(rows),
            mask=int(self._required("mask_token_id")),
            taps=self._taps(),
            vocabulary=vocabulary,
            draft_vocabulary=int(self._stated("draft_vocab_size") or vocabulary),
            bias=bool(self._layer.get("attention_bias")) or _BIAS in self._tensors,
            embedding_scale=float(self._stated("input_embedding_scale") or 1.0),
            logit_scale=float(self._stated("output_multiplier") or self._stated("logit_scale") or 1.0),
            softcap=float(self._stated("final_logit_softcapping") or 0.0),
            gemma=self._gemma,
            values_are_keys=self._gemma and bool(self._layer.get("attention_k_eq_v")),
            **self._heads(hidden),
        )

    def _check_kind(self) -> None:
        stated, usual = ("hidden_activation", "gelu_pytorch_tanh") if self._gemma else ("hidden_act", "silu")
        activation, head = self._layer.get(stated, usual), self._stated("markov_head_type") or "vanilla"
        gated = "gated" if _GATE in self._tensors else "vanilla"
        require(
            self._kind is None or self._kind in BLOCK_KINDS,
            f"is of the kind {self._kind!r} of speculators, which is not supported",
        )
        require(not self._stated("attention_value_scale"), "scales the values of attention, which is not supported")
        require(activation == usual, f"has the activation {activation!r}, which is not supported")
        require(head == gated, f"has a Markov head of the type {head!r}, which is not supported: choose another")
        coded = self._config.get("quantization_config") or any(_OF_CODES.search(name) for name in self._tensors)
        require(not coded, "has quantised weights, which are not supported: choose its plain weights or a GGUF file")

    def _of_gemma(self, windows: Sequence[int | None]) -> Mapping[str, Any]:
        """The settings of layers of Gemma 4, which has other ones for each of its two types."""
        kinds = {_FULL if window is None else _SLIDING for window in windows}
        require(len(kinds) == 1, "has layers of Gemma 4 of two types, which is not supported: choose another")
        (kind,) = kinds
        layer, whole = dict(self._layer), kind == _FULL
        layer["attention_k_eq_v"] = whole and layer.get("attention_k_eq_v")
        if whole:
            layer["head_dim"] = layer["global_head_dim"]
            if layer["attention_k_eq_v"]:
                layer["num_key_value_heads"] = layer["num_global_key_value_heads"]
        return layer | {"rope_parameters": layer["rope_parameters"][kind]}

    def _stated(self, name: str) -> Any:
        """What is special to block drafters, from wherever it is stated; None if it is not."""
        return self._nested.get(name) if self._nested.get(name) is not None else self._config.get(name)

    def _required(self, name: str) -> Any:
        value = self._stated(name)
        if value is None:
            raise KeyError(name)
        return value

    def _positive(self, name: str) -> int:
        size = int(self._layer[name])
        if size < 1:
            raise ValueError(name)
        return size

    def _rows(self) -> int:
        rows = int(self._required("block_size"))
        require(2 <= rows <= _MOST_ROWS, f"states a block size of {rows}, which is not from 2 to {_MOST_ROWS}")
        return rows

    def _first(self, rows: int) -> int:
        """A Markov head follows on the last token in row 0, except where the file says that it does not."""
        from_anchor, bonus = self._stated("sample_from_anchor"), self._stated("dspark_bonus_anchor")
        if from_anchor is None and bonus is not None:
            from_anchor = not bonus
        if from_anchor is None and self._kind:
            stated: Mapping[str, Any] = self._config.get("speculators_config") or {}
            methods: Sequence[Mapping[str, Any]] = stated.get("proposal_methods") or ({},)
            from_anchor = methods[0].get("speculative_tokens") == rows
        return 0 if (_MARKOV in self._tensors if from_anchor is None else from_anchor) else 1

    def _taps(self) -> tuple[int, ...]:
        """Depths as speculators states them, or one more than the layers that others state."""
        if self._kind:
            return tuple(int(depth) for depth in self._required("aux_hidden_state_layer_ids"))
        taps = tuple(int(layer) + 1 for layer in self._required("target_layer_ids"))
        if not taps:
            raise ValueError("target_layer_ids")
        return taps

    def _windows(self) -> tuple[int | None, ...]:
        count = self._positive("num_hidden_layers")
        kinds: Sequence[str] = self._layer.get("layer_types") or [_FULL] * count
        require(len(kinds) == count, f"states {len(kinds)} layer types for {count} layers: fetch it again")
        unknown = next((kind for kind in kinds if kind not in (_SLIDING, _FULL)), None)
        require(unknown is None, f"has a layer of the type {unknown!r}, which is not supported: choose another")
        if self._stated("use_swa") and _SLIDING not in kinds:
            kinds = [_SLIDING] * count
        if _SLIDING not in kinds:
            return (None,) * count
        window = int(self._stated("swa_window_size") or self._layer.get("sliding_window") or 0)
        require(window > 0, "has layers of sliding attention and states no sliding_window: fetch it again")
        return tuple(window if kind == _SLIDING else None for kind in kinds)

    def _causal(self, windows: Sequence[int | None]) -> tuple[bool, ...]:
        """Layers of sliding attention are causal where nothing is stated; layers of full attention never are."""
        stated = self._stated("is_causal")
        if stated is None:
            stated = self._stated("causal")
        if self._config.get("sliding_window_non_causal"):
            stated = False
        require(
            not stated or None not in windows,
            "is stated to be causal and has layers of full attention, which see the whole block: fetch it again",
        )
        sliding = _SLIDING in (self._layer.get("layer_types") or ())
        causal = sliding if stated is None else bool(stated)
        return tuple(causal and window is not None for window in windows)

    def _heads(self, hidden: int) -> dict[str, Any]:
        """Sizes of what drafters have besides layers, from their tensors; config.json may state what is missing."""
        found: dict[str, Any] = {}
        rank = int(self._stated("markov_rank") or 0)
        if _MARKOV in self._tensors:
            rank = self._tensors[_MARKOV].shape[-1]
        found |= {"markov_rank": rank, "markov_gate": _GATE in self._tensors}
        if (weight := self._tensors.get(_CONFIDENCE)) is not None:
            found |= {"confidence": True, "confidence_reads_markov": rank > 0 and weight.shape[-1] != hidden}
        kernel, group = (int(self._stated(f"conv_{name}") or 0) for name in ("kernel_size", "group_size"))
        if kernel or _CONVOLUTION in self._tensors:
            require(kernel > 0 and group > 0 and hidden % group == 0, "states no conv_kernel_size and conv_group_size")
            found |= {"kernel": kernel, "kernel_group": group}
        top, rank = int(self._stated("selector_top_k") or 0), int(self._stated("selector_rank") or 0)
        if rank or _SELECTOR in self._tensors:
            require(top > 0 and rank > 0, "states no selector_rank and selector_top_k: fetch it again")
            found |= {"selector_rank": rank, "candidates": top}
        return found
