"""Conversion of a GGUF file to a model folder: configuration and tokenizer, and bfloat16 safetensors where needed.

Keys of the configuration: llama.cpp's (`gguf-py/gguf/constants.py`), as its converter writes them. What a file does not
state follows from its tensors, or is a constant of the family in llama.cpp (`src/models`).
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file

from specchat.engine.device.device import require_memory
from specchat.engine.errors import EngineError, check, errors_as, first_line
from specchat.engine.models.catalog import FILE as GENERATION
from specchat.engine.models.catalog import add_gguf_sampling
from specchat.engine.models.checkpoint import MTP_FILE, is_finite
from specchat.engine.models.disk import disk_errors, require_space
from specchat.engine.models.families import family_of_gguf
from specchat.engine.models.family import Family, Settings, layer_count
from specchat.engine.models.gguf.header import GgufHeader
from specchat.engine.models.gguf.rope import rope_parameters
from specchat.engine.models.gguf.tokenizer import read_tokenizer
from specchat.engine.models.gguf.vocabulary import KINDS
from specchat.engine.models.model_config import OTHER_WAYS, allow_any_heads
from specchat.engine.models.packed.gguf_source import GgufSource
from specchat.engine.models.tokenizer import FACTS, VERSION
from specchat.engine.progress import Progress, ReportingBar, silence_transformers, transformers_bars

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast


_ELSEWHERE = ("chat_template", "special_tokens")
"""Facts about a tokenizer that transformers writes in its own way."""
_DESCRIBED, _READ = 0.2, 0.9
"""Ends of the first two stages of a conversion, as fractions of its time."""


def convert_gguf(file: Path, folder: Path, progress: Progress, *, weights: bool = True) -> None:
    """Convert a GGUF file into a model folder that transformers loads.

    Args:
        file: the GGUF file.
        folder: must exist and be empty.
        progress: called with the stage convert.
        weights: whether to write the weights, besides configuration, tokenizer, and a multi-token-prediction layer.

    Raises:
        EngineError: the file is damaged or of a kind that cannot be converted, or disk or memory is too small.
    """
    header = GgufHeader.read(file)
    _check_kind(header)
    if weights:
        size = header.parameters * torch.bfloat16.itemsize
        require_space(folder, size, f"converting {file.name}")
        # Of other families, the tensors as read and the network exist at the same time.
        copies = 1 if family_of_gguf(header.architecture) else 2
        require_memory(torch.device("cpu"), copies * size, f"converting {file.name}")
    silence_transformers()
    text = f"{'Converting' if weights else 'Reading'} {file.name}"
    progress("convert", text, 0.0)

    def report_reading(fraction: float) -> None:
        progress("convert", text, _DESCRIBED + (_READ - _DESCRIBED) * fraction)

    with errors_as(
        lambda error: (
            f"{header.path} ({header.architecture}) cannot be converted ({first_line(error)}): "
            "it may be damaged, or of a kind transformers cannot read"
        )
    ):
        config = _describe(header, folder)
        if weights:
            network = _read_network(header, config, report_reading)
    if weights:
        progress("convert", text, _READ)
        with disk_errors(folder, f"converting {file.name}"):
            _save(network, folder)
    progress("convert", text, 1.0)


def _check_kind(header: GgufHeader) -> None:
    metadata = header.metadata
    if metadata.get("general.type", "model") != "model" or header.architecture in ("clip", "mmproj"):
        kind = metadata.get("general.type", header.architecture)
        raise EngineError(f"{header.path} holds a part of a model ({kind}): give the file of the language model itself")
    if metadata.get("split.count", 1) > 1:
        raise EngineError(
            f"{header.path} is one of {metadata['split.count']} parts: join them with llama-gguf-split first"
        )
    check(metadata.get("tokenizer.ggml.tokens"), f"{header.path} has no tokenizer: choose a GGUF file of a whole model")


def _describe(header: GgufHeader, folder: Path) -> PreTrainedConfig:
    """Write configuration, tokenizer and multi-token-prediction layer; returns the configuration."""
    from transformers import GenerationConfig

    family = family_of_gguf(header.architecture)
    config = gguf_config(header, family) if family else _other_config(header)
    config.dtype = torch.bfloat16
    tokenizer = _tokenizer(header, drops_spaces=family is not None and family.drops_spaces)
    tokenizer.model_max_length = config.get_text_config().max_position_embeddings
    ends = tokenizer.init_kwargs[FACTS].get("ends")
    generation = GenerationConfig(  # type: ignore[no-untyped-call]
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id if ends is None else ends[0] if len(ends) == 1 else ends or None,
        pad_token_id=tokenizer.pad_token_id,
    )
    layer = GgufSource(header, config).mtp_weights() if header.setting("nextn_predict_layers", 0) else {}
    with disk_errors(folder, f"converting {header.path.name}"):
        config.save_pretrained(folder)
        generation.save_pretrained(folder)
        add_gguf_sampling(folder, header.metadata)
        tokenizer.save_pretrained(folder)
        _strip_load_options(folder / "tokenizer_config.json")
        if layer:
            save_file(layer, folder / MTP_FILE)
    return config


def _other_config(header: GgufHeader) -> PreTrainedConfig:
    """Configuration of a family that only transformers' reader knows."""
    from transformers import AutoConfig

    if header.setting("rope.scaling.type", "none") != "none" or "rope_freqs.weight" in header.tensors:
        raise EngineError(f"{header.path} scales its rope, which conversion would lose: use the safetensors model")
    file = header.path
    with errors_as(
        lambda error: (
            f"{file} is of llama.cpp's architecture {header.architecture}, which cannot be read ({first_line(error)}): "
            f"give the folder or hub id of its safetensors, {OTHER_WAYS}"
        )
    ):
        config: PreTrainedConfig = AutoConfig.from_pretrained(file.parent, gguf_file=file.name, local_files_only=True)
    vars(config).pop("_model_name_or_path", None)  # the file's general.name, not a path
    vars(config).pop("quantization_config", None)
    return config


