"""Ended replies of all chats, and the file that caches their token ids for the drafter of other chats."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from array import array
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import TypeVar

from specchat.app.storage.database import NOT_THE_FILE, StoreFile, text_in
from specchat.engine import create_text, make_private

T = TypeVar("T")
_ENDED = (
    "FROM messages m JOIN chats c ON c.id = m.chat_id WHERE c.deleted_at IS NULL AND m.role = 'assistant'"
    " AND m.finish_reason IS NOT NULL"
)
"""Ended replies of chats that are not deleted."""
_VERSION = 1
_TABLE = (
    "CREATE TABLE replies (tokenizer TEXT NOT NULL, reply INTEGER NOT NULL, text BLOB NOT NULL, tokens BLOB NOT NULL,"
    " PRIMARY KEY (reply, tokenizer)) WITHOUT ROWID"
)
_BYTES = array("I").itemsize
_BUSY_S = 1.0
"""How long to wait for another program."""


class FinishedReplies:
    """Texts of ended replies in one store. Every method raises `StoreError` where the file cannot be read."""

    def __init__(self, file: StoreFile) -> None:
        self._file = file

    def newest(self, model: str, at_most: int) -> list[int]:
        """Row ids of the newest replies of a model, newest first."""
        rows = self._file.read(f"SELECT m.id {_ENDED} AND m.model = ? ORDER BY m.id DESC LIMIT ?", (model, at_most))
        return [row for (row,) in rows]

    def existing(self, rows: Collection[int]) -> set[int]:
        """The row ids among `rows` that are replies of chats that are not deleted."""
        among = "AND m.id IN (SELECT value FROM json_each(?))"
        return {row for (row,) in self._file.read(f"SELECT m.id {_ENDED} {among}", (json.dumps(list(rows)),))}

    def exchange(self, row: int) -> tuple[str, str]:
        """A reply's prompt, as it was typed, and the reply with its thinking; empty for an unknown row."""
        query = f"SELECT {text_in('m.parent')}, {text_in('m.id')} FROM messages m WHERE m.id = ?"
        found = self._file.read(query, (row,))
        return found[0] if found else ("", "")


class ReplyTokens:
    """Cache of token ids by reply and tokenizer: a SQLite file next to the chats, four bytes a token.

    Every method may be called from any thread and none raises: a file that cannot be read is replaced, one that cannot
    be written is not used. Deleted token ids are overwritten (SQLite's `secure_delete`).

    Args:
        path: The file. It is created with the first entry.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def rows(self) -> set[int]:
        """Row ids of the replies in the cache."""
        if not self.path.exists():
            return set()
        found = self._do(lambda db: db.execute("SELECT DISTINCT reply FROM replies").fetchall())
        return {row for (row,) in found or ()}

    def known(self, tokenizer: str, rows: Sequence[int]) -> dict[int, tuple[bytes, array[int]]]:
        """`text_digest` of the encoded text, and its tokens, by reply."""
        if not self.path.exists():
            return {}
        among = "reply IN (SELECT value FROM json_each(?))"
        query = f"SELECT reply, text, tokens FROM replies WHERE tokenizer = ? AND {among}"
        found = self._do(lambda db: db.execute(query, (tokenizer, json.dumps(rows))).fetchall())
        return {row: (text, array("I", stored)) for row, text, stored in found or () if not len(stored) % _BYTES}

    def keep(self, tokenizer: str, encoded: Mapping[int, tuple[bytes, Sequence[int]]]) -> None:
        """Store digests and tokens by reply."""
        if encoded:
            rows = [(tokenizer, row, text, array("I", tokens).tobytes()) for row, (text, tokens) in encoded.items()]
            self._do(lambda db: db.executemany("INSERT OR REPLACE INTO replies VALUES (?, ?, ?, ?)", rows))

    def forget(self, rows: Collection[int]) -> None:
        """Remove these replies for all tokenizers."""
        if rows:
            self._do(lambda db: db.executemany("DELETE FROM replies WHERE reply = ?", [(row,) for row in rows]))

    def _do(self, work: Callable[[sqlite3.Connection], T]) -> T | None:
        """Do the work in one transaction. A file that is no cache of this version is replaced."""
        for _ in range(2):
            try:
                with closing(self._open()) as db, db:
                    return work(db)
            except OSError:
                return None
            except sqlite3.Error as error:
                if getattr(error, "sqlite_errorcode", 0) & 0xFF in NOT_THE_FILE:
                    return None
                with suppress(OSError):
                    for left in (self.path, Path(f"{self.path}-journal")):
                        left.unlink(missing_ok=True)
        return None

    def _open(self) -> sqlite3.Connection:
        if not self.path.exists():
            with suppress(FileExistsError):  # another program starts at the same time
                create_text(self.path).close()
        make_private(self.path)
        db = sqlite3.connect(self.path, timeout=_BUSY_S)
        try:
            db.execute("PRAGMA secure_delete = ON")
            with db:
                db.execute("BEGIN IMMEDIATE")
                version = db.execute("PRAGMA user_version").fetchone()[0]
                if version == 0:
                    db.execute(_TABLE)
                    db.execute(f"PRAGMA user_version = {_VERSION}")
                elif version != _VERSION:
                    raise sqlite3.DatabaseError(f"it has version {version}")
        except BaseException:
            db.close()
            raise
        return db


def text_digest(prompt: str, reply: str) -> bytes:
    """Identifies the text of an exchange."""
    return hashlib.blake2b(f"{len(prompt)}\0{prompt}{reply}".encode("utf-8", "replace"), digest_size=16).digest()
