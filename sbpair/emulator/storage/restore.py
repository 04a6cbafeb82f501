"""The way from a file back to namespaces: first the clock, then the entities, then what is in them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from sbpair.emulator.entities.sessions import SessionMessages
from sbpair.emulator.storage.documents import (
    MessageRow,
    decode,
    read_description,
    read_keys,
    read_message,
    read_rule,
    restore_hybrid_connection,
)
from sbpair.emulator.storage.recorded import PARTS, TRANSFER, TRANSFER_DEAD_LETTERS
from sbpair.emulator.storage.unreadable import UNREADABLE, RowUnreadable, row, unreadable

if TYPE_CHECKING:
    import sqlite3

    from sbpair.emulator.clock import Clock
    from sbpair.emulator.entities.namespace import Namespace
    from sbpair.emulator.entities.queue import QueueEntity
    from sbpair.emulator.entities.stored_message import StoredMessage
    from sbpair.emulator.storage.change_log import ChangeLog
    from sbpair.emulator.storage.recorded import EntityRecord, Observer, SubQueueRecord

T = TypeVar("T")


def restore(db: sqlite3.Connection, observers: Mapping[str, Observer], log: ChangeLog, clock: Clock) -> None:
    """Restore all that is in the file. Raises RowUnreadable."""
    with row("clock"):
        _restore_clock(db, clock)
    for name, text in db.execute("SELECT name, document FROM namespaces"):
        with row(f"namespace '{name}'"):
            document = decode(text)
            observers[name].namespace.created_at_ms = document["created_at_ms"]
            observers[name].namespace.keys = read_keys(document["keys"])
            for each in document.get("hybrid_connections", ()):
                restore_hybrid_connection(observers[name].namespace.hybrid_connections, each)
    entities: dict[int, EntityRecord] = {}
    # In the order in which they were created: a topic is before its subscriptions.
    for identity, name, text in db.execute("SELECT id, namespace, document FROM entities ORDER BY id"):
        with row(f"entity {identity}"):
            observer = _named(observers, name, "namespace")
            entities[identity] = observer.adopt(_create(observer.namespace, decode(text)), identity)
    stores: dict[int, SubQueueRecord] = {}
    for identity, owner, part, numbers, accessed_at_ms, read_at_ms in db.execute("SELECT * FROM stores ORDER BY id"):
        with row(f"store {identity}"):
            store = stores[identity] = _add_part(_named(entities, owner, "entity"), part, identity)
            store.numbers[:] = decode(numbers)
            store.messages.accessed_at_ms, store.messages.read_at_ms = accessed_at_ms, read_at_ms
    _restore_messages(db, stores, log)
    for identity, session_id, state, changed_at_ms in db.execute("SELECT * FROM sessions"):
        with row(f"session '{session_id}'"):
            messages = _named(stores, identity, "store").messages
            if isinstance(messages, SessionMessages):
                messages.restore_state(session_id, state, changed_at_ms)
    for owner, message_id, at_ms, number in db.execute("SELECT * FROM duplicates ORDER BY at_ms"):
        if owner not in entities:
            raise RowUnreadable(f"duplicate '{message_id}': entity {owner} is missing")
        entities[owner].history.history[message_id] = (at_ms, number)


def _restore_clock(db: sqlite3.Connection, clock: Clock) -> None:
    times = db.execute(
        "SELECT max(now_ms, (SELECT coalesce(max(accessed_at_ms), 0) FROM stores)) FROM clock"
    ).fetchall()
    if len(times) != 1:
        raise RowUnreadable(f"expected one time, found {len(times)}")
    clock.advance(max(0, times[0][0] - clock.now_ms()))


def _named(found: Mapping[Any, T], key: object, kind: str) -> T:
    """Return what a row refers to. Raises RowUnreadable if the file does not have it."""
    if key not in found:
        raise RowUnreadable(f"{kind} {key} is missing")
    return found[key]


def _add_part(entity: EntityRecord, part: str, identity: int) -> SubQueueRecord:
    if part not in PARTS and not part.startswith(TRANSFER):
        raise RowUnreadable(f"unknown part '{part}'")
    return entity.add_part(part, identity)


def _create(namespace: Namespace, document: Any) -> QueueEntity:
    description = read_description(document)
    entity: QueueEntity
    if document["kind"] == "subscription":
        subscription = namespace.topic(document["topic"]).create_subscription(document["name"], description)
        subscription.set_rules(read_rule(each) for each in document["rules"])
        entity = subscription
    elif document["kind"] == "topic":
        entity = namespace.create_topic(document["path"], description)
    else:
        entity = namespace.create_queue(document["path"], description)
    entity.created_at_ms, entity.updated_at_ms = document["created_at_ms"], document["updated_at_ms"]
    return entity


def _restore_messages(db: sqlite3.Connection, stores: Mapping[int, SubQueueRecord], log: ChangeLog) -> None:
    found: dict[int, list[StoredMessage]] = defaultdict(list)
    for each in map(MessageRow._make, db.execute("SELECT * FROM messages")):
        # A context manager for each message would cost a tenth of the time.
        try:
            message = read_message(each)
            found[each.store].append(message)
            _named(stores, each.store, "store").store.rows[message.sequence_number] = log.numbered("row", each.id)
        except UNREADABLE as error:
            raise unreadable(f"message {each.id}", error) from error
    for store, messages in found.items():
        messages.sort(key=lambda message: message.sequence_number)
        record, highest = stores[store], messages[-1].sequence_number
        # Files of earlier versions do not have the last number of these.
        if record.part == TRANSFER_DEAD_LETTERS and record.numbers[0] < highest:
            record.numbers[0] = highest
        record.messages.restore(messages)
