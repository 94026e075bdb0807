"""Opening the SQLite file of the chats: checks and schema migrations."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

COMPANIONS = ("-wal", "-shm")
"""SQLite's log files. Left beside a new database, an old log would be replayed into it."""

BUSY_S = 5.0
"""How long a statement waits for another program's lock."""

APPLICATION_ID = 0x73706368  # "spch" in the file's header: this is a file of ours
_MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        f"PRAGMA application_id = {APPLICATION_ID}",
        "CREATE TABLE chats (id INTEGER PRIMARY KEY, title TEXT NOT NULL, updated_at REAL NOT NULL, deleted_at REAL)",
        "CREATE TABLE messages (id INTEGER PRIMARY KEY, chat_id INTEGER NOT NULL REFERENCES chats (id),"
        " role TEXT NOT NULL, content TEXT NOT NULL, created_at REAL NOT NULL, finish_reason TEXT)",
        "CREATE INDEX messages_of_chat ON messages (chat_id)",
        "CREATE TABLE events (id INTEGER PRIMARY KEY, message_id INTEGER NOT NULL REFERENCES messages (id),"
        " line TEXT NOT NULL)",
        "CREATE INDEX events_of_message ON events (message_id)",
    ),
)
"""Statements that lead from one version of the schema to the next. Released ones never change; new ones follow."""


class UnreadableError(Exception):
    """The file is no database of ours; the text continues a sentence that begins with its name."""


def open_database(path: Path) -> sqlite3.Connection:
    """A connection to the database, created or migrated to the newest schema, in autocommit mode.

    Raises:
        UnreadableError: the file is damaged, is something else, or was written by a newer version.
        sqlite3.Error: the file cannot be opened or written.
    """
    if path.exists() and not path.is_file():
        raise UnreadableError("is not a file")
    db = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    db.text_factory = lambda stored: stored.decode("utf-8", "replace")  # one flipped bit must not hide a chat
    try:
        _check(db)
        _use_write_ahead_log(db)
        # The log is synced at checkpoints only: a killed program loses nothing, a power cut at most the last seconds.
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute("PRAGMA foreign_keys = ON")
        _migrate(db)
    except sqlite3.DatabaseError as error:
        db.close()
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise UnreadableError("cannot be read as a database of chats") from error
        raise
    except BaseException:
        db.close()
        raise
    return db


def _check(db: sqlite3.Connection) -> None:
    """Reads only, so that a file which is not ours is left as it was."""
    tables = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if not tables:
        return
    if db.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        raise UnreadableError("belongs to another program")
    if _version(db) > len(_MIGRATIONS):
        raise UnreadableError("was written by a newer specchat")
    if db.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok":
        raise UnreadableError("is damaged")


def _use_write_ahead_log(db: sqlite3.Connection) -> None:
    deadline = time.monotonic() + BUSY_S
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            # SQLite does not wait here by itself when two programs start on a new file at once.
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _migrate(db: sqlite3.Connection) -> None:
    db.execute("BEGIN IMMEDIATE")  # also finds out now whether the file can be written
    try:
        for version in range(_version(db), len(_MIGRATIONS)):
            for statement in _MIGRATIONS[version]:
                db.execute(statement)
            db.execute(f"PRAGMA user_version = {version + 1}")
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def _version(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])
