"""Token ids of stored replies, kept between runs beside the chats: a SQLite file that can be lost without harm.

By the row of a reply and the tokenizer. Four bytes a token. What is deleted is overwritten (SQLite's `secure_delete`).
A file that cannot be read, or that another version wrote, is thrown away; one that cannot be written is done without.
"""

from __future__ import annotations

import hashlib
import sqlite3
from array import array
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import TypeVar

from specchat.app.storage.database import NOT_THE_FILE
from specchat.engine import create_text, make_private

T = TypeVar("T")
_VERSION = 1
_TABLE = (
    "CREATE TABLE replies (tokenizer TEXT NOT NULL, reply INTEGER NOT NULL, text BLOB NOT NULL, tokens BLOB NOT NULL,"
    " PRIMARY KEY (reply, tokenizer)) WITHOUT ROWID"
)
_BYTES = array("I").itemsize
_BUSY_S = 1.0
"""How long to wait for another program."""


class ReplyTokens:
    """One file. Every method may be called from any thread, and none raises: what cannot be had is computed anew.

    Args:
        path: The file; it is made when there is something to keep.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def rows(self) -> set[int]:
        """The rows of all replies there is something of."""
        if not self.path.exists():
            return set()
        found = self._do(lambda db: db.execute("SELECT DISTINCT reply FROM replies").fetchall())
        return {row for (row,) in found or ()}

    def known(self, tokenizer: str, rows: Sequence[int]) -> dict[int, tuple[bytes, array[int]]]:
        """What there is of these replies: `text_digest` of the text that was encoded, and its tokens."""
        if not self.path.exists():
            return {}
        marks = ", ".join("?" * len(rows))
        query = f"SELECT reply, text, tokens FROM replies WHERE tokenizer = ? AND reply IN ({marks})"
        found = self._do(lambda db: db.execute(query, (tokenizer, *rows)).fetchall())
        return {row: (text, array("I", stored)) for row, text, stored in found or () if not len(stored) % _BYTES}

    def keep(self, tokenizer: str, encoded: Mapping[int, tuple[bytes, Sequence[int]]]) -> None:
        """Store what `known` is to give."""
        if encoded:
            rows = [(tokenizer, row, text, array("I", tokens).tobytes()) for row, (text, tokens) in encoded.items()]
            self._do(lambda db: db.executemany("INSERT OR REPLACE INTO replies VALUES (?, ?, ?, ?)", rows))

    def forget(self, rows: Collection[int]) -> None:
        """Remove all there is of these replies, of whichever tokenizer."""
        if rows:
            each = [(row,) for row in rows]
            self._do(lambda db: db.executemany("DELETE FROM replies WHERE reply = ?", each))

    def _do(self, work: Callable[[sqlite3.Connection], T]) -> T | None:
        """Do it in one transaction; in a new file where this one is none of ours."""
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
            with suppress(FileExistsError):  # another program begins at the same time
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
    """Names a text."""
    return hashlib.blake2b(f"{len(prompt)}\0{prompt}{reply}".encode("utf-8", "replace"), digest_size=16).digest()
