"""The kind bigram: tables of single tokens and of pairs, counted in texts (Leviathan et al. 2023, section 3.6)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from specchat.engine.drafters.tables.counts import TokenCounter
from specchat.engine.drafters.tables.folder import TableCard, fingerprint, save_tables
from specchat.engine.errors import EngineError
from specchat.engine.models.load import display_name, load_tokenizer
from specchat.engine.models.resolve import resolve
from specchat.engine.models.store import ModelStore
from specchat.engine.progress import Progress
from specchat.engine.tools.distill.options import Distilled, DistillOptions
from specchat.engine.tools.evaluate.texts import TextFiles

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
    if not options.text:
        raise EngineError("there is nothing to count: name texts with --text")
    if options.out.exists() and (not options.out.is_dir() or any(options.out.iterdir())):
        raise EngineError(f"{options.out} is there already, and not empty: name another folder with --out")
    started = time.perf_counter()
    folder = resolve(options.target, ModelStore(options.models), progress)
    name, tokenizer = display_name(folder), load_tokenizer(folder)
    vocabulary = max(tokenizer.get_vocab().values()) + 1
    counter = TokenCounter(vocabulary)
    for number, file in enumerate(options.text):
        progress("text", f"counting {file.name}", number / len(options.text))
        for tokens in _pieces(file, tokenizer):
            counter.add(np.array(tokens, dtype=np.int64))
    counts = counter.counts()
    if not len(counts.following):
        raise EngineError(
            f"there are no two tokens in {', '.join(str(file) for file in options.text)}: give texts that say more"
        )
    save_tables(options.out, counts, TableCard(name, fingerprint(tokenizer), vocabulary, counts.tokens))
    minutes = round((time.perf_counter() - started) / 60, 1)
    return Distilled("a bigram table", name, counts.tokens, steps=0, minutes=minutes)


def _pieces(file: Path, tokenizer: Any) -> Iterator[list[int]]:
    """Tokens of a text, in pieces of whole lines; for conversations and traces, those of each reply."""
    if file.suffix in _CONVERSATIONS:
        files = TextFiles(tokenizer)
        replies = [list(text.reply) for text in files.read([file])]
        if not replies:
            raise EngineError("; ".join([f"{file} has no reply to count", *files.problems[:1]]))
        yield from replies
        return
    try:
        with file.open(encoding="utf-8-sig") as lines:
            while piece := "".join(lines.readlines(_PIECE)):
                yield tokenizer.encode(piece, add_special_tokens=False, verbose=False)
    except UnicodeDecodeError:
        raise EngineError(f"{file} is no UTF-8 text: give plain text, or chats and traces as JSON") from None
    except OSError as error:
        raise EngineError(f"{file} cannot be read: {error.strerror or error}") from None
