"""Keys by which copies of a message are recognized, stores of completed keys, and the copies under lock.

Invariants: different values never have the same key, not even text, numbers and binary of equal spelling. A key outside
of the window counts as never seen. Marking a key again makes it the latest. A copy is completed as a duplicate only
after another copy of its key was *completed*. While the application has the first one, the others are held. If the
first one is released otherwise (abandoned, dead-lettered, lock lost), the next one becomes the first.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from sbpair.errors import LeaseHeld, MachineLacks, SbpairError, UsageError
from sbpair.runs.database import LOCKED, FileFormat, SqliteFile, create_private, result_code

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusReceivedMessage

    from sbpair.replication.events import Side

Received: TypeAlias = "ServiceBusReceivedMessage"
KeyOf: TypeAlias = Callable[[Received], object]
"""Returns the value of a message: text, bytes, a number, a UUID; None or empty for no key."""

MAX_KEY_LENGTH = 128
"""Longer keys are stored as a digest, because there may be many."""

PROPERTY = "property:"
KEY_HINT = 'use "id", "subject", "property:NAME" or a function of the message'

DAY_SECONDS = 86_400.0
KEYS = 1_000_000

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


class KeyRule:
    """`by` is "id", "subject" (or "label"), "property:NAME" or a function. Raises UsageError for anything else."""

    def __init__(self, by: str | KeyOf) -> None:
        self.name = by if isinstance(by, str) else "function"
        self._of = by if callable(by) else _named(by)

    def of(self, message: Received) -> str | None:
        """Return the key of a message, or None. Raises the errors of a user's function."""
        value = self._of(message)
        if isinstance(value, bytes | bytearray):
            value = _text(bytes(value))
        if value is None or value in ("", b""):
            return None
        if not isinstance(value, str):
            key = f"{type(value).__name__}:{value!r}"
        else:
            # Text that looks like such a key gets a prefix of its own.
            key = f"str:{value}" if ":" in value else value
        if len(key) > MAX_KEY_LENGTH:
            key = f"sha256:{hashlib.sha256(key.encode(errors='surrogatepass')).hexdigest()}"
        return key


def _named(by: object) -> KeyOf:
    field = {"id": "message_id", "subject": "subject", "label": "subject"}.get(str(by))
    if field is not None:
        return lambda message: getattr(message.raw_amqp_message.properties, field, None)
    name = by.removeprefix(PROPERTY) if isinstance(by, str) and by.startswith(PROPERTY) else ""
    if not name:
        raise UsageError(f"unknown deduplication key {by!r}", hint=KEY_HINT)
    return lambda message: _application_property(message, name)


def _application_property(message: Received, name: str) -> object:
    found = message.application_properties or {}
    return found.get(name.encode(), found.get(name))


