"""Packing of a model: weights in the kernels' layout, and everything else that loading needs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from specchat.engine.kernels.packed_matrix import MatrixArrays
from specchat.engine.models.checkpoint import Checkpoint, model_config, read_json
from specchat.engine.models.disk import disk_errors, require_space
from specchat.engine.models.gguf.header import GgufHeader
from specchat.engine.models.load import eos_ids, fingerprint_of, load_tokenizer, sampled, stated_context
from specchat.engine.models.packed.decoder_description import (
    EMBEDDING,
    FINAL_NORM,
    FUSED,
    MATRICES,
    NORMS,
    OUTPUT,
    DecoderDescription,
    describe_decoder,
)
from specchat.engine.models.packed.file import INDEX, WEIGHTS, PackedWriter
from specchat.engine.models.packed.source import CheckpointSource, Floats, GgufSource, WeightSource
from specchat.engine.models.tokenizer import FILE, tokenizer_facts
from specchat.engine.progress import Progress, silence_transformers

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedConfig

_ROOM = 1.1
_BYTES = {"q8": 1.0625, "q4": 0.65}
"""Approximate bytes per weight, for the check of free disk space."""


def pack_gguf(file: Path, model: Path, folder: Path, identity: str, progress: Progress) -> None:
    """Pack a GGUF file with its codes.

    Args:
        file: the GGUF file.
        model: folder with configuration and tokenizer; it needs no weights.
        folder: an empty folder, which becomes the packed model.
        identity: of the source, to notice when it changes.

    Raises:
        EngineError: the type of a tensor, or the model's family, is not supported.
    """
    header = GgufHeader.read(file)
    silence_transformers()
    raw = read_json(model / "config.json") | {"quantization_config": None}  # that of the safetensors
    config = model_config(Checkpoint(model, raw, header.parameters, frozenset())).get_text_config()
    require_space(folder, int(sum(tensor.bytes for tensor in header.tensors.values()) * _ROOM), f"packing {file.name}")
    source = GgufSource(header, (config.num_attention_heads, config.num_key_value_heads))
    _pack(source, config, model, folder, identity, progress)


def pack_checkpoint(model: Path, method: str, folder: Path, identity: str, progress: Progress) -> None:
    """Quantise and pack the safetensors of a model folder; arguments and errors as for `pack_gguf`."""
    silence_transformers()
    checkpoint = Checkpoint.open(model)
    config = model_config(checkpoint).get_text_config()
    require_space(folder, int(checkpoint.parameters * _BYTES[method] * _ROOM), f"quantising {model.name}")
    _pack(CheckpointSource(model, method), config, model, folder, identity, progress)


def _pack(
    source: WeightSource, config: PreTrainedConfig, model: Path, folder: Path, identity: str, progress: Progress
) -> None:
    described = describe_decoder(config)
    tokenizer = load_tokenizer(model)
    about = {
        "source": identity,
        "format": source.format,
        "fingerprint": fingerprint_of(_samples(source, config)),
        "decoder": asdict(described),
        "tokenizer": tokenizer_facts(tokenizer),
        "eos_ids": sorted(eos_ids(tokenizer, config, _generation(model))),
        "context": stated_context(model, config),
    }
    with disk_errors(folder, f"packing {model.name}"):
        with (folder / WEIGHTS).open("wb") as file:
            writer = PackedWriter(file)
            for name, weight, fraction in decoder_weights(source, described):
                progress("convert", f"Packing {model.name}", fraction)
                if isinstance(weight, MatrixArrays):
                    writer.matrix(name, weight)
                else:
                    writer.vector(name, weight)
            index = writer.index(about)
        tokenizer.backend_tokenizer.save(str(folder / FILE))
        (folder / INDEX).write_text(index, encoding="utf-8")
    progress("convert", f"Packed {model.name}", 1.0)


def _generation(model: Path) -> GenerationConfig | None:
    from transformers import GenerationConfig

    if not (model / "generation_config.json").is_file():
        return None
    settings: GenerationConfig = GenerationConfig.from_pretrained(model, local_files_only=True)
    return settings


def decoder_weights(
    source: WeightSource, described: DecoderDescription
) -> Iterator[tuple[str, MatrixArrays | Floats, float]]:
    """All weights of a decoder with their names, and the fraction of the weights before each."""
    names = [(EMBEDDING, True)]
    for layer in range(described.layers):
        prefix = f"model.layers.{layer}."
        names += [(f"{prefix}{part}.weight", True) for part in MATRICES.values()]
        names += [(f"{prefix}{part}.bias", False) for part in MATRICES.values()]
        names += [(f"{prefix}{norm}.weight", False) for norm in NORMS]
    names += [(FINAL_NORM, False)] + ([] if described.tied else [(OUTPUT, True)])
    for number, (name, is_matrix) in enumerate(names):
        if is_matrix:
            yield name, _matrix(source, described, name), number / len(names)
        elif source.has(name):  # each family has some of the biases and norms
            offset = np.float32(described.norm_offset if name.endswith("norm.weight") else 0)
            yield name, source.vector(name) + offset, number / len(names)


def _matrix(source: WeightSource, described: DecoderDescription, name: str) -> MatrixArrays:
    """A matrix, or its rows of a fused one."""
    if source.has(name):
        return source.matrix(name)
    part = name.split(".")[-2]
    shape = described.shape
    queries, keys = shape.heads * shape.head_size, shape.key_heads * shape.head_size
    lengths = {"q_proj": queries, "k_proj": keys, "v_proj": keys}
    lengths |= dict.fromkeys(("gate_proj", "up_proj"), shape.intermediate)
    for fused, parts in FUSED.items():
        if part in parts and source.has(name.replace(part, fused)):
            first = sum(lengths[other] for other in parts[: parts.index(part)])
            return source.matrix(name.replace(part, fused)).rows(slice(first, first + lengths[part]))
    return source.matrix(name)  # raises that it is missing


def _samples(source: WeightSource, config: PreTrainedConfig) -> Iterator[tuple[str, tuple[int, ...], Tensor]]:
    """Arguments for `fingerprint_of`, as `fingerprint` computes them from transformers' network."""
    from transformers import AutoModelForCausalLM

    auto: Any = AutoModelForCausalLM
    with torch.device("meta"):
        state = auto.from_config(config).state_dict()
    for name, weight in state.items():
        stored = EMBEDDING if name == OUTPUT and not source.has(OUTPUT) else name
        places = np.arange(weight.numel())[sampled(weight.numel())]
        yield name, tuple(weight.shape), source.sample(stored, places)
