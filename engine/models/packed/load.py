"""Loading of a packed model, without transformers: weights stay as they are in the file; checks of loaded models."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from specchat.engine.errors import EngineError, check, errors_as
from specchat.engine.kernels.decoder import Decoder
from specchat.engine.kernels.decoder_shape import DecoderShape
from specchat.engine.kernels.decoder_weights import DecoderWeights, LayerInputs, LayerWeights
from specchat.engine.kernels.packed_matrix import PackedMatrix, unpack
from specchat.engine.models.catalog import Recommendation, recommended_sampling
from specchat.engine.models.checkpoint import display_name
from specchat.engine.models.family import Family, Parts
from specchat.engine.models.load import LoadedModel, load_model, norms_fingerprint, shared
from specchat.engine.models.packed import names
from specchat.engine.models.packed.decoder_description import DecoderDescription, packed_family
from specchat.engine.models.packed.experts import is_experts, joined, joined_rows, matrices_of, parts_of
from specchat.engine.models.packed.file import PackedWeights
from specchat.engine.models.tokenizer import PlainTokenizer
from specchat.engine.progress import Progress


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class PackedModel:
    """Counterpart of `engine.models.load.LoadedModel` with packed weights, for the CPU."""

    weights: PackedWeights
    described: DecoderDescription
    tokenizer: PlainTokenizer
    name: str
    """Display name."""
    eos_ids: frozenset[int]
    context: int
    vocab_size: int
    weight_bytes: int
    """Size of the file."""
    format: str
    """Display name of the format of the weights."""
    fingerprint: str
    """Fingerprint of the network that was packed (`engine.models.load.fingerprint`)."""
    recommended: Recommendation = field(default_factory=Recommendation)
    """Sampling settings that its authors recommend."""

    start: ClassVar[None] = None
    """The model is decoder-only."""
    backend: ClassVar[str] = "specchat.engine.backends.packed"
    """Module whose `build` makes its backend."""
    device: ClassVar[torch.device] = torch.device("cpu")
    dtype: ClassVar[torch.dtype] = torch.float32
    """Dtype of logits and hidden states."""

    @property
    def norms(self) -> str:
        """Identifies the model, whatever codes its weights have (`engine.models.load.norms_fingerprint`)."""
        return norms_fingerprint((name, _stored(self, name)) for name in self.weights.index["vectors"])

    @property
    def embedding(self) -> PackedMatrix:
        """[vocabulary, hidden]."""
        return self.weights.matrix(names.EMBEDDING)

    @property
    def output(self) -> PackedMatrix:
        """[vocabulary, hidden]; the embedding if they are tied."""
        return self.weights.matrix(names.EMBEDDING if self.described.tied else names.OUTPUT)

    @property
    def bytes_read(self) -> int:
        """Bytes of weights that a pass over one token reads: of tables of embeddings hardly any, of experts a few."""
        tables = {names.INPUTS_EMBEDDING} if self.described.tied else {names.INPUTS_EMBEDDING, names.EMBEDDING}
        chosen = self.shape.experts_per_token / max(self.shape.experts, 1)
        left_out = 0.0
        for name in self.weights.index["matrices"]:
            share = 1.0 if name in tables else 1.0 - chosen if is_experts(name) else 0.0
            left_out += share * self.weights.matrix(name).data.nbytes if share else 0.0
        return self.weight_bytes - int(left_out)

    @property
    def shape(self) -> DecoderShape:
        """Sizes and constants."""
        return self.described.shape

    @property
    def layers(self) -> int:
        """Number of layers."""
        return self.described.layers

    @property
    def cached(self) -> list[tuple[int, int, int, int]]:
        """Heads and head size of keys, and of values, that a cache holds of each layer; zeros for recurrent layers."""
        recurrent = self.described.recurrent
        attended = [self.described.layer_shape(layer).cached * 2 for layer in range(self.layers)]
        return [(0, 0, 0, 0) if layer in recurrent else each for layer, each in enumerate(attended)]

    def short_context(self, context: int) -> int | None:
        """Context of the short rotary factors, if a decoder for texts of `context` tokens uses the long ones."""
        originals = [each.original_context for each in self.described.rotaries if each.long_frequencies]
        return max((original for original in originals if context > original), default=None)

    def decoder(self, context: int, positions: int) -> Decoder:
        """A decoder for texts of up to `context` tokens, with tables of `positions` rotary positions."""
        weights = DecoderWeights(
            self.shape,
            [self._layer(number) for number in range(self.layers)],
            self.embedding,
            self.output,
            self.weights.vector(self.described.name(names.FINAL_NORM)),
            [rotary.table(context, positions) for rotary in self.described.rotaries],
            self._inputs() if self.described.inputs else None,
        )
        return Decoder(weights)

    def _inputs(self) -> LayerInputs:
        """Gemma 4 adds the norm and √size x the embedding, and divides by √2."""
        norm = self.weights.vector(names.INPUTS_NORM)
        embedding, projection = (
            self.weights.matrix(name) for name in (names.INPUTS_EMBEDDING, names.INPUTS_PROJECTION)
        )
        return LayerInputs(embedding, projection, norm * 2**-0.5, (len(norm) / 2) ** 0.5)

    def _layer(self, number: int) -> LayerWeights:
        described, weights, sizes = self.described, self.weights, self.described.layer_shape(number)
        matrices = described.matrices(number, weights.has)
        places = {field: f"model.layers.{number}.{name}" for field, name in names.LAYER_VECTORS.items()}
        stored = {field: described.name(place) for field, place in places.items()}
        stored |= {f"{part}_bias": f"{name}.bias" for part, name in matrices.items()}
        vectors: dict[str, Any] = {field: weights.vector(name) for field, name in stored.items() if weights.has(name)}
        if described.out_norms:
            vectors |= {"attention_out_norm": vectors["mlp_norm"], "mlp_norm": vectors.pop("mlp_in_norm")}
        if "experts_norm" in vectors:
            vectors |= {"shared_norm": vectors["mlp_norm"], "mlp_norm": vectors.pop("experts_norm")}
        if "router_norm" in vectors:
            vectors["router_norm"] = vectors["router_norm"] * described.shape.hidden**-0.5
        if sizes.source is not None:  # files may have one all the same
            vectors.pop("key_norm", None)
        if described.value_norm:
            vectors["value_norm"] = np.ones(sizes.head_size, np.float32)
        if number in described.recurrent:
            vectors["convolution"] = vectors["convolution"].reshape(-1, described.shape.taps).T
        if "decay_rate" in vectors:
            vectors["decay_rate"] = -np.exp(vectors["decay_rate"])
        return LayerWeights(
            shape=sizes,
            scale=float(vectors.pop("scale", [1.0])[0]),
            parts={part: weights.matrix(f"{name}.weight") for part, name in matrices.items()} | vectors,
            window=described.windows[number],
            rope=described.ropes[number],
        )


Model = LoadedModel | PackedModel
"""A model with weights of torch, or with packed ones."""


def load_packed(folder: Path, progress: Progress, stage: str = "target") -> PackedModel:
    """Load a packed model, or return the loaded one while it is in use.

    Args:
        folder: result of `engine.models.formats.packed_folder`.
        stage: for `progress`: target or draft.

    Raises:
        EngineError: the folder is damaged.
    """
    name = display_name(folder.with_suffix(""))

    def load() -> PackedModel:
        progress(stage, f"Loading {name}", 0.0)
        weights = PackedWeights.open(folder)
        index = weights.index
        with errors_as(
            lambda error: f"{folder} is damaged ({error!r}): delete it and start again", (KeyError, TypeError)
        ):
            described = DecoderDescription.from_json(index["decoder"])
            tokenizer = PlainTokenizer.open(folder, index["tokenizer"])
            tokenizer.rows = described.shape.vocabulary
            return PackedModel(
                weights=weights,
                described=described,
                tokenizer=tokenizer,
                name=name,
                eos_ids=tokenizer.end_ids(index["eos_ids"], described.shape.vocabulary),
                vocab_size=described.shape.vocabulary,
                weight_bytes=index["bytes"],
                recommended=recommended_sampling(folder),
                **{fact: index[fact] for fact in ("context", "format", "fingerprint")},
            )

    model = shared(folder, load)
    progress(stage, f"Loaded {model.name}", 1.0)
    return model


def load_dequantized(packed: PackedModel, folder: Path, progress: Progress) -> LoadedModel:
    """Load the float32 network of transformers with a packed model's weights, as a reference for the kernels.

    Args:
        folder: of the model that was packed, for its configuration.

    Raises:
        EngineError: it does not fit into memory, or the folder is damaged.
    """
    loaded = load_model(folder, torch.device("cpu"), torch.float32, progress)
    config: Any = loaded.model.config.get_text_config()
    family = packed_family(config)
    entry = partial(_state_entry, packed, family, family.parts(config))
    state = {name: entry(name, weight.shape) for name, weight in loaded.model.state_dict().items()}
    loaded.model.load_state_dict(state, assign=True)
    loaded.model.tie_weights()
    loaded.model.requires_grad_(requires_grad=False)
    return loaded


def _state_entry(packed: PackedModel, family: Family, parts: Parts, name: str, shape: torch.Size) -> Tensor:
    """A parameter of transformers' network."""
    if name == names.OUTPUT and packed.described.tied:
        name = names.EMBEDDING
    if is_experts(name):
        return joined([_stored(packed, each) for each in matrices_of(name)], shape[0], in_turn=family.experts_in_turn)
    if cuts := parts_of(parts, name):
        return joined_rows([_stored(packed, each) for each in cuts], [*cuts.values()]).view(shape)
    return _stored(packed, name).view(shape)


