"""Messages that neither side of a pair accepts, kept in a file of this machine until one of them does.

Invariant: messages are on the disk when `put` returns, and stay there until `remove`. One process at a time owns the
file; a broken file, or one of another pair or newer version, is not changed.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from threading import Lock as Turn
from typing import TYPE_CHECKING, Any, NamedTuple

from sbpair.errors import LeaseHeld, MachineLacks, QuotaExceeded, UsageError
from sbpair.runs.database import identity, now_ms
from sbpair.runs.lease import Lock
from sbpair.runs.sqlite_file import FileFormat, SqliteFile, connect, create_private

if TYPE_CHECKING:
    from sbpair.model.pair import Pair

log = logging.getLogger(__name__)

MAX_MESSAGES, MAX_BYTES = 100_000, 256 * 1024 * 1024

FORMAT = FileFormat(
    name="outbox",
    application_id=0x5B9A0B0C,
    version=1,
    schema=(
        "CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
        # `message` is encoded as for a backlog queue; `tried` is whether it may have arrived already.
        """CREATE TABLE messages (id INTEGER PRIMARY KEY, entity TEXT NOT NULL COLLATE NOCASE, at_ms INTEGER NOT NULL,
        tried INTEGER NOT NULL DEFAULT 0, message BLOB NOT NULL)""",
        "CREATE INDEX by_entity ON messages (entity, id)",
    ),
    elsewhere="name another file: each pair has an outbox of its own",
    if_broken="keep it, for there may be messages in it, and name another file",
)


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


class Outbox(SqliteFile):
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
        file = _checked(path)
        self._limit = max_messages, max_bytes
        self._clock_ms = clock_ms
        self._turn = Turn()
        with ExitStack() as opened:
            self._lock = _owned(file)
            opened.callback(self._lock.release)
            _make(file)
            # https://sqlite.org/pragma.html#pragma_synchronous
            super().__init__(file, FORMAT, identity(pair).items(), any_thread=True, synchronous="FULL")
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
        with self._turn, self.errors():
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
        with self._turn:
            super().close()
        self._lock.release()

    # Each of these is called with `_turn` held.

    def _prepare(self, owner: list[tuple[str, ...]]) -> None:
        super()._prepare(owner)
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
        with self.transaction() as db:
            db.executemany(statement, rows)


def summary(path: str | os.PathLike[str]) -> dict[str, OutboxDepth]:
    """What an outbox holds, by entity: for whoever looks on while its owner works, or has ended. Nothing is changed.

    {} where there is no file. Raises StateRefused for what is no outbox, MachineLacks for what cannot be read.
    """
    file = Path(path)
    if not file.exists():
        return {}
    try:
        with closing(connect(file, "ro")) as db:
            if not FORMAT.check(file, db):
                return {}
            rows = db.execute("SELECT entity, count(*), min(at_ms) FROM messages GROUP BY entity ORDER BY entity")
            return {entity: OutboxDepth(count, oldest_ms) for entity, count, oldest_ms in rows}
    except sqlite3.Error as error:
        raise FORMAT.translate(file, error) from error


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


def _make(path: Path) -> None:
    try:
        create_private(path, durable=True)
    except OSError as error:
        raise MachineLacks(
            f"{path} cannot be used for an outbox: {error.strerror}", hint="name a file that can be written"
        ) from error
