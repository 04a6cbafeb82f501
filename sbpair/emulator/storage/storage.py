"""The storage of an emulator: it restores namespaces from a file, and then stores all that changes in them.

Every change of the entities happens within one callback of the event loop. A commit runs between two callbacks or at
the end of one, so the file always holds a state that the emulator had. Containers that note what changes in an entity
take the place of the usual ones: nothing is added to the path of a message where no file is kept.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from contextlib import closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from sbpair.emulator.entities.description import SubscriptionDescription, TopicDescription
from sbpair.emulator.entities.message_order import MessageStore
from sbpair.emulator.entities.queue import SUBSCRIPTIONS_SEGMENT, EntityObserver
from sbpair.emulator.entities.stored_message import StoredMessage
from sbpair.emulator.entities.topic import SubscriptionEntity, TopicEntity
from sbpair.emulator.storage import data_file
from sbpair.emulator.storage.data_file import checksum, decode, encode, read_message, write_message
from sbpair.errors import SbpairError

if TYPE_CHECKING:
    from pathlib import Path

    from sbpair.emulator.clock import Clock
    from sbpair.emulator.entities.namespace import Namespace
    from sbpair.emulator.entities.queue import QueueEntity
    from sbpair.emulator.entities.sessions import SessionMessages
    from sbpair.emulator.entities.subqueue import SubQueue

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

SUB_QUEUES: Final = ("messages", "dead_letters", "transfer_dead_letters")
"""The sub-queues of each entity. Others are named after the destination of a transfer, behind TRANSFER."""

TRANSFER: Final = "transfer "
SESSIONS: Final = "sessions"
SEEN: Final = "seen"
Requested = tuple[int, str, int]
"""The port, the tier and the partitions of a namespace."""

UNREADABLE: Final = (LookupError, TypeError, ValueError, AttributeError, OverflowError, SbpairError)
"""The errors of reading a row whose content is not the expected one."""


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


class EntityRecord:
    """An entity, its sub-queues with their last numbers and times of use, and the rows of what is in it."""

    def __init__(self, changes: Changes, entity: QueueEntity) -> None:
        self.id = f"{entity.namespace.name}/{entity.path}"
        self.rows: dict[str, Rows] = {}
        self.sub_queues: dict[str, SubQueue] = {}
        self._changes = changes
        self._entity = entity
        self._document: str | None = None
        self.history = RecordedHistory(self._add_rows(SEEN))
        entity.keep_history_in(self.history)
        self._add_rows(SESSIONS)
        for part in SUB_QUEUES:
            self._add(part, getattr(entity, part))

    def _add_rows(self, part: str) -> Rows:
        rows = self.rows[part] = Rows(self._changes, self.id, part)
        return rows

    def add_transfer(self, destination: str) -> None:
        self._add(TRANSFER + destination, self._entity.transfers_to(destination))

    def _add(self, part: str, messages: SubQueue) -> None:
        """Record a sub-queue, which is still empty."""
        messages.keep_in(RecordedStore(self._add_rows(part), self.rows[SESSIONS], self.note))
        self.sub_queues[part] = messages

    def note(self) -> None:
        self._changes.note(self.id, self._row)

    def described(self) -> None:
        """Store the present description."""
        self._document = None
        self.note()

    def delete(self) -> None:
        self._changes.delete(self.id)
        for rows in self.rows.values():
            for row in rows.values():
                self._changes.drop(row)

    def _row(self) -> EntityRow:
        entity = self._entity
        if self._document is None:
            times = {"created_at_ms": entity.created_at_ms, "updated_at_ms": entity.updated_at_ms}
            rules = {"rules": entity.rules} if isinstance(entity, SubscriptionEntity) else {}
            self._document = encode({"description": entity.description, **times, **rules})
        state = {
            name: (each.last_numbers, each.accessed_at_ms, each.read_at_ms) for name, each in self.sub_queues.items()
        }
        return self.id, self._document, encode(state), entity.namespace.clock.now_ms()

    def restore(self, state: dict[str, Any]) -> None:
        """Restore last numbers and times."""
        for part, (numbers, accessed_at_ms, read_at_ms) in state.items():
            if part.startswith(TRANSFER):
                self.add_transfer(part.removeprefix(TRANSFER))
            messages = self.sub_queues[part]
            messages.last_numbers[:] = numbers
            messages.accessed_at_ms, messages.read_at_ms = accessed_at_ms, read_at_ms


class Storage(EntityObserver):
    """The file of an emulator, and the observer of its entities. With `durable`, it stores before clients are answered.

    `requested` are the namespaces to start; `ports` has the port that each had. Raises StateRefused for a file that is
    broken, of another kind or version, or of other namespaces; MachineLacks for one that cannot be read or written.
    """

    def __init__(self, path: Path, requested: Mapping[str, Requested], *, durable: bool = False) -> None:
        self._path = path
        self._durable = durable
        self._changes: Changes | None = None
        self._namespaces: Mapping[str, Namespace] = {}
        self._records: dict[QueueEntity, EntityRecord] = {}
        self.ports: dict[str, int] = {}
        self._db = data_file.open_file(path)
        try:
            self._check_namespaces(requested)
        except BaseException:
            self._db.close()
            raise

    def _check_namespaces(self, requested: Mapping[str, Requested]) -> None:
        saved: dict[str, Requested] = {}
        with self._rows("namespace", "SELECT id, document FROM entities WHERE id NOT LIKE '%/%'") as rows:
            for name, text in rows:
                document = decode(text)
                saved[name] = (document["port"], document["tier"], document["partitions"])
        self.ports = {name: port for name, (port, *_) in saved.items()}
        wanted = {name: (self.ports.get(name, port), tier, count) for name, (port, tier, count) in requested.items()}
        if saved and saved != wanted:
            raise data_file.of_others(self._path, _options(saved), _options(wanted))

    # Restore

    def start(self, namespaces: Mapping[str, Namespace], ports: Sequence[int], clock: Clock, later: CallLater) -> None:
        """Restore the namespaces, and store all that changes in them from now on."""
        self._namespaces = namespaces
        self.ports = dict(zip(namespaces, ports, strict=True))
        changes = Changes(self._path, self._db, later, self._on_failing)
        changes.begin(self._restore(changes, clock))
        self._changes = changes
        for namespace in namespaces.values():
            namespace.observer = self
            if self._durable:
                namespace.store_changes = self._store_changes
        self.namespace_changed()
        for namespace in namespaces.values():
            namespace.resume()
        with data_file.errors(self._path):
            changes.write()

    def _restore(self, changes: Changes, clock: Clock) -> int:
        """Restore all that is in the file; return the last row of contents."""
        with self._rows("time", "SELECT max(at_ms) FROM entities") as [[at_ms]]:
            clock.advance(max(0, (at_ms or 0) - clock.now_ms()))
        records: dict[str, EntityRecord] = {}
        # By name: a namespace comes before its entities, and a topic before its subscriptions.
        with self._rows("entity", "SELECT id, document, state FROM entities ORDER BY id") as rows:
            for identity, text, state in rows:
                name, _, path = identity.partition("/")
                document = decode(text)
                if not path:
                    _restore_namespace(self._namespaces[name], document)
                    continue
                entity = _restore_entity(self._namespaces[name], path, document)
                record = self._records[entity] = records[identity] = EntityRecord(changes, entity)
                record.restore(decode(state))
        messages: dict[SubQueue, list[StoredMessage]] = defaultdict(list)
        row = 0
        with self._rows("row", "SELECT * FROM contents ORDER BY id") as rows:
            for row, identity, part, key, fields, content, check in rows:
                record = records[identity]
                record.rows[part][key] = row
                if check != checksum(identity, part, key, fields, content):
                    raise ValueError
                if part == SEEN:
                    at_ms, number = map(int, fields.split())
                    record.history[key] = (at_ms, number)
                elif part == SESSIONS:
                    sessions = cast("SessionMessages", record.sub_queues["messages"])
                    sessions.restore_state(key, content, int(fields))
                else:
                    messages[record.sub_queues[part]].append(read_message(key, fields, content))
        for sub_queue, found in messages.items():
            sub_queue.restore(sorted(found, key=lambda message: message.sequence_number))
        return row

    @contextmanager
    def _rows(self, kind: str, query: str) -> Iterator[Iterator[tuple[Any, ...]]]:
        """Yield the rows of a query. Raises StateRefused with the first column of a row that the block cannot read."""
        row: tuple[Any, ...] = ("",)

        def rows(found: sqlite3.Cursor) -> Iterator[tuple[Any, ...]]:
            nonlocal row
            for row in found:  # noqa: UP028  # `yield from` would not set it
                yield row

        # A cursor that is left open would keep the file open and locked.
        with data_file.errors(self._path), closing(self._db.execute(query)) as found:
            try:
                yield rows(found)
            except UNREADABLE as error:
                raise data_file.broken(self._path, f"{kind} {row[0]} is not as it was written") from error

    # EntityObserver

    def created(self, entity: QueueEntity) -> None:
        assert self._changes is not None  # noqa: S101  # it observes since then
        self._records[entity] = EntityRecord(self._changes, entity)
        self._records[entity].note()

    def changed(self, entity: QueueEntity) -> None:
        # An entity that is being created is noted once it is complete.
        if entity in self._records:
            self._records[entity].described()

    def transfer_begun(self, entity: QueueEntity, destination: str) -> None:
        self._records[entity].add_transfer(destination)

    def deleted(self, entity: QueueEntity) -> None:
        subscriptions = entity.subscriptions if isinstance(entity, TopicEntity) else ()
        for each in (entity, *subscriptions):
            self._records.pop(each).delete()

    def namespace_changed(self) -> None:
        """Store the namespaces, and the time: the next emulator's clock continues from there."""
        if self._changes is not None:
            for name, namespace in self._namespaces.items():
                self._changes.note(name, partial(_namespace_row, namespace, self.ports[name]))

    # Commit

    def close(self) -> None:
        """Store what is left, times of use too, and close the file. Raises MachineLacks if it cannot be stored."""
        try:
            if self._changes is not None:
                self.namespace_changed()
                for record in self._records.values():
                    record.note()
                with data_file.errors(self._path):
                    self._changes.end()
        finally:
            self._db.close()

    def _store_changes(self) -> bool:
        """Store all changes. If that fails, break all connections: nothing may be acknowledged that waits for it."""
        if self._changes is None or self._changes.commit():
            return True
        for namespace in self._namespaces.values():
            for connection in list(namespace.fault_points.connections):
                connection.abort()
        return False

    def _on_failing(self, failing: bool) -> None:
        """Refuse operations while the file cannot be written."""
        for namespace in self._namespaces.values():
            namespace.fault_points.set_unwritable(failing)


