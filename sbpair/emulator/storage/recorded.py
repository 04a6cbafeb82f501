"""Containers of an entity that note what changes in them. They take the place of the usual ones.

Invariant: nothing is added to the path of a message where no file is kept, since nothing here is used there.
"""

from __future__ import annotations

import sqlite3
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from sbpair.emulator.entities.message_order import Locks, MessageStore
from sbpair.emulator.entities.observer import EntityObserver
from sbpair.emulator.entities.topic import TopicEntity
from sbpair.emulator.storage.change_log import MAX_CHANGES, ChangeLog
from sbpair.emulator.storage.documents import (
    Document,
    encode,
    entity_document,
    keys_document,
    message_row,
    relay_document,
)

if TYPE_CHECKING:
    from sbpair.emulator.entities.namespace import Namespace
    from sbpair.emulator.entities.queue import QueueEntity
    from sbpair.emulator.entities.sessions import SessionState
    from sbpair.emulator.entities.stored_message import StoredMessage
    from sbpair.emulator.entities.subqueue import SubQueue

TRANSFER_DEAD_LETTERS: Final = "transfer_dead_letters"
PARTS: Final = ("messages", "dead_letters", TRANSFER_DEAD_LETTERS)
"""The parts of each entity. Others are named after the destination of a transfer, behind TRANSFER."""

TRANSFER: Final = "transfer "


class RecordedStore(MessageStore):
    """The messages of a sub-queue, and its session states. `rows` has the row of each message that is in the file."""

    __slots__ = ("_changes", "_log", "_rows_to_come", "_sessions", "identity", "rows")

    def __init__(self, log: ChangeLog, identity: int) -> None:
        super().__init__()
        self.identity = identity
        self.rows: dict[int, int] = {}
        self._log = log
        self._changes: dict[int, StoredMessage | None] = {}
        self._rows_to_come: dict[int, int] = {}
        self._sessions: dict[str, SessionState] = {}

    def add(self, message: StoredMessage) -> None:
        super().add(message)
        self.changed(message)

    def remove(self, sequence: int) -> None:
        super().remove(sequence)
        if sequence in self.rows:
            self._changes[sequence] = None
            self._note()
        else:
            # Sent and settled since the last commit: the file never has it.
            self._changes.pop(sequence, None)

    def changed(self, message: StoredMessage) -> None:
        self._changes[message.sequence_number] = message
        self._note()

    def session_changed(self, session: SessionState) -> None:
        self._sessions[session.id] = session
        self._note()

    def _note(self) -> None:
        if len(self._changes) == MAX_CHANGES:
            self._log.hurry()
        self._log.note(self)

    def write(self, db: sqlite3.Connection) -> None:
        changes, rows = self._changes, self.rows
        gone = [(rows[sequence],) for sequence, message in changes.items() if message is None]
        if gone:
            db.executemany("DELETE FROM messages WHERE id = ?", gone)
        self._rows_to_come = {
            sequence: rows.get(sequence) or self._log.numbered("row")
            for sequence, message in changes.items()
            if message is not None
        }
        stored = [
            message_row(self._rows_to_come[sequence], self.identity, message)
            for sequence, message in changes.items()
            if message is not None
        ]
        if stored:
            db.executemany("INSERT OR REPLACE INTO messages VALUES (?, ?, ?, ?, ?, ?)", stored)
        for session in self._sessions.values():
            # The time of a state that was removed is not kept: nothing would ever end it.
            db.execute("DELETE FROM sessions WHERE store = ? AND id = ?", (self.identity, session.id))
            if session.state is not None:
                values = (self.identity, session.id, session.state, session.state_changed_ms)
                db.execute("INSERT INTO sessions VALUES (?, ?, ?, ?)", values)

    def forget(self) -> None:
        for sequence, message in self._changes.items():
            if message is None:
                del self.rows[sequence]
        self.rows |= self._rows_to_come
        self._changes, self._rows_to_come = {}, {}
        self._sessions.clear()


