"""The SQLite file of an emulator: checked before anything is written, and locked while it is open.

Invariant: a file that is refused keeps its bytes. It is read through a connection that cannot write, and opened for
writing only after all of it has been read.
"""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final
from urllib.parse import quote

from sbpair.errors import MachineLacks, SbpairError, StateRefused
from sbpair.operating_system.files import open_new

APPLICATION_ID: Final = 0x73627065
VERSION: Final = 1
BUSY_SECONDS: Final = 1.0
CHECKPOINT_PAGES: Final = 4_000
"""Pages of the write-ahead log that are copied into the file together: 16 MB."""

SCHEMA: Final = """
CREATE TABLE namespaces (name TEXT PRIMARY KEY, document TEXT NOT NULL);
CREATE TABLE entities (id INTEGER PRIMARY KEY, namespace TEXT NOT NULL, document TEXT NOT NULL);
CREATE TABLE stores (id INTEGER PRIMARY KEY, entity INTEGER NOT NULL, part TEXT NOT NULL, last_numbers TEXT NOT NULL,
    accessed_at_ms INTEGER NOT NULL, read_at_ms INTEGER NOT NULL);
CREATE TABLE messages (id INTEGER PRIMARY KEY, store INTEGER NOT NULL, sequence_number INTEGER NOT NULL,
    fields TEXT NOT NULL, content BLOB NOT NULL, checksum INTEGER NOT NULL);
CREATE TABLE sessions (store INTEGER NOT NULL, id TEXT NOT NULL, state BLOB NOT NULL, changed_at_ms INTEGER NOT NULL,
    PRIMARY KEY (store, id)) WITHOUT ROWID;
CREATE TABLE duplicates (entity INTEGER NOT NULL, message_id TEXT NOT NULL, at_ms INTEGER NOT NULL,
    sequence_number INTEGER NOT NULL, PRIMARY KEY (entity, message_id)) WITHOUT ROWID;
CREATE TABLE clock (now_ms INTEGER NOT NULL);
INSERT INTO clock VALUES (0)
"""
"""A store holds the messages of one part of an entity."""

_ELSEWHERE: Final = "name another file with --data"
_RESTORE: Final = f"restore it from a copy, or {_ELSEWHERE}"
_BROKEN: Final = frozenset((
    sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_FORMAT, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_MISMATCH,
    sqlite3.SQLITE_CONSTRAINT,
))  # fmt: skip
_IN_USE: Final = frozenset((sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED))


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection | None]:
    """Yield a connection that cannot write, or None for a new file. Raises StateRefused, MachineLacks."""
    with errors(path):
        if is_new(path):
            yield None
            return
        before = {side for side in _beside(path) if side.exists()}
        db = _connect(path, "ro")
        try:
            yield db if _check(path, db) else None
        finally:
            db.close()
            # Left by a connection that only reads, and of use to writers only.
            for side in set(_beside(path)) - before:
                with suppress(OSError):
                    side.unlink()


def is_new(path: Path) -> bool:
    """Return whether nothing is there, or an empty file. Raises MachineLacks where no file can be."""
    try:
        found = path.stat()
    except FileNotFoundError:
        if not path.parent.is_dir():
            raise MachineLacks(f"the directory of {path} does not exist", hint=f"create it, or {_ELSEWHERE}") from None
        return True
    if not stat.S_ISREG(found.st_mode):
        kind = "a directory" if stat.S_ISDIR(found.st_mode) else "not a regular file"
        raise MachineLacks(f"{path} is {kind}", hint=_ELSEWHERE)
    for place, mode in ((path, os.R_OK | os.W_OK), (path.parent, os.W_OK | os.X_OK)):
        if not os.access(place, mode):
            raise MachineLacks(f"no permission to write {place}", hint=f"allow it, or {_ELSEWHERE}")
    return not found.st_size


