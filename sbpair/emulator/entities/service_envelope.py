"""The service's part of a message: the fields read from one that comes in, and the fields written around one sent out.

Invariant: properties, body and footer leave as the bytes that came in; so do application properties, except that a dead
letter has its reason added, and annotations, beside those of the service. Strings that are keys of annotations or of a
footer become symbols: Java's clients fail at strings. Every message pays for `read_delivery` and
`encode_delivery`: repeated parts are cached.
"""

from __future__ import annotations

import re
import struct
import uuid
from contextlib import suppress
from copy import copy
from functools import lru_cache
from typing import Final, NamedTuple

from sbpair.amqp import codec, splice
from sbpair.amqp.message import (
    APPLICATION_PROPERTIES,
    BATCH_FORMAT,
    DELIVERY_ANNOTATIONS,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    Sections,
    batch_members,
    is_plain,
    section,
    skip,
)
from sbpair.amqp.types import Int, Long, Map, Short, Symbol, Timestamp, UInt, Value, text_of
from sbpair.amqp_server.refusals import ArgumentInvalid, MessageTooLarge
from sbpair.emulator.clock import NEVER
from sbpair.emulator.entities.stored_message import DEFERRED, LOCKED, StoredMessage, partition_id
from sbpair.emulator.service_errors import PropertyTooLarge
from sbpair.errors import ProtocolError

PING_CONTENT_TYPE: Final = "application/vnd.ms-servicebus-ping"

TTL_IN_PROPERTIES: Final = 0xFFFFFFFF
"""The largest ttl of a header. With it, creation time and absolute expiry time define how long a message lives."""

MAX_EXPIRY_MS: Final = 253_402_214_399_999
"""9999-12-30T23:59:59.999Z, beyond which clients set no absolute expiry time."""

_TTL, _EXPIRES, _CREATED = 2, 8, 9
"""Fields of the header, and of the properties."""

MAX_ID: Final = 128
"""Characters of a MessageId, a SessionId and a PartitionKey."""

MAX_PROPERTY_BYTES: Final = 32_768
MAX_PROPERTIES_BYTES: Final = 65_536
"""The limit of an application property, and that of all properties and annotations of a message."""

_UNSUPPORTED: Final = {
    **dict.fromkeys(b"\x45\xc0\xd0", "System.Collections.Generic.List`1[System.Object]"),
    **dict.fromkeys(b"\xc1\xd1", "Microsoft.Azure.Amqp.Encoding.AmqpMap"),
    **dict.fromkeys(b"\xe0\xf0", "System.Array"),
}
"""Types by the constructors of lists, maps and arrays, which application properties cannot have (AMQP 1.0, 3.2.5)."""

_BINARY: Final = dict.fromkeys(b"\xa0\xb0", "System.Byte[]")
_COMPOUND: Final = bytes(_UNSUPPORTED).replace(b"\x45", b"")
# The constructor of an empty list is a letter, too. As a value it comes before a key or the end.
_EMPTY_LIST: Final = re.compile(rb"\x45(?:[\xa1\xa3\xb1\xb3]|\Z)").search

_LONGEST_HEAD: Final = 5
"""Bytes before a large value: its constructor and its size."""

# The position of the first field in the section of a list, by the list's constructor.
_FIRST_FIELD: Final = {b"\xc0": 6, b"\xd0": 12, b"\x45": 4}

_STRING, _SYMBOL = 0xA1, 0xA3
"""Constructors of short ones; those of long ones differ by the same bit."""

_CACHE_SIZE = 4096
_MAX_CACHED_BYTES = 256

LOCK_TOKEN: Final = Symbol("x-opt-lock-token")
_VIA_PARTITION_KEY: Final = b"x-opt-via-partition-key"

# Annotations that only the service sets; those of a sender are removed.
_SERVICE_ANNOTATIONS: Final = frozenset((
    "x-opt-deadletter-source", "x-opt-enqueue-sequence-number", "x-opt-enqueued-time", "x-opt-locked-until",
    "x-opt-message-state", "x-opt-partition-id", "x-opt-sequence-number",
))  # fmt: skip


