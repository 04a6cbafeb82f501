"""Entities, keys and messages in the form in which they are stored, and back. Pure.

Fields that have their defaults are left out of a message, so that a field can be added without a new version of the
file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from functools import lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from zlib import crc32

from sbpair.amqp.message import Sections
from sbpair.emulator.access.sas import AccessRight, AuthorizationRule
from sbpair.emulator.entities import rules
from sbpair.emulator.entities.description import QueueDescription, SubscriptionDescription, TopicDescription
from sbpair.emulator.entities.rules import read_typed
from sbpair.emulator.entities.stored_message import (
    ACTIVE,
    DEFERRED,
    SCHEDULED,
    DeadLetterReason,
    ForwardedMessage,
    StoredMessage,
)
from sbpair.emulator.entities.topic import SubscriptionEntity, TopicEntity
from sbpair.emulator.relay.hybrid_connection import HybridConnectionDescription
from sbpair.emulator.storage.unreadable import RowUnreadable

if TYPE_CHECKING:
    from sbpair.emulator.entities.queue import QueueEntity
    from sbpair.emulator.relay.hybrid_connection import HybridConnection, HybridConnections

Document = dict[str, Any]
encode = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
decode = json.loads

# Messages

_NOT_IN_FIELDS: Final = frozenset({"content", "sequence_number", "lock_token", "locked_until_ms", "state"})
"""A lock ends with the emulator: then the message can be received again."""

_FORWARDED: Final = ("enqueued_sequence_number", "hops")
_FIELDS: Final = (*(each.name for each in fields(StoredMessage) if each.name not in _NOT_IN_FIELDS), *_FORWARDED)
_values_of = attrgetter(*_FIELDS)
_DEFAULTS: Final = _values_of(StoredMessage(b"", 0))
_IS_SCHEDULED: Final = "is_scheduled"
_IS_SPLIT: Final = "is_split"


class MessageRow(NamedTuple):
    """A row of the table `messages`. The checksum is of number, fields and content."""

    id: int
    store: int
    sequence_number: int
    fields: str
    content: bytes
    checksum: int


def message_row(row: int, store: int, message: StoredMessage) -> MessageRow:
    content, number = message.content, message.sequence_number
    is_split = isinstance(content, Sections)
    text = _fields_text(_values_of(message), is_split, message.state == SCHEDULED)
    if isinstance(content, Sections):
        content = content.join()
    return MessageRow(row, store, number, text, content, _checksum(number, text, content))


@lru_cache(1024)
def _fields_text(values: tuple[Any, ...], is_split: bool, is_scheduled: bool) -> str:
    """Return the fields as JSON. Messages that are sent together mostly have the same."""
    named = zip(_FIELDS, values, _DEFAULTS, strict=True)
    stored: Document = {name: value for name, value, default in named if value != default}
    flags = {_IS_SPLIT: is_split, _IS_SCHEDULED: is_scheduled}
    return encode(stored | {name: True for name, is_set in flags.items() if is_set})


def read_message(row: MessageRow) -> StoredMessage:
    """Return the message of a row, without a lock. Raises RowUnreadable if the checksum differs."""
    if row.checksum != _checksum(row.sequence_number, row.fields, row.content):
        raise RowUnreadable("the checksum is wrong")
    stored = decode(row.fields)
    is_scheduled = stored.pop(_IS_SCHEDULED, False)
    content = Sections.split(row.content) if stored.pop(_IS_SPLIT, False) else row.content
    message = StoredMessage(content, 0)
    if any(name in stored for name in _FORWARDED):
        message = ForwardedMessage(content, 0)
        stored = dict.fromkeys(_FORWARDED, 0) | stored
    if "dead_letter" in stored:
        stored["dead_letter"] = DeadLetterReason(*stored["dead_letter"])
    for name, value in stored.items():
        setattr(message, name, value)
    message.sequence_number = row.sequence_number
    message.state = SCHEDULED if is_scheduled else DEFERRED if message.reported_state == DEFERRED else ACTIVE
    return message


def _checksum(number: int, text: str, content: bytes) -> int:
    return crc32(f"{number} {text}".encode(), crc32(content))


# Entities

_DESCRIPTIONS: Final[Mapping[str, type[QueueDescription]]] = {
    "queue": QueueDescription,
    "topic": TopicDescription,
    "subscription": SubscriptionDescription,
}


def entity_document(entity: QueueEntity) -> str:
    document: Document = {
        "kind": "queue",
        "path": entity.path,
        "created_at_ms": entity.created_at_ms,
        "updated_at_ms": entity.updated_at_ms,
        "description": asdict(entity.description)
        | {"authorization_rules": [_key_document(each) for each in entity.description.authorization_rules]},
    }
    if isinstance(entity, TopicEntity):
        document["kind"] = "topic"
    elif isinstance(entity, SubscriptionEntity):
        named = {"kind": "subscription", "topic": entity.topic.path, "name": entity.name}
        document |= {**named, "rules": [_rule_document(rule) for rule in entity.rules]}
    return encode(document)


def read_description(document: Document) -> Any:
    """Return the description of an entity's document, of the class that its kind has. Raises RowUnreadable."""
    kind, values = document["kind"], dict(document["description"])
    if kind not in _DESCRIPTIONS:
        raise RowUnreadable(f"unknown kind '{kind}'")
    description = _DESCRIPTIONS[kind]
    if unknown := values.keys() - {each.name for each in fields(description)}:
        raise RowUnreadable(f"unknown property '{min(unknown)}'")
    values["authorization_rules"] = read_keys(values["authorization_rules"])
    return description(**values)


