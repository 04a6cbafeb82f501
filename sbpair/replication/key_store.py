"""The keys that have been dealt with, in a file: one SQLite database, for one receiver at a time.

The law: what `mark` returned for outlives this process; if the machine loses its power the last ones may be gone, which
is a message that is given twice. A file of something else is not touched.
"""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import Final

from sbpair.errors import LeaseHeld, MachineLacks, SbpairError, StateRefused, UsageError
from sbpair.replication.window import KeyStatus, Window

APPLICATION_ID: Final = 0x5B9A1205
VERSION: Final = 1

SCHEMA = (
    "CREATE TABLE meta (about TEXT NOT NULL)",
    """CREATE TABLE seen (number INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL UNIQUE, at REAL NOT NULL,
    standing INTEGER NOT NULL)""",
    "CREATE INDEX seen_at ON seen (at)",
)

_LOCKED = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_BROKEN = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT, sqlite3.SQLITE_ERROR)


class KeyStore:
    """A store that survives. `about` says whose keys these are: pair, entity and rule.

    Raises UsageError for a path that can be no file, LeaseHeld while another receiver has it, StateRefused for a file
    of something else, MachineLacks where the machine does not let it.
    """

    def __init__(self, path: Path, window: Window, about: dict[str, str]) -> None:
        self.path = path
        self._window = window
        _make(path)
        try:
            self._db = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
        except sqlite3.Error as error:
            raise self._told(error) from error
        try:
            self._prepare(json.dumps(about, sort_keys=True))
            (self._size,) = self._db.execute("SELECT count(*) FROM seen").fetchone()
        except BaseException as error:
            self._db.close()
            if isinstance(error, sqlite3.Error):
                raise self._told(error) from error
            raise

    def standing(self, key: str, now: float) -> KeyStatus:
        try:
            row = self._db.execute("SELECT at, standing FROM seen WHERE key = ?", (key,)).fetchone()
        except sqlite3.Error as error:
            raise self._told(error) from error
        if row is None or (self._window.seconds is not None and now - row[0] >= self._window.seconds):
            return KeyStatus.NEW
        return KeyStatus(row[1])

    def mark(self, key: str, standing: KeyStatus, now: float) -> None:
        db = self._db
        try:
            db.execute("BEGIN IMMEDIATE")
            size = self._size + 1 - db.execute("DELETE FROM seen WHERE key = ?", (key,)).rowcount
            db.execute("INSERT INTO seen (key, at, standing) VALUES (?, ?, ?)", (key, now, standing))
            size -= self._forget(size, now)
            db.execute("COMMIT")
        except sqlite3.Error as error:
            if db.in_transaction:
                with suppress(sqlite3.Error):
                    db.execute("ROLLBACK")
            raise self._told(error) from error
        self._size = size

    def close(self) -> None:
        with suppress(sqlite3.Error):
            self._db.close()

    def _forget(self, size: int, now: float) -> int:
        """How many of them were outside of the window, and are gone."""
        gone = 0
        if self._window.seconds is not None:
            gone = self._db.execute("DELETE FROM seen WHERE at <= ?", (now - self._window.seconds,)).rowcount
        if self._window.count is not None and size - gone > self._window.count:
            oldest = "DELETE FROM seen WHERE number IN (SELECT number FROM seen ORDER BY number LIMIT ?)"
            gone += self._db.execute(oldest, (size - gone - self._window.count,)).rowcount
        return gone

    def _prepare(self, about: str) -> None:
        db = self._db
        # Held for as long as the file is open, and given back by the system however this process ends.
        db.execute("PRAGMA locking_mode = EXCLUSIVE")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute("BEGIN EXCLUSIVE")
        (kind,) = db.execute("PRAGMA application_id").fetchone()
        (version,) = db.execute("PRAGMA user_version").fetchone()
        if (kind, version) == (0, 0) and not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            for statement in SCHEMA:
                db.execute(statement)
            db.execute("INSERT INTO meta VALUES (?)", (about,))
            db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            db.execute(f"PRAGMA user_version = {VERSION}")
        elif (kind, version) != (APPLICATION_ID, VERSION):
            raise self._refused("it holds something else, or is of another version of sbpair")
        elif (kept := db.execute("SELECT about FROM meta").fetchone()[0]) != about:
            raise self._refused(f"it remembers the keys of {kept}, and these are {about}")
        db.execute("COMMIT")

    def _refused(self, why: str) -> StateRefused:
        return StateRefused(f"{self.path} is not used: {why}", hint="name another file for this receiver")

    def _told(self, error: sqlite3.Error) -> SbpairError:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in _LOCKED:
            return LeaseHeld(
                f"{self.path} is another receiver's, which is at work",
                hint="one receiver at a time can tell what is a duplicate: stop the other, or name another file",
            )
        if code in _BROKEN:
            return self._refused(f"it cannot be read ({error})")
        return MachineLacks(f"{self.path} cannot be used: {error}", hint="check the disk and the permissions")


def _make(path: Path) -> None:
    """For this user alone: keys are parts of messages."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise UsageError(
            f"{path} cannot be a file: {error.strerror}", hint="name a file in a directory that is there"
        ) from error
    except (OSError, ValueError) as error:
        raise MachineLacks(f"{path} cannot be opened: {error}", hint="check its permissions") from error
