"""SQLite files of sbpair, opened, identified, guarded and written in one way; and the one of a pair's journal and runs.

Invariants: a broken file, or one of another kind, owner or newer version, is not changed. A change is one transaction,
and survives this process from the moment that `write` returns. A change that raises has not happened.

Only `fold_log` waits for the disk: call it in a thread. After a power failure the last changes of a pair's state may be
missing: a message may then arrive twice, but none is lost.
"""

from __future__ import annotations

import errno
import logging
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import quote

from sbpair.errors import MachineLacks, SbpairError, StateRefused
from sbpair.model.pair import Endpoint, Ends
from sbpair.operating_system import files, ownership
from sbpair.operating_system.shortages import shortage_of

log = logging.getLogger(__name__)

BUSY_SECONDS = 2.0
"""How long a change waits for another process's; the event loop waits with it."""

BROKEN: Final = {
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_FORMAT,
    sqlite3.SQLITE_ERROR,
    sqlite3.SQLITE_CONSTRAINT,
    sqlite3.SQLITE_MISMATCH,
}
SQLITE_ERRORS: Final = (sqlite3.Error, UnicodeDecodeError)
"""The errors of SQLite's calls. It quotes a broken file in their text, which then need not be UTF-8."""

IMMUTABLE: Final = "ro&immutable=1"
"""The mode of a file that no process changes while it is read: SQLite creates no files beside it."""

LOCKED: Final = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


@dataclass(frozen=True, slots=True)
class FileFormat:
    """One kind of file: its schema, and the words of its errors.

    `application_id` identifies the kind in SQLite's header. `schema` creates, among others, the table `meta`, which
    holds the owner. `elsewhere` and `if_broken` are hints: how to choose another file, how to handle a broken one.
    `upgrades` are the statements that lead to a later version from the one before, for new files too.
    """

    name: str
    application_id: int
    version: int
    schema: tuple[str, ...]
    elsewhere: str
    if_broken: str
    upgrades: Mapping[int, tuple[str, ...]] = field(default_factory=dict)

    def check(self, path: Path, db: sqlite3.Connection) -> bool:
        """Return whether the file holds anything. Raises StateRefused for another kind or a newer version."""
        [[application]] = db.execute("PRAGMA application_id")
        [[version]] = db.execute("PRAGMA user_version")
        [[tables]] = db.execute("SELECT count(*) FROM sqlite_master")
        if tables and application != self.application_id:
            raise StateRefused(f"{path} is not an sbpair {self.name}", hint=self.elsewhere)
        if version > self.version:
            raise StateRefused(
                f"{path} was written by a newer version of sbpair", hint=f"upgrade sbpair, or {self.elsewhere}"
            )
        return bool(tables)

    def broken(self, path: Path, reason: str) -> StateRefused:
        return StateRefused(f"{path} is broken: {reason.splitlines()[0]}", hint=self.if_broken)

    def translate(self, path: Path, error: Exception) -> SbpairError:
        """Return StateRefused for a broken file, MachineLacks for anything else that SQLite reports.

        Raises StateRefused for a change that root would make to the file of another user.
        """
        if result_code(error) in BROKEN:
            return self.broken(path, str(error))
        if (lack := shortage_of(error, str(path))) is not None:
            return lack
        if result_code(error) == sqlite3.SQLITE_READONLY:
            with suppress(OSError):
                ownership.check_owner(path)
        if result_code(error) in LOCKED:
            return MachineLacks(f"another process keeps {path} locked", hint=f"end that process, or {self.elsewhere}")
        if result_code(error) == sqlite3.SQLITE_FULL:
            again = (
                f"free space in {path.parent.absolute()}, and run the same command again: what was sent is known there"
            )
            return MachineLacks(f"{path.absolute()} cannot be written: the disk is full", hint=again)
        return MachineLacks(
            f"{path} cannot be used: {error}", hint=f"check its permissions and the free space, or {self.elsewhere}"
        )