def open_for_writing(path: Path) -> sqlite3.Connection:
    """Open a file that was read, or create it, and keep every other process out until it is closed."""
    with errors(path):
        with suppress(FileExistsError):
            # It holds keys and messages. SQLite gives the files beside it the same mode.
            os.close(open_new(path))
        db = _connect(path, "rw")
        try:
            db.execute("PRAGMA locking_mode = EXCLUSIVE")
            db.execute("PRAGMA journal_mode = WAL")
            # A commit survives the end of the process. Only a power failure can take the last ones back.
            db.execute("PRAGMA synchronous = NORMAL")
            # Otherwise a deletion overwrites what it deletes, at twice the cost.
            db.execute("PRAGMA secure_delete = OFF")
            db.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
            with transaction(db):
                if _is_empty(db):
                    for statement in SCHEMA.split(";"):
                        db.execute(statement)
                    db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                    db.execute(f"PRAGMA user_version = {VERSION}")
        except BaseException:
            db.close()
            raise
        return db


def close(db: sqlite3.Connection) -> None:
    """Close the file and leave nothing beside it."""
    with suppress(sqlite3.Error):  # the next emulator reads the log that stays beside the file
        db.execute("PRAGMA locking_mode = NORMAL")
        db.execute("SELECT 1 FROM clock").fetchone()
    db.close()


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Commit all changes of the block, or none of them if it raises."""
    db.execute("BEGIN EXCLUSIVE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            with suppress(sqlite3.Error):
                db.execute("ROLLBACK")
        raise


def broken(path: Path, reason: object) -> StateRefused:
    return StateRefused(f"{path} is broken: {' '.join(str(reason).split())[:200]}", hint=_RESTORE)


def of_others(path: Path, found: str, wanted: str, start_with: str) -> StateRefused:
    return StateRefused(f"{path} holds {found}, not {wanted}", hint=f"start with {start_with}, or {_ELSEWHERE}")


@contextmanager
def errors(path: Path) -> Iterator[None]:
    """Raise what SQLite and the operating system report as errors that name the file."""
    try:
        yield
    except (sqlite3.Error, UnicodeDecodeError) as error:  # SQLite quotes a broken file in its errors
        raise translate(path, error) from error
    except OSError as error:
        raise MachineLacks(f"{path} cannot be opened: {error.strerror}", hint=_ELSEWHERE) from error


def translate(path: Path, error: Exception) -> SbpairError:
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    if code in _IN_USE:
        return MachineLacks(f"{path} is in use by another process", hint=f"stop that emulator, or {_ELSEWHERE}")
    if code == sqlite3.SQLITE_NOTADB:
        return _foreign(path)
    if code in _BROKEN:
        return broken(path, error)
    return MachineLacks(f"{path} cannot be used: {error}", hint=f"check permissions and free space, or {_ELSEWHERE}")


def _foreign(path: Path) -> StateRefused:
    return StateRefused(f"{path} is not a data file of the emulator", hint=_ELSEWHERE)


def _check(path: Path, db: sqlite3.Connection) -> bool:
    """Return whether the file holds anything. Raises StateRefused for one that is not whole, ours and known."""
    [[application]] = db.execute("PRAGMA application_id")
    [[version]] = db.execute("PRAGMA user_version")
    if application != APPLICATION_ID and not (application == 0 and _is_empty(db)):
        raise _foreign(path)
    if version > VERSION:
        raise StateRefused(f"{path} was written by a newer version of sbpair", hint=f"upgrade sbpair, or {_ELSEWHERE}")
    [[result]] = db.execute("PRAGMA quick_check(1)")
    if result != "ok":
        raise broken(path, result)
    return not _is_empty(db)


def _is_empty(db: sqlite3.Connection) -> bool:
    return not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    uri = f"file:{quote(str(path.absolute()))}?mode={mode}"
    return sqlite3.connect(uri, uri=True, isolation_level=None, timeout=BUSY_SECONDS)


def _beside(path: Path) -> tuple[Path, Path]:
    return path.with_name(path.name + "-wal"), path.with_name(path.name + "-shm")
