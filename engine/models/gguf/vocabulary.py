"""Vocabulary of a GGUF file: texts, types and scores of its tokens, tokens that its keys name, pre-tokenizers."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specchat.engine.errors import EngineError, check
from specchat.engine.models.gguf.header import GgufHeader
from specchat.engine.sequence.prompt import CONTROL_FORM, END_TEXTS, is_control

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
"""Types of tokens."""
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
"""SentencePiece writes spaces as this character."""
_CHARACTERS = "llama", "gemma4"
"""Values of `tokenizer.ggml.model` for vocabularies of characters; `gpt2` is for vocabularies of bytes."""
KINDS = (*_CHARACTERS, "gpt2")
"""Values of `tokenizer.ggml.model` that are read here."""
_MARK = re.compile(r"</?[A-Za-z_][^<>\s]*>|\[/?[A-Z_]+\]")
"""Form of a token that is a control token if the chat template writes it."""
_PHI_3 = re.compile("phi-?3", re.IGNORECASE)
_KEEPS_SPACES = {"<unk>", "<s>", "<|endoftext|>"}
"""Tokens of Phi-3 that keep the spaces after them."""


@dataclass(frozen=True, slots=True)
class GgufVocabulary:
    """Tokens of a GGUF file, by id; types as llama.cpp understands them."""

    header: GgufHeader
    texts: list[str]
    types: list[int]
    """Types; of tokens that only look like control tokens, `CONTROL`."""
    first: dict[int, int]
    """The token that stands for each token of the same text: the one whose type matters most, or the first."""
    family_drops_spaces: bool = False
    """Whether the tokenizer of its family drops spaces after special tokens."""

    @classmethod
    def read(cls, header: GgufHeader, *, drops_spaces: bool = False) -> GgufVocabulary:
        """Read the vocabulary.

        Args:
            header: of the file.
            drops_spaces: whether the tokenizer of its family drops spaces after special tokens.

        Raises:
            EngineError: a key has a value of another type or length.
        """
        texts = [text or f"[EMPTY_{token}]" for token, text in enumerate(_list(header, "tokens"))]
        types = _list(header, "token_type", len(texts)) or [NORMAL] * len(texts)
        template, merged = header.metadata.get("tokenizer.chat_template", ""), _merged(header)
        characters = header.metadata.get("tokenizer.ggml.model") in _CHARACTERS
        for token, (text, kind) in enumerate(zip(texts, types, strict=True)):
            if kind in (0, NORMAL, USER_DEFINED) and text not in merged and _is_control(text, kind, template):
                types[token] = CONTROL
            elif characters and kind == USER_DEFINED and set(text) == {" "}:
                texts[token] = SPACE * len(text)  # as the normalised text has it
        return cls(header, texts, types, _first(texts, types, _named(header, len(texts))), drops_spaces)

    @property
    def is_of_bytes(self) -> bool:
        """Whether normal tokens are spelled in bytes, as GPT-2's, and not in characters, as SentencePiece's."""
        return self.kind not in _CHARACTERS and self.pre not in UNSPLIT

    @property
    def kind(self) -> str:
        """`tokenizer.ggml.model`."""
        return str(self.header.metadata.get("tokenizer.ggml.model"))

    @property
    def pre(self) -> str:
        """`tokenizer.ggml.pre`."""
        stated = str(self.header.metadata.get("tokenizer.ggml.pre") or "default")
        return "gemma4" if self.kind == "gemma4" else stated

    @property
    def scores(self) -> list[float]:
        """Scores of a SentencePiece vocabulary: the pair with the highest one is merged first."""
        scores = _list(self.header, "scores", len(self.texts))
        check(scores, f"{self.header.path} lacks tokenizer.ggml.scores: fetch the file again")
        return scores

    @property
    def merges(self) -> list[tuple[str, str]]:
        """Pairs of tokens in the order in which they are merged; pairs outside this vocabulary are left out."""
        pairs, known = _pairs(self.header), set(self.texts)
        check(pairs, f"{self.header.path} lacks tokenizer.ggml.merges: fetch the file again, or give --tokenizer")
        return [pair for pair in pairs if known.issuperset((*pair, "".join(pair)))]

    @property
    def texts_begin(self) -> int | None:
        """BOS token that every text begins with; None if texts begin as they are."""
        begins = self._flag("add_bos_token", self.kind == "llama" or self.pre in BEGINS)
        return self.token("bos") if begins or self.pre == "gemma4" else None

    @property
    def texts_end(self) -> int | None:
        """EOS token that every text ends with; None if texts end as they are."""
        return self.token("eos") if self._flag("add_eos_token", default=False) else None

    @property
    def adds_space(self) -> bool:
        """Whether a space is put before a text, and before one that follows a special token."""
        return self._flag("add_space_prefix", self.kind == "llama")

    def token(self, name: str) -> int | None:
        """A token that a key names: bos, eos, eot, eom, unknown, padding …; None if the vocabulary lacks it."""
        usual = {"bos": 1, "eos": 2, "unknown": 0} if self.kind == "llama" else {}
        token = self.header.metadata.get(f"tokenizer.ggml.{name}_token_id", usual.get(name))
        if token is None or not 0 <= token < len(self.texts):
            return None
        stated = f"tokenizer.ggml.{name}_token_id" in self.header.metadata
        return token if stated or self.types[token] in (CONTROL, UNKNOWN) else None

    def drops_spaces(self, token: int) -> bool:
        """Whether the spaces after a special token are dropped: of Phi-3, whose files do not state it."""
        named = _PHI_3.search(str(self.header.metadata.get("general.name", "")))
        drops = named or (self.family_drops_spaces and self.kind == "llama")
        return bool(drops) and self.texts[token] not in _KEEPS_SPACES

    def _flag(self, name: str, default: bool) -> bool:
        return bool(self.header.metadata.get(f"tokenizer.ggml.{name}", default))


def _is_control(text: str, kind: int, template: str) -> bool:
    """Whether a token that is not typed as control token is one: an end of a turn, or what only a template writes."""
    if kind == USER_DEFINED:
        return text in END_TEXTS and is_control(text, template)
    return text in END_TEXTS or bool(CONTROL_FORM.fullmatch(text) or (_MARK.fullmatch(text) and text in template))


def _merged(header: GgufHeader) -> set[str]:
    """Texts that merging makes: ordinary words, such as `</s>` in a vocabulary of code."""
    return {left + right for left, right in _pairs(header)}


def _pairs(header: GgufHeader) -> list[tuple[str, str]]:
    """The merges; a token may begin with a space."""
    merges = _list(header, "merges")
    return [(merge[:1] + left, right) for merge in merges for left, _, right in [merge[1:].partition(" ")]]


def _first(texts: list[str], types: list[int], named: set[int]) -> dict[int, int]:
    """The token that stands for each of those whose text another token has too."""
    order = {CONTROL: 0, UNKNOWN: 0, USER_DEFINED: 1, NORMAL: 2, BYTE: 2}
    tokens: dict[str, list[int]] = {}
    for token, text in enumerate(texts):
        tokens.setdefault(text, []).append(token)
    found: dict[int, int] = {}
    for same in tokens.values():
        if len(same) > 1:
            chosen = min(same, key=lambda token: (token not in named, order.get(types[token], 3), token))
            found |= {token: chosen for token in same if token != chosen}
    return found


def _named(header: GgufHeader, size: int) -> set[int]:
    """Tokens that keys of the file name."""
    values = (value for key, value in header.metadata.items() if key.endswith("_token_id"))
    return {value for value in values if isinstance(value, int) and 0 <= value < size}


def _list(header: GgufHeader, name: str, length: int | None = None) -> list[Any]:
    """A list that a key states, with one entry for each token if `length` is given; empty if it is not stated."""
    key = f"tokenizer.ggml.{name}"
    values: list[Any] = header.metadata.get(key, [])
    if values and length is not None and len(values) < length:
        raise EngineError(f"{header.path} has {length} tokens and {len(values)} {key}: fetch the file again")
    return values[:length]


_TABLES = tomllib.loads(Path(__file__).with_name("pre_tokenizers.toml").read_text(encoding="utf-8"))
_STEPS = {name: split["steps"] for split in _TABLES["split"] for name in split["names"].split()}
COMPOSED, WHOLE_WORDS, BEGINS, UNSPLIT = (
    frozenset(_TABLES[table].split()) for table in ("composed", "whole_words", "begins", "unsplit")
)
"""Names with properties of their own; the file says which."""


def pre_tokenizer(name: str) -> Any | None:
    """The pre-tokenizer of the `tokenizers` library for a value of `tokenizer.ggml.pre`; None if it is not known."""
    from tokenizers import Regex, pre_tokenizers

    if (steps := _STEPS.get(name)) is None:
        return None
    known: dict[str, Callable[[], Any]] = {
        "punctuation": lambda: pre_tokenizers.Punctuation("contiguous"),
        "digits": lambda: pre_tokenizers.Digits(individual_digits=True),
        "numbers": lambda: pre_tokenizers.Digits(individual_digits=False),
        "gpt-2": lambda: pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
    }
    made = [known[step]() if step in known else pre_tokenizers.Split(Regex(step), "isolated") for step in steps]
    if "gpt-2" not in steps:
        made.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    return pre_tokenizers.Sequence(made)
