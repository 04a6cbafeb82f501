"""The changes since the last commit, when they are committed, and the containers of an entity that note them.

Every change of the entities happens within one callback of the event loop. A commit runs between two callbacks or at
the end of one, so the file always holds a state that the emulator had. The containers take the place of the usual
ones: nothing is added to the path of a message where no file is kept.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections import OrderedDict
from collections.abc import Callable, Sized
from pathlib import Path
from typing import Any, Final

from sbpair.emulator.entities.message_order import MessageStore
from sbpair.emulator.entities.stored_message import StoredMessage
from sbpair.emulator.storage import data_file
from sbpair.emulator.storage.data_file import checksum, write_message

logger = logging.getLogger(__name__)

COMMIT_SECONDS: Final = 0.5
"""The longest time between a change and its commit, without `durable`; and between attempts after one failed."""

MAX_CHANGES: Final = 2_000
"""Changed rows after which a commit does not wait longer, so that it takes milliseconds."""

CallLater = Callable[[float, Callable[[], object]], asyncio.TimerHandle]
Key = int | str

Value = StoredMessage | tuple[str, bytes]
"""A message, which may still change, or the fields and the content of a row."""

EntityRow = tuple[str, str, str, int]


class Changes:
    """The changes since the last commit.

    `on_failing` is called when a commit fails (True), and when one succeeds again (False).
    """

    def __init__(
        self, path: Path, db: sqlite3.Connection, call_later: CallLater, on_failing: Callable[[bool], None]
    ) -> None:
        self._path = path
        self._db = db
        self._call_later = call_later
        self._on_failing = on_failing
        self._contents: dict[int, tuple[Rows, Key, Value]] = {}
        self._entities: dict[str, Callable[[], EntityRow]] = {}
        self._gone_contents: list[tuple[int]] = []
        self._gone_entities: list[tuple[str]] = []
        self._last_row = self._last_stored_row = 0
        self._has_new = False
        self._timer: asyncio.TimerHandle | None = None
        self._failing = False

    def begin(self, last_row: int) -> None:
        """Forget what was noted until now: it is in the file, with rows up to this one."""
        self._last_row = last_row
        self._forget()

    def note(self, entity: str, row: Callable[[], EntityRow]) -> None:
        """Store the row of this entity with the next commit."""
        self._entities[entity] = row
        self._commit_later(self._entities)

    def put(self, rows: Rows, key: Key, value: Value) -> None:
        row = rows.get(key)
        if row is None:
            self._last_row += 1
            row = rows[key] = self._last_row
        self._contents[row] = (rows, key, value)
        self._commit_later(self._contents)

    def drop(self, row: int) -> None:
        self._contents.pop(row, None)
        if row <= self._last_stored_row:
            self._gone_contents.append((row,))
        self._commit_later(self._gone_contents)

    def delete(self, entity: str) -> None:
        self._entities.pop(entity, None)
        self._gone_entities.append((entity,))
        self._commit_later(self._gone_entities)

    def _commit_later(self, changed: Sized) -> None:
        self._has_new = True
        if self._timer is None:
            self._timer = self._call_later(COMMIT_SECONDS, self._on_timer)
        if len(changed) == MAX_CHANGES:
            self._call_later(0, self.commit)

    def _on_timer(self) -> None:
        self._timer = None
        if not self.commit(retry=True):
            self._timer = self._call_later(COMMIT_SECONDS, self._on_timer)

    def commit(self, *, retry: bool = False) -> bool:
        """Store all changes; return False if those since the last call cannot be stored, or with `retry` any."""
        if not self._has_new and not (retry and self._failing):
            return True
        self._has_new = False
        try:
            self.write()
        except sqlite3.Error as error:
            if not self._failing:
                text = "%s cannot be written: %s. Operations are refused until it can."
                logger.error(text, self._path, error)  # noqa: TRY400  # expected: a traceback says nothing more
                self._failing = True
                self._on_failing(True)
            return False
        if self._failing:
            logger.warning("%s can be written again.", self._path)
            self._failing = False
            self._on_failing(False)
        return True

    def end(self) -> None:
        """Store all changes, for the last time. Raises sqlite3.Error."""
        self._has_new = False
        if self._timer is not None:
            self._timer.cancel()
        self.write()

    def write(self) -> None:
        """Store all changes. Raises sqlite3.Error, and then keeps them."""
        with data_file.transaction(self._db):
            self._db.executemany("DELETE FROM contents WHERE id = ?", self._gone_contents)
            self._db.executemany("DELETE FROM entities WHERE id = ?", self._gone_entities)
            rows = (row() for row in self._entities.values())
            self._db.executemany("INSERT OR REPLACE INTO entities VALUES (?, ?, ?, ?)", rows)
            contents = (rows.row(row, key, value) for row, (rows, key, value) in self._contents.items())
            self._db.executemany("INSERT OR REPLACE INTO contents VALUES (?, ?, ?, ?, ?, ?, ?)", contents)
        self._forget()

    def _forget(self) -> None:
        self._last_stored_row = self._last_row
        for changed in (self._gone_contents, self._gone_entities, self._entities, self._contents):
            changed.clear()


class Rows(dict[Key, int]):
    """The rows of one part of an entity: messages by number, session states by session, seen ids of messages."""

    def __init__(self, changes: Changes, entity: str, part: str) -> None:
        super().__init__()
        self._changes = changes
        self._place = (entity, part)

    def put(self, key: Key, value: Value) -> None:
        self._changes.put(self, key, value)

    def drop(self, key: Key) -> None:
        if key in self:
            self._changes.drop(self.pop(key))

    def row(self, row: int, key: Key, value: Value) -> tuple[Any, ...]:
        fields, content = value if isinstance(value, tuple) else write_message(value)
        return (row, *self._place, key, fields, content, checksum(*self._place, key, fields, content))


class RecordedStore(MessageStore):
    """The messages of a sub-queue, and its session states."""

    __slots__ = ("_note", "_rows", "_sessions")

    def __init__(self, rows: Rows, sessions: Rows, note: Callable[[], None]) -> None:
        super().__init__()
        self._rows = rows
        self._sessions = sessions
        self._note = note

    def add(self, message: StoredMessage) -> None:
        super().add(message)
        self._rows.put(message.sequence_number, message)

    def remove(self, sequence: int) -> None:
        super().remove(sequence)
        self._rows.drop(sequence)

    def changed(self, message: StoredMessage) -> None:
        self._rows.put(message.sequence_number, message)

    def numbered(self) -> None:
        self._note()

    def session_changed(self, session_id: str, state: bytes | None, changed_ms: int) -> None:
        # The time of a state that was removed is not kept: nothing would ever end it.
        if state is None:
            self._sessions.drop(session_id)
        else:
            self._sessions.put(session_id, (str(changed_ms), state))


class RecordedHistory(OrderedDict[str, tuple[int, int]]):
    """The message ids that an entity has seen, each with its time and its sequence number."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        super().__init__()

    def __setitem__(self, message_id: str, seen: tuple[int, int]) -> None:
        super().__setitem__(message_id, seen)
        self._rows.put(message_id, (f"{seen[0]} {seen[1]}", b""))

    def popitem(self, last: bool = True) -> tuple[str, tuple[int, int]]:
        message_id, seen = super().popitem(last)
        self._rows.drop(message_id)
        return message_id, seen
