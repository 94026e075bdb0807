"""Conversion of a GGUF file to a model folder of bfloat16 safetensors, config and tokenizer."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from specchat.engine.device.device import require_memory
from specchat.engine.errors import EngineError, first_line
from specchat.engine.models.disk import disk_errors, require_space
from specchat.engine.models.gguf.header import GgufHeader
from specchat.engine.models.recommendation import add_gguf_sampling
from specchat.engine.progress import Progress, ReportingBar, silence_transformers, transformers_bars

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

_DIGITS_APART = {"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"}
"""Values of tokenizer.ggml.pre that split text at every digit, then as GPT-2 does (llama.cpp, llama-vocab.cpp)."""
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
_TABLE = "rope_freqs.weight"
_FLOAT32 = 0
_ORIGINAL_CONTEXT, _LOW, _HIGH = 8192, 1.0, 4.0
"""Scaling parameters shared by all Llama 3.1 to 3.3 models; only the factor differs."""
_READ_BY_TRANSFORMERS = ("gpt-oss", "gpt_oss")

_READ, _WEIGHTS, _WRITE = 0.0, 0.6, 0.9
"""Start of the three stages of a conversion, as fractions of its time."""


def convert_gguf(file: Path, folder: Path, progress: Progress) -> None:
    """Convert a GGUF file into a model folder that transformers loads; `folder` must exist and be empty.

    Raises:
        EngineError: the file is damaged or of a kind that cannot be converted, or memory or disk is too small.
    """
    from transformers import AutoConfig, PreTrainedTokenizerFast

    header = GgufHeader.read(file)
    _check_kind(header)
    size = header.parameters * torch.bfloat16.itemsize
    require_space(folder, size, f"converting {file.name}")
    # The tensors as read and the network exist at the same time.
    require_memory(torch.device("cpu"), 2 * size, f"converting {file.name}")
    silence_transformers()

    def report(start: float, end: float, fraction: float) -> None:
        progress("convert", f"Converting {file.name}", start + (end - start) * fraction)

    report(_READ, _WEIGHTS, 0.0)
    source: dict[str, Any] = {"gguf_file": file.name, "local_files_only": True}
    try:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(file.parent, **source)
        report(_READ, _WEIGHTS, 0.2)
        with _instrumented(functools.partial(report, _WEIGHTS, _WRITE)):
            config = AutoConfig.from_pretrained(file.parent, **source)
            rope = rope_parameters(header, config)
            if rope is not None:
                config.rope_parameters = rope
            expert_size = header.metadata.get(f"{header.architecture}.expert_feed_forward_length")
            if expert_size is not None and hasattr(config, "moe_intermediate_size"):
                config.moe_intermediate_size = expert_size  # not read by transformers
            vars(config).pop("_model_name_or_path", None)  # the file's general.name, not a path
            report(_WEIGHTS, _WRITE, 0.0)
            model = _read_network(file, config)
    except EngineError:
        raise
    except Exception as error:
        raise EngineError(
            f"{file} ({header.architecture}) cannot be converted ({first_line(error)}): "
            "it may be damaged, or of a kind transformers cannot read"
        ) from error
    report(_WRITE, 1.0, 0.0)
    with disk_errors(folder, f"converting {file.name}"):
        _write(model, tokenizer, header, folder)
    report(_WRITE, 1.0, 1.0)


def _check_kind(header: GgufHeader) -> None:
    metadata = header.metadata
    if metadata.get("general.type", "model") != "model" or header.architecture in ("clip", "mmproj"):
        kind = metadata.get("general.type", header.architecture)
        raise EngineError(f"{header.path} holds a part of a model ({kind}): give the file of the language model itself")
    if metadata.get("split.count", 1) > 1:
        raise EngineError(
            f"{header.path} is one of {metadata['split.count']} parts: join them with llama-gguf-split first"
        )
    if not metadata.get("tokenizer.ggml.tokens"):
        raise EngineError(f"{header.path} has no tokenizer: choose a GGUF file of a whole model")


def _read_network(file: Path, config: PreTrainedConfig) -> PreTrainedModel:
    from transformers import AutoModelForCausalLM, GgufConfig

    auto: Any = AutoModelForCausalLM
    model, report = auto.from_pretrained(
        file.parent,
        config=config,
        gguf_file=file.name,
        dtype=torch.bfloat16,
        local_files_only=True,
        output_loading_info=True,
        quantization_config=GgufConfig(dequantize=True),
    )
    lacking = sorted(report["missing_keys"])
    if lacking:
        raise EngineError(f"{file} lacks weights ({lacking[0]}): fetch the file again")
    for name, weight in model.named_parameters():
        if not torch.isfinite(weight).all():
            raise EngineError(f"{file} is damaged ({name} holds values that are not numbers): fetch the file again")
    network: PreTrainedModel = model
    return network


def _write(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, header: GgufHeader, folder: Path) -> None:
    from transformers import GenerationConfig

    # The weights are bfloat16 by now; only these two attributes make save_pretrained refuse them as GGUF.
    vars(model)["hf_quantizer"] = None
    vars(model.config).pop("quantization_config", None)
    ends = [header.metadata.get(f"tokenizer.ggml.{key}") for key in _END_KEYS]
    distinct = list(dict.fromkeys(end for end in ends if end is not None))
    model.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=distinct[0] if len(distinct) == 1 else distinct or None,
        pad_token_id=tokenizer.pad_token_id,
    )
    model.save_pretrained(folder)
    add_gguf_sampling(folder, header.metadata)
    if header.metadata.get("tokenizer.ggml.pre") in _DIGITS_APART:
        from tokenizers import pre_tokenizers

        # transformers' GGUF reader drops the digit splitting of these vocabularies.
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    tokenizer.model_max_length = model.config.get_text_config().max_position_embeddings
    tokenizer.save_pretrained(folder)
    _strip_load_options(folder / "tokenizer_config.json")


def _strip_load_options(tokenizer_config: Path) -> None:
    """Remove the options with which this tokenizer was loaded; they are wrong for the next load."""
    settings = json.loads(tokenizer_config.read_text(encoding="utf-8"))
    for option in ("is_local", "local_files_only", "name_or_path", "gguf_file", "vocab_file"):
        settings.pop(option, None)
    tokenizer_config.write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


@contextmanager
def _instrumented(report: Any) -> Iterator[None]:
    """Report the progress of transformers' GGUF reader and cache what it computes repeatedly.

    It uses tqdm itself, which is replaced by name. It opens the file twice, parsing every token of the vocabulary, and
    builds the same table of names once per module: together half of a small model's conversion.
    """
    import gguf
    from transformers import modeling_gguf_pytorch_utils as reader

    def bar(items: Any, **_: Any) -> ReportingBar:
        return ReportingBar(items, report)

    with ExitStack() as stack:
        stack.enter_context(transformers_bars(lambda _: None))
        for module, name, substitute in (
            (reader, "tqdm", bar),
            (gguf, "GGUFReader", functools.cache(gguf.GGUFReader)),
            (gguf, "get_tensor_name_map", functools.cache(gguf.get_tensor_name_map)),
        ):
            stack.callback(setattr, module, name, getattr(module, name))
            setattr(module, name, substitute)
        yield


def rope_parameters(header: GgufHeader, config: PreTrainedConfig) -> dict[str, Any] | None:
    """rope_parameters for the config, or None if transformers reads them correctly.

    Llama 3 files contain a table of factors, one per frequency, instead of the parameters of the formula. The
    parameters are recovered from the table and checked against it.

    Raises:
        EngineError: the file uses a scaling that the config cannot express, so long prompts would give wrong replies.
    """
    kind = header.metadata.get(f"{header.architecture}.rope.scaling.type", "none")
    if header.architecture in _READ_BY_TRANSFORMERS:
        return None
    if _TABLE in header.tensors:
        tensor = header.tensors[_TABLE]
        if tensor.type != _FLOAT32:
            raise EngineError(f"{header.path} is damaged ({_TABLE} is not float32): fetch it again")
        table = np.fromfile(header.path, dtype="<f4", count=tensor.elements, offset=tensor.offset)
        factor = float(table.max())
        base = float(config.rope_parameters["rope_theta"])
        if not np.allclose(table, llama3_factors(base, 2 * len(table), factor), rtol=1e-3):
            raise EngineError(
                f"{header.path} has a table of rope factors that is not Llama 3's: use the safetensors model"
            )
        return {
            "rope_type": "llama3",
            "rope_theta": base,
            "factor": factor,
            "low_freq_factor": _LOW,
            "high_freq_factor": _HIGH,
            "original_max_position_embeddings": _ORIGINAL_CONTEXT,
        }
    if kind != "none":
        raise EngineError(
            f"{header.path} scales its rope ({kind}), which conversion would lose: use the safetensors model"
        )
    return None


def llama3_factors(base: float, dimensions: int, factor: float) -> NDArray[np.float64]:
    """Divisor of each of `dimensions / 2` frequencies: 1 for high ones, `factor` for low ones, interpolated between."""
    wavelengths = 2 * math.pi * base ** (np.arange(0, dimensions, 2) / dimensions)
    blend = np.clip((_ORIGINAL_CONTEXT / wavelengths - _LOW) / (_HIGH - _LOW), 0.0, 1.0)
    result: NDArray[np.float64] = 1.0 / ((1.0 - blend) / factor + blend)
    return result
