"""Checks of a model folder before it is loaded: files, safetensors headers, values of settings. Needs no torch."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specchat.engine.errors import EngineError, check, first_line

if TYPE_CHECKING:
    from torch import Tensor


LARGEST = (1 << 31) - 1
"""Largest value of counts and sizes."""
_SHOWN = 40
"""Characters of an invalid value in a message."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of values.

    Args:
        words: what it is called.
        holds: whether a value is of the kind.
    """

    words: str
    holds: Callable[[Any], bool]

    def __or__(self, other: Kind) -> Kind:
        return Kind(f"{self.words} or {other.words}", lambda value: self.holds(value) or other.holds(value))


def whole(least: int, most: int = LARGEST) -> Kind:
    """Whole numbers of a range."""
    return Kind(f"a whole number from {least} to {most}", lambda value: _is_whole(value) and least <= value <= most)


def number(least: float = -math.inf) -> Kind:
    """Finite numbers from `least` on."""
    words = "a number" if least == -math.inf else f"a number of at least {least:g}"
    return Kind(words, lambda value: (_is_whole(value) or type(value) is float) and least <= value < math.inf)


def a_list(kind: Kind, *, filled: bool = False) -> Kind:
    """Lists of values of a kind; with `filled`, not empty."""

    def holds(value: Any) -> bool:
        return isinstance(value, list) and (bool(value) or not filled) and all(map(kind.holds, value))

    return Kind(f"a list of which each item is {kind.words}", holds)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


FLAG = Kind("true or false", lambda value: isinstance(value, bool))
TEXT = Kind("a text", lambda value: isinstance(value, str))
TABLE = Kind("a table", lambda value: isinstance(value, dict))
TOKEN = Kind("a whole number", _is_whole)
"""A token id; one that is not in the vocabulary is ignored where it is used."""


def check_values(path: Path, values: Mapping[str, Any], kinds: Mapping[str, Kind]) -> None:
    """Check the values of a file.

    Args:
        path: of the file, for the message.
        values: by key.
        kinds: by regular expression of the key; the first that fits counts. Other keys may have any value.

    Raises:
        EngineError: a value is of another kind; file, key and value are named.
    """
    for key, value in values.items():
        kind = next((kind for pattern, kind in kinds.items() if re.fullmatch(pattern, key)), None)
        if kind is not None and not kind.holds(value):
            shown = repr(value) if len(repr(value)) <= _SHOWN else f"{repr(value)[:_SHOWN]}…"
            raise EngineError(f"{path} states {key} {shown}, which is not {kind.words}: fetch it again")


_SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
"""Names the files that each weight is in, where there are several."""
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "tekken.json")
MTP = "mtp."
"""Beginning of the names of multi-token-prediction layers."""
MTP_FILE = "mtp.safetensors"
"""The multi-token-prediction layer of a model that came as a GGUF file."""
TEXT_PART = {
    r"^model\.language_model\.": "model.",
    r"^model\.text_model\.": "model.",
    r"^language_model\.model\.": "model.",
    r"^language_model\.lm_head\.": "lm_head.",
}
"""Beginnings of the names of the text part's weights where a model reads images too, as regular expressions, and what
they are in a network of text."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checked model folder: config, weights and tokenizer exist, and the weight files are complete."""

    folder: Path
    config: dict[str, Any]
    """Content of config.json."""
    parameters: int
    """Number of weights."""
    dtypes: frozenset[str]
    """Dtypes of the weights, by safetensors' names (BF16, F32 …)."""
    names: frozenset[str] = frozenset()
    """Names of the weights in the folder."""

    @classmethod
    def open(cls, folder: Path, elsewhere: int = 0) -> Checkpoint:
        """Read config.json and the headers of the weight files.

        Args:
            folder: of the model.
            elsewhere: number of weights if they are not in the folder but in a GGUF file.

        Raises:
            EngineError: the folder does not exist or is not a model, or one of its files is damaged.
        """
        check(folder.is_dir(), f"there is no folder {folder}: give a folder that holds a model's config.json")
        config = _read_config(folder)
        parameters, dtypes, names = elsewhere, set[str](), set[str]()
        for shard in [] if elsewhere else weight_files(folder):
            count, kinds, own = _read_header(shard)
            parameters += count
            dtypes |= kinds
            names |= own
        told = f"{folder} has no tokenizer (tokenizer.json): copy the tokenizer files of the model there"
        check(any((folder / name).is_file() for name in _TOKENIZERS), told)
        _check_config(folder / "config.json", config, parameters)
        return cls(folder, config, parameters, frozenset(dtypes), frozenset(names))


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not path.is_file():
        if (folder / "adapter_config.json").is_file():
            raise EngineError(f"{folder} holds an adapter, not a model: merge it into its base model first")
        ggufs = sorted(folder.glob("*.gguf"))
        hint = f"; to use its GGUF file, give {ggufs[0]}" if ggufs else ""
        raise EngineError(f"{folder} is not a model: it has no config.json{hint}")
    return read_json(path)