def _tokenizer(header: GgufHeader, *, drops_spaces: bool) -> PreTrainedTokenizerFast:
    """Tokenizer of transformers, with facts for `PlainTokenizer`; other kinds are as transformers reads them."""
    from transformers import PreTrainedTokenizerFast

    file = header.path
    fast: Any = PreTrainedTokenizerFast
    tokenizer: PreTrainedTokenizerFast
    if header.metadata.get("tokenizer.ggml.model") not in KINDS:
        facts = {FACTS: {"version": VERSION}}
        tokenizer = fast.from_pretrained(file.parent, gguf_file=file.name, local_files_only=True, **facts)
    else:
        made = read_tokenizer(header, drops_spaces=drops_spaces)
        facts = {FACTS: {name: fact for name, fact in made.facts.items() if name not in _ELSEWHERE}}
        named = made.special_tokens_map
        tokenizer = fast(tokenizer_object=made.backend_tokenizer, chat_template=made.chat_template, **named, **facts)
    return tokenizer


def _read_network(header: GgufHeader, config: PreTrainedConfig, report: Callable[[float], None]) -> PreTrainedModel:
    """The network of transformers in bfloat16; transformers' own reader reads the families that only it knows."""
    from transformers import AutoModelForCausalLM, GgufConfig

    network: PreTrainedModel
    if family_of_gguf(header.architecture):
        source = GgufSource(header, config)
        network = source.network()
        source.fill(network, torch.bfloat16, bar=functools.partial(ReportingBar, report=report))
        return network
    file = header.path
    auto: Any = AutoModelForCausalLM
    with _instrumented(report):
        network, about = auto.from_pretrained(
            file.parent,
            config=config,
            gguf_file=file.name,
            dtype=torch.bfloat16,
            local_files_only=True,
            output_loading_info=True,
            quantization_config=GgufConfig(dequantize=True),
        )
    lacking = sorted(about["missing_keys"])
    if lacking:
        raise EngineError(f"{file} lacks weights ({lacking[0]}): fetch the file again")
    for name, weight in network.named_parameters():
        if not is_finite(weight):
            raise header.damaged(name)
    return network