def _stored(packed: PackedModel, name: str) -> Tensor:
    """A matrix or vector of a packed model."""
    if name in packed.weights.index["matrices"]:
        return torch.from_numpy(unpack(packed.weights.matrix(name)))
    values = torch.from_numpy(packed.weights.vector(name).copy())
    return values - float(packed.described.offset(name))


def require_decoder_only(model: Model, purpose: str) -> None:
    """Refuse an encoder-decoder for something.

    Args:
        model: that is loaded.
        purpose: what needs a model that continues text, as the beginning of a sentence.

    Raises:
        EngineError: it is one.
    """
    told = f"{purpose} a model that continues text, and {model.name} is an encoder-decoder: choose another target"
    check(model.start is None, told)


def check_same_kind(target: Model, draft: Model) -> None:
    """Check that a draft model reads what its target does: an encoder-decoder reads a source, and continues nothing.

    Raises:
        EngineError: one is an encoder-decoder, and the other is not.
    """
    if (target.start is None) is not (draft.start is None):
        both, other = ("an encoder-decoder", "is none") if target.start is not None else ("decoder-only", "is not")
        raise EngineError(
            f"{target.name} is {both} and the draft {draft.name} {other}: choose a draft of the target's kind"
        )
    if target.start != draft.start:
        raise EngineError(
            f"the draft {draft.name} begins its replies with token {draft.start} and {target.name} with "
            f"{target.start}: choose a draft of the same family"
        )
