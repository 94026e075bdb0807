"""Hands the replies of stored chats to the engine, which drafts from them, and takes back those of deleted chats.

In a thread of its own, a reply at a time, so that neither the engine nor the interface waits for it.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from specchat.app.errors import StoreError
from specchat.app.sources.source import Source
from specchat.app.storage.replies import ReplyTokens, text_digest
from specchat.app.storage.store import Store
from specchat.engine import Engine, OtherChats

_REPLIES = 20_000
"""Newest replies that are looked at."""
_AT_ONCE = 64
"""Replies whose tokens are read and stored together."""
_PAUSE_S = 0.004
"""After each reply that is encoded: a fifth of the time is spent on it at most, and the rest is the engine's."""


class PastReplies:
    """The replies of the model that is loaded, in chats that are not deleted, newest first as many as the engine takes.

    Their tokens are kept beside the chats (`ReplyTokens`), so that only new ones are encoded.

    Args:
        store: The chats.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._tokens = ReplyTokens(store.path.with_suffix(".tokens"))
        self._engine: Engine | None = None
        self._model = ""
        self._sizes: dict[int, int] = {}
        """Tokens of each reply that was handed over."""
        self._wanted = threading.Event()
        """There is something new to look at."""
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="past-replies")

    def use(self, source: Source, model: str) -> None:
        """Hand replies of this model to a source that has just become ready, if it is an engine."""
        with self._lock:
            self._engine, self._model, self._sizes = source if isinstance(source, Engine) else None, model, {}
        self.refresh()

    def refresh(self) -> None:
        """Look what replies there are; does not wait. May be called from any thread."""
        with self._lock:
            if not self._wanted.is_set() and not self._closed.is_set():
                self._wanted.set()
                self._worker.submit(self._update)

    def close(self) -> None:
        """End; what was not handed over is not."""
        with self._lock:
            self._closed.set()
        self._worker.shutdown()

    def _update(self) -> None:
        with self._lock:
            self._wanted.clear()
            chats = None if self._engine is None else self._engine.other_chats
            model, sizes = self._model, self._sizes
        try:
            kept = self._forget(chats, sizes)
            if chats is not None:
                self._tokens.forget(kept & self._add(chats, model, sizes))
        except StoreError:  # the chats cannot be read now: that is said where it matters
            return

    def _forget(self, chats: OtherChats | None, sizes: dict[int, int]) -> set[int]:
        """Let nothing be left of replies that are not there any more; gives the rows whose tokens are kept."""
        kept = self._tokens.rows()
        gone = (kept | sizes.keys()) - self._store.replies.existing(kept | sizes.keys())
        for row in gone & sizes.keys():
            del sizes[row]
        if chats is not None and gone & chats.keys:
            chats.update({}, gone)
        self._tokens.forget(gone & kept)
        return kept - gone

    def _add(self, chats: OtherChats, model: str, sizes: dict[int, int]) -> set[int]:
        """Hand over what the engine does not have yet; gives the rows that are too old."""
        rows = self._store.replies.newest(model, _REPLIES)
        found: dict[int, list[int]] = {}
        left, too_old = chats.wanted, set[int]()
        for start in range(0, len(rows), _AT_ONCE):
            some = rows[start : start + _AT_ONCE]
            found.update(self._encoded(chats, [row for row in some if row not in sizes]))
            left -= sum(sizes[row] if row in sizes else len(found.get(row, ())) for row in some)
            if left <= 0:
                too_old = set(rows[start + _AT_ONCE :])
            if too_old or self._wanted.is_set() or self._closed.is_set():
                break
        if found and not self._closed.is_set():
            chats.update(found)
            sizes.update((row, len(tokens)) for row, tokens in found.items())
        return too_old

    def _encoded(self, chats: OtherChats, rows: list[int]) -> dict[int, list[int]]:
        """The tokens of these replies, from the file or encoded now; as many as there is time for."""
        if not rows:
            return {}
        found: dict[int, list[int]] = {}
        new: dict[int, tuple[bytes, list[int]]] = {}
        known = self._tokens.known(chats.tokenizer_digest, rows)
        for row in rows:
            prompt, reply = self._store.replies.exchange(row)
            text = text_digest(prompt, reply)
            if row in known and known[row][0] == text:
                found[row] = known[row][1].tolist()
                continue
            found[row] = chats.encode(prompt, reply)
            new[row] = text, found[row]
            if self._closed.wait(_PAUSE_S) or self._wanted.is_set():
                break
        self._tokens.keep(chats.tokenizer_digest, new)
        return found