# Read


def read_delivery(
    payload: bytes, message_format: int, *, with_id: bool = False, with_bytes: bool = True
) -> list[StoredMessage]:
    """Return the messages of one delivery, or of a batch, without pings. Raises as `read_message`."""
    members = batch_members(payload) if message_format == BATCH_FORMAT else [payload]
    found = [read_message(member, with_id=with_id, with_bytes=with_bytes) for member in members]
    return [message for message in found if message is not None]


def read_message(payload: bytes, *, with_id: bool = False, with_bytes: bool = True) -> StoredMessage | None:
    """Return one encoded message, or None for a ping. `with_bytes`: whether properties may be bytes.

    Raises ProtocolError for a malformed message, MessageTooLarge or PropertyTooLarge for properties that are refused,
    ArgumentInvalid for an id that is too long.
    """
    if not with_id and is_plain(payload) and payload[7] <= MAX_ID:
        return StoredMessage(payload, len(payload))
    sections = Sections.split(payload)
    check_properties(sections, with_bytes=with_bytes)
    if _is_stored_whole(sections):
        message = StoredMessage(payload, len(payload))
    else:
        message = _split_message(sections, len(payload))
    return message if _take_properties(message, sections, with_id) else None


def check_properties(sections: Sections, *, with_bytes: bool) -> None:
    """Raise MessageTooLarge or PropertyTooLarge for properties that the service refuses."""
    raw, unsupported = sections.application_properties, _UNSUPPORTED if with_bytes else _UNSUPPORTED | _BINARY
    if len(raw) > MAX_PROPERTY_BYTES or (raw and not with_bytes) or _may_have_unsupported(raw):
        for at, end in _values_of(raw):
            while not raw[at]:
                # The value follows its descriptor.
                at = skip(raw, at + 1)  # noqa: PLW2901
            if raw[at] in unsupported:
                text = f"Serialization operation failed due to unsupported type {unsupported[raw[at]]}."
                raise MessageTooLarge(text)
            if end - at > MAX_PROPERTY_BYTES + _LONGEST_HEAD:
                raise PropertyTooLarge
    if len(raw) + len(sections.properties) + len(sections.message_annotations) > MAX_PROPERTIES_BYTES:
        raise MessageTooLarge(
            "A serialization error occurred while processing the message header stream. The serialization process "
            f"return the following message: The size quota for this stream ({MAX_PROPERTIES_BYTES}) has been exceeded."
        )


def _may_have_unsupported(raw: bytes) -> bool:
    """Return whether a value may be a list, a map or an array. Text can have their bytes, too. Hot path."""
    # Without the map's own constructor, its size and count.
    pairs = raw[12 if raw[3:4] == b"\xd1" else 6 :]
    return len(pairs.translate(None, _COMPOUND)) != len(pairs) or _EMPTY_LIST(pairs) is not None


def _values_of(raw: bytes) -> list[tuple[int, int]]:
    """Return where each application property's value begins and ends; none if they cannot be read."""
    try:
        return list(splice.map_values(raw))
    except ProtocolError:
        return []


def _is_stored_whole(sections: Sections) -> bool:
    """Return whether the service's sections go before the whole payload, so that it need not be split."""
    before = sections.header or sections.delivery_annotations or sections.message_annotations
    return _has_short_text_id(sections.properties) and not before and not sections.footer and sections.body != b""


