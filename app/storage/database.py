"""The SQLite file of the chats: checks, schema migrations, transactions, and a sentence for every error."""

import re
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from specchat.app.errors import LostRowError, StoreError
from specchat.app.storage.files import move_aside
from specchat.engine import Admitted, create_text, from_json, make_folder, make_private, split_reply

_MAGIC = b"SQLite format 3\x00"
COMPANIONS = ("-wal", "-shm")
"""Suffixes of SQLite's log files. SQLite would replay an old log into a new database."""

CHECKED_BYTES = 32 << 20
"""Files up to this size are checked for damage completely at each start, of larger ones only the list of chats."""
FOUND_DAMAGED = ".damaged"
"""Suffix of an empty file that marks damage found later: the next start then checks the whole database."""

BUSY_S = 5.0
"""How long a statement waits for another program's lock."""

APPLICATION_ID = 0x73706368  # "spch" in the file's header
_MIGRATIONS = [
    [" ".join(statement.split()) for statement in re.sub(r"--.*", "", part).split(";") if statement.strip()]
    for part in Path(__file__).with_name("migrations.sql").read_text(encoding="utf-8").split("--------\n")[1:]
]
"""Statements from one schema version to the next."""

_COLUMNS = (
    "id, title, updated_at, deleted_at, pinned, system, indexed, thinking, news, uid, servers FROM chats",
    "id, chat_id, role, created_at, finish_reason, parent, chosen, indexed, model FROM messages",
    "id, message_id, kind, text, name, call_id FROM parts",
    "text FROM search",
    "id, message_id, line FROM events",
    "id, text FROM drafts",
    "id, message_id, draft_id, kind, name, text, tokens, path FROM attachments",
)
"""Tables and columns of the newest version."""

NOT_THE_FILE = {
    sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_NOMEM,
}  # fmt: skip
"""Error codes that do not mean a damaged file, which then stays in place."""


class UnreadableError(Exception):
    """The file is not a readable database of chats; the text continues a sentence that starts with its name."""


def open_database(path: Path) -> sqlite3.Connection:
    """Connect to the database, created or migrated to the newest schema, in autocommit mode.

    Its files become readable by their owner only.

    Raises:
        UnreadableError: the file is damaged, of another program, or written by a newer version.
        sqlite3.Error: the file cannot be opened or written.
    """
    for file in (path, *(Path(f"{path}{suffix}") for suffix in COMPANIONS)):
        make_private(file)
    _check_start(path)
    if not path.exists():
        with suppress(FileExistsError):  # another program starts at the same time
            create_text(path).close()  # SQLite gives its log files the mode of this empty file
    db = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    db.text_factory = lambda stored: stored.decode("utf-8", "replace")  # shows a chat despite a damaged character
    try:
        with _damage():
            _check(db, path)
            _use_write_ahead_log(db)
        # The log is synced at checkpoints only: a kill loses nothing, a power cut at most the last seconds.
        db.execute("PRAGMA synchronous = NORMAL")
        _migrate(db)
        db.execute("PRAGMA foreign_keys = ON")  # a migration replaces a table that others refer to
        with _damage():
            for columns in _COLUMNS:
                db.execute(f"SELECT {columns} LIMIT 0")
    except BaseException:
        db.close()
        raise
    return db


@contextmanager
def _damage() -> Iterator[None]:
    """Turn errors that mean a damaged file into `UnreadableError`."""
    try:
        yield
    except UnicodeError as error:  # in SQLite's own error message, which quotes damaged names
        raise UnreadableError("is damaged") from error
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in NOT_THE_FILE:
            raise
        raise UnreadableError("cannot be read as a database of chats") from error


def _check_start(path: Path) -> None:
    """Check the file header without SQLite, which deletes the log of a file that is no database."""
    if not path.exists():
        return
    if not path.is_file():
        raise UnreadableError("is not a file")
    try:
        with path.open("rb") as file:
            start = file.read(len(_MAGIC))
    except PermissionError:
        return  # SQLite raises the error
    log = Path(f"{path}-wal")
    if start != _MAGIC and (start or (log.exists() and log.stat().st_size)):
        raise UnreadableError("cannot be read as a database of chats")


def _check(db: sqlite3.Connection, path: Path) -> None:
    """Check owner, version and integrity without writing."""
    if not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
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
            # SQLite does not wait here when two programs open a new file at once.
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _migrate(db: sqlite3.Connection) -> None:
    db.create_function("part_of", 3, _part_of)
    db.execute("BEGIN IMMEDIATE")  # also fails here if the file cannot be written
    with db:
        for version in range(_version(db), len(_MIGRATIONS)):
            for statement in _MIGRATIONS[version]:
                db.execute(statement)
            db.execute(f"PRAGMA user_version = {version + 1}")


def _part_of(kind: str, text: bytes, line: bytes | None) -> str:
    """The thinking or the rest of a reply whose text has marks, which its first trace line states."""
    decoded = text.decode("utf-8", "replace")
    with suppress(ValueError):
        admitted = from_json((line or b"").decode("utf-8", "replace"))
        if isinstance(admitted, Admitted) and admitted.thinking is not None:
            return split_reply(decoded, admitted.thinking)[kind == "text"]
    return decoded if kind == "text" else ""


def _version(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])


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
            with self._db:  # commits, or rolls back unless SQLite has, as after some errors, such as a full disk
                yield self._db

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
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the low byte is the primary code
            if code == sqlite3.SQLITE_CORRUPT:
                with suppress(OSError):
                    Path(f"{self.path}{FOUND_DAMAGED}").touch()
            kind = LostRowError if code == sqlite3.SQLITE_CONSTRAINT else StoreError  # a row that others refer to
            raise kind(f"chats are not stored: {_reason(code, error, self.path)}") from error


def text_in(message: str, condition: str = "") -> str:
    """An SQL expression for the text of the parts of a message, whose id is a column."""
    return f"coalesce((SELECT group_concat(text, '') FROM parts WHERE message_id = {message}{condition}), '')"


def storable(text: str) -> str:
    """Replace lone surrogates, which UTF-8 and so SQLite cannot store."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _reason(code: int, error: sqlite3.Error, path: Path) -> str:
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
