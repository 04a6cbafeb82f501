"""Messages that neither side of a pair accepts, stored in a local file until a side does.

Invariant: messages are on the disk when `put` returns, and stay there until `remove`. One process at a time owns the
file. A broken file, or one of another pair or a newer version, is not changed.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from threading import Lock as Turn
from typing import TYPE_CHECKING, Any, NamedTuple

from sbpair.errors import LeaseHeld, MachineLacks, QuotaExceeded, UsageError
from sbpair.operating_system import boot_id, ownership
from sbpair.operating_system import uptime as seconds_since_boot
from sbpair.runs.database import SQLITE_ERRORS, FileFormat, SqliteFile, connect, create_private, identity, now_ms
from sbpair.runs.file_lease import Lock

if TYPE_CHECKING:
    import sqlite3

    from sbpair.model.pair import Pair

log = logging.getLogger(__name__)

MAX_MESSAGES, MAX_BYTES = 100_000, 256 * 1024 * 1024

FORMAT = FileFormat(
    name="outbox",
    application_id=0x5B9A0B0C,
    version=2,
    schema=(
        "CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
        # `message` is encoded as for a backlog queue; `tried` is whether it may have arrived already.
        """CREATE TABLE messages (id INTEGER PRIMARY KEY, entity TEXT NOT NULL COLLATE NOCASE, at_ms INTEGER NOT NULL,
        tried INTEGER NOT NULL DEFAULT 0, message BLOB NOT NULL)""",
        "CREATE INDEX by_entity ON messages (entity, id)",
    ),
    upgrades={
        # When a message was stored, by seconds since which boot: the local clock (`at_ms`) may be wrong or set.
        2: (
            "ALTER TABLE messages ADD COLUMN boot TEXT NOT NULL DEFAULT ''",
            "ALTER TABLE messages ADD COLUMN uptime_ms INTEGER NOT NULL DEFAULT 0",
        ),
    },
    elsewhere="name another file: each pair has an outbox of its own",
    if_broken="keep the file, because it may hold messages, and name another one",
)


class OutboxMessage(NamedTuple):
    """One message in the outbox. `tried`: it may have arrived already.

    `waited_ms` is how long it has waited: 0 if this machine was started since, so that no wrong clock ends its life.
    """

    id: int
    waited_ms: int
    tried: bool
    message: bytes


class OutboxDepth(NamedTuple):
    """Messages of an entity in an outbox, and when the oldest was stored, by the local clock in ms since 1970."""

    messages: int
    oldest_ms: int


class Outbox(SqliteFile):
    """The outbox of one client. Every method may be called from any thread, and may wait for the disk.

    Raises StateRefused for a file of another pair, or that others may change, LeaseHeld while another process has it,
    MachineLacks if it cannot be written, UsageError for limits below 1.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        pair: Pair,
        *,
        max_messages: int = MAX_MESSAGES,
        max_bytes: int = MAX_BYTES,
        clock_ms: Callable[[], int] = now_ms,
        uptime: Callable[[], float] | None = None,
    ) -> None:
        _check_limit("outbox_messages", max_messages)
        _check_limit("outbox_bytes", max_bytes)
        file = _checked_path(path)
        self._limits = max_messages, max_bytes
        self._clock_ms, self._uptime, self._boot = clock_ms, uptime or seconds_since_boot, boot_id()
        self._turn = Turn()
        with ExitStack() as opened:
            with _usable(file):
                self._lock = _locked(file)
                opened.callback(self._lock.release)
                create_private(file, durable=True)
            # https://sqlite.org/pragma.html#pragma_synchronous
            super().__init__(file, FORMAT, identity(pair.ends).items(), any_thread=True, synchronous="FULL")
            opened.pop_all()

    def __len__(self) -> int:
        return self._messages

    def holds(self, entity: str) -> bool:
        """Return whether messages of an entity wait here. Later ones must not overtake them."""
        return entity.lower() in self._waiting

    def entities(self) -> list[str]:
        """Return the entities with messages here."""
        with self._turn:
            return [path for path, _ in self._waiting.values()]

    def put(self, entity: str, messages: Sequence[bytes]) -> None:
        """Store all messages behind the entity's earlier ones. They are on the disk when this returns.

        Raises QuotaExceeded if the outbox is full, MachineLacks if it cannot be written: then none is stored.
        """
        size, stored = sum(map(len, messages)), (self._clock_ms(), self._boot, int(1000 * self._uptime()))
        with self._turn:
            if self._messages + len(messages) > self._limits[0] or self._bytes + size > self._limits[1]:
                raise QuotaExceeded(
                    f"the outbox {self.path} is full: it has {self._messages} messages of {self._bytes} bytes, limits"
                    f" {self._limits[0]} and {self._limits[1]}",
                    hint="space is freed when a side accepts messages; outbox_messages and outbox_bytes are the limits",
                )
            self._change(
                "INSERT INTO messages (entity, message, at_ms, boot, uptime_ms) VALUES (?, ?, ?, ?, ?)",
                [(entity, message, *stored) for message in messages],
            )
            self._count(entity, len(messages), size)

    def peek(self, entity: str, limit: int, max_bytes: int) -> list[OutboxMessage]:
        """Return the first messages of an entity: up to `limit` and `max_bytes`, but at least one if there is any."""
        found: list[OutboxMessage] = []
        uptime_ms = int(1000 * self._uptime())
        with self._turn, self.errors():
            rows = self._db.execute(
                "SELECT id, iif(boot = ?, ? - uptime_ms, 0), tried, message FROM messages WHERE entity = ?"
                " ORDER BY id LIMIT ?",
                (self._boot, uptime_ms, entity, limit + len(self._refused)),
            )
            for number, waited_ms, tried, message in rows:
                max_bytes -= len(message)
                if found and max_bytes < 0:
                    break
                if number not in self._refused:
                    found.append(OutboxMessage(number, waited_ms, bool(tried), message))
        return found[:limit]

    def mark(self, messages: Iterable[OutboxMessage], *, tried: bool) -> None:
        """Record, also for after a crash, whether the messages may have arrived."""
        with self._turn:
            self._change("UPDATE messages SET tried = ? WHERE id = ?", [(int(tried), each.id) for each in messages])

    def remove(self, entity: str, messages: Sequence[OutboxMessage]) -> None:
        """Remove messages that a side has accepted."""
        with self._turn:
            self._change("DELETE FROM messages WHERE id = ?", [(each.id,) for each in messages])
            self._count(entity, -len(messages), -sum(len(each.message) for each in messages))

    def refuse(self, entity: str, message: OutboxMessage) -> None:
        """Skip a message that the entity refused. It stays, and is tried again when the file is next opened."""
        with self._turn:
            self._refused.add(message.id)
            self._release(entity, 1)

    def close(self) -> None:
        with self._turn:
            super().close()
        self._lock.release()

    # The caller holds `_turn`.

    def _prepare(self, owner: list[tuple[str, ...]]) -> None:
        super()._prepare(owner)
        self._messages = self._bytes = 0
        self._waiting: dict[str, tuple[str, int]] = {}
        self._refused: set[int] = set()
        _check_types(self.path, self._db)
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