def _split_message(sections: Sections, size: int) -> StoredMessage:
    if _lacks_id(sections.properties):
        sections.properties = _with_new_id(sections.properties)
    message = StoredMessage(sections, size)
    if sections.header:
        message.ttl_ms = _ttl_of(sections.header)
    if sections.delivery_annotations:
        # Decoded in full, as message annotations are. A lock token of the sender's is not for receivers.
        sections.read_delivery_annotations()
        own = splice.without(sections.delivery_annotations, lambda key: key == LOCK_TOKEN)
        sections.delivery_annotations = _with_symbols(own)
    if sections.message_annotations:
        is_short = len(sections.message_annotations) <= _MAX_CACHED_BYTES
        read = _cached_annotations if is_short else _read_annotations
        message.scheduled_at_ms, message.partition_key, sections.message_annotations = read(
            sections.message_annotations
        )
    if sections.footer:
        with suppress(ProtocolError):
            sections.footer = _with_symbols(sections.footer)
    return message


def _with_symbols(raw: bytes) -> bytes:
    """Return a map with symbols for the keys that are strings of ASCII (AMQP 1.0, part 3.2.10).

    Their encodings differ in the constructor only. Raises ProtocolError.
    """
    pairs = [(key, pair) for key, pair, _ in splice.map_pairs(raw)]
    changed = [
        bytes((pair[0] ^ _STRING ^ _SYMBOL,)) + pair[1:] if type(key) is str and key.isascii() else pair
        for key, pair in pairs
    ]
    return raw[: len(raw) - sum(map(len, changed))] + b"".join(changed)


def _has_short_text_id(properties: bytes) -> bool:
    """Return whether the message id is a string, in the usual short encoding."""
    return properties[3:4] == b"\xc0" and properties[6:7] == b"\xa1"


def _take_properties(message: StoredMessage, sections: Sections, with_id: bool) -> bool:
    """Set the fields that the entity needs; return False for a ping."""
    fields = _sender_fields(sections.properties)
    if fields.is_ping:
        return False
    message.session_id = fields.session_id
    if with_id:
        message.message_id = message_id_of(message)
    _check_ids(message, sections.properties)
    if fields.lives_ms is not None and message.ttl_ms in (None, TTL_IN_PROPERTIES):
        message.ttl_ms = fields.lives_ms
    return True


def _check_ids(message: StoredMessage, properties: bytes) -> None:
    """Raise ArgumentInvalid for an id that is too long. Most properties are too short to have one. Hot path."""
    is_short = len(properties) <= MAX_ID or (_has_short_text_id(properties) and properties[7] <= MAX_ID)
    for name, value in (
        ("MessageId", None if is_short else message_id_of(message)),
        ("SessionId", message.session_id),
        ("PartitionKey", message.partition_key),
    ):
        if value is not None and len(value) > MAX_ID:
            raise ArgumentInvalid(f"The {name} has {len(value)} characters: the maximum is {MAX_ID}.")


def _lacks_id(properties: bytes) -> bool:
    return not properties or properties[_FIRST_FIELD.get(properties[3:4], 0) :][:1] in (b"", b"\x40")


def _with_new_id(properties: bytes) -> bytes:
    """Add a message id, as the service does: the SDK for JavaScript sends none, and cannot settle without one."""
    # Without `splice`, which would take half as long again as all the rest of reading.
    message_id = codec.encode(uuid.uuid4().hex)
    start = _FIRST_FIELD.get(properties[3:4], 0)
    if len(properties) <= start:
        return section(PROPERTIES, codec.compound(0xC0, 1, message_id))
    fields = message_id + properties[start + 1 :]
    count = int.from_bytes(properties[start - (1 if start == _FIRST_FIELD[b"\xc0"] else 4) : start])
    return section(PROPERTIES, codec.compound(0xC0, count, fields))


class _SenderFields(NamedTuple):
    """The properties that the service needs, besides the id. `lives_ms` is from creation to expiry."""

    is_ping: bool
    session_id: str | None
    lives_ms: int | None


def _sender_fields(properties: bytes) -> _SenderFields:
    if _has_short_text_id(properties):
        end = 8 + properties[7]
        if len(properties) - _MAX_CACHED_BYTES <= end <= len(properties):
            return _cached_fields(properties[5], properties[end:])
    return _read_properties(properties)


