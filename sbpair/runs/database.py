"""The file that holds a pair's journal and runs: one SQLite database, opened, guarded and written here.

The law: a change is one transaction, and outlives this process from the moment that `write` returns. What cannot be
written raises, and has not happened. A file of another pair or of a newer version, or a broken one, is not touched.

Nothing waits for the disk itself: if the machine loses its power, the last changes may be gone, and what they would
have prevented is a message that arrives twice, never one that is lost. Only to fold SQLite's log into the file has to:
that is for a thread, and for the end.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import quote

from sbpair.errors import MachineLacks, SbpairError, StateRefused

if TYPE_CHECKING:
    from sbpair.model.pair import Endpoint, Pair

log = logging.getLogger(__name__)

FILE_NAME = "state.db"
APPLICATION_ID: Final = 0x5B9A1204
"""What SQLite keeps in the header of a file to tell whose it is."""

VERSION: Final = 1

MAX_LOG_BYTES = 4 * 1024 * 1024
"""How long the log may become before it is folded into the file."""

BUSY_SECONDS = 2.0
"""How long a change waits for another process's; the event loop waits with it."""

SCHEMA = (
    "CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    """CREATE TABLE runs (id TEXT PRIMARY KEY, command TEXT NOT NULL, started_ms INTEGER NOT NULL, ended_ms INTEGER,
    outcome TEXT NOT NULL, exit_code INTEGER, error TEXT NOT NULL DEFAULT '', receipt TEXT)""",
    # One row, the last one who opened the journal: everybody's flights have numbers of their own.
    "CREATE TABLE journals (number INTEGER PRIMARY KEY AUTOINCREMENT)",
    # A row is a batch; `keys` is the JSON of three lists: sequence numbers, enqueued times (ms), message ids.
    """CREATE TABLE flights (id INTEGER PRIMARY KEY, run TEXT NOT NULL, namespace TEXT NOT NULL, queue TEXT NOT NULL,
    destination TEXT NOT NULL, state INTEGER NOT NULL, at_ms INTEGER NOT NULL, keys TEXT NOT NULL)""",
)

Row: TypeAlias = tuple[Any, ...]
Change: TypeAlias = tuple[str, Sequence[Row]]
"""One statement, and the rows of values that it is executed with."""

BROKEN = {
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_FORMAT,
    sqlite3.SQLITE_ERROR,
    sqlite3.SQLITE_CONSTRAINT,
    sqlite3.SQLITE_MISMATCH,
}


def now_ms() -> int:
    """Milliseconds since 1970."""
    return int(time.time() * 1000)


class RunDatabase:
    """An open state file. `directory` is where it is, for what lies beside it."""

    def __init__(self, directory: Path, pair: Pair) -> None:
        """Open the state of a pair, and make it where there is none.

        Raises StateRefused for a file that is not this pair's, MachineLacks where the machine does not let it.
        """
        self.directory = directory
        self.path = directory / FILE_NAME
        self._log = f"{self.path}-wal"
        self._fold_at = MAX_LOG_BYTES
        _make(self.path)
        try:
            self._db = self._connect()
        except sqlite3.Error as error:
            raise self._told(error) from error
        try:
            self._prepare(pair)
        except BaseException as error:
            self._db.close()
            if isinstance(error, sqlite3.Error):
                raise self._told(error) from error
            raise

    def __enter__(self) -> RunDatabase:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        with suppress(sqlite3.Error):  # it could not fold its log into the file: the next one to open it does
            self._db.close()

    def read(self, query: str, values: Row = ()) -> list[Row]:
        try:
            return self._db.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise self._told(error) from error

    def write(self, *changes: Change) -> None:
        """All of them or, where this raises, none. Raises MachineLacks for a full disk and the like."""
        db = self._db
        try:
            if len(changes) == 1 and len(changes[0][1]) == 1:
                db.execute(changes[0][0], changes[0][1][0])
                return
            db.execute("BEGIN IMMEDIATE")
            for statement, rows in changes:
                db.executemany(statement, rows)
            db.execute("COMMIT")
        except sqlite3.Error as error:
            if db.in_transaction:
                with suppress(sqlite3.Error):
                    db.execute("ROLLBACK")
            raise self._told(error) from error

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
        """Fold the log into the file, from whatever thread: this waits for the disk. Raises nothing.

        Where nothing is written meanwhile, the next change begins the log anew.
        """
        try:
            with closing(self._connect()) as db:
                db.execute("PRAGMA wal_checkpoint(PASSIVE)")
        except sqlite3.Error as error:
            log.warning("the log of %s could not be folded into it: %s", self.path, error)
        with suppress(OSError):
            # Unless it begins anew: then it was somebody's in part, or the disk is full, and time will tell.
            self._fold_at = Path(self._log).stat().st_size + MAX_LOG_BYTES

    def _connect(self) -> sqlite3.Connection:
        name = f"file:{quote(str(self.path))}?mode=rw"
        return sqlite3.connect(name, uri=True, isolation_level=None, timeout=BUSY_SECONDS)

    def _prepare(self, pair: Pair) -> None:
        if not self._is_ours():
            self._create(pair)
        [[version]] = self._db.execute("PRAGMA user_version")
        if version > VERSION:
            raise StateRefused(
                f"{self.path} was written by a newer version of sbpair", hint="upgrade, or say --state DIR for another"
            )
        [[checked]] = self._db.execute("PRAGMA quick_check(1)")
        if checked != "ok":
            raise _broken(self.path, checked)
        self._check_pair(pair)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = NORMAL")
        self._db.execute("PRAGMA wal_autocheckpoint = 0")
        # In KB, of 2 000: what is written is hardly ever read again.
        self._db.execute("PRAGMA cache_size = -200")
        # So that the log is as long as its file is.
        self._db.execute("PRAGMA journal_size_limit = 0")

    def _is_ours(self) -> bool:
        """False for a file without anything in it."""
        [[application]] = self._db.execute("PRAGMA application_id")
        [[tables]] = self._db.execute("SELECT count(*) FROM sqlite_master")
        if tables and application != APPLICATION_ID:
            raise StateRefused(f"{self.path} is not a state file of sbpair", hint="say --state DIR for another place")
        return bool(tables)

    def _create(self, pair: Pair) -> None:
        self._db.execute("BEGIN IMMEDIATE")
        if not self._is_ours():  # another process may have been as quick
            for statement in SCHEMA:
                self._db.execute(statement)
            self._db.executemany("INSERT INTO meta VALUES (?, ?)", identity(pair).items())
            self._db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            self._db.execute(f"PRAGMA user_version = {VERSION}")
        self._db.execute("COMMIT")

    def _check_pair(self, pair: Pair) -> None:
        found = dict(self._db.execute("SELECT name, value FROM meta"))
        wanted = identity(pair)
        if found != wanted:
            raise StateRefused(
                f"{self.path} is the state of {found.get('primary')} and {found.get('secondary')}, and not of"
                f" {wanted['primary']} and {wanted['secondary']}",
                hint="say --state DIR for a directory of its own",
            )

    def _told(self, error: sqlite3.Error) -> SbpairError:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        if code in BROKEN:
            return _broken(self.path, str(error))
        if code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
            return MachineLacks(
                f"another process keeps {self.path} locked", hint="end it, or say --state DIR for another place"
            )
        return MachineLacks(
            f"{self.path} cannot be used: {error}", hint="check its permissions and the free space, or say --state DIR"
        )


def state_if_any(directory: Path, pair: Pair) -> RunDatabase | None:
    """The state of a pair, or None where nothing was ever written; nothing is made then."""
    try:
        return RunDatabase(directory, pair) if (directory / FILE_NAME).exists() else None
    except PermissionError as error:
        raise unusable(directory, error) from error


def make_directory(directory: Path) -> None:
    """Make a directory that nobody else can read. One that is there stays as it is."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise unusable(directory, error) from error


def _make(path: Path) -> None:
    make_directory(path.parent)
    try:
        # SQLite gives the files that it puts beside this one the same mode. One that is there is not even opened: to
        # close it again would undo the locks that another connection of this process has on it.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        return
    except OSError as error:
        raise unusable(path, error) from error


def unusable(path: Path, error: OSError) -> MachineLacks:
    """Why a file or a directory of the state cannot be used."""
    return MachineLacks(
        f"{path} cannot be used for state: {error.strerror}", hint="say --state DIR for a directory that can be written"
    )


def _broken(path: Path, why: str) -> StateRefused:
    return StateRefused(
        f"{path} is broken: {why.splitlines()[0]}",
        hint="move it away: messages that were in flight when it broke may then arrive twice",
    )


def identity(pair: Pair) -> dict[str, str]:
    """What tells a pair from every other one: its two namespaces, however it is called here."""
    return {"primary": _address(pair.primary), "secondary": _address(pair.secondary)}


def _address(endpoint: Endpoint) -> str:
    # An emulator has another port every time.
    return (endpoint.name if endpoint.emulator else endpoint.authority).lower()
