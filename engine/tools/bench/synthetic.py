"""Synthetic pairs of models: random weights of a given shape and a given acceptance rate α, without any download.

Both networks run their whole forward pass; then one logit per position is raised so that they follow a synthetic
language: the next token is an entry of a random table, found by the token before it and its position, and the draft
has it right in a fraction α of the entries. So each drafted token is accepted with probability α, independently of the
others, as Leviathan et al. 2023 assume (section 3.1). This takes a few operations on the device and no copy to the
host.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specchat.engine.config import EngineConfig
from specchat.engine.device.device import computes_bfloat16, pick_device, require_memory
from specchat.engine.errors import EngineError, check
from specchat.engine.models.load import LoadedModel, pick_dtype
from specchat.engine.models.tokenizer import PlainTokenizer
from specchat.engine.progress import Progress
from specchat.engine.tools.prompts import Prompt, PromptSet
from specchat.engine.worker.assembly import Assemble, Assembly, assemble_loaded

_CERTAIN = 1000.0
"""Logit of the next token: larger than random weights reach, so that it has all probability."""
_ENTRIES = 1 << 20
"""Number of entries of a language's tables."""
_PROMPTS = 16
_PROMPT_TOKENS = 64


_SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
          "vocab_size", "max_position_embeddings")  # fmt: skip
SHAPES: dict[str, dict[str, Any]] = {
    name: {**dict(zip(_SIZES, sizes, strict=True)), "tie_word_embeddings": True}
    for name, sizes in {
        "llama-3.1-8b": (4096, 14336, 32, 32, 8, 128_256, 131_072),
        "llama-3.2-3b": (3072, 8192, 28, 24, 8, 128_256, 131_072),
        "llama-3.2-1b": (2048, 8192, 16, 32, 8, 128_256, 131_072),
        "smollm2-1.7b": (2048, 8192, 24, 32, 32, 49_152, 8_192),
        "smollm2-135m": (576, 1536, 30, 9, 3, 49_152, 8_192),
        "tiny": (32, 64, 2, 4, 2, 512, 4_096),
    }.items()
}
"""Arguments of `LlamaConfig`, from the models' own config.json."""


def parse_shapes(text: str) -> list[str]:
    """Parse `TARGET/DRAFT`, or `TARGET` alone, into the names of the target and of the draft, if any.

    Raises:
        EngineError: a name is unknown, or the two do not share a vocabulary.
    """
    target, _, draft = text.partition("/")
    names = [target, draft] if draft else [target]
    for name in names:
        check(name in SHAPES, f"shape {name!r} is not known: choose from {', '.join(SHAPES)}, as TARGET/DRAFT")
    if len({SHAPES[name]["vocab_size"] for name in names}) > 1:
        raise EngineError(f"the shapes {' and '.join(names)} have different vocabularies: choose two of one family")
    return names