@lru_cache(_CACHE_SIZE)
def _cached_fields(count: int, rest: bytes) -> _SenderFields:
    """Return the fields of properties with `rest` after the id: it repeats from message to message."""
    return _read_properties(section(PROPERTIES, bytes((0xC0, len(rest) + 2, count)) + b"\x40" + rest))


def _read_properties(raw: bytes) -> _SenderFields:
    properties = Sections(properties=raw).read_properties()
    created, expires = properties.creation_time, properties.absolute_expiry_time
    lives_ms = max(0, expires - created) if created is not None and expires is not None else None
    return _SenderFields(properties.content_type == PING_CONTENT_TYPE, properties.group_id, lives_ms)


@lru_cache(_CACHE_SIZE)
def _ttl_of(header: bytes) -> int | None:
    return Sections(header=header).read_header().ttl


def _read_annotations(raw: bytes) -> tuple[int | None, str | None, bytes]:
    """Return the scheduled time, the partition key, and the annotations as they are stored."""
    # Decoded in full: a broken one must not reach receivers.
    annotations = Sections(message_annotations=raw).read_message_annotations()
    at, key = annotations.get("x-opt-scheduled-enqueue-time"), annotations.get("x-opt-partition-key")
    return int(at) if isinstance(at, int) else None, None if key is None else text_of(key), _with_symbols(raw)


def via_partition_key(message: StoredMessage) -> str | None:
    """Return the annotation x-opt-via-partition-key: the key of a transfer, and of a transaction."""
    if isinstance(message.content, bytes) or _VIA_PARTITION_KEY not in message.content.message_annotations:
        return None
    key = message.content.read_message_annotations().get(_VIA_PARTITION_KEY.decode())
    return None if key is None else text_of(key)


_cached_annotations = lru_cache(_CACHE_SIZE)(_read_annotations)


# Write


def encode_delivery(message: StoredMessage) -> bytes:
    """Return the payload of a delivery, with its lock if there is one."""
    return b"".join(encode_delivery_parts(message))


def encode_delivery_parts(message: StoredMessage) -> tuple[bytes, bytes]:
    """Return the same payload in two parts, so that the larger one need not be copied."""
    if message.expires_at_ms < NEVER:
        message = _with_default_life(message)
    token, content = message.lock_token, message.content
    if type(content) is bytes and token and message.dead_letter is None:
        before = _plain_before(message.delivery_count, token[:8])
        return before + token[8:] + _annotations(message, b""), content
    sections = message.sections
    before = _token_before(token[:8]) + token[8:] if token else b""
    if sections.delivery_annotations:
        before = _with_token(sections.delivery_annotations, message.lock_uuid if token else None)
    annotations = before + _annotations(message, sections.message_annotations)
    return b"", b"".join((*_in_sections(message, annotations), sections.body, sections.footer))


def _with_default_life(message: StoredMessage) -> StoredMessage:
    """Return the message with the entity's default time to live and its times, where that is shorter than its own."""
    life_ms = message.expires_at_ms - message.enqueued_at_ms
    if message.ttl_ms == life_ms:
        return message
    message = copy(message)
    sections = copy(message.sections)
    times = {_CREATED: Timestamp(message.enqueued_at_ms), _EXPIRES: Timestamp(message.expires_at_ms)}
    sections.header = splice.with_fields(sections.header, HEADER, {_TTL: UInt(min(life_ms, TTL_IN_PROPERTIES))})
    sections.properties = splice.with_fields(sections.properties, PROPERTIES, times)
    message.content = sections
    return message


def encode_peeked(message: StoredMessage, *, with_body: bool = True) -> bytes:
    """Return the payload of a peeked message, or all of it but the body."""
    sections = message.sections
    is_locked = message.reported_state == DEFERRED and message.state == LOCKED
    annotations = _general_annotations(message, sections.message_annotations, locked=is_locked)
    body = sections.body if with_body else b""
    return b"".join((*_in_sections(message, sections.delivery_annotations + annotations), body, sections.footer))