def outbox_depths(path: str | os.PathLike[str]) -> dict[str, OutboxDepth]:
    """Return the depth of an outbox by entity, or {} without a file. It may be in use, and is not changed.

    Raises StateRefused for a file that is no outbox, or that others may change, MachineLacks for an unreadable one.
    """
    file = Path(path)
    if not file.exists():
        return {}
    try:
        ownership.check_sqlite_file(file, writes=False)
        with closing(connect(file, "ro")) as db:
            if not FORMAT.check(file, db):
                return {}
            _check_types(file, db)
            rows = db.execute("SELECT entity, count(*), min(at_ms) FROM messages GROUP BY entity ORDER BY entity")
            return {entity: OutboxDepth(count, oldest_ms) for entity, count, oldest_ms in rows}
    except SQLITE_ERRORS as error:
        raise FORMAT.translate(file, error) from error


def _check_types(file: Path, db: sqlite3.Connection) -> None:
    """Raise StateRefused for a message with values that sbpair does not write."""
    types = "(typeof(entity), typeof(at_ms), typeof(message))"
    for [number] in db.execute(f"SELECT id FROM messages WHERE {types} <> ('text', 'integer', 'blob')"):  # noqa: S608
        raise FORMAT.broken(file, f"message {number} cannot be read")


def _check_limit(name: str, limit: int) -> None:
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise UsageError(f"expected {name} of at least 1, got {limit!r}", hint="omit it for the default")


def _checked_path(path: str | os.PathLike[str]) -> Path:
    file = Path(path)
    if not str(path) or file.is_dir() or not file.parent.is_dir():
        raise UsageError(f"{str(path)!r} cannot be an outbox", hint="name a file in an existing directory")
    return file.resolve()


def _locked(path: Path) -> Lock:
    try:
        return Lock(path.with_name(f"{path.name}-lock"))
    except BlockingIOError:
        raise LeaseHeld(
            f"the outbox {path} is in use by another client",
            hint="give each client an outbox file of its own, or stop the other client",
        ) from None


@contextmanager
def _usable(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, MachineLacks) as error:
        cause = error.__cause__ if isinstance(error, MachineLacks) else error
        why = getattr(cause, "strerror", cause)
        raise MachineLacks(
            f"{path} cannot be used for an outbox: {why}", hint="name a file that can be written"
        ) from error
