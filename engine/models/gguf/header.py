"""Header of a GGUF file: metadata, and type, shape and offset of each tensor; no tensor is loaded.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (versions 2 and 3, little endian).
gguf.GGUFReader is slower: it makes an array of every vocabulary entry, 3 s for 49152 tokens instead of 0.07 s.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from specchat.engine.errors import EngineError, check
from specchat.engine.models.checkpoint import FLAG, LARGEST, TEXT, TOKEN, Kind, a_list, check_values, number, whole

_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
_MAX_DIMENSIONS = 4
_BLOCKS = 512
"""Blocks that a file may state with fewer tensors, as one with the last block alone does."""


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One tensor of a GGUF file. `shape` has the fastest-varying dimension first, as in the format."""

    name: str
    shape: tuple[int, ...]
    type: str
    """ggml's name of it: Q4_K."""
    offset: int
    """Bytes from the start of the file."""
    bytes: int

    @property
    def elements(self) -> int:
        """Number of weights."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """Metadata and tensor table of a GGUF file."""

    path: Path
    metadata: dict[str, Any] = field(repr=False)
    """Key to value; arrays are lists."""
    tensors: dict[str, GgufTensor] = field(repr=False)

    @property
    def architecture(self) -> str:
        """llama.cpp's name of the architecture, such as llama or qwen3."""
        return str(self.metadata["general.architecture"])

    @property
    def parameters(self) -> int:
        """Number of weights in all tensors."""
        return sum(tensor.elements for tensor in self.tensors.values())

    @property
    def bytes(self) -> int:
        """Size of all tensors."""
        return sum(tensor.bytes for tensor in self.tensors.values())

    @property
    def is_mtp_alone(self) -> bool:
        """Whether it has a multi-token-prediction layer without the layers of its model, as llama.cpp can write it."""
        return bool(self.setting("nextn_predict_layers", 0)) and "blk.0.attn_norm.weight" not in self.tensors

    def setting(self, name: str, *default: Any) -> Any:
        """A value of the architecture's metadata, such as block_count; floats as in `rounded`.

        Args:
            name: the key without the architecture before it.
            default: if the file does not state it.

        Raises:
            EngineError: it is not stated, and there is no default.
        """
        key = f"{self.architecture}.{name}"
        if key not in self.metadata and not default:
            raise EngineError(f"{self.path} does not state {key}: fetch the file again, or choose another one")
        value = self.metadata.get(key, *default)
        return rounded(value) if isinstance(value, float) else value

    def tensor(self, name: str) -> GgufTensor:
        """A tensor.

        Raises:
            EngineError: the file lacks it.
        """
        check(name in self.tensors, f"{self.path} lacks weights ({name}): fetch the file again")
        return self.tensors[name]

    def damaged(self, name: str) -> EngineError:
        """Error for a tensor with values that are not numbers."""
        return EngineError(f"{self.path} is damaged ({name} holds values that are not numbers): fetch the file again")

    def names(self) -> Any:
        """gguf's map from names of weights in transformers' state dicts to names in the file.

        Raises:
            EngineError: the gguf package does not know the architecture.
        """
        import gguf

        architectures = {name: number for number, name in gguf.MODEL_ARCH_NAMES.items()}
        if self.architecture not in architectures:
            raise EngineError(f"{self.path} is of architecture {self.architecture}, which is not known here")
        layers = int(self.metadata[f"{self.architecture}.block_count"])
        return gguf.get_tensor_name_map(architectures[self.architecture], layers)

    @classmethod
    def read(cls, path: Path) -> GgufHeader:
        """Read the header and check that the file is long enough for its tensors.

        Args:
            path: of a GGUF file (`engine.models.resolve.gguf_of`).

        Raises:
            EngineError: the file cannot be read, is of an unsupported version, damaged or cut short.
        """
        try:
            size = path.stat().st_size
            with path.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
                header = cls(path, *_Reader(content, path).header())
        except OSError as error:
            raise EngineError(f"{path} cannot be read ({error.strerror}): check the path") from error
        except (struct.error, ValueError, IndexError, KeyError, OverflowError, MemoryError) as error:
            # An empty file cannot be mapped (ValueError); one cut inside its header runs out of bytes.
            raise EngineError(f"{path} is damaged or cut short inside its header: fetch it again") from error
        end = max((tensor.offset + tensor.bytes for tensor in header.tensors.values()), default=0)
        if size < end:
            raise EngineError(
                f"{path} is cut short: it has {size} bytes where its header asks for {end}; fetch it again"
            )
        return header


def rounded(value: float) -> float:
    """The shortest decimal number that float32 stores as this value: 1e-06 for 9.999999974752427e-07."""
    return float(str(np.float32(value)))