class RecordedLocks(Locks):
    """Locks that note each message whose lock ends: its delivery count or its state may have changed."""

    __slots__ = ("_store",)

    def __init__(self, lock_ms: int, store: RecordedStore) -> None:
        super().__init__(lock_ms)
        self._store = store

    def pop(self, token: bytes) -> StoredMessage:
        message = super().pop(token)
        self._store.changed(message)
        return message

    def pop_expired(self, now_ms: int) -> list[StoredMessage]:
        expired = super().pop_expired(now_ms)
        for message in expired:
            self._store.changed(message)
        return expired


class NotedNumbers(list[int]):
    """The last sequence numbers of a sub-queue. `note` is called when one is set."""

    def __init__(self, note: Callable[[], None]) -> None:
        super().__init__()
        self._note = note

    def __setitem__(self, index: Any, value: Any) -> None:
        super().__setitem__(index, value)
        self._note()


class SubQueueRecord:
    """A sub-queue: its last sequence numbers, none of which is used twice, its times of use, and its messages."""

    def __init__(self, log: ChangeLog, identity: int, entity: EntityRecord, part: str, messages: SubQueue) -> None:
        self.messages = messages
        self.part = part
        self.numbers = NotedNumbers(self.note)
        self.store = RecordedStore(log, identity)
        self._log = log
        self._place = (entity.identity, part)
        messages.keep_in(self.store, RecordedLocks(messages.lock_ms, self.store), self.numbers)

    def note(self) -> None:
        self._log.note(self)

    def write(self, db: sqlite3.Connection) -> None:
        times = (self.messages.accessed_at_ms, self.messages.read_at_ms)
        values = (self.store.identity, *self._place, encode(self.numbers), *times)
        db.execute("INSERT OR REPLACE INTO stores VALUES (?, ?, ?, ?, ?, ?)", values)

    def forget(self) -> None:
        """Do nothing: all of a row is written each time."""

    def delete(self, db: sqlite3.Connection) -> None:
        """Delete all that the file has of it."""
        identity = (self.store.identity,)
        db.execute("DELETE FROM stores WHERE id = ?", identity)
        db.execute("DELETE FROM sessions WHERE store = ?", identity)
        db.executemany("DELETE FROM messages WHERE id = ?", [(row,) for row in self.store.rows.values()])


class NotedHistory(OrderedDict[str, tuple[int, int]]):
    """The message ids that an entity has seen. `note` is called with each id that is added, or dropped (None)."""

    def __init__(self, note: Callable[[str, tuple[int, int] | None], None]) -> None:
        self._note = note
        super().__init__()

    def __setitem__(self, message_id: str, seen: tuple[int, int]) -> None:
        super().__setitem__(message_id, seen)
        self._note(message_id, seen)

    def popitem(self, last: bool = True) -> tuple[str, tuple[int, int]]:
        message_id, seen = super().popitem(last)
        self._note(message_id, None)
        return message_id, seen


class HistoryRecord:
    """The message ids that an entity has seen, each with its time and its sequence number."""

    def __init__(self, log: ChangeLog, entity: int) -> None:
        self.history = NotedHistory(self._note)
        self._log = log
        self._entity = entity
        self._changes: dict[str, tuple[int, int] | None] = {}

    def _note(self, message_id: str, seen: tuple[int, int] | None) -> None:
        self._changes[message_id] = seen
        self._log.note(self)

    def write(self, db: sqlite3.Connection) -> None:
        gone = [(self._entity, message_id) for message_id, seen in self._changes.items() if seen is None]
        db.executemany("DELETE FROM duplicates WHERE entity = ? AND message_id = ?", gone)
        new = [(self._entity, message_id, *seen) for message_id, seen in self._changes.items() if seen is not None]
        db.executemany("INSERT OR REPLACE INTO duplicates VALUES (?, ?, ?, ?)", new)

    def forget(self) -> None:
        self._changes.clear()