def _in_sections(message: StoredMessage, annotations: bytes) -> tuple[bytes, ...]:
    """Return the sections before the body."""
    sections = message.sections
    header = _header(sections.header, message.delivery_count)
    application = sections.application_properties if message.dead_letter is None else _with_reason(message)
    return header, annotations, sections.properties, application


@lru_cache(_CACHE_SIZE)
def _header(raw: bytes, delivery_count: int) -> bytes:
    """Return the sender's header with the service's delivery count. Durable, priority and ttl stay."""
    fields: list[Value] = [None, None, None]
    if raw:
        fields = [*codec.decode_all(raw).value, *fields][:3]
    return section(HEADER, codec.encode([*fields, False, UInt(min(delivery_count, 0xFFFFFFFF))]))


_TOKEN_HEAD = b"\xc1\x24\x02\xa3\x10x-opt-lock-token\x98"


@lru_cache(_CACHE_SIZE)
def _token_before(first_half: bytes) -> bytes:
    """Return the lock token annotation up to the second half: a GUID's first half is sent in another byte order."""
    swapped = first_half[3::-1] + first_half[5:3:-1] + first_half[7:5:-1]
    return section(DELIVERY_ANNOTATIONS, _TOKEN_HEAD + swapped)


def _with_token(raw: bytes, token: uuid.UUID | None) -> bytes:
    """Return a sender's delivery annotations with the lock token, if there is one."""
    return splice.with_pairs(raw, DELIVERY_ANNOTATIONS, {} if token is None else {LOCK_TOKEN: token})


@lru_cache(_CACHE_SIZE)
def _plain_before(delivery_count: int, first_half: bytes) -> bytes:
    """Return everything before the second half of a plain message's lock token."""
    return _header(b"", delivery_count) + _token_before(first_half)


def _key(name: str) -> bytes:
    return codec.encode(Symbol(name))


# The annotations of a plain message differ only in four numbers of eight bytes.
_NUMBER_KEYS = (
    _key("x-opt-sequence-number") + b"\x81",
    _key("x-opt-enqueued-time") + b"\x83",
    _key("x-opt-locked-until") + b"\x83",
    _key("x-opt-enqueue-sequence-number") + b"\x81",
)
_CONSTANTS = _key("x-opt-message-state") + codec.encode(Int(0))
_PLAIN_SIZE = 1 + len(_CONSTANTS) + sum(len(key) + 8 for key in _NUMBER_KEYS)
_PLAIN_HEAD = section(MESSAGE_ANNOTATIONS, bytes((0xC1, _PLAIN_SIZE, 10))) + _CONSTANTS + _NUMBER_KEYS[0]
_PLAIN = struct.Struct(">" + "".join([f"{len(part)}sq" for part in (_PLAIN_HEAD, *_NUMBER_KEYS[1:])])).pack


_NO_ANNOTATIONS: Final = section(MESSAGE_ANNOTATIONS, b"\xc1\x01\x00")


def _annotations(message: StoredMessage, sender_annotations: bytes) -> bytes:
    is_plain_message = not sender_annotations and message.dead_letter is None and not message.reported_state
    if not is_plain_message or not message.lock_token or partition_id(message.sequence_number):
        return _general_annotations(message, sender_annotations, locked=bool(message.lock_token))
    return _PLAIN(
        _PLAIN_HEAD,
        message.sequence_number,
        _NUMBER_KEYS[1],
        message.enqueued_at_ms,
        _NUMBER_KEYS[2],
        message.locked_until_ms,
        _NUMBER_KEYS[3],
        message.enqueued_sequence_number,
    )


def _kept_annotations(raw: bytes) -> tuple[int, bytes]:
    """Return a sender's annotations without those of the service: how many, and their bytes unchanged."""
    pairs = splice.map_pairs(raw)
    kept = [pair for key, pair, _ in pairs if not (isinstance(key, str) and key in _SERVICE_ANNOTATIONS)]
    return len(kept), b"".join(kept)


