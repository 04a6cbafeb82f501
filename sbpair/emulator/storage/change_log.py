"""The changes since the last commit, and when they are committed.

Every change of the entities happens within one callback of the event loop. A commit runs between two callbacks or at
the end of one, so the file always holds a state that the emulator had.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from sbpair.emulator.storage import data_file

if TYPE_CHECKING:
    from pathlib import Path

logger = logging.getLogger(__name__)

COMMIT_SECONDS: Final = 0.5
"""The longest time between a change and its commit, without `durable`."""

RETRY_SECONDS: Final = 1.0
MAX_CHANGES: Final = 2_000
"""Changed messages of one store after which a commit does not wait longer, so that it takes milliseconds."""

CallLater = Callable[[float, Callable[[], object]], asyncio.TimerHandle]


class Record(Protocol):
    """Something that is stored, and its changes. Compared and hashed by identity."""

    def write(self, db: sqlite3.Connection) -> None:
        """Write what has changed. The transaction may fail, and this is called again."""

    def forget(self) -> None:
        """Forget the changes: they are committed."""


class ChangeLog:
    """The records that have changed. What changes before `open` is not written.

    `on_failing` is called when a commit fails (True), and when one succeeds again (False).
    """

    def __init__(self, path: Path, call_later: CallLater, on_failing: Callable[[bool], None]) -> None:
        self._last: Counter[str] = Counter()
        self._db: sqlite3.Connection | None = None
        self._path = path
        self._call_later = call_later
        self._on_failing = on_failing
        self._changed: dict[Record, None] = {}
        self._has_new = False
        self._timer: asyncio.TimerHandle | None = None
        self._failing = False

    def open(self, db: sqlite3.Connection) -> None:
        """Write changes to this file from now on."""
        for record in self._changed:
            record.forget()
        self._changed.clear()
        self._has_new = False
        self._db = db

    def numbered(self, kind: str, number: int | None = None) -> int:
        """Return this number, which is in use in the file, or a new one that is not."""
        number = self._last[kind] + 1 if number is None else number
        self._last[kind] = max(self._last[kind], number)
        return number

    def note(self, record: Record) -> None:
        """Write this record with the next commit."""
        self._has_new = True
        self._changed.setdefault(record)
        if self._timer is None and self._db is not None:
            self._timer = self._call_later(COMMIT_SECONDS, self._on_timer)

    def drop(self, *records: Record) -> None:
        """Do not write these records: they are deleted."""
        for record in records:
            self._changed.pop(record, None)

    def hurry(self) -> None:
        """Commit as soon as the current callback of the event loop has ended."""
        if self._db is not None and not self._failing:
            self._stop_timer()
            self._timer = self._call_later(0, self._on_timer)

    def commit(self) -> bool:
        """Store all changes; return False if those since the last call cannot be stored."""
        if not self._has_new:
            return True
        stored = self._try_to_write()
        self._has_new = False
        return stored

    def write(self) -> None:
        """Store all changes. Raises sqlite3.Error."""
        if self._db is None:
            return
        with data_file.transaction(self._db):
            for record in self._changed:
                record.write(self._db)
        for record in self._changed:
            record.forget()
        self._changed.clear()

    def _try_to_write(self) -> bool:
        try:
            self.write()
        except sqlite3.Error as error:
            self._stop_timer()
            self._timer = self._call_later(RETRY_SECONDS, self._on_timer)
            if not self._failing:
                self._failing = True
                text = "%s cannot be written: %s. Operations are refused until it can."
                logger.error(text, self._path, error)  # noqa: TRY400  # expected: a traceback says nothing more
                self._on_failing(True)
            return False
        if self._failing:
            self._failing = False
            logger.warning("%s can be written again.", self._path)
            self._on_failing(False)
        return True

    def _on_timer(self) -> None:
        self._timer = None
        if self._try_to_write():
            self._has_new = False

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        """Store the last changes and close the file. Raises MachineLacks if they cannot be stored."""
        self._stop_timer()
        if self._db is not None:
            try:
                with data_file.errors(self._path):
                    self.write()
            finally:
                data_file.close(self._db)
                self._db = None