def _namespace_row(namespace: Namespace, port: int) -> EntityRow:
    names = ("path", "description", "created_at_ms", "updated_at_ms")
    document = {
        "tier": namespace.tier.name.lower(),
        "partitions": namespace.partitions,
        "port": port,
        "created_at_ms": namespace.created_at_ms,
        "keys": namespace.keys,
        "relays": [{name: getattr(each, name) for name in names} for each in namespace.hybrid_connections.all()],
    }
    return namespace.name, encode(document), "{}", namespace.clock.now_ms()


def _restore_namespace(namespace: Namespace, document: dict[str, Any]) -> None:
    namespace.created_at_ms, namespace.keys = document["created_at_ms"], tuple(document["keys"])
    for each in document["relays"]:
        relay = namespace.hybrid_connections.create(each["path"], each["description"])
        relay.created_at_ms, relay.updated_at_ms = each["created_at_ms"], each["updated_at_ms"]


def _restore_entity(namespace: Namespace, path: str, document: dict[str, Any]) -> QueueEntity:
    description = document["description"]
    entity: QueueEntity
    if isinstance(description, SubscriptionDescription):
        topic, _, name = path.rpartition(f"/{SUBSCRIPTIONS_SEGMENT}/")
        entity = subscription = namespace.topic(topic).create_subscription(name, description)
        subscription.set_rules(document["rules"])
    elif isinstance(description, TopicDescription):
        entity = namespace.create_topic(path, description)
    else:
        entity = namespace.create_queue(path, description)
    entity.created_at_ms, entity.updated_at_ms = document["created_at_ms"], document["updated_at_ms"]
    return entity


def _options(namespaces: Mapping[str, Requested]) -> list[str]:
    """Return namespaces as values of --namespace."""
    return [
        f"{name}={port},{tier}" + (f",{partitions}" if partitions > 1 else "")
        for name, (port, tier, partitions) in namespaces.items()
    ]
