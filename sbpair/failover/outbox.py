"""Messages that neither side of a pair takes, kept in a file of this machine until one of them does.

The law: what `put` returned for is on the disk, and stays there until `remove`. A process alone owns the file while it
has it open; a file of another pair or of a newer version, or a broken one, is not touched.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from threading import Lock as Turn
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote

from sbpair.errors import LeaseHeld, MachineLacks, QuotaExceeded, SbpairError, StateRefused, UsageError
from sbpair.runs.database import BROKEN, identity, now_ms
from sbpair.runs.lease import Lock

if TYPE_CHECKING:
    from sbpair.model.pair import Pair

log = logging.getLogger(__name__)

APPLICATION_ID: Final = 0x5B9A0B0C
VERSION: Final = 1

MAX_MESSAGES, MAX_BYTES = 100_000, 256 * 1024 * 1024

SCHEMA = (
    "CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    # `message` is what a backlog queue would have been given, encoded; `tried` is whether it may have arrived already.
    """CREATE TABLE messages (id INTEGER PRIMARY KEY, entity TEXT NOT NULL COLLATE NOCASE, at_ms INTEGER NOT NULL,
    tried INTEGER NOT NULL DEFAULT 0, message BLOB NOT NULL)""",
    "CREATE INDEX by_entity ON messages (entity, id)",
)

_HINT = "give the pair an outbox of its own"


class OutboxMessage(NamedTuple):
    """One message in the outbox, since `at_ms` (since 1970); `tried` is whether it may have arrived already."""

    id: int
    at_ms: int
    tried: bool
    message: bytes


class OutboxDepth(NamedTuple):
    """How many messages of an entity an outbox holds, and since when the oldest of them, in ms since 1970."""

    messages: int
    oldest_ms: int


class Outbox:
    """The outbox of one client. Every method may be called from any thread, and may wait for the disk.

    Raises StateRefused for a file that is not this pair's, LeaseHeld while another process has it, MachineLacks where
    the machine does not let it, UsageError for bounds below 1.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        pair: Pair,
        *,
        max_messages: int = MAX_MESSAGES,
        max_bytes: int = MAX_BYTES,
        clock_ms: Callable[[], int] = now_ms,
    ) -> None:
        _check_bound("outbox_messages", max_messages)
        _check_bound("outbox_bytes", max_bytes)
        self.path = _checked(path)
        self._limit = max_messages, max_bytes
        self._clock_ms = clock_ms
        self._turn = Turn()
        with ExitStack() as opened, self._telling():
            self._lock = _owned(self.path)
            opened.callback(self._lock.release)
            self._db = opened.enter_context(closing(_opened(self.path, pair)))
            self._load()
            opened.pop_all()

    def __len__(self) -> int:
        return self._messages

    def holds(self, entity: str) -> bool:
        """Whether messages of an entity wait here, which others may not overtake. Case does not count."""
        return entity.lower() in self._waiting

    def entities(self) -> list[str]:
        """Whose messages wait here."""
        with self._turn:
            return [path for path, _ in self._waiting.values()]

    def put(self, entity: str, messages: Sequence[bytes]) -> None:
        """Take all of them, behind those of the entity that are here. They are on the disk when this returns.

        Raises QuotaExceeded where there is no room, and MachineLacks where they cannot be written: then none is taken.
        """
        size, at_ms = sum(map(len, messages)), self._clock_ms()
        with self._turn:
            if self._messages + len(messages) > self._limit[0] or self._bytes + size > self._limit[1]:
                raise QuotaExceeded(
                    f"the outbox {self.path} is full: it holds {self._messages} messages of {self._bytes} bytes, and"
                    f" may hold {self._limit[0]} of {self._limit[1]}",
                    hint="room comes back when a side takes them",
                )
            self._change(
                "INSERT INTO messages (entity, at_ms, message) VALUES (?, ?, ?)",
                [(entity, at_ms, message) for message in messages],
            )
            self._count(entity, len(messages), size)

    def first(self, entity: str, limit: int, max_bytes: int) -> list[OutboxMessage]:
        """The first messages of an entity: as many as have so many bytes, but one at least where there is one."""
        found: list[OutboxMessage] = []
        with self._turn, self._telling():
            rows = self._db.execute(
                "SELECT id, at_ms, tried, message FROM messages WHERE entity = ? ORDER BY id LIMIT ?",
                (entity, limit + len(self._refused)),
            )
            for number, at_ms, tried, message in rows:
                max_bytes -= len(message)
                if found and max_bytes < 0:
                    break
                if number not in self._refused:
                    found.append(OutboxMessage(number, at_ms, bool(tried), message))
        return found[:limit]

    def mark(self, kept: Iterable[OutboxMessage], *, tried: bool) -> None:
        """Remember, also after a crash, that they may have arrived; or that they have not."""
        with self._turn:
            self._change("UPDATE messages SET tried = ? WHERE id = ?", [(int(tried), each.id) for each in kept])

    def remove(self, entity: str, kept: Sequence[OutboxMessage]) -> None:
        """One of the sides has accepted them."""
        with self._turn:
            self._change("DELETE FROM messages WHERE id = ?", [(each.id,) for each in kept])
            self._count(entity, -len(kept), -sum(len(each.message) for each in kept))

    def refuse(self, entity: str, kept: OutboxMessage) -> None:
        """The entity does not take this one: it stays, lets others pass, and is tried again when the file is opened."""
        with self._turn:
            self._refused.add(kept.id)
            self._release(entity, 1)

    def close(self) -> None:
        with self._turn, suppress(sqlite3.Error):
            self._db.close()
        self._lock.release()

    # Each of these is called with `_turn` held.

    def _load(self) -> None:
        self._messages = self._bytes = 0
        self._waiting: dict[str, tuple[str, int]] = {}
        self._refused: set[int] = set()
        for entity, count, size in self._db.execute(
            "SELECT entity, count(*), sum(length(message)) FROM messages GROUP BY entity"
        ):
            self._count(entity, count, size)

    def _count(self, entity: str, messages: int, size: int) -> None:
        self._messages += messages
        self._bytes += size
        self._release(entity, -messages)

    def _release(self, entity: str, messages: int) -> None:
        path, waiting = self._waiting.get(entity.lower(), (entity, 0))
        if waiting > messages:
            self._waiting[entity.lower()] = path, waiting - messages
        else:
            self._waiting.pop(entity.lower(), None)

    def _change(self, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
        with self._telling():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                self._db.executemany(statement, rows)
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    with suppress(sqlite3.Error):
                        self._db.execute("ROLLBACK")
                raise

    @contextmanager
    def _telling(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise _told(self.path, error) from error


def summary(path: str | os.PathLike[str]) -> dict[str, OutboxDepth]:
    """What an outbox holds, by entity: for whoever looks on while its owner works, or has ended. Nothing is changed.

    {} where there is no file. Raises StateRefused for what is no outbox, MachineLacks for what cannot be read.
    """
    file = Path(path)
    if not file.exists():
        return {}
    try:
        with closing(_connected(file, "ro")) as db:
            _check_version(file, db)
            rows = db.execute("SELECT entity, count(*), min(at_ms) FROM messages GROUP BY entity ORDER BY entity")
            return {entity: OutboxDepth(count, oldest_ms) for entity, count, oldest_ms in rows}
    except sqlite3.Error as error:
        raise _told(file, error) from error


# Inside -----------------------------------------------------------------------------------------


def _check_bound(name: str, limit: int) -> None:
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise UsageError(f"{name} is {limit!r}", hint="say how much the outbox may hold, 1 at least")


def _checked(path: str | os.PathLike[str]) -> Path:
    file = Path(path)
    if not str(path) or file.is_dir() or not file.parent.is_dir():
        raise UsageError(f"{str(path)!r} cannot be an outbox", hint="name a file, in a directory that is there")
    return file.resolve()


def _owned(path: Path) -> Lock:
    try:
        return Lock(path.with_name(f"{path.name}-lock"))
    except BlockingIOError:
        raise LeaseHeld(
            f"the outbox {path} is another client's, which is still at work",
            hint="give each client of a pair an outbox of its own, or end the other one",
        ) from None


def _opened(path: Path, pair: Pair) -> sqlite3.Connection:
    _make(path)
    with ExitStack() as opened:
        db = opened.enter_context(closing(_connected(path, "rw")))
        if not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            _create(db, pair)
        _check_version(path, db)
        _check_pair(path, db, pair)
        [[checked]] = db.execute("PRAGMA quick_check(1)")
        if checked != "ok":
            raise _broken(path, checked)
        db.execute("PRAGMA journal_mode = WAL")
        # So each change waits until the disk has it: https://sqlite.org/pragma.html#pragma_synchronous
        db.execute("PRAGMA synchronous = FULL")
        opened.pop_all()
    return db


def _make(path: Path) -> None:
    """An empty file that nobody else can read, which the disk knows by its name: SQLite takes it as it finds it."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except FileExistsError:
        return
    except OSError as error:
        raise MachineLacks(
            f"{path} cannot be used for an outbox: {error.strerror}", hint="name a file that can be written"
        ) from error


def _create(db: sqlite3.Connection, pair: Pair) -> None:
    db.execute("BEGIN IMMEDIATE")
    for statement in SCHEMA:
        db.execute(statement)
    db.executemany("INSERT INTO meta VALUES (?, ?)", identity(pair).items())
    db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    db.execute(f"PRAGMA user_version = {VERSION}")
    db.execute("COMMIT")


def _connected(path: Path, mode: str) -> sqlite3.Connection:
    name = f"file:{quote(str(path))}?mode={mode}"
    return sqlite3.connect(name, uri=True, isolation_level=None, check_same_thread=False)


def _check_version(path: Path, db: sqlite3.Connection) -> None:
    [[application]] = db.execute("PRAGMA application_id")
    [[version]] = db.execute("PRAGMA user_version")
    if application != APPLICATION_ID:
        raise StateRefused(f"{path} is not an outbox of sbpair", hint="name another file")
    if version > VERSION:
        raise StateRefused(f"{path} was written by a newer version of sbpair", hint="upgrade, or name another file")


def _check_pair(path: Path, db: sqlite3.Connection, pair: Pair) -> None:
    found, wanted = dict(db.execute("SELECT name, value FROM meta")), identity(pair)
    if found != wanted:
        raise StateRefused(
            f"{path} is the outbox of {found.get('primary')} and {found.get('secondary')}, and not of"
            f" {wanted['primary']} and {wanted['secondary']}",
            hint=_HINT,
        )


def _told(path: Path, error: sqlite3.Error) -> SbpairError:
    if getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF in BROKEN:
        return _broken(path, str(error))
    return MachineLacks(
        f"the outbox {path} cannot be used: {error}", hint="check its permissions and the free space of its disk"
    )


def _broken(path: Path, why: str) -> StateRefused:
    return StateRefused(
        f"the outbox {path} is broken: {why.splitlines()[0]}",
        hint="keep it, for there may be messages in it, and name another file",
    )
