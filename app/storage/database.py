"""Opening the SQLite file of the chats: checks and schema migrations."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from specchat.engine import create_text, make_private

_MAGIC = b"SQLite format 3\x00"
COMPANIONS = ("-wal", "-shm")
"""SQLite's log files. Left beside a new database, an old log would be replayed into it."""

CHECKED_BYTES = 32 << 20
"""A file up to this size is checked for damage as a whole at each start; of a larger one, the list of chats is."""
FOUND_DAMAGED = ".damaged"
"""Suffix of an empty file that is left where damage was met further on: the next start then checks all of it."""

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
    (
        "ALTER TABLE messages ADD COLUMN answers INTEGER REFERENCES messages (id)",
        "ALTER TABLE messages ADD COLUMN chosen INTEGER NOT NULL DEFAULT 1",
        "CREATE TABLE drafts (id INTEGER PRIMARY KEY, text TEXT NOT NULL)",
    ),
    (
        # A chat becomes a tree: a reply follows its prompt, a prompt follows the reply (or, where that has not begun,
        # the prompt) before it. What has the same parent are versions of each other, one of which is chosen.
        "ALTER TABLE messages RENAME COLUMN answers TO parent",
        "CREATE INDEX messages_of_parent ON messages (parent)",
        "UPDATE messages SET parent = (SELECT max(p.id) FROM messages p WHERE p.chat_id = messages.chat_id"
        " AND p.role = 'user' AND p.id < messages.id) WHERE parent IS NULL",
        "UPDATE messages SET parent = coalesce((SELECT r.id FROM messages r WHERE r.parent = messages.parent"
        " AND r.role = 'assistant' ORDER BY r.chosen DESC, CASE WHEN r.chosen THEN -r.id ELSE r.id END LIMIT 1),"
        " parent) WHERE role = 'user' AND parent IS NOT NULL",
    ),
    (
        "ALTER TABLE chats ADD COLUMN pinned INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE chats ADD COLUMN system TEXT NOT NULL DEFAULT ''",
        # Messages have their own row ids in the index, titles the negative ones of their chats.
        "CREATE VIRTUAL TABLE search USING fts5 (text, tokenize = 'unicode61 remove_diacritics 2', prefix = '1 2 3')",
        "ALTER TABLE messages ADD COLUMN indexed INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE chats ADD COLUMN indexed INTEGER NOT NULL DEFAULT 0",
        "CREATE INDEX messages_to_index ON messages (id) WHERE indexed = 0",
        "CREATE INDEX chats_to_index ON chats (id) WHERE indexed = 0",
        "CREATE INDEX prompts ON messages (id) WHERE role = 'user'",
    ),
    (
        "CREATE TABLE attachments (id INTEGER PRIMARY KEY, message_id INTEGER REFERENCES messages (id)"
        " ON DELETE CASCADE, draft_id INTEGER, kind TEXT NOT NULL, name TEXT NOT NULL, text TEXT NOT NULL,"
        " tokens INTEGER, path TEXT NOT NULL DEFAULT '')",
        "CREATE INDEX attachments_of_message ON attachments (message_id)",
        "CREATE INDEX attachments_of_draft ON attachments (draft_id)",
    ),
    ("ALTER TABLE chats ADD COLUMN thinking INTEGER",),
    ("ALTER TABLE messages ADD COLUMN model TEXT NOT NULL DEFAULT ''",),
    # What was sent along enters the index with its prompt.
    ("UPDATE messages SET indexed = 0 WHERE id IN (SELECT message_id FROM attachments)",),
)
"""Statements that lead from one version of the schema to the next. Released ones never change; new ones follow."""

_COLUMNS = (
    "id, title, updated_at, deleted_at, pinned, system, indexed, thinking FROM chats",
    "id, chat_id, role, content, created_at, finish_reason, parent, chosen, indexed, model FROM messages",
    "text FROM search",
    "id, message_id, line FROM events",
    "id, text FROM drafts",
    "id, message_id, draft_id, kind, name, text, tokens, path FROM attachments",
)
"""What must be there in the newest version."""

NOT_THE_FILE = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_PROTOCOL,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_AUTH,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_NOMEM,
}
"""Errors of the machine: the file may be sound, so it stays where it is."""


class UnreadableError(Exception):
    """The file is no database of ours; the text continues a sentence that begins with its name."""


def open_database(path: Path) -> sqlite3.Connection:
    """A connection to the database, created or migrated to the newest schema, in autocommit mode.

    Only the owner can read its files, whatever they were before.

    Raises:
        UnreadableError: the file is damaged, is something else, or was written by a newer version.
        sqlite3.Error: the file cannot be opened or written.
    """
    for file in (path, *(Path(f"{path}{suffix}") for suffix in COMPANIONS)):
        make_private(file)
    _check_start(path)
    if not path.exists():
        _create(path)
    db = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    db.text_factory = lambda stored: stored.decode("utf-8", "replace")  # one flipped bit must not hide a chat
    try:
        with _damage():
            _check(db, path)
            _use_write_ahead_log(db)
        # The log is synced at checkpoints only: a killed program loses nothing, a power cut at most the last seconds.
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute("PRAGMA foreign_keys = ON")
        _migrate(db)
        with _damage():
            for columns in _COLUMNS:
                db.execute(f"SELECT {columns} LIMIT 0")
    except BaseException:
        db.close()
        raise
    return db


def _create(path: Path) -> None:
    """An empty file is a new database to SQLite, which gives its log files the same mode."""
    with suppress(FileExistsError):  # another program begins at the same time
        create_text(path).close()


@contextmanager
def _damage() -> Iterator[None]:
    """Whatever SQLite complains of is the file's fault, unless the machine is to blame."""
    try:
        yield
    except UnicodeError as error:  # Python cannot read what SQLite says about broken names in a broken file
        raise UnreadableError("is damaged") from error
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in NOT_THE_FILE:
            raise
        raise UnreadableError("cannot be read as a database of chats") from error


def _check_start(path: Path) -> None:
    """SQLite deletes the log of a file that is no database, so find that out without it."""
    if not path.exists():
        return
    if not path.is_file():
        raise UnreadableError("is not a file")
    try:
        with path.open("rb") as file:
            start = file.read(len(_MAGIC))
    except PermissionError:
        return  # SQLite will say so
    log = Path(f"{path}-wal")
    if start != _MAGIC and (start or (log.exists() and log.stat().st_size)):
        raise UnreadableError("cannot be read as a database of chats")


def _check(db: sqlite3.Connection, path: Path) -> None:
    """Reads only, so that a file which is not ours is left as it was."""
    tables = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if not tables:
        return
    if db.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        raise UnreadableError("belongs to another program")
    if _version(db) > len(_MIGRATIONS):
        raise UnreadableError("was written by a newer specchat")
    met = Path(f"{path}{FOUND_DAMAGED}")
    whole = met.exists() or path.stat().st_size <= CHECKED_BYTES
    checks = ("quick_check(1)",) if whole else ("quick_check(chats)", "quick_check(drafts)")
    sound = all(db.execute(f"PRAGMA {check}").fetchone()[0] == "ok" for check in checks)
    met.unlink(missing_ok=True)
    if not sound:
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
