"""How long a large store takes: to open, to list its chats, to be indexed, and to be searched.

python -m benchmarks.measure_store [FOLDER]: 5,000 chats with 50 million characters are made in FOLDER once.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import TypeVar

from specchat.app.storage.store import Store

CHATS, MESSAGES, CHARACTERS = 5000, 20, 500
QUERIES = (
    "e",
    "th",
    "w1",
    "w17",
    "w17 w2",
    "w1 w2 w3 w4",
    "w4999 w3",
    "nothing-like-it",
    "w1 nothing",
    ".*(",
    '"w1" OR',
)
T = TypeVar("T")


def fill(path: Path) -> None:
    """Chats of words with the frequencies of a language (Zipf)."""
    draw = random.Random(1)
    words = [f"w{number}" for number in range(20_000)] + ["the", "there", "then", "every", "else"]
    weights = [1 / (number + 1) for number in range(len(words) - 5)] + [0.5] * 5
    pool = draw.choices(words, weights, k=2_000_000)
    with Store(path) as store, store.one_transaction():
        for number in range(CHATS):
            chat = store.create_chat(f"chat {number} about {draw.choice(pool)}")
            parent = None
            for place in range(MESSAGES):
                at = draw.randrange(len(pool) - 120)
                text = " ".join(pool[at : at + 120])[:CHARACTERS].ljust(CHARACTERS, ".")
                role = "assistant" if place % 2 else "user"
                parent = store.add_message(chat.id, role, text, parent=parent)
                if place % 2:
                    store.finish_message(parent, "eos")


def timed(job: Callable[[], T]) -> tuple[T, float]:
    """What it gives, and its milliseconds."""
    began = time.perf_counter()
    return job(), (time.perf_counter() - began) * 1000


def main(folder: Path) -> None:
    """Print one line per figure."""
    path = folder / "large.db"
    if not path.exists():
        fill(path)
        with Store(path) as store:
            _, took = timed(lambda: [None for _ in iter(store.search.update, False)])
            print(f"indexing all of it     {took / 1000:8.1f} s, in the background")
    print(f"file                   {path.stat().st_size / 1e6:8.1f} MB")
    for _ in range(3):
        store, took = timed(lambda: Store(path))
        chats, listed = timed(store.chats)
        print(f"open, list {len(chats)} chats {took:8.1f} ms, {listed:.1f} ms")
        if _ < 2:
            store.close()
    for query in QUERIES:
        runs = [timed(lambda query=query: store.search.find(query)) for _ in range(5)]  # type: ignore[misc]
        print(
            f"find {query!r:24} {median(t for _, t in runs):8.1f} ms (first {runs[0][1]:.1f}), {len(runs[0][0])} hits"
        )
    store.close()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as made:
            main(Path(made))