def _check_config(path: Path, config: dict[str, Any], parameters: int) -> None:
    """Check the types of the values read from a configuration; no size may exceed the number of weights.

    Raises:
        EngineError: a value is of another type or range.
    """
    size, count = whole(1, parameters or LARGEST), whole(0)
    rope = {"rope_type|type": TEXT, "rope_theta": number(1), r"\w*factor|beta_\w+": number() | a_list(number())}
    kinds: dict[str, Kind] = {
        r"(text_|quantization_)config|rope_parameters|rope_scaling": TABLE,
        r"model_type|\w*hidden_act\w*|torch_dtype|dtype": TEXT,
        r"architectures|layer_types": a_list(TEXT, filled=True),
        r"num_(hidden_|decoder_)?layers|n_layers?|num_(attention_)?heads|n_heads?|head_dim|d_model|d_kv": size,
        r"hidden_size|n_embd|vocab_size|(moe_)?intermediate_size|d_ff|num_key_value_heads": size
        | a_list(count, filled=True),
        r"max_position_embeddings|n_positions": whole(1),
        r"\w*sliding_window|num_\w*experts\w*|num_kv_shared_layers": count | FLAG | a_list(count),
        r"\w*(norm_eps|epsilon)|\w*_softcapping|rope_theta|partial_rotary_factor|query_pre_attn_scalar": number(0),
        r"tie_word_embeddings|attention_bias|mlp_bias|is_encoder_decoder": FLAG,
        r"(eos|bos|pad)_token_id": TOKEN | a_list(TOKEN),
    }
    for table in (config, config.get("text_config")):
        if isinstance(table, dict):
            stated = {key: value for key, value in table.items() if value is not None}
            check_values(path, stated, kinds)
            heads, shared = stated.get("num_attention_heads", 0), stated.get("num_key_value_heads", 1)
            if isinstance(heads, int) and isinstance(shared, int) and heads % shared:
                raise EngineError(
                    f"{path} states num_attention_heads {heads}, which is no multiple of num_key_value_heads {shared}: "
                    "fetch it again"
                )
            for scaling in (stated.get("rope_parameters"), stated.get("rope_scaling")):
                check_values(path, scaling or {}, rope)


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file of a model.

    Raises:
        EngineError: the file cannot be read, or is not a JSON object.
    """
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise EngineError(f"{path} cannot be read ({error}): fetch the model again") from error
    check(isinstance(content, dict), f"{path} holds no JSON object: fetch the model again")
    return content


def display_name(folder: Path) -> str:
    """Display name of a model folder, without the hash or organisation that the store or the hub cache adds."""
    folder = folder.absolute()
    if folder.parent.name == "snapshots":  # models--organisation--name/snapshots/revision
        folder = folder.parent.parent
    return re.sub(r"-[0-9a-f]{16}$", "", folder.name.rpartition("--")[2])


def has_weights(folder: Path) -> bool:
    """Whether a model folder has weights besides its configuration and tokenizer."""
    return any(folder.glob("model*.safetensors"))


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a model folder.

    Raises:
        EngineError: there are none, or one is missing.
    """
    if (folder / _SINGLE).is_file():  # as transformers does
        return [folder / _SINGLE]
    if (folder / INDEX).is_file():
        weight_map = read_json(folder / INDEX).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise EngineError(f"{folder / INDEX} names no weights, so the model is not complete: fetch it again")
        names = sorted(set(map(str, weight_map.values())))
        for name in names:
            told = f"{folder / INDEX} names a file outside of its folder ({name}): fetch the model again"
            check(_is_inside(folder, name), told)
        lacking = [name for name in names if not (folder / name).is_file()]
        if lacking:
            raise EngineError(f"{folder} lacks {lacking[0]}, so the model is not complete: fetch it again")
        return [folder / name for name in names]
    if any(folder.glob("*.bin")) or any(folder.glob("*.pt")) or any(folder.glob("*.pth")):
        raise EngineError(
            f"{folder} has pickled weights only, which can run code when they are loaded: "
            "convert them to safetensors, or choose a model that has them"
        )
    raise EngineError(f"{folder} has no weights ({_SINGLE}): fetch the model again")


def _is_inside(folder: Path, name: str) -> bool:
    """Whether the file of this name is in the folder; in the hub's cache it is a link to one next to the folder."""
    roots = [folder.resolve()]
    if roots[0].parent.name == "snapshots":
        roots.append(roots[0].parents[1] / "blobs")
    # An absolute path replaces the folder.
    inside = (folder / name).absolute().is_relative_to(folder.absolute()) and ".." not in Path(name).parts
    return inside and any((folder / name).resolve().is_relative_to(root) for root in roots)


def is_finite(weight: Tensor) -> bool:
    """Whether all values are finite; the extremes take a fiftieth of the time of `torch.isfinite`, and no copy."""
    return weight.numel() == 0 or all(bool(extreme.isfinite()) for extreme in weight.aminmax())


def text_name(name: str) -> str:
    """Name of a weight in the network of text, from that in a model that may read images too."""
    for beginning, plain in TEXT_PART.items():
        name = re.sub(beginning, plain, name)
    return name


def tensor_names(folder: Path) -> set[str]:
    """Names of all weights of a model folder."""
    return {name for file in weight_files(folder) for name in _read_header(file)[2]}


def _read_header(file: Path) -> tuple[int, set[str], set[str]]:
    """Number, dtypes and names of the weights in a safetensors file; its header is checked against the file size."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="numpy") as opened:
            tensors = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118 the file is no mapping
            sizes = (math.prod(each.get_shape()) * (1 + name.endswith("_blocks")) for name, each in tensors.items())
            return sum(sizes), {tensor.get_dtype() for tensor in tensors.values()}, set(tensors)
    except (SafetensorError, OSError) as error:
        reason = first_line(error).removeprefix("Error while deserializing header: ")
        raise EngineError(f"{file} is damaged or cut short ({reason}): fetch the model again") from error
