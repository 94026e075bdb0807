"""A packed model ready for the quantised kernels: its weights mapped, its tokenizer read, nothing of transformers."""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from specchat.engine.errors import EngineError
from specchat.engine.kernels.decoder import Decoder
from specchat.engine.kernels.decoder_weights import DecoderShape, DecoderWeights, LayerWeights
from specchat.engine.kernels.packed_matrix import PackedMatrix
from specchat.engine.models.decoder_description import DecoderDescription
from specchat.engine.models.load import display_name
from specchat.engine.models.packed.file import PackedWeights
from specchat.engine.models.packed.names import EMBEDDING, FINAL_NORM, MATRICES, OUTPUT
from specchat.engine.models.tokenizer import PlainTokenizer
from specchat.engine.progress import Progress

_models: weakref.WeakValueDictionary[Path, PackedModel] = weakref.WeakValueDictionary()
_lock = threading.Lock()


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class PackedModel:
    """What `engine.models.load.LoadedModel` is, on packed weights; they run on the CPU."""

    weights: PackedWeights
    described: DecoderDescription
    tokenizer: PlainTokenizer
    name: str
    """For display."""
    eos_ids: frozenset[int]
    context: int
    vocab_size: int
    weight_bytes: int
    """Of the mapped file."""
    has_chat_template: bool
    format: str
    """What the weights are stored as, for people."""
    fingerprint: str
    """That of the network they come from (`engine.models.fingerprint`)."""

    @property
    def start(self) -> None:
        """It is decoder-only."""

    @property
    def device(self) -> torch.device:
        """Always the CPU."""
        return torch.device("cpu")

    @property
    def dtype(self) -> torch.dtype:
        """Of logits and hidden states."""
        return torch.float32

    @property
    def embedding(self) -> PackedMatrix:
        """[vocabulary, hidden]."""
        return self.weights.matrix(EMBEDDING)

    @property
    def output(self) -> PackedMatrix:
        """[vocabulary, hidden], the embedding where they are tied."""
        return self.weights.matrix(EMBEDDING if self.described.tied else OUTPUT)

    @property
    def shape(self) -> DecoderShape:
        """Sizes and constants."""
        return DecoderShape(**self.described.shape)

    @property
    def layers(self) -> int:
        """How many."""
        return self.described.layers

    def short_context(self, context: int) -> int | None:
        """Context of the short set of rotary factors, where a decoder for texts of `context` tokens has the long."""
        originals = [each.original_context for each in self.described.rotaries if each.long_frequencies]
        return max((original for original in originals if context > original), default=None)

    def decoder(self, context: int, positions: int) -> Decoder:
        """A decoder for texts of up to `context` tokens, with tables of `positions` rotary positions."""
        weights = DecoderWeights(
            self.shape,
            [self._layer(number) for number in range(self.layers)],
            self.embedding,
            self.output,
            self.weights.vector(FINAL_NORM),
            [rotary.table(context, positions) for rotary in self.described.rotaries],
        )
        return Decoder(weights)

    def _layer(self, number: int) -> LayerWeights:
        start = f"model.layers.{number}."
        described = self.described

        def vector(name: str) -> NDArray[np.float32] | None:
            return self.weights.vector(start + name) if self.weights.has(start + name) else None

        def needed(name: str) -> NDArray[np.float32]:
            return self.weights.vector(start + name)

        matrices: dict[str, Any] = {
            ours: self.weights.matrix(f"{start}{theirs}.weight") for ours, theirs in MATRICES.items()
        }
        biases: dict[str, Any] = {
            f"{part}_bias": vector(f"{MATRICES[part]}.bias") for part in ("query", "key", "value", "output")
        }
        after, before_mlp = "post_attention_layernorm.weight", "pre_feedforward_layernorm.weight"
        return LayerWeights(
            **matrices,
            **biases,
            attention_norm=needed("input_layernorm.weight"),
            mlp_norm=needed(before_mlp if described.out_norms else after),
            attention_out_norm=needed(after) if described.out_norms else None,
            mlp_out_norm=needed("post_feedforward_layernorm.weight") if described.out_norms else None,
            query_norm=needed("self_attn.q_norm.weight") if described.head_norms else None,
            key_norm=needed("self_attn.k_norm.weight") if described.head_norms else None,
            window=described.windows[number],
            rope=described.ropes[number],
        )


def load_packed(folder: Path, progress: Progress, stage: str = "target") -> PackedModel:
    """Load a packed model, or give the same object again while somebody still uses it.

    Args:
        folder: as `engine.models.packed.find.packed_folder` gives it.
        stage: what `progress` is told this is, target or draft.

    Raises:
        EngineError: the folder is damaged.
    """
    name = display_name(folder.with_suffix(""))
    with _lock:
        model = _models.get(folder)
        if model is None:
            progress(stage, f"Loading {name}", 0.0)
            model = _models[folder] = _load(folder, name)
        progress(stage, f"Loaded {model.name}", 1.0)
    return model


def _load(folder: Path, name: str) -> PackedModel:
    weights = PackedWeights.open(folder)
    about = weights.about
    try:
        described = DecoderDescription.from_json(about["decoder"])
        tokenizer = PlainTokenizer.open(folder, about["tokenizer"])
        return PackedModel(
            weights=weights,
            described=described,
            tokenizer=tokenizer,
            name=name,
            eos_ids=frozenset(about["eos_ids"]),
            context=about["context"],
            vocab_size=described.shape["vocabulary"],
            weight_bytes=weights.bytes,
            has_chat_template=bool(tokenizer.chat_template),
            format=about["format"],
            fingerprint=about["fingerprint"],
        )
    except (KeyError, TypeError) as error:
        raise EngineError(f"{folder} is damaged ({error!r}): delete it and start again") from error