class SqliteFile:
    """An open file of one format. `owner` is the content of its table `meta`: a file of another owner is refused.

    `exclusive` keeps other processes out while the file is open. `synchronous` is SQLite's pragma: FULL waits for the
    disk at each change, NORMAL survives a killed process, not a power failure.
    Raises StateRefused, and MachineLacks if this machine does not permit it.
    """

    def __init__(
        self,
        path: Path,
        file_format: FileFormat,
        owner: Iterable[tuple[str, ...]],
        *,
        mode: str = "rw",
        busy_seconds: float = BUSY_SECONDS,
        any_thread: bool = False,
        exclusive: bool = False,
        synchronous: str = "NORMAL",
    ) -> None:
        self.path = path
        self._format = file_format
        if mode != "memory":
            ownership.check_sqlite_file(path, writes=mode == "rw")
        with self.errors():
            self._db = connect(path, mode, busy_seconds=busy_seconds, any_thread=any_thread)
            try:
                if exclusive:
                    # SQLite keeps this lock until the connection closes, however the process ends.
                    self._db.execute("PRAGMA locking_mode = EXCLUSIVE")
                    self._db.execute("BEGIN EXCLUSIVE")
                    self._db.execute("COMMIT")
                self._prepare([tuple(row) for row in owner])
                self._db.execute("PRAGMA journal_mode = WAL")
                self._db.execute(f"PRAGMA synchronous = {synchronous}")
            except BaseException:
                self._db.close()
                raise

    def close(self) -> None:
        with suppress(sqlite3.Error):  # it could not fold its log into the file: the next connection does
            self._db.close()

    @contextmanager
    def errors(self) -> Iterator[None]:
        try:
            yield
        except SQLITE_ERRORS as error:
            raise self._translate(error) from error

    @contextmanager
    def decoding(self) -> Iterator[None]:
        """Raise StateRefused where a row of the file holds a value that sbpair does not write."""
        try:
            yield
        except (ValueError, TypeError, LookupError, RecursionError) as error:
            raise self._format.broken(self.path, f"a row cannot be read: {error}") from error

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Commit all changes of the block, or none of them if it raises."""
        db = self._db
        with self.errors():
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    with suppress(sqlite3.Error):
                        db.execute("ROLLBACK")
                raise

    def _translate(self, error: Exception) -> SbpairError:
        return self._format.translate(self.path, error)

    def _prepare(self, owner: list[tuple[str, ...]]) -> None:
        if not self._format.check(self.path, self._db):
            with self.transaction():
                self._create(owner)
        [[result]] = self._db.execute("PRAGMA quick_check(1)")
        if result != "ok":
            raise self._format.broken(self.path, result)
        found = self._db.execute("SELECT * FROM meta").fetchall()
        if set(found) != set(owner):
            raise StateRefused(
                f"{self.path} is the {self._format.name} of {_describe(found)}, not of {_describe(owner)}",
                hint=self._format.elsewhere,
            )
        if self._version() < self._format.version:
            with self.transaction():
                self._upgrade()

    def _version(self) -> int:
        [[version]] = self._db.execute("PRAGMA user_version")
        return int(version)

    def _upgrade(self) -> None:
        """Apply the statements of later versions, unless another process has."""
        for version in range(self._version() + 1, self._format.version + 1):
            for statement in self._format.upgrades.get(version, ()):
                self._db.execute(statement)
        self._db.execute(f"PRAGMA user_version = {self._format.version}")

    def _create(self, owner: list[tuple[str, ...]]) -> None:
        if self._format.check(self.path, self._db):  # another process created it first
            return
        for statement in self._format.schema:
            self._db.execute(statement)
        values = ", ".join("?" * len(owner[0]))
        self._db.executemany(f"INSERT INTO meta VALUES ({values})", owner)  # noqa: S608
        self._db.execute(f"PRAGMA application_id = {self._format.application_id}")
        self._upgrade()


def connect(
    path: Path, mode: str = "rw", *, busy_seconds: float = BUSY_SECONDS, any_thread: bool = False
) -> sqlite3.Connection:
    """Open an existing file, with autocommit. `mode` is SQLite's: `rw`, `ro` or IMMUTABLE."""
    uri = f"file:{quote(str(path))}?mode={mode}"
    return sqlite3.connect(uri, uri=True, isolation_level=None, timeout=busy_seconds, check_same_thread=not any_thread)


def result_code(error: Exception) -> int:
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF


def create_private(path: Path, *, durable: bool = False) -> None:
    """Create an empty file that only this user can read; leave an existing one alone. Raises StateRefused, OSError.

    SQLite gives the files it puts beside this one the same mode. `durable` syncs the directory entry.
    """
    try:
        os.close(files.open_new(path))
    except FileExistsError:
        # Not even opened: closing it would undo the locks that another connection of this process has on it.
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path)) from None
        return
    if durable:
        files.sync_directory(path.parent)


def _describe(owner: Iterable[tuple[Any, ...]]) -> str:
    return " and ".join(str(row[-1]) for row in owner)


FILE_NAME = "state.db"

MAX_LOG_BYTES = 4 * 1024 * 1024
"""Size of SQLite's log at which it is folded into the file."""

