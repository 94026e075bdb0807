"""Gives the replies of stored chats to the engine, which drafts from them, and removes replies of deleted chats.

This runs in a separate thread, one reply at a time, so that neither the engine nor the interface waits for it.
"""

import threading
from concurrent.futures import ThreadPoolExecutor

from specchat.app.errors import StoreError
from specchat.app.sources.source import Source
from specchat.app.storage.replies import ReplyTokens, text_digest
from specchat.app.storage.store import Store
from specchat.engine import Engine, OtherChats

_REPLIES = 20_000
"""Maximum number of replies, newest first."""
_AT_ONCE = 64
"""Replies whose tokens are read and stored together."""
_PAUSE_S = 0.004
"""Pause after each encoded reply, which leaves the engine at least four fifths of the time."""


class PastReplies:
    """The newest replies of the loaded model in chats that are not deleted, as many as the engine takes.

    Their tokens are cached next to the chats (`ReplyTokens`), so that only new replies are encoded.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._tokens = ReplyTokens(store.path.with_suffix(".tokens"))
        self._engine: Engine | None = None
        self._model = ""
        self._sizes: dict[int, int] = {}
        """Number of tokens of each reply that the engine has."""
        self._wanted = threading.Event()
        """Set when the replies may have changed."""
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="past-replies")

    def use(self, source: Source, model: str) -> None:
        """Give replies of this model to a source that has become ready, if it is an engine."""
        with self._lock:
            self._engine, self._model, self._sizes = source if isinstance(source, Engine) else None, model, {}
        self.refresh()

    def refresh(self) -> None:
        """Update the engine's replies in the background. May be called from any thread."""
        with self._lock:
            if not self._wanted.is_set() and not self._closed.is_set():
                self._wanted.set()
                self._worker.submit(self._update)

    def close(self) -> None:
        """End the thread without finishing."""
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
        except StoreError:  # reported when the chats are opened
            return

    def _forget(self, chats: OtherChats | None, sizes: dict[int, int]) -> set[int]:
        """Remove replies that do not exist any more; return the rows in the cache."""
        kept = self._tokens.rows()
        gone = (kept | sizes.keys()) - self._store.replies.existing(kept | sizes.keys())
        for row in gone & sizes.keys():
            del sizes[row]
        if chats is not None and gone & chats.keys:
            chats.update({}, gone)
        self._tokens.forget(gone & kept)
        return kept - gone

    def _add(self, chats: OtherChats, model: str, sizes: dict[int, int]) -> set[int]:
        """Give the engine the replies that it lacks; return the rows that are too old."""
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
        """The tokens of these replies, cached or encoded now, until something changes."""
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