_cached_kept = lru_cache(_CACHE_SIZE)(_kept_annotations)


def _general_annotations(message: StoredMessage, sender_annotations: bytes, *, locked: bool) -> bytes:
    added: list[tuple[str, Value]] = [
        ("x-opt-sequence-number", Long(message.sequence_number)),
        ("x-opt-enqueued-time", Timestamp(message.enqueued_at_ms)),
        ("x-opt-enqueue-sequence-number", Long(message.enqueued_sequence_number)),
        ("x-opt-message-state", Int(message.reported_state)),
    ]
    if locked:
        added.append(("x-opt-locked-until", Timestamp(message.locked_until_ms)))
    partition = partition_id(message.sequence_number)
    if partition:
        added.append(("x-opt-partition-id", Short(partition)))
    if message.dead_letter_source:
        added.append(("x-opt-deadletter-source", message.dead_letter_source))
    read = _cached_kept if len(sender_annotations) <= _MAX_CACHED_BYTES else _kept_annotations
    count, kept = read(sender_annotations)
    pairs = b"".join([_key(name) + codec.encode(value) for name, value in added])
    return section(MESSAGE_ANNOTATIONS, codec.compound(0xC1, 2 * (count + len(added)), kept + pairs))


def _with_reason(message: StoredMessage) -> bytes:
    """Return a dead letter's application properties: the sender's bytes, with the reason if they can be read."""
    dead_letter, sender = message.dead_letter, message.sections.application_properties
    if dead_letter is None:
        return sender
    fields = {"DeadLetterReason": dead_letter.reason, "DeadLetterErrorDescription": dead_letter.description}
    known = {key: value for key, value in fields.items() if value is not None}
    try:
        return _with_application_properties(sender, known)
    except ProtocolError:
        return sender


def _with_application_properties(raw: bytes, changed: dict[str, Value]) -> bytes:
    kept = splice.without(raw, lambda key: isinstance(key, str) and key in changed)
    return splice.with_pairs(kept, APPLICATION_PROPERTIES, dict(changed.items()))


# Forward and modify


def forwarded_sections(message: StoredMessage) -> Sections:
    """Return the sections of a message for its forwarding target; a dead letter keeps the reason."""
    sections = copy(message.sections)
    sections.application_properties = _with_reason(message)
    # An empty section selects the general form of the annotations.
    sections.message_annotations = sections.message_annotations or _NO_ANNOTATIONS
    return sections


def set_time_to_live(sections: Sections, ttl_ms: int, now_ms: int) -> None:
    """Replace the sender's time to live, in the properties too if the header cannot hold it or the sender set both."""
    sections.header = splice.with_fields(sections.header, HEADER, {_TTL: UInt(min(ttl_ms, TTL_IN_PROPERTIES))})
    before = sections.read_properties()
    if ttl_ms > TTL_IN_PROPERTIES or before.absolute_expiry_time is not None:
        created_ms = now_ms if before.creation_time is None else before.creation_time
        expires_ms = min(created_ms + ttl_ms, MAX_EXPIRY_MS)
        times = {_EXPIRES: Timestamp(expires_ms), _CREATED: Timestamp(created_ms)}
        sections.properties = splice.with_fields(sections.properties, PROPERTIES, times)


def message_id_of(message: StoredMessage) -> str | None:
    return text_of(message.sections.read_properties().message_id) if message.sections.properties else None


def modify_properties(message: StoredMessage, properties: Map) -> None:
    """Add or change application properties of a message that is settled; its size follows."""
    changed = {str(key): value for key, value in properties.pairs}
    sections = copy(message.sections)
    sections.application_properties = _with_application_properties(sections.application_properties, changed)
    message.size += len(sections) - len(message.sections)
    message.sections = sections