def keys_document(keys: tuple[AuthorizationRule, ...]) -> list[Document]:
    return [_key_document(each) for each in keys]


def _key_document(key: AuthorizationRule) -> Document:
    return asdict(key) | {"rights": sorted(key.rights)}


def read_keys(documents: list[Document]) -> tuple[AuthorizationRule, ...]:
    return tuple(
        AuthorizationRule(**each | {"rights": frozenset(map(AccessRight, each["rights"]))}) for each in documents
    )


# Hybrid connections


def relay_document(entity: HybridConnection) -> Document:
    return {
        "path": entity.path,
        "created_at_ms": entity.created_at_ms,
        "updated_at_ms": entity.updated_at_ms,
        "requires_client_authorization": entity.description.requires_client_authorization,
        "user_metadata": entity.description.user_metadata,
        "authorization_rules": keys_document(entity.description.authorization_rules),
    }


def restore_hybrid_connection(into: HybridConnections, document: Document) -> None:
    """Create the hybrid connection of a document."""
    entity = into.create(
        document["path"],
        HybridConnectionDescription(
            document["requires_client_authorization"],
            document["user_metadata"],
            read_keys(document["authorization_rules"]),
        ),
    )
    entity.created_at_ms, entity.updated_at_ms = document["created_at_ms"], document["updated_at_ms"]


# Rules of subscriptions

_PARTS: Final[Mapping[str, type[Any]]] = {
    each.__name__: each
    for each in (
        rules.TrueRuleFilter,
        rules.FalseRuleFilter,
        rules.SqlRuleFilter,
        rules.CorrelationRuleFilter,
        rules.SqlAction,
    )
}
_NAMED: Final = ("parameters", "properties")


def _rule_document(rule: rules.SubscriptionRule) -> Document:
    return {
        "name": rule.name,
        "filter": _part_document(rule.filter),
        "action": None if rule.action is None else _part_document(rule.action),
        "created_at_ms": rule.created_at_ms,
    }


def _part_document(part: rules.Filter | rules.SqlAction) -> Document:
    document = {each.name: getattr(part, each.name) for each in fields(part) if each.init}
    for name in _NAMED:
        if name in document:
            document[name] = [(key, typed.kind, typed.text) for key, typed in document[name]]
    return {"type": type(part).__name__, **document}


def read_rule(document: Document) -> rules.SubscriptionRule:
    action = None if document["action"] is None else _read_part(document["action"])
    return rules.SubscriptionRule(document["name"], _read_part(document["filter"]), action, document["created_at_ms"])


def _read_part(document: Document) -> Any:
    values = dict(document)
    part = _PARTS[values.pop("type")]
    for name in _NAMED:
        if name in values:
            values[name] = tuple((key, read_typed(kind, text)) for key, kind, text in values[name])
    return part(**values)
