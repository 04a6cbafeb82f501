"""Backlog messages as nearly all of them are written, read and restored without the general machinery. Pure.

The law: this is a short cut, not a dialect. What it answers is what `envelope` would have answered, byte for byte;
where a message is not as they usually are it answers nothing, and `envelope` is asked.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from sbpair.amqp import codec, splice
from sbpair.amqp.message import (
    APPLICATION_PROPERTIES,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    Sections,
    ends_in_data,
    section,
    skip,
)
from sbpair.amqp.types import Map, Timestamp
from sbpair.backlog import ALIASES, PATH, SCHEDULED, SESSION_ID, TIME_TO_LIVE, AliasError, alias_value
from sbpair.errors import ProtocolError
from sbpair.move import envelope
from sbpair.move.route import TTL_HEADER_MOST_MS, Facts

if TYPE_CHECKING:
    from sbpair.move.route import Send

REMEMBERED = 4096
SHAPES_MOST = 4
"""How many ways to write what stands before the properties a reader remembers. One service has one or two."""

_SHORT_PROPERTIES = section(PROPERTIES, b"\xc0")
_BEGINNING = struct.Struct(f">{len(_SHORT_PROPERTIES)}sBBBB").unpack_from
_BEFORE_ID = len(_SHORT_PROPERTIES) + 4
_SHORT_MAP = section(APPLICATION_PROPERTIES, b"\xc1")
_TEXT, _TIME, _LONG = 0xA1, 0x83, 0x81
_NULL = b"\x40"
_ALIAS_KEYS = {codec.encode(name): name for name in ALIASES}
_GROUP_ID = 10
_SCHEDULE = section(MESSAGE_ANNOTATIONS, codec.encode(Map([(envelope.SCHEDULE, Timestamp(0))])))[:-8]


@dataclass(slots=True)
class Usual:
    """What a move keeps of a message: raw, without its aliases and without what the service wrote on it.

    `id_end` is where the message id ends in the properties, `rest` is body and footer.
    """

    header: bytes
    annotations: bytes
    partition_key: str | None
    properties: bytes
    id_end: int
    expires: bool
    application_properties: bytes
    rest: bytes

    def restored(self, send: Send, now_ms: int) -> bytes:
        """The message as it was before it went into the backlog, encoded."""
        properties, annotations = self.properties, self.annotations
        expiring = send.ttl_ms is not None and (self.expires or send.ttl_ms > TTL_HEADER_MOST_MS)
        if send.session_id is not None or expiring:
            properties = self._changed(send, now_ms, expiring=expiring)
        if send.scheduled_at is not None:
            annotations = self._scheduled(send)
        header = _header(self.header, send.ttl_ms)
        return b"".join((header, annotations, properties, self.application_properties, self.rest))

    def _changed(self, send: Send, now_ms: int, *, expiring: bool) -> bytes:
        session, raw, end = send.session_id, self.properties, self.id_end
        if session is not None and not expiring:
            text = session.encode()
            before, after, count = _group_id(raw[5], raw[end:])
            body = b"".join((raw[6:end], before, bytes((_TEXT, len(text) & 0xFF)), text, after))
            if len(body) < 255:
                return _SHORT_PROPERTIES + bytes((len(body) + 1, count)) + body
        return envelope.properties_of(Sections(properties=raw), send, now_ms)

    def _scheduled(self, send: Send) -> bytes:
        if not self.annotations and send.scheduled_at is not None and -(1 << 63) <= send.scheduled_at < 1 << 63:
            return _SCHEDULE + send.scheduled_at.to_bytes(8, signed=True)
        return envelope.annotations_of(Sections(message_annotations=self.annotations), send)


@lru_cache(REMEMBERED)
def _group_id(count: int, tail: bytes) -> tuple[bytes, bytes, int]:
    """What stands between a message id and the group id, what behind it, and how many fields there are with it."""
    fields = splice.fields(section(PROPERTIES, bytes((0xC0, len(tail) + 2, count)) + _NULL + tail))
    fields += [_NULL] * (_GROUP_ID + 1 - len(fields))
    return b"".join(fields[1:_GROUP_ID]), b"".join(fields[_GROUP_ID + 1 :]), len(fields)


@lru_cache(REMEMBERED)
def _header(raw: bytes, ttl_ms: int | None) -> bytes:
    return envelope.header_of(raw, ttl_ms)


class Shape:
    """How one message was written up to its properties: what is the same in the next one, and where its numbers are.

    `header`, `annotations` and `partition_key` are what is kept of it, and the same for every message of this shape.
    """

    __slots__ = ("_constant", "_constants", "_moments", "_unpack", "annotations", "header", "partition_key", "size")

    def __init__(self, sections: Sections, gaps: list[tuple[int, str]], names: list[str]) -> None:
        """`gaps` are (position, format) of what differs, in order; `names` say what the numbers among them are."""
        before = sections.header + sections.delivery_annotations + sections.message_annotations
        self.size = len(before)
        self.header = sections.header
        self.annotations = splice.without(sections.message_annotations, envelope.SERVICE_ANNOTATIONS.__contains__)
        self.partition_key = envelope.partition_key(sections)
        layout, start = ">", 0
        for position, kind in gaps:
            layout += f"{position - start}s{kind}"
            start = position + struct.calcsize(f">{kind}")
        pattern = struct.Struct(f"{layout}{self.size - start}s")
        self._unpack = pattern.unpack_from
        values = pattern.unpack(before)
        constants = [index for index, value in enumerate(values) if isinstance(value, bytes)]
        numbers = [index for index, value in enumerate(values) if isinstance(value, int)]
        self._constant = itemgetter(*constants)
        self._constants = self._constant(values)
        self._moments = itemgetter(*(numbers[names.index(name)] for name in _NUMBERS))

    def read(self, payload: bytes) -> tuple[int, int, int] | None:
        """(sequence number, enqueued at, locked until) of a message of this shape; None for any other."""
        if len(payload) < self.size:
            return None
        values = self._unpack(payload)
        return self._moments(values) if self._constant(values) == self._constants else None

    @classmethod
    def learn(cls, payload: bytes, sections: Sections) -> Shape | None:
        """The shape of a message that has been read in general; None where its numbers are not the usual ones."""
        header, delivery = sections.header, sections.delivery_annotations
        if not payload.startswith(header + delivery + sections.message_annotations + sections.properties):
            return None
        gaps: list[tuple[int, str]] = []
        for _, at in _values(delivery, _TOKEN):
            gaps.append((len(header) + at, "16x"))
        names = []
        for name, at in _values(sections.message_annotations, _NUMBER_CODES):
            if name in _NUMBERS:
                names.append(name)
                gaps.append((len(header) + len(delivery) + at, "q"))
        return cls(sections, gaps, names) if sorted(names) == sorted(_NUMBERS) else None


_NUMBERS = (envelope.SEQUENCE_NUMBER, envelope.ENQUEUED, envelope.LOCKED_UNTIL)
_NUMBER_CODES = (_TIME, _LONG)
_TOKEN = (0x98,)


def _values(raw: bytes, codes: tuple[int, ...]) -> Iterator[tuple[Any, int]]:
    """(key, position behind the constructor) of each value of a map section that has one of these constructors."""
    pairs = list(splice.map_pairs(raw))
    end = len(raw) - sum(len(pair) for _, pair, _ in pairs)
    for key, pair, value in pairs:
        end += len(pair)
        if value[0] in codes:
            yield key, end - len(value) + 1


Read = tuple["Usual", Facts, int]
Told = tuple[str, str | None, int | None, int | None, bytes]
"""(path, session id, ticks to live, scheduled at, the application properties without them)"""


class Reader:
    """Reads the messages of one queue. It knows them by the shape of the last ones."""

    def __init__(self, queue: str) -> None:
        self._queue = queue
        self._shapes: list[Shape] = []

    def read(self, payload: bytes) -> Read | None:
        """(what is kept, what is known, when its lock runs out); None where `envelope` has to be asked."""
        for shape in self._shapes:
            moments = shape.read(payload)
            if moments is not None:
                return self._read_rest(payload, shape, moments)
        return None

    def learn(self, payload: bytes, sections: Sections) -> None:
        """Remember how a message is written that `envelope` has read, and found nothing wrong with."""
        shape = Shape.learn(payload, sections)
        if shape is not None:
            self._shapes = [shape, *self._shapes[: SHAPES_MOST - 1]]

    def _read_rest(self, payload: bytes, shape: Shape, moments: tuple[int, int, int]) -> Read | None:
        start = shape.size
        try:
            beginning, size, count, kind, id_size = _BEGINNING(payload, start)
            id_at = start + _BEFORE_ID
            id_end, body_at = id_at + id_size, start + 5 + size
            told = _told_by(count, payload[id_end:body_at]) if id_end <= body_at and kind == _TEXT else None
            if told is None or beginning != _SHORT_PROPERTIES or not payload.startswith(_SHORT_MAP, body_at):
                return None
            rest_at = body_at + 5 + payload[body_at + 4]
            aliases = _aliases(payload[body_at:rest_at])
            if aliases is None or not ends_in_data(payload, rest_at):
                return None
            message_id = payload[id_at:id_end].decode()
        except (IndexError, UnicodeDecodeError, struct.error, ProtocolError):
            return None
        sequence_number, enqueued_at, locked_until = moments
        path, session_id, ttl_ticks, scheduled_at, kept = aliases
        content_type, expires = told
        usual = Usual(
            shape.header,
            shape.annotations,
            shape.partition_key,
            payload[start:body_at],
            id_end - start,
            expires,
            kept,
            payload[rest_at:],
        )
        # As Facts(…) would be, at a third of its cost.
        facts = tuple.__new__(
            Facts,
            (
                self._queue,
                sequence_number,
                enqueued_at,
                message_id,
                path,
                session_id,
                ttl_ticks,
                scheduled_at,
                len(payload),
                content_type,
                "",
            ),
        )
        return usual, facts, locked_until


@lru_cache(REMEMBERED)
def _told_by(count: int, tail: bytes) -> tuple[str | None, bool] | None:
    """(content type, whether it states an absolute expiry) of properties, by what stands behind the message id."""
    try:
        raw = section(PROPERTIES, bytes((0xC0, len(tail) + 2, count)) + _NULL + tail)
        splice.with_fields(raw, PROPERTIES, {})
        properties = Sections(properties=raw).read_properties()
    except (ProtocolError, ValueError):
        return None
    return properties.content_type, properties.absolute_expiry_time is not None


@lru_cache(REMEMBERED)
def _aliases(raw: bytes) -> Told | None:
    """What application properties say; None where they are not as usual."""
    found: dict[str, bytes] = {}
    kept: list[bytes] = []
    position = 6
    for _ in range(raw[5] // 2):
        value_at = position + 2 + raw[position + 1]
        if raw[position] != _TEXT or not raw[position + 2 : value_at].isascii():
            return None
        code = raw[value_at]
        if code == _TEXT:
            end = value_at + 2 + raw[value_at + 1]
        else:
            end = value_at + 9 if code in _NUMBER_CODES else skip(raw, value_at)
        name = _ALIAS_KEYS.get(raw[position:value_at])
        if name is None:
            kept.append(raw[position:end])
        elif name in found:
            return None
        else:
            found[name] = raw[value_at:end]
        position = end
    if position != len(raw) or raw[5] % 2 or raw[4] != len(raw) - 5:
        return None
    return _decoded(found, kept)


def _decoded(found: dict[str, bytes], kept: list[bytes]) -> Told | None:
    values = {name: _alias(name, raw) for name, raw in found.items()}
    path = values.get(PATH)
    if not isinstance(path, str) or None in values.values():
        return None
    body = b"".join(kept)
    rest = _SHORT_MAP + bytes((len(body) + 1, 2 * len(kept))) + body if kept else b""
    session_id, ttl_ticks, scheduled_at = map(values.get, (SESSION_ID, TIME_TO_LIVE, SCHEDULED))
    return path, session_id, ttl_ticks, scheduled_at, rest  # type: ignore[return-value]  # `alias_value` looks at types


@lru_cache(REMEMBERED)
def _alias(name: str, raw: bytes) -> str | int | None:
    """What one alias says; None where it is not what it should be."""
    try:
        return alias_value(name, codec.decode_all(raw))
    except (AliasError, ProtocolError):
        return None
