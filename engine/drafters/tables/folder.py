"""Counted tables on disk: `tables.safetensors` with the counts, `tables.json` with what they are counted for."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from specchat.engine.drafters.tables.counts import Counts
from specchat.engine.errors import EngineError, first_line
from specchat.engine.files import make_folder, replacing
from specchat.engine.models.disk import disk_errors

CARD, TABLES = "tables.json", "tables.safetensors"
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class TableCard:
    """What tables are for, and what they were counted in."""

    target: str
    """Display name of the target."""
    tokenizer: str
    """Fingerprint of the target's tokens (`fingerprint`): counts know nothing of its weights."""
    vocabulary: int
    """V."""
    tokens: int
    """Tokens of the text."""


@dataclass(frozen=True, slots=True)
class LoadedTables:
    """Tables that fit their target."""

    counts: Counts
    name: str
    """For display."""


def fingerprint(tokenizer: Any) -> str:
    """SHA-256, in hexadecimal, over the ids and texts of a tokenizer's tokens."""
    tokens = sorted((number, text) for text, number in tokenizer.get_vocab().items())
    return hashlib.sha256(json.dumps(tokens).encode()).hexdigest()


def is_tables(folder: Path) -> bool:
    """Whether a folder holds counted tables."""
    return (folder / CARD).is_file()


def save_tables(folder: Path, counts: Counts, card: TableCard) -> None:
    """Write tables; the card comes last, so that a folder with a card is complete.

    Raises:
        EngineError: the disk is full, or not to be written.
    """
    with disk_errors(folder, "saving the tables"):
        make_folder(folder)
        with replacing(folder / TABLES) as part:
            save_file(vars(counts), part)
        with replacing(folder / CARD) as part:
            part.write_text(json.dumps({"format": _FORMAT, **asdict(card)}, indent=2) + "\n", encoding="utf-8")


def load_tables(folder: Path, tokenizer: Any, vocabulary: int, target: str) -> LoadedTables:
    """Load tables for a target.

    Args:
        folder: where they are.
        tokenizer: the target's.
        vocabulary: V, the width of its logits; it may be padded beyond that of the tables.
        target: its display name.

    Raises:
        EngineError: they were counted for other tokens, or the folder is broken.
    """
    card = _read_card(folder)
    if card.tokenizer != fingerprint(tokenizer):
        raise EngineError(
            f"the tables {folder} were counted for {card.target}, which has other tokens than {target}: count them for "
            f"this target with specchat distill --kind bigram"
        )
    try:
        counts = Counts(**load_file(folder / TABLES))
        counts.check()
        if len(counts.single) != card.vocabulary or card.vocabulary > vocabulary:
            raise ValueError(
                f"it is for {len(counts.single)} tokens, its card for {card.vocabulary}, and {target} has {vocabulary}"
            )
    except (OSError, SafetensorError, ValueError, TypeError, RuntimeError) as error:
        raise EngineError(
            f"{folder / TABLES} is broken ({first_line(error)}): count the tables again with specchat distill --kind "
            "bigram"
        ) from None
    return LoadedTables(counts, f"bigrams of {card.tokens:,} tokens")


def _read_card(folder: Path) -> TableCard:
    try:
        raw: dict[str, Any] = json.loads((folder / CARD).read_text(encoding="utf-8"))
        if raw.pop("format") != _FORMAT:
            raise EngineError(f"{folder} has tables of a newer specchat: update specchat")
        return TableCard(**raw)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise EngineError(
            f"{folder} has no tables ({CARD}: {first_line(error)}): count them with specchat distill --kind bigram"
        ) from None
