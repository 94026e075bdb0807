"""The open SQLite file of the chats: queries, transactions, and a sentence for every error."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from specchat.app.errors import LostRowError, StoreError
from specchat.app.storage.database import BUSY_S, COMPANIONS, FOUND_DAMAGED, UnreadableError, open_database
from specchat.app.storage.files import move_aside
from specchat.engine import make_folder, make_private


class StoreFile:
    """One open file. A file that cannot be read is moved aside and a new one is started, with a sentence in `notice`.

    Raises:
        StoreError: the file cannot be opened, read or written. Any method raises it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.notice: str | None = None
        self.lock = threading.RLock()
        """Held by the thread that reads or writes."""
        with self.sentences():
            make_folder(path.parent)
            make_private(path.parent)
            try:
                self._db = open_database(path)
            except UnreadableError as error:
                aside = move_aside(path, COMPANIONS)
                self.notice = f"{path} {error}: it was kept as {aside.name} and a new list of chats was started"
                self._db = open_database(path)

    def close(self) -> None:
        """Close it; further calls raise `StoreError`."""
        with self.lock:
            self._db.close()

    def read(self, query: str, values: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        with self.lock, self.sentences():
            return self._db.execute(query, values).fetchall()

    def change(self, what: str, statement: str, values: tuple[object, ...]) -> None:
        """Change one row; `what` names it in the error if it does not exist."""
        with self.write() as db:
            if db.execute(statement, values).rowcount != 1:
                raise LostRowError(f"{what} is not in {self.path}")

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """A transaction of the calling thread; nested ones join the outermost."""
        with self.lock, self.sentences():
            if self._db.in_transaction:  # of this thread, which holds the lock
                yield self._db
                return
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:  # SQLite has rolled back by itself after some errors, such as a full disk
                    self._db.execute("ROLLBACK")
                raise

    @contextmanager
    def sentences(self) -> Iterator[None]:
        """Turn errors into `StoreError` with one sentence."""
        try:
            yield
        except OSError as error:
            raise StoreError(f"chats are not stored: {self.path}: {error.strerror or error}") from error
        except UnreadableError as error:
            raise StoreError(f"chats are not stored: {self.path} {error}") from error
        except UnicodeError as error:
            raise StoreError(f"chats are not stored: {self.path} is damaged") from error
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_CORRUPT:
                with suppress(OSError):
                    Path(f"{self.path}{FOUND_DAMAGED}").touch()
            raise StoreError(f"chats are not stored: {_reason(error, self.path)}") from error


def storable(text: str) -> str:
    """Replace lone surrogates, which UTF-8 and so SQLite cannot store."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _reason(error: sqlite3.Error, path: Path) -> str:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the low byte is the primary code
    match code:
        case sqlite3.SQLITE_FULL:
            return f"the disk that holds {path} is full"
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM | sqlite3.SQLITE_AUTH:
            return f"{path} cannot be opened for writing, check its permissions and those of its folder"
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return f"{path} has been locked by another program for {BUSY_S:g} s"
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return f"{path} is damaged, restart specchat to move it aside"
    return f"{path}: {error}"