@dataclass(frozen=True, slots=True)
class Language:
    """Deterministic language: each token is a function of the one before it and its position."""

    vocabulary: int
    agreement: float
    """α: fraction of positions at which the draft is right."""

    def next(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """The next token after each token; all tensors int64 of one shape."""
        return _tables(self, tokens.device)[0][_index(tokens, positions)]

    def guess(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """The draft's next token: `next`, or its neighbour in the vocabulary where the draft is wrong."""
        return _tables(self, tokens.device)[1][_index(tokens, positions)]


@lru_cache
def _tables(language: Language, device: torch.device) -> tuple[Tensor, Tensor]:
    """Next tokens and guesses, int64 [`_ENTRIES`]."""
    draw = torch.Generator().manual_seed(0)
    following = torch.randint(language.vocabulary, (_ENTRIES,), generator=draw)
    guessed = (following + (torch.rand(_ENTRIES, generator=draw) >= language.agreement)) % language.vocabulary
    return following.to(device), guessed.to(device)


def _index(tokens: Tensor, positions: Tensor) -> Tensor:
    """Index into the tables for each token and position. Few operations: each is a kernel launch on a GPU."""
    return (tokens * 0x2545F + positions * 0x1851F) % _ENTRIES


def follow(network: Any, predict: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Make a network follow a language by hooks; its forward pass is unchanged.

    Args:
        network: a causal language model of transformers.
        predict: `Language.next`, or `Language.guess` for the draft.
    """
    read: dict[str, Tensor] = {}

    def keep_input(_base: torch.nn.Module, _args: tuple[object, ...], kwargs: Mapping[str, Any]) -> None:
        read.update(tokens=kwargs["input_ids"], positions=kwargs["position_ids"])

    def raise_logit(_head: torch.nn.Module, _args: tuple[object, ...], logits: Tensor) -> Tensor:
        last = slice(-logits.shape[1], None)  # logits may be computed at the last positions only
        following = predict(read["tokens"][:, last], read["positions"][:, last])
        return logits.scatter_(-1, following[..., None], _CERTAIN)

    network.base_model.register_forward_pre_hook(keep_input, with_kwargs=True)
    network.get_output_embeddings().register_forward_hook(raise_logit)


def synthetic(agreement: float, shapes: str) -> Assemble:
    """Assembly function that makes a synthetic pair instead of loading models.

    Args:
        agreement: α, 0 to 1.
        shapes: TARGET/DRAFT, names of `SHAPES`; without a draft, TARGET.

    Raises:
        EngineError: a value is out of range or a name unknown; when called, too little memory.
    """
    check(0 <= agreement <= 1, f"the synthetic agreement is {agreement:g}: it must be from 0 to 1")
    parse_shapes(shapes)

    def assemble(config: EngineConfig, progress: Progress) -> Assembly:
        models = synthetic_models(agreement, shapes, config.device, config.dtype, progress)
        return assemble_loaded(config, models[0], models[1] if len(models) > 1 else None)

    return assemble


def synthetic_models(agreement: float, shapes: str, on: str, dtype: str, progress: Progress) -> list[LoadedModel]:
    """The target, and the draft if any; `on` and `dtype` as `EngineConfig.device` and `dtype`."""
    device, names = pick_device(on), parse_shapes(shapes)
    language = Language(SHAPES[names[0]]["vocab_size"], agreement)
    tokenizer = _tokenizer(language.vocabulary)
    models = []
    for stage, name in zip(("target", "draft"), names, strict=False):
        progress(stage, f"Making a synthetic {name}", None)
        models.append(_make(name, language, device, _dtype(dtype, device), tokenizer, drafting=stage == "draft"))
    return models


def synthetic_prompts(shapes: str) -> PromptSet:
    """Prompts of arbitrary token ids that differ from each other."""
    vocabulary = SHAPES[parse_shapes(shapes)[0]]["vocab_size"]
    rows = torch.randint(vocabulary, (_PROMPTS, _PROMPT_TOKENS), generator=torch.Generator().manual_seed(1)).tolist()
    return PromptSet("synthetic", tuple(Prompt(ids=tuple(row)) for row in rows))


def _make(
    name: str, language: Language, device: torch.device, dtype: torch.dtype, tokenizer: Any, *, drafting: bool
) -> LoadedModel:
    from transformers import AutoModelForCausalLM, LlamaConfig

    auto: Any = AutoModelForCausalLM
    config = LlamaConfig(**SHAPES[name])
    with torch.device("meta"):
        size = sum(p.numel() for p in auto.from_config(config).parameters())
    require_memory(device, size * dtype.itemsize, f"a synthetic {name}")
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), device:
        torch.manual_seed(0)
        network = auto.from_config(config, dtype=dtype).eval().requires_grad_(False)
    follow(network, language.guess if drafting else language.next)
    return LoadedModel(
        model=network,
        tokenizer=tokenizer,
        name=f"synthetic {name}",
        eos_ids=frozenset(),
        context=SHAPES[name]["max_position_embeddings"],
        vocab_size=language.vocabulary,
        weight_bytes=size * dtype.itemsize,
    )


def _dtype(name: str, device: torch.device) -> torch.dtype:
    if name == "auto":  # no weights are stored, so no dtype
        name = "bfloat16" if computes_bfloat16(device) else "float32"
    return pick_dtype(name, device, Path())


def _tokenizer(vocabulary: int) -> PlainTokenizer:
    """Tokenizer with one word per token, so that replies can be streamed as text."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(vocabulary)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PlainTokenizer(words)
