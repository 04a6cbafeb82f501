"""Descriptions and messages in the form in which they are stored, and back. Pure.

Fields that have their defaults are left out of a message, so that a field can be added without a new version of the
file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final
from zlib import crc32

from sbpair.amqp.message import Sections
from sbpair.emulator.access.sas import AccessRight, AuthorizationRule
from sbpair.emulator.entities import rules
from sbpair.emulator.entities.description import QueueDescription, SubscriptionDescription, TopicDescription
from sbpair.emulator.entities.stored_message import (
    ACTIVE,
    DEFERRED,
    LOCKED,
    DeadLetterReason,
    ForwardedMessage,
    StoredMessage,
)
from sbpair.emulator.relay.hybrid_connection import HybridConnectionDescription

# Descriptions

_TYPES: Final[Mapping[str, type[Any]]] = {
    each.__name__: each
    for each in (
        QueueDescription,
        TopicDescription,
        SubscriptionDescription,
        HybridConnectionDescription,
        AuthorizationRule,
        rules.SubscriptionRule,
        rules.TrueRuleFilter,
        rules.FalseRuleFilter,
        rules.SqlRuleFilter,
        rules.CorrelationRuleFilter,
        rules.SqlAction,
    )
}
_NAMED: Final = frozenset({"parameters", "properties"})
"""The fields with named values of a type."""


def _plain(value: Any) -> Any:
    """Return what JSON cannot represent as what it can: an object as its type and its fields."""
    if isinstance(value, frozenset):
        return sorted(value)
    document = {each.name: getattr(value, each.name) for each in fields(value) if each.init}
    for name in _NAMED & document.keys():
        document[name] = [(key, typed.kind, typed.text) for key, typed in document[name]]
    return {"type": type(value).__name__, **document}


def _object(document: dict[str, Any]) -> Any:
    if "type" not in document:
        return document
    kind = _TYPES[document.pop("type")]
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in document.items()}
    for name in _NAMED & values.keys():
        values[name] = tuple((key, rules.read_typed(kind, text)) for key, kind, text in values[name])
    if "rights" in values:
        values["rights"] = frozenset(map(AccessRight, values["rights"]))
    return kind(**values)


encode = json.JSONEncoder(separators=(",", ":"), check_circular=False, default=_plain).encode
decode = json.JSONDecoder(object_hook=_object).decode

# Messages

_NOT_IN_FIELDS: Final = frozenset({"content", "sequence_number", "lock_token", "locked_until_ms"})
_FORWARDED: Final = ("enqueued_sequence_number", "hops")
_FIELDS: Final = (*(each.name for each in fields(StoredMessage) if each.name not in _NOT_IN_FIELDS), *_FORWARDED)
_values_of = attrgetter(*_FIELDS)
_DEFAULTS: Final = _values_of(StoredMessage(b"", 0))
_IS_SPLIT: Final = "is_split"


def write_message(message: StoredMessage) -> tuple[str, bytes]:
    """Return the fields of a message as JSON, and its content. The table has its sequence number."""
    content = message.content
    if isinstance(content, Sections):
        return _fields_text(_values_of(message), True), content.join()
    return _fields_text(_values_of(message), False), content


@lru_cache(1024)
def _fields_text(values: tuple[Any, ...], is_split: bool) -> str:
    """Return the fields as JSON. Messages that are sent together mostly have the same."""
    named = zip(_FIELDS, values, _DEFAULTS, strict=True)
    stored = {name: value for name, value, default in named if value != default}
    return encode(stored | ({_IS_SPLIT: True} if is_split else {}))


def read_message(sequence_number: int, text: str, content: bytes) -> StoredMessage:
    """Return a stored message, without the lock that it may have had."""
    stored = json.loads(text)
    payload = Sections.split(content) if stored.pop(_IS_SPLIT, False) else content
    message = StoredMessage(payload, 0)
    if any(name in stored for name in _FORWARDED):
        message = ForwardedMessage(payload, 0)
        stored = dict.fromkeys(_FORWARDED, 0) | stored
    if "dead_letter" in stored:
        stored["dead_letter"] = DeadLetterReason(*stored["dead_letter"])
    for name, value in stored.items():
        setattr(message, name, value)
    message.sequence_number = sequence_number
    if message.state == LOCKED:
        message.state = DEFERRED if message.reported_state == DEFERRED else ACTIVE
    return message


def checksum(entity: str, part: str, key: int | str, text: str, content: bytes) -> int:
    return crc32(f"{entity} {part} {key} {text}".encode(), crc32(content))