def _kinds(tensors: Sequence[GgufTensor]) -> dict[str, Kind]:
    """Kinds of the values that are read, by key. No size may exceed the number of weights."""
    size, count = whole(1, sum(tensor.elements for tensor in tensors) or LARGEST), whole(0)
    return {
        r"general\.(architecture|type)|tokenizer\.(ggml\.(model|pre)|chat_template)|.+\.rope\.scaling\.type": TEXT,
        r"general\.alignment": Kind("a power of two", lambda value: count.holds(value) and value.bit_count() == 1),
        r"tokenizer\.ggml\.(tokens|merges)": a_list(TEXT),
        r"tokenizer\.ggml\.token_type": a_list(TOKEN),
        r"tokenizer\.ggml\.scores": Kind("a list of numbers", lambda value: set(map(type, value)) <= {int, float}),
        r"tokenizer\.ggml\.\w+_token_id": TOKEN,
        r"tokenizer\.ggml\.add_\w+": FLAG,
        r".+\.block_count": whole(1, max(len(tensors), _BLOCKS) if tensors else LARGEST),
        r".+\.context_length": whole(1),
        r".+\.(feed_forward_length|attention\.head_count(_kv)?)": size | a_list(count, filled=True),
        r".+\.expert_(feed_forward_length|used_count)": count | a_list(count, filled=True),
        r".+\.attention\.sliding_window_pattern": size | a_list(FLAG, filled=True) | a_list(count, filled=True),
        r".+\.attention\.recurrent_layers": a_list(FLAG, filled=True),
        r".+\.rope\.dimension_sections": a_list(count),
        r".+\.target_layers": a_list(count, filled=True),
        r".+\.(embedding_length|attention\.\w+_length\w*|shortconv\.l_cache|ssm\.\w+|rope\.dimension_count)": size,
        r".+(\.|_)(count|layers|window|length\w*)": count,
        r".+\.(attention\.\w*epsilon|\w+_softcapping)": number(0),
        r".+\.(attention\.scale|\w+_scale)": number(0),
        r".+\.rope\.freq_base(_swa)?": number(1),
        r".+\.rope\.(scale_linear|scaling\.factor)": number(0),
        r".+\.rope\.scaling\.(yarn_\w+|\w*factor)": number(),
    }


class _Reader:
    """Sequential parser of a header."""

    def __init__(self, content: mmap.mmap, path: Path) -> None:
        self._content = content
        self._path = path
        self._at = 4

    def header(self) -> tuple[dict[str, Any], dict[str, GgufTensor]]:
        version = self._scalar("<I")
        check(version in (2, 3), f"{self._path} has GGUF version {version}: versions 2 and 3 can be read")
        tensor_count, pair_count = self._scalar("<Q"), self._scalar("<Q")
        metadata: dict[str, Any] = {}
        for _ in range(pair_count):
            key = self._string()
            metadata[key] = self._value(self._scalar("<I"), key)
        check("general.architecture" in metadata, f"{self._path} does not state general.architecture: fetch it again")
        tensors = [self._tensor() for _ in range(tensor_count)]
        check_values(self._path, metadata, _kinds(tensors if metadata.get("split.count", 1) == 1 else ()))
        alignment = metadata.get("general.alignment", 32)
        data = -(-self._at // alignment) * alignment
        return metadata, {each.name: replace(each, offset=data + each.offset) for each in tensors}

    def _tensor(self) -> GgufTensor:
        """The next tensor, whose offset is that after the header."""
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

        name = self._string()
        dimensions = self._scalar("<I")
        if dimensions > _MAX_DIMENSIONS:
            raise ValueError(f"{name} has {dimensions} dimensions")
        shape = tuple(self._scalar("<Q") for _ in range(dimensions))
        kind = GGMLQuantizationType(self._scalar("<I"))
        block, block_bytes = GGML_QUANT_SIZES[kind]
        return GgufTensor(name, shape, kind.name, self._scalar("<Q"), math.prod(shape) // block * block_bytes)

    def _value(self, kind: int, key: str) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            element, count = self._scalar("<I"), self._scalar("<Q")
            if element in _SCALARS:
                return self._scalars(_SCALARS[element], count)
            check(element == _STRING, f"{self._path} states {key} as a list of lists, which GGUF does not have")
            return [self._string() for _ in range(count)]
        return self._scalar(_SCALARS[kind])

    def _scalar(self, layout: str) -> Any:
        return self._scalars(layout, 1)[0]

    def _scalars(self, layout: str, count: int) -> list[Any]:
        values = struct.unpack_from(f"<{count}{layout[1]}", self._content, self._at)
        self._at += struct.calcsize(f"<{count}{layout[1]}")
        return list(values)

    def _string(self) -> str:
        length = self._scalar("<Q")
        raw = self._content[self._at : self._at + length]
        if len(raw) != length:
            raise ValueError("a string runs past the end of the file")
        self._at += length
        return raw.decode("utf-8", errors="replace")
