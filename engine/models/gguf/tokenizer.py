"""Tokenizer of a GGUF file, made from its vocabulary for the `tokenizers` library."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any

from specchat.engine.models.gguf.header import GgufHeader
from specchat.engine.models.gguf.vocabulary import (
    COMPOSED,
    CONTROL,
    NORMAL,
    SPACE,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    WHOLE_WORDS,
    GgufVocabulary,
    pre_tokenizer,
)
from specchat.engine.models.tokenizer import VERSION, PlainTokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_NAMES = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
"""Names in GGUF and in transformers of tokens that chat templates may write."""


_ENDS = ("eos", "eot", "eom")


def read_tokenizer(header: GgufHeader, *, drops_spaces: bool = False) -> PlainTokenizer:
    """Tokenizer of a file with its chat template; arguments as for `GgufVocabulary.read`.

    Raises:
        EngineError: a key is missing or has a value of another type.
    """
    vocabulary = GgufVocabulary.read(header, drops_spaces=drops_spaces)
    refused = (
        f"{header.path} splits text as {vocabulary.pre!r:.40} (tokenizer.ggml.pre), which is not known here: give the "
        "model's own tokenizer with --tokenizer FOLDER_OR_ID"
    )
    facts = {
        "version": VERSION,
        "chat_template": header.metadata.get("tokenizer.chat_template"),
        "special_tokens": _named_tokens(vocabulary),
        "refused": refused if vocabulary.is_of_bytes and pre_tokenizer(vocabulary.pre) is None else "",
        "begins": vocabulary.texts_begin,
        "unused": [token for token, kind in enumerate(vocabulary.types) if kind == UNUSED],
        "same": sorted(vocabulary.first.items()),
        "ends": list(dict.fromkeys(end for name in _ENDS if (end := vocabulary.token(name)) is not None)),
    }
    return PlainTokenizer(_made(vocabulary), facts)


def _made(vocabulary: GgufVocabulary) -> Tokenizer:
    from tokenizers import AddedToken

    made = _of_bytes(vocabulary) if vocabulary.is_of_bytes else _of_characters(vocabulary)
    made.add_tokens(
        [
            AddedToken(text, special=kind != USER_DEFINED, normalized=False, rstrip=vocabulary.drops_spaces(token))
            for token, (text, kind) in enumerate(zip(vocabulary.texts, vocabulary.types, strict=True))
            if kind in (CONTROL, UNKNOWN, USER_DEFINED) and token not in vocabulary.first
        ]
    )
    _add_ends(made, vocabulary)
    return made


def _named_tokens(vocabulary: GgufVocabulary) -> dict[str, str]:
    """Texts of the special tokens, by transformers' names."""
    found = {theirs: vocabulary.token(ours) for ours, theirs in _NAMES.items()}
    return {name: vocabulary.texts[token] for name, token in found.items() if token is not None}


def _of_bytes(vocabulary: GgufVocabulary) -> Tokenizer:
    from tokenizers import Tokenizer, decoders, models, normalizers

    whole = vocabulary.pre in WHOLE_WORDS
    made = Tokenizer(models.BPE(_ids(vocabulary), vocabulary.merges, ignore_merges=whole))
    if vocabulary.pre in COMPOSED:
        made.normalizer = normalizers.NFC()
    made.pre_tokenizer = pre_tokenizer(vocabulary.pre) or pre_tokenizer("default")
    made.decoder = decoders.ByteLevel()
    return made


def _of_characters(vocabulary: GgufVocabulary) -> Tokenizer:
    from tokenizers import Tokenizer, decoders, models, normalizers

    unknown = vocabulary.token("unknown")
    made = Tokenizer(
        models.BPE(
            _ids(vocabulary),
            _merges_by_score(vocabulary) if vocabulary.kind == "llama" else vocabulary.merges,
            unk_token=None if unknown is None else vocabulary.texts[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    steps: list[Any] = [normalizers.Replace(" ", SPACE)]
    written: list[Any] = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if vocabulary.adds_space:
        steps.insert(0, normalizers.Prepend(SPACE))
        written.append(decoders.Strip(" ", 1, 0))
    made.normalizer, made.decoder = normalizers.Sequence(steps), decoders.Sequence(written)
    return made


def _merges_by_score(vocabulary: GgufVocabulary) -> list[tuple[str, str]]:
    """Pairs that make a token, the highest score first; pairs that make user-defined tokens come before all others."""
    ids, found = _ids(vocabulary).keys(), list[tuple[float, int, int, str, str]]()
    for text, score, kind in zip(vocabulary.texts, vocabulary.scores, vocabulary.types, strict=True):
        if kind in (NORMAL, USER_DEFINED, UNUSED):
            rank = -inf if kind == USER_DEFINED else -score
            pairs = ((text[:at], text[at:]) for at in range(1, len(text)))
            found += [(rank, -len(left), -len(right), left, right) for left, right in pairs if {left, right} <= ids]
    return [(left, right) for *_, left, right in sorted(found, key=lambda each: each[:3])]


def _ids(vocabulary: GgufVocabulary) -> dict[str, int]:
    return {text: token for token, text in enumerate(vocabulary.texts) if token not in vocabulary.first}


def _add_ends(made: Tokenizer, vocabulary: GgufVocabulary) -> None:
    """Let every text begin with the BOS token and end with the EOS token, where the file asks for it."""
    from tokenizers import processors

    ends = {"BOS": vocabulary.texts_begin, "EOS": vocabulary.texts_end}
    tokens: list[Any] = [
        {"id": name, "ids": [token], "tokens": [vocabulary.texts[token]]}
        for name, token in ends.items()
        if token is not None
    ]
    if tokens:
        names = [each["id"] for each in tokens]
        single = [name for name in ("BOS", "$A", "EOS") if name in (*names, "$A")]
        made.post_processor = processors.TemplateProcessing(single=single, special_tokens=tokens)