def _save(network: PreTrainedModel, folder: Path) -> None:
    # The weights are bfloat16 by now; only these two attributes make save_pretrained refuse them as GGUF.
    vars(network)["hf_quantizer"] = None
    vars(network.config).pop("quantization_config", None)
    generation = (folder / GENERATION).read_bytes()
    network.save_pretrained(folder)
    (folder / GENERATION).write_bytes(generation)


def _strip_load_options(tokenizer_config: Path) -> None:
    """Remove the options with which this tokenizer was loaded; they are wrong for the next load."""
    settings = json.loads(tokenizer_config.read_text(encoding="utf-8"))
    for option in ("is_local", "local_files_only", "name_or_path", "gguf_file", "vocab_file"):
        settings.pop(option, None)
    tokenizer_config.write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


@contextmanager
def _instrumented(report: Callable[[float], None]) -> Iterator[None]:
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


def gguf_config(header: GgufHeader, family: Family) -> PreTrainedConfig:
    """The configuration of a model.

    Raises:
        EngineError: the file lacks a setting, or has one that the modelling code does not know.
    """
    from transformers import AutoConfig

    allow_any_heads()
    with errors_as(
        lambda error: (
            f"the metadata of {header.path} describes no {header.architecture} model ({first_line(error)}): "
            "fetch the file again"
        )
    ):
        settings = _common(header, family) | family.settings(header)
        if "rope_parameters" not in settings:
            settings["rope_parameters"] = rope_parameters(header)
        config: PreTrainedConfig = AutoConfig.for_model(family.types[0], **settings)
        return config


def _common(header: GgufHeader, family: Family) -> Settings:
    heads, key_heads = header.setting("attention.head_count"), header.setting("attention.head_count_kv", None)
    tokens, layers = {"bos": "bos", "eos": "eos", "pad": "padding"}, layer_count(header)
    varied = any(isinstance(header.setting(f"expert_{key}", 0), list) for key in ("feed_forward_length", "used_count"))
    known = not varied and (family.mixture or not header.setting("expert_count", 0))
    check(known, f"{header.path} is a mixture of experts of a kind that is not supported: {OTHER_WAYS}")
    shared = (max(key_heads) if isinstance(key_heads, list) else key_heads) or heads
    check(
        isinstance(heads, list) or heads % shared == 0,
        f"{header.path} states {header.architecture}.attention.head_count {heads}, which is no multiple of "
        f"attention.head_count_kv {shared}: fetch it again",
    )
    check(layers > 0, f"{header.path} states {header.architecture}.nextn_predict_layers beyond its block_count")
    settings = {
        "vocab_size": header.tensor("token_embd.weight").shape[1],
        "hidden_size": header.setting("embedding_length"),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "head_dim": header.setting("attention.key_length", None),
        "num_key_value_heads": shared,
        "intermediate_size": header.setting("feed_forward_length", None),
        "max_position_embeddings": header.setting("context_length"),
        "rms_norm_eps": header.setting("attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": "output.weight" not in header.tensors,
        **{f"{ours}_token_id": _token(header, theirs) for ours, theirs in tokens.items()},
    }
    return {name: value for name, value in settings.items() if value is not None or name.endswith("_token_id")}


def _token(header: GgufHeader, name: str) -> int | None:
    """A token that the file names, if the embedding has a row for it."""
    token = header.metadata.get(f"tokenizer.ggml.{name}_token_id")
    return token if isinstance(token, int) and 0 <= token < header.tensor("token_embd.weight").shape[1] else None
