"""Keys by which copies of a message are recognized, and stores of completed keys.

Invariants: different values never have the same key, not even text, numbers and binary of equal spelling. A key outside
of the window counts as never seen. Marking a key again makes it the latest.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from sbpair.errors import LeaseHeld, MachineLacks, SbpairError, UsageError
from sbpair.runs.database import LOCKED, FileFormat, SqliteFile, create_private, result_code

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusReceivedMessage


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
    """A store of keys. `now` is the service's time, in seconds since 1970; no key is older for a time that goes back.

    It is in a file, for one receiver at a time, or without a path in memory, with about 200 bytes per key. `about`
    identifies the keys: pair, entity and rule.

    Invariant: a key in a file survives this process when `mark` returns. After a power failure the last keys may be
    missing, and their messages are then given twice.

    Raises UsageError for a path that cannot be a file, LeaseHeld while another receiver uses the file, StateRefused for
    a file of another kind or owner, or that others may change, MachineLacks if this machine does not permit it.
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
