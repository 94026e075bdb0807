"""Packing of a model: weights in the kernels' layout, and everything else that loading needs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specchat.engine.errors import EngineError
from specchat.engine.files import replacing
from specchat.engine.kernels.packed_matrix import MatrixArrays
from specchat.engine.models.catalog import FILE as GENERATION
from specchat.engine.models.checkpoint import Checkpoint, display_name, weight_files
from specchat.engine.models.disk import disk_errors, require_space
from specchat.engine.models.family import Order, Parts
from specchat.engine.models.gguf.header import GgufHeader
from specchat.engine.models.load import eos_ids, load_tokenizer, stated_context
from specchat.engine.models.model_config import model_config
from specchat.engine.models.packed import names
from specchat.engine.models.packed.decoder_description import DecoderDescription, describe_decoder, packed_family
from specchat.engine.models.packed.experts import is_experts, whole_of
from specchat.engine.models.packed.file import INDEX, WEIGHTS, PackedWriter, read_index
from specchat.engine.models.packed.fingerprint import source_fingerprint
from specchat.engine.models.packed.gguf_source import GgufSource
from specchat.engine.models.packed.source import CheckpointSource, Floats, WeightSource
from specchat.engine.models.tokenizer import FILE, PlainTokenizer
from specchat.engine.progress import Progress, silence_transformers

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

_ROOM = 1.1
_BYTES = {"q8": 1.0625, "q4": 0.65}
"""Approximate bytes per weight, for the check of free disk space."""


def pack_gguf(file: Path, model: Path, folder: Path, identity: str, progress: Progress) -> None:
    """Pack a GGUF file with its codes.

    Args:
        file: the GGUF file.
        model: folder with its configuration and tokenizer (`engine.models.convert.convert_gguf`).
        folder: an empty folder, which becomes the packed model.
        identity: of the source, to notice when it changes.

    Raises:
        EngineError: the type of a tensor, or the model's family, is not supported.
    """
    header = GgufHeader.read(file)
    config = _config(model, header.parameters)
    source = GgufSource(header, config)
    require_space(folder, int(header.bytes * _ROOM), f"packing {file.name}")
    _pack(source, config, model, folder, identity, progress)


def pack_checkpoint(model: Path, method: str, folder: Path, identity: str, progress: Progress) -> None:
    """Quantise and pack the safetensors of a model folder; arguments and errors as for `pack_gguf`."""
    config = _config(model)
    checkpoint = Checkpoint.open(model)
    stored = sum(file.stat().st_size for file in weight_files(model))  # fewer bytes, if experts are in MXFP4
    require_space(folder, int(min(checkpoint.parameters * _BYTES[method], stored) * _ROOM), f"quantising {model.name}")
    _pack(CheckpointSource(model, method, packed_family(config)), config, model, folder, identity, progress)


def _config(model: Path, elsewhere: int = 0) -> PreTrainedConfig:
    silence_transformers()
    return model_config(Checkpoint.open(model, elsewhere)).get_text_config()


def _pack(
    source: WeightSource, config: PreTrainedConfig, model: Path, folder: Path, identity: str, progress: Progress
) -> None:
    described = describe_decoder(config)
    if isinstance(source, CheckpointSource) and source.has_own_output():
        described = replace(described, tied=False)
    tokenizer = load_tokenizer(model)
    about = {
        "source": identity,
        "format": source.format,
        "decoder": asdict(described),
        **_about_tokens(model, tokenizer, config),
        "context": stated_context(model, config),
    }
    with disk_errors(folder, f"packing {model.name}"):
        with (folder / WEIGHTS).open("wb") as file:
            writer = PackedWriter(file)
            for name, weight, fraction in decoder_weights(source, described, packed_family(config).parts(config)):
                progress("convert", f"Packing {display_name(model)}", fraction)
                if isinstance(weight, MatrixArrays):
                    writer.matrix(name, weight)
                else:
                    writer.vector(name, weight)
            # After the weights, whose shapes were checked.
            index = writer.index(about | {"fingerprint": source_fingerprint(source, config)})
        tokenizer.backend_tokenizer.save(str(folder / FILE))
        if (model / GENERATION).is_file():
            shutil.copyfile(model / GENERATION, folder / GENERATION)
        (folder / INDEX).write_text(index, encoding="utf-8")
    progress("convert", f"Packed {display_name(model)}", 1.0)


def renew_tokenizer(model: Path, folder: Path) -> None:
    """Replace the tokenizer of a packed model by that of its configuration folder; the weights stay."""
    config = model_config(Checkpoint.open(model, 1 << 62)).get_text_config()
    tokenizer = load_tokenizer(model)
    index = read_index(folder) | _about_tokens(model, tokenizer, config)
    with disk_errors(folder, f"converting the tokenizer of {model.name}"):
        with replacing(folder / FILE) as fresh:
            tokenizer.backend_tokenizer.save(str(fresh))
        with replacing(folder / INDEX) as fresh:
            fresh.write_text(json.dumps(index) + "\n", encoding="utf-8")


def _about_tokens(model: Path, tokenizer: PlainTokenizer, config: PreTrainedConfig) -> dict[str, Any]:
    return {"tokenizer": dict(tokenizer.facts), "eos_ids": sorted(eos_ids(model, tokenizer, config))}


def decoder_weights(
    source: WeightSource, described: DecoderDescription, parts: Parts
) -> Iterator[tuple[str, MatrixArrays | Floats, float]]:
    """All weights of a decoder with their names, and the fraction of the weights before each.

    Args:
        source: of the weights.
        described: the decoder.
        parts: its weights that are rows of others in the modelling code (`Family.parts`).
    """

    def cut_of(name: str) -> tuple[str, Order] | None:
        cut = whole_of(parts, name)
        return cut if cut and source.has(cut[0]) else None

    listed = [(names.EMBEDDING, True)]
    for layer in range(described.layers):
        prefix = f"model.layers.{layer}."
        matrices = described.matrices(layer, lambda name: source.has(name) or cut_of(name) is not None).values()
        listed += [(f"{part}.weight", True) for part in matrices]
        listed += [(f"{part}.bias", False) for part in matrices]
        listed += [(described.name(f"{prefix}{part}"), False) for part in names.LAYER_VECTORS.values()]
    if described.inputs:
        listed += [(names.INPUTS_EMBEDDING, True), (names.INPUTS_PROJECTION, True), (names.INPUTS_NORM, False)]
    listed += [(described.name(names.FINAL_NORM), False)] + ([] if described.tied else [(names.OUTPUT, True)])
    for number, (name, is_matrix) in enumerate(listed):
        cut = cut_of(name)
        stored = cut[0] if cut else name
        if is_matrix:
            matrix = source.matrix(name, cut)
            _check_experts(described, name, matrix.shape[0])
            yield name, matrix, number / len(listed)
        elif source.has(stored):  # each family has some of the vectors
            values = source.vector(stored)
            values = values.reshape(len(cut[1]), -1)[cut[1]].ravel() if cut else values
            yield name, values + described.offset(name), number / len(listed)


def _check_experts(described: DecoderDescription, name: str, rows: int) -> None:
    """Check the rows of a router, or of a matrix with the experts of a layer."""
    shape = described.shape
    if is_experts(name):
        each = shape.hidden if "down_proj" in name else shape.expert_size
    elif name.endswith(f"{described.name(names.ROUTER)}.weight"):
        each = 1
    else:
        return
    if rows != each * shape.experts:
        raise EngineError(
            f"{name} has {rows} rows, and the {shape.experts} experts of the configuration need "
            f"{each * shape.experts}: fetch the model again"
        )