def _text(value: bytes) -> Any:
    """Decode text, which the SDK returns as bytes, and leave other bytes as they are."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


class KeyStatus(IntEnum):
    """The status of a key. DOUBT: a completion was started and never answered."""

    NEW = 0
    DOUBT = 1
    DONE = 2


@dataclass(frozen=True, slots=True)
class Window:
    """The last `count` keys, none older than `seconds`. None means no such limit. Raises UsageError."""

    seconds: float | None = DAY_SECONDS
    count: int | None = KEYS

    def __post_init__(self) -> None:
        if self.seconds is None and self.count is None:
            raise UsageError("the window has no limit", hint="set window_seconds, window_count, or both")
        if self.seconds is not None and not (self.seconds > 0 and math.isfinite(self.seconds)):
            raise UsageError(
                f"expected a window of more than 0 s, got {self.seconds:g} s", hint="None means no limit in time"
            )
        if self.count is not None and self.count < 1:
            raise UsageError(f"expected a window of at least 1 key, got {self.count}", hint="None means no limit")


class KeyStore(SqliteFile):
    """A store of keys. `now` is in seconds since 1970; setting the clock back makes no key older.

    It is in a file, for one receiver at a time, or without a path in memory, with about 200 bytes per key. `about`
    identifies the keys: pair, entity and rule.

    Invariant: a key in a file survives this process when `mark` returns. After a power failure the last keys may be
    missing, and their messages are then given twice.

    Raises UsageError for a path that cannot be a file, LeaseHeld while another receiver uses the file, StateRefused for
    a file of another kind or owner, MachineLacks if this machine does not permit it.
    """

    _size: int

    def __init__(self, path: Path | None, window: Window, about: dict[str, str]) -> None:
        self._window = window
        owner = [(json.dumps(about, sort_keys=True),)]
        if path is None:
            super().__init__(Path("keys"), FORMAT, owner, mode="memory", any_thread=True)
        else:
            _create_file(path)
            super().__init__(path, FORMAT, owner, busy_seconds=0, any_thread=True, exclusive=True)

    def status(self, key: str, now: float) -> KeyStatus:
        with self.errors():
            row = self._db.execute("SELECT at, status FROM seen WHERE key = ?", (key,)).fetchone()
        seconds = math.inf if self._window.seconds is None else self._window.seconds
        return KeyStatus.NEW if row is None or now - row[0] >= seconds else KeyStatus(row[1])

    def mark(self, key: str, status: KeyStatus, now: float) -> None:
        """Return once the status is stored. Raises MachineLacks if that fails."""
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

    def _translate(self, error: Exception) -> SbpairError:
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


@dataclass(frozen=True, slots=True, eq=False)
class LockedMessage:
    """A message under lock, with the receiver that it came from. `key` is None if it has none."""

    side: Side
    message: Received
    receiver: Any
    key: str | None

    @property
    def number(self) -> int:
        return self.message.sequence_number or 0

    @property
    def until(self) -> float:
        """When the lock expires, in seconds since 1970."""
        locked = self.message.locked_until_utc
        return locked.timestamp() if locked else 0.0


class Verdict(Enum):
    GIVE = "it is the first copy"
    GIVE_AGAIN = "an earlier copy may have been processed"
    HOLD = "the application has the first copy"
    DUPLICATE = "a copy was completed"


class Copies:
    """All copies that this receiver has locked and that have a key."""

    def __init__(self, store: KeyStore) -> None:
        self._store = store
        # The first copy of each key, and then the others.
        self._held: dict[str | None, list[LockedMessage]] = {}
        self._next: deque[tuple[LockedMessage, bool]] = deque()

    def admit(self, copy: LockedMessage, now: float) -> Verdict:
        """Decide about a received copy. A copy to be given becomes the first."""
        if copy.key is None:
            return Verdict.GIVE
        if held := self._held.get(copy.key):
            if _is_same(held[0], copy):
                # The service delivers the first copy again, so its earlier lock is lost.
                held[0] = copy
                return Verdict.GIVE_AGAIN
            self._held[copy.key] = [*(each for each in held if not _is_same(each, copy)), copy]
            return Verdict.HOLD
        status = self._store.status(copy.key, now)
        if status is KeyStatus.DONE:
            return Verdict.DUPLICATE
        self._held[copy.key] = [copy]
        return Verdict.GIVE_AGAIN if status is KeyStatus.DOUBT else Verdict.GIVE

    def is_duplicate(self, key: str, now: float) -> bool:
        """Return whether `admit` would judge any copy with this key a duplicate."""
        return not self._held.get(key) and self._store.status(key, now) is KeyStatus.DONE

    def completing(self, copy: LockedMessage, now: float) -> None:
        """Record that a copy is about to be completed: without an answer, its key is in doubt."""
        if copy.key is not None and self._store.status(copy.key, now) is not KeyStatus.DONE:
            self._store.mark(copy.key, KeyStatus.DOUBT, now)

    def completed(self, copy: LockedMessage, now: float) -> list[LockedMessage]:
        """Record a completion. Returns the copies that are duplicates now."""
        if copy.key is None:
            return []
        self._store.mark(copy.key, KeyStatus.DONE, now)
        held = self._held.pop(copy.key, [])
        if held and not _is_same(held[0], copy):
            # The application has that copy as well by now, and settles it.
            self._held[copy.key] = held[:1]
        return held[1:]

    def release(self, copy: LockedMessage, *, lock_lost: bool = False) -> None:
        """Record that a copy was settled without completion, or lost its lock: the others may be given."""
        held = self._held.get(copy.key)
        if held and held[0] is copy:
            del self._held[copy.key]
            self._next.extend((each, lock_lost) for each in held[1:])

    def expire(self, now: float) -> None:
        """Release first copies whose locks have expired."""
        for first in [held[0] for held in self._held.values() if held[0].until <= now]:
            self.release(first, lock_lost=True)

    def next(self, now: float) -> tuple[LockedMessage, bool] | None:
        """Return a locked copy whose first one was released, and whether that one may have been processed."""
        while self._next:
            copy, lock_lost = self._next.popleft()
            if copy.until > now:
                return copy, lock_lost
        return None

    def held_with(self, copy: LockedMessage) -> list[LockedMessage]:
        """Return the held copies of a copy that the application has."""
        return self._held.get(copy.key, [])[1:]

    @property
    def waiting(self) -> list[LockedMessage]:
        """All locked copies that the application was not given."""
        return [*(each for held in self._held.values() for each in held[1:]), *(each for each, _ in self._next)]


def _is_same(one: LockedMessage, other: LockedMessage) -> bool:
    """Return whether two deliveries are of one message in one queue."""
    return (one.side, one.number) == (other.side, other.number)