FORMAT = FileFormat(
    name="state",
    application_id=0x5B9A1204,
    version=5,
    schema=(
        "CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
        """CREATE TABLE runs (id TEXT PRIMARY KEY, command TEXT NOT NULL, started_ms INTEGER NOT NULL, ended_ms INTEGER,
        outcome TEXT NOT NULL, exit_code INTEGER, error TEXT NOT NULL DEFAULT '', receipt TEXT)""",
        # One row, the last opener of the journal: so the batches of all openers have distinct numbers.
        "CREATE TABLE journals (number INTEGER PRIMARY KEY AUTOINCREMENT)",
        # A row is a batch; `keys` is the JSON of three lists: sequence numbers, enqueued times (ms), message ids.
        # `at_ms` is the service's time when it was sent, or first known after that; 0 while unknown.
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
        # Earlier versions wrote the local time, which may be wrong.
        4: ("UPDATE flights SET at_ms = 0",),
        # The namespace that a batch is for: what one has accepted is sent to another.
        5: (
            "ALTER TABLE flights ADD COLUMN destination_namespace TEXT NOT NULL DEFAULT ''",
            "UPDATE flights SET destination_namespace = (SELECT value FROM meta WHERE name = 'primary')",
        ),
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

    def __init__(self, directory: Path, ends: Ends, *, mode: str = "rw") -> None:
        """Open the state of a pair; create it first if it does not exist.

        Raises StateRefused for a file of another pair, MachineLacks if this machine does not permit it.
        """
        self.directory = directory
        path = directory / FILE_NAME
        self._log = f"{path}-wal"
        self._fold_at = MAX_LOG_BYTES
        try:
            if mode == "rw":
                make_directory(directory)
                create_private(path)
            else:
                ownership.check_owner(directory, writes=False)
        except OSError as error:
            raise unusable(path, error) from error
        super().__init__(path, FORMAT, identity(ends).items(), mode=mode)
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


class StateOwner(NamedTuple):
    """A pair or a namespace, and the state directory in which its runs are recorded."""

    ends: Ends
    directory: Path

    def open_if_any(self) -> RunDatabase | None:
        return state_if_any(self.directory, self.ends)


def state_if_any(directory: Path, ends: Ends) -> RunDatabase | None:
    """Open the state of a pair, or return None if it does not exist; create nothing.

    One that cannot be written is open for reading, and that of another user, for root.
    """
    path = directory / FILE_NAME
    try:
        if directory.is_file():
            raise FileExistsError
        ownership.check_owner(directory, writes=False)
        return RunDatabase(directory, ends, mode=_mode_of(path)) if path.exists() else None
    except OSError as error:
        raise unusable(directory, error) from error


def _mode_of(path: Path) -> str:
    """Return the mode for a file that need not be written.

    Without a log beside it, no other process has it open. One that begins now changes the log first, and the file when
    it ends: what is read at that moment may be reported as broken, and nothing is changed.
    """
    is_foreign = ownership.is_foreign_to_root(path)
    is_writable = os.access(path, os.W_OK) and os.access(path.parent, os.W_OK) and not is_foreign
    if is_writable or path.with_name(f"{path.name}-wal").exists():
        return "ro" if is_foreign else "rw"
    return IMMUTABLE


WRITABLE = "pass --state DIR for a writable directory"


def make_directory(directory: Path) -> None:
    """Create a directory that only this user can read. An existing one keeps its mode.

    Raises StateRefused for one that others can change, or where root would write to another user's; MachineLacks.
    """
    try:
        above = directory.parent
        ownership.check_owner(directory if directory.exists() or above.name != files.NAME else above)
        ownership.check_new(directory)
        files.make_directories(directory)
    except OSError as error:
        raise unusable(directory, error) from error


def unusable(path: Path, error: OSError) -> MachineLacks:
    """Return the error for a file or directory of the state that cannot be used."""
    if (lack := shortage_of(error, str(path))) is not None:
        return lack
    why = "it is not a directory" if isinstance(error, FileExistsError) else error.strerror
    ways = (ownership.obstacle(path) if isinstance(error, PermissionError) else "", WRITABLE)
    return MachineLacks(f"{path} cannot be used for state: {why}", hint=", or ".join(filter(None, ways)))


def identity(ends: Ends) -> dict[str, str]:
    """Return the identity of a pair: its two namespaces, whatever its local name is."""
    return {"primary": namespace_id(ends.destination), "secondary": namespace_id(ends.source)}


def namespace_id(endpoint: Endpoint) -> str:
    """Return what identifies a namespace in files: its address."""
    # The port of an emulator changes with each start.
    return (endpoint.name if endpoint.emulator else endpoint.authority).lower()
