"""The way from a file back to namespaces: first the clock, then the entities, then what is in them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sbpair.emulator.entities.sessions import SessionMessages
from sbpair.emulator.storage.documents import MessageRow, decode, read_description, read_keys, read_message, read_rule
from sbpair.emulator.storage.recorded import TRANSFER_DEAD_LETTERS

if TYPE_CHECKING:
    import sqlite3

    from sbpair.emulator.clock import Clock
    from sbpair.emulator.entities.namespace import Namespace
    from sbpair.emulator.entities.queue import QueueEntity
    from sbpair.emulator.entities.stored_message import StoredMessage
    from sbpair.emulator.storage.change_log import ChangeLog
    from sbpair.emulator.storage.recorded import EntityRecord, Observer, SubQueueRecord


def restore(db: sqlite3.Connection, observers: Mapping[str, Observer], log: ChangeLog, clock: Clock) -> None:
    """Restore all that is in the file."""
    [[latest_ms]] = db.execute("SELECT max(now_ms, (SELECT coalesce(max(accessed_at_ms), 0) FROM stores)) FROM clock")
    clock.advance(max(0, latest_ms - clock.now_ms()))
    for name, text in db.execute("SELECT name, document FROM namespaces"):
        document = decode(text)
        observers[name].namespace.created_at_ms = document["created_at_ms"]
        observers[name].namespace.keys = read_keys(document["keys"])
    entities: dict[int, EntityRecord] = {}
    # In the order in which they were created: a topic is before its subscriptions.
    for identity, name, text in db.execute("SELECT id, namespace, document FROM entities ORDER BY id"):
        entity = _create(observers[name].namespace, decode(text))
        entities[identity] = observers[name].adopt(entity, identity)
    stores: dict[int, SubQueueRecord] = {}
    for identity, owner, part, numbers, accessed_at_ms, read_at_ms in db.execute("SELECT * FROM stores ORDER BY id"):
        store = stores[identity] = entities[owner].add_part(part, identity)
        store.numbers[:] = decode(numbers)
        store.messages.accessed_at_ms, store.messages.read_at_ms = accessed_at_ms, read_at_ms
    _restore_messages(db, stores, log)
    for identity, session_id, state, changed_at_ms in db.execute("SELECT * FROM sessions"):
        messages = stores[identity].messages
        if isinstance(messages, SessionMessages):
            messages.restore_state(session_id, state, changed_at_ms)
    for owner, message_id, at_ms, number in db.execute("SELECT * FROM duplicates ORDER BY at_ms"):
        entities[owner].history.history[message_id] = (at_ms, number)


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
    for row in map(MessageRow._make, db.execute("SELECT * FROM messages")):
        message = read_message(row)
        found[row.store].append(message)
        stores[row.store].store.rows[message.sequence_number] = log.numbered("row", row.id)
    for store, messages in found.items():
        messages.sort(key=lambda message: message.sequence_number)
        record, highest = stores[store], messages[-1].sequence_number
        # Files of earlier versions do not have the last number of these.
        if record.part == TRANSFER_DEAD_LETTERS and record.numbers[0] < highest:
            record.numbers[0] = highest
        record.messages.restore(messages)
