"""The kind bigram: tables of single tokens and of pairs, counted in texts (Leviathan et al. 2023, section 3.6)."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from specchat.engine.errors import EngineError, check
from specchat.engine.models.checkpoint import display_name
from specchat.engine.models.load import load_tokenizer
from specchat.engine.models.resolve import resolve
from specchat.engine.models.store import ModelStore
from specchat.engine.progress import Progress
from specchat.engine.research.tables import MOST, Counts, TableCard, fingerprint, save_tables
from specchat.engine.tools.data_sets import read_entries
from specchat.engine.tools.distill.work_folder import Distilled, DistillOptions
from specchat.engine.tools.evaluate.texts import texts_of

_PIECE = 1 << 20
"""Characters of a text that are tokenised at once."""
_CONVERSATIONS = (".json", ".jsonl")


def count_tables(options: DistillOptions, progress: Progress) -> Distilled:
    """Count the tokens and token pairs of texts; only the target's tokenizer is loaded.

    Args:
        options: options of the command.
        progress: called with the stages target and text.

    Raises:
        EngineError: no text was given, a file cannot be read, the folder is in use, or the disk is full.
    """
    check(options.text, "there is nothing to count: name texts with --text")
    if options.out.exists() and (not options.out.is_dir() or any(options.out.iterdir())):
        raise EngineError(f"{options.out} is there already, and not empty: name another folder with --out")
    for file in options.text:
        check(os.access(file, os.R_OK), f"{file} cannot be read: give files of text")
    started = time.perf_counter()
    folder = resolve(options.target, ModelStore(options.models), progress).folder(weights=False)
    name, tokenizer = display_name(folder), load_tokenizer(folder)
    vocabulary = max(tokenizer.get_vocab().values()) + 1
    counter = TokenCounter(vocabulary)
    for number, file in enumerate(options.text):
        progress("text", f"counting {file.name}", number / len(options.text))
        for tokens in _pieces(file, tokenizer):
            counter.add(np.array(tokens, dtype=np.int64))
    counts = counter.counts()
    told = f"there are no two tokens in {', '.join(str(file) for file in options.text)}: give texts that say more"
    check(len(counts.following), told)
    save_tables(options.out, counts, TableCard(name, fingerprint(tokenizer), vocabulary, counts.tokens))
    minutes = round((time.perf_counter() - started) / 60, 1)
    return Distilled("a bigram table", name, counts.tokens, steps=0, minutes=minutes)


def _pieces(file: Path, tokenizer: Any) -> Iterator[list[int]]:
    """Tokens of a text, in pieces of whole lines; for conversations and traces, the tokens of each reply."""
    if file.suffix in _CONVERSATIONS:
        texts, problems = texts_of(read_entries([file]), tokenizer)
        check(texts, "; ".join([f"{file} has no reply to count", *problems[:1]]))
        yield from (list(text.reply) for text in texts)
        return
    try:
        with file.open(encoding="utf-8-sig") as lines:
            while piece := "".join(lines.readlines(_PIECE)):
                yield tokenizer.encode(piece, add_special_tokens=False)
    except UnicodeDecodeError:
        raise EngineError(f"{file} is not UTF-8 text: give plain text, or chats and traces as JSON") from None
    except OSError as error:
        raise EngineError(f"{file} cannot be read: {error.strerror or error}") from None


class TokenCounter:
    """Counts tokens as they come.

    Args:
        vocabulary: V.
    """

    def __init__(self, vocabulary: int) -> None:
        self._vocabulary = vocabulary
        self._single = np.zeros(vocabulary, dtype=np.int64)
        self._pairs = np.empty(0, dtype=np.int64)
        self._times = np.empty(0, dtype=np.int64)

    def add(self, tokens: NDArray[np.int64]) -> None:
        """Count a piece of text [T]; pairs across pieces are not counted."""
        self._single += np.bincount(tokens, minlength=self._vocabulary)
        pairs = np.concatenate([self._pairs, tokens[:-1] * self._vocabulary + tokens[1:]])
        times = np.concatenate([self._times, np.ones(max(len(tokens) - 1, 0), dtype=np.int64)])
        self._pairs, places = np.unique(pairs, return_inverse=True)
        self._times = np.bincount(places, weights=times).astype(np.int64)

    def counts(self) -> Counts:
        """The counts; of each token's continuations the `MOST` most frequent, ties by id."""
        before, behind = np.divmod(self._pairs, self._vocabulary)
        order = np.lexsort((behind, -self._times, before))
        before, behind, times = before[order], behind[order], self._times[order]
        rank = np.arange(len(before)) - np.searchsorted(before, before)
        kept = rank < MOST
        starts = np.searchsorted(before[kept], np.arange(self._vocabulary + 1))
        return Counts(
            torch.from_numpy(self._single),
            torch.from_numpy(starts.astype(np.int64)),
            torch.from_numpy(behind[kept].astype(np.int32)),
            torch.from_numpy(times[kept].astype(np.int32)),
        )
