"""The file that holds a pair's journal and runs: one SQLite database.

Invariant: a change is one transaction, and survives this process from the moment that `write` returns. A change that
raises has not happened.

Only `fold_log` waits for the disk: call it in a thread. After a power failure the last changes may be missing: a
message may then arrive twice, but none is lost.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from sbpair.errors import MachineLacks
from sbpair.runs.sqlite_file import IMMUTABLE, FileFormat, SqliteFile, connect, create_private

if TYPE_CHECKING:
    from sbpair.model.pair import Endpoint, Ends

log = logging.getLogger(__name__)

FILE_NAME = "state.db"

MAX_LOG_BYTES = 4 * 1024 * 1024
"""Size of SQLite's log at which it is folded into the file."""

FORMAT = FileFormat(
    name="state",
    application_id=0x5B9A1204,
    version=3,
    schema=(
        "CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
        """CREATE TABLE runs (id TEXT PRIMARY KEY, command TEXT NOT NULL, started_ms INTEGER NOT NULL, ended_ms INTEGER,
        outcome TEXT NOT NULL, exit_code INTEGER, error TEXT NOT NULL DEFAULT '', receipt TEXT)""",
        # One row, the last opener of the journal: so the batches of all openers have distinct numbers.
        "CREATE TABLE journals (number INTEGER PRIMARY KEY AUTOINCREMENT)",
        # A row is a batch; `keys` is the JSON of three lists: sequence numbers, enqueued times (ms), message ids.
        """CREATE TABLE flights (id INTEGER PRIMARY KEY, run TEXT NOT NULL, namespace TEXT NOT NULL,
        queue TEXT NOT NULL, destination TEXT NOT NULL, state INTEGER NOT NULL, at_ms INTEGER NOT NULL,
        keys TEXT NOT NULL)""",
    ),
    upgrades={
        2: (
            "ALTER TABLE runs ADD COLUMN settings TEXT",
            # `figures` is the JSON of a sample's fields, without its run and time.
            """CREATE TABLE samples (run TEXT NOT NULL, at_ms INTEGER NOT NULL, figures TEXT NOT NULL,
            PRIMARY KEY (run, at_ms)) WITHOUT ROWID""",
        ),
        # The state in which others want a live run, and the one that it has confirmed.
        3: ("CREATE TABLE controls (run TEXT PRIMARY KEY, wanted TEXT NOT NULL, state TEXT NOT NULL) WITHOUT ROWID",),
    },
    elsewhere="pass --state DIR for another directory",
    if_broken="move it away: messages that were in flight when it broke may then arrive twice",
)

Row: TypeAlias = tuple[Any, ...]
Change: TypeAlias = tuple[str, Sequence[Row]]
"""One statement, and the rows of values that it is executed with."""


def now_ms() -> int:
    """Return milliseconds since 1970."""
    return int(time.time() * 1000)


class RunDatabase(SqliteFile):
    """The open state of a pair. Other files of the pair lie in the same `directory`."""

    def __init__(self, directory: Path, pair: Ends, *, mode: str = "rw") -> None:
        """Open the state of a pair; create it first if it does not exist.

        Raises StateRefused for a file of another pair, MachineLacks if this machine does not permit it.
        """
        self.directory = directory
        path = directory / FILE_NAME
        self._log = f"{path}-wal"
        self._fold_at = MAX_LOG_BYTES
        make_directory(directory)
        try:
            create_private(path)
        except OSError as error:
            raise unusable(path, error) from error
        super().__init__(path, FORMAT, identity(pair).items(), mode=mode)
        self._db.execute("PRAGMA wal_autocheckpoint = 0")
        # In KB instead of the default 2 000: what is written is rarely read again.
        self._db.execute("PRAGMA cache_size = -200")
        # So that the log is as long as its file.
        self._db.execute("PRAGMA journal_size_limit = 0")

    def __enter__(self) -> RunDatabase:
        return self

    def __exit__(self, *_details: object) -> None:
        self.close()

    def read(self, query: str, values: Row = ()) -> list[Row]:
        with self.errors():
            return self._db.execute(query, values).fetchall()

    def write(self, *changes: Change) -> None:
        """Make all changes or, if this raises, none. Raises MachineLacks for a full disk and the like."""
        if len(changes) == 1 and len(changes[0][1]) == 1:
            with self.errors():
                self._db.execute(changes[0][0], changes[0][1][0])
            return
        with self.transaction() as db:
            for statement, rows in changes:
                db.executemany(statement, rows)

    @property
    def log_is_long(self) -> bool:
        """Whether it is time for `fold_log`."""
        try:
            size = os.stat(self._log).st_size  # noqa: PTH116  a Path takes five times as long
        except OSError:
            return False
        if size < MAX_LOG_BYTES:
            self._fold_at = MAX_LOG_BYTES
        return size >= self._fold_at

    def fold_log(self) -> None:
        """Fold the log into the file, from any thread: this waits for the disk. Raises nothing.

        The next change starts the log again, unless another change was written meanwhile.
        """
        try:
            with closing(connect(self.path)) as db:
                db.execute("PRAGMA wal_checkpoint(PASSIVE)")
        except sqlite3.Error as error:
            log.warning("the log of %s could not be folded into it: %s", self.path, error)
        with suppress(OSError):
            # In case the log does not start again: another process was reading it, or the disk is full.
            self._fold_at = Path(self._log).stat().st_size + MAX_LOG_BYTES


def state_if_any(directory: Path, pair: Ends) -> RunDatabase | None:
    """Open the state of a pair, or return None if it does not exist; create nothing.

    One that cannot be written is open for reading.
    """
    if directory.is_file():
        raise unusable(directory, FileExistsError())
    path = directory / FILE_NAME
    try:
        return RunDatabase(directory, pair, mode=_mode_of(path)) if path.exists() else None
    except PermissionError as error:
        raise unusable(directory, error) from error


def _mode_of(path: Path) -> str:
    """Return the mode for a file that need not be written.

    Without a log beside it, no other process has it open. One that begins now changes the log first, and the file when
    it ends: what is read at that moment may be reported as broken, and nothing is changed.
    """
    is_writable = os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)
    return "rw" if is_writable or path.with_name(f"{path.name}-wal").exists() else IMMUTABLE


def make_directory(directory: Path) -> None:
    """Create a directory that only this user can read. An existing one keeps its mode."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise unusable(directory, error) from error


def unusable(path: Path, error: OSError) -> MachineLacks:
    """Return the error for a file or directory of the state that cannot be used."""
    why = "it is not a directory" if isinstance(error, FileExistsError) else error.strerror
    return MachineLacks(f"{path} cannot be used for state: {why}", hint="pass --state DIR for a writable directory")


def identity(pair: Ends) -> dict[str, str]:
    """Return the identity of a pair: its two namespaces, whatever its local name is."""
    return {"primary": _address(pair.primary), "secondary": _address(pair.secondary)}


def _address(endpoint: Endpoint) -> str:
    # The port of an emulator changes with each start.
    return (endpoint.name if endpoint.emulator else endpoint.authority).lower()
