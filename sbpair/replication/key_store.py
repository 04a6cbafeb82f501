"""The keys of completed messages, in a SQLite file that one receiver uses at a time.

Invariant: a key is in the file, and survives this process, when `mark` returns. After a power failure the last keys may
be missing, and their messages are then given twice.
"""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

from sbpair.errors import LeaseHeld, MachineLacks, SbpairError, UsageError
from sbpair.replication.window import KeyStatus, Window
from sbpair.runs.sqlite_file import LOCKED, FileFormat, SqliteFile, create_private, result_code

FORMAT = FileFormat(
    name="key store",
    application_id=0x5B9A1205,
    version=1,
    schema=(
        "CREATE TABLE meta (about TEXT NOT NULL)",
        """CREATE TABLE seen (number INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL UNIQUE, at REAL NOT NULL,
        status INTEGER NOT NULL)""",
        "CREATE INDEX seen_at ON seen (at)",
    ),
    elsewhere="name another file for this receiver",
    if_broken="name another file for this receiver",
)


class KeyStore(SqliteFile):
    """A store that outlives the process. `about` identifies the keys: pair, entity and rule.

    Raises UsageError for a path that cannot be a file, LeaseHeld while another receiver uses the file, StateRefused for
    a file of another kind or owner, MachineLacks if this machine does not permit it.
    """

    _size: int

    def __init__(self, path: Path, window: Window, about: dict[str, str]) -> None:
        self._window = window
        _create_file(path)
        owner = [(json.dumps(about, sort_keys=True),)]
        super().__init__(path, FORMAT, owner, busy_seconds=0, any_thread=True, exclusive=True)

    def status(self, key: str, now: float) -> KeyStatus:
        with self.errors():
            row = self._db.execute("SELECT at, status FROM seen WHERE key = ?", (key,)).fetchone()
        if row is None or (self._window.seconds is not None and now - row[0] >= self._window.seconds):
            return KeyStatus.NEW
        return KeyStatus(row[1])

    def mark(self, key: str, status: KeyStatus, now: float) -> None:
        with self.transaction() as db:
            size = self._size + 1 - db.execute("DELETE FROM seen WHERE key = ?", (key,)).rowcount
            db.execute("INSERT INTO seen (key, at, status) VALUES (?, ?, ?)", (key, now, status))
            size -= self._remove_expired(size, now)
        self._size = size

    def _remove_expired(self, size: int, now: float) -> int:
        """Remove keys outside of the window, and return how many."""
        removed = 0
        if self._window.seconds is not None:
            removed = self._db.execute("DELETE FROM seen WHERE at <= ?", (now - self._window.seconds,)).rowcount
        if self._window.count is not None and size - removed > self._window.count:
            oldest = "DELETE FROM seen WHERE number IN (SELECT number FROM seen ORDER BY number LIMIT ?)"
            removed += self._db.execute(oldest, (size - removed - self._window.count,)).rowcount
        return removed

    def _prepare(self, owner: list[tuple[str, ...]]) -> None:
        super()._prepare(owner)
        self._size = self._db.execute("SELECT count(*) FROM seen").fetchone()[0]

    def _translate(self, error: sqlite3.Error) -> SbpairError:
        if result_code(error) in LOCKED:
            return LeaseHeld(
                f"another receiver is using {self.path}",
                hint="stop that receiver, or name another file: only one at a time can recognize duplicates",
            )
        return super()._translate(error)


def _create_file(path: Path) -> None:
    try:
        create_private(path)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise UsageError(
            f"{path} cannot be a file: {error.strerror}", hint="name a file in an existing directory"
        ) from error
    except (OSError, ValueError) as error:
        raise MachineLacks(f"{path} cannot be opened: {error}", hint="check its permissions") from error