class EntityRecord:
    """An entity, the parts of it that hold messages, and its duplicate detection."""

    def __init__(self, log: ChangeLog, identity: int, entity: QueueEntity) -> None:
        self.identity = identity
        self.parts: list[SubQueueRecord] = []
        self.history = HistoryRecord(log, identity)
        self._entity = entity
        self._log = log
        self._is_deleted = False
        entity.keep_history_in(self.history.history)

    def add_part(self, part: str, identity: int | None = None) -> SubQueueRecord:
        """Record a part that is still empty, under this number or a new one."""
        entity = self._entity
        is_transfer = part.startswith(TRANSFER)
        messages = entity.transfers_to(part.removeprefix(TRANSFER)) if is_transfer else getattr(entity, part)
        record = SubQueueRecord(self._log, self._log.numbered("store", identity), self, part, messages)
        self.parts.append(record)
        return record

    def delete(self) -> None:
        self._is_deleted = True
        for part in self.parts:
            self._log.drop(part, part.store)
        self._log.drop(self.history)
        self._log.note(self)

    def write(self, db: sqlite3.Connection) -> None:
        if not self._is_deleted:
            values = (self.identity, self._entity.namespace.name, entity_document(self._entity))
            db.execute("INSERT OR REPLACE INTO entities VALUES (?, ?, ?)", values)
            return
        db.execute("DELETE FROM entities WHERE id = ?", (self.identity,))
        db.execute("DELETE FROM duplicates WHERE entity = ?", (self.identity,))
        for part in self.parts:
            part.delete(db)

    def forget(self) -> None:
        """Do nothing: all of an entity is written each time."""


class Observer(EntityObserver):
    """The observer of one namespace, and the record of what it has beside entities. `port` is its port."""

    def __init__(self, log: ChangeLog, namespace: Namespace, port: int) -> None:
        self.namespace = namespace
        self._port = port
        self._log = log
        self._records: dict[QueueEntity, EntityRecord] = {}

    def adopt(self, entity: QueueEntity, identity: int | None = None) -> EntityRecord:
        """Record an entity, under this number or a new one."""
        record = EntityRecord(self._log, self._log.numbered("entity", identity), entity)
        self._records[entity] = record
        return record

    def created(self, entity: QueueEntity) -> None:
        record = self.adopt(entity)
        self._log.note(record)
        for part in PARTS:
            record.add_part(part).note()

    def changed(self, entity: QueueEntity) -> None:
        # An entity that is being created is noted once it is complete.
        if entity in self._records:
            self._log.note(self._records[entity])

    def transfer_begun(self, entity: QueueEntity, destination: str) -> None:
        self._records[entity].add_part(TRANSFER + destination).note()

    def deleted(self, entity: QueueEntity) -> None:
        subscriptions = entity.subscriptions if isinstance(entity, TopicEntity) else ()
        for each in (entity, *subscriptions):
            self._records.pop(each).delete()

    def keys_changed(self) -> None:
        self._log.note(self)

    def relay_changed(self) -> None:
        self._log.note(self)

    def resume_forwarding(self) -> None:
        """Forward what waits, now that all entities are there."""
        for entity in list(self._records):
            entity.resume_forwarding()

    def note_times(self) -> None:
        """Store the times of the last use of each entity."""
        for record in self._records.values():
            for part in record.parts:
                part.note()

    def write(self, db: sqlite3.Connection) -> None:
        namespace = self.namespace
        described: Document = {
            "tier": namespace.tier.name.lower(),
            "partitions": namespace.partitions,
            "port": self._port,
            "created_at_ms": namespace.created_at_ms,
            "keys": keys_document(namespace.keys),
        }
        if namespace.hybrid_connections:
            described["hybrid_connections"] = [relay_document(each) for each in namespace.hybrid_connections.all()]
        document = encode(described)
        db.execute("INSERT OR REPLACE INTO namespaces VALUES (?, ?)", (namespace.name, document))

    def forget(self) -> None:
        """Do nothing: all of a namespace is written each time."""
