"""The fast path of decoding and restoring: messages that fit a template learnt from an earlier one. Pure.

Invariant: the result equals that of `envelope`, byte for byte. A message that fits no template is left to `envelope`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import repeat
from operator import attrgetter, eq, getitem, itemgetter, sub
from typing import Any, NamedTuple, TypeAlias

from sbpair.amqp import codec, splice
from sbpair.amqp.message import (
    APPLICATION_PROPERTIES,
    DATA,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    Properties,
    Sections,
    data_heads,
    section,
    skip,
)
from sbpair.amqp.types import Map, Timestamp
from sbpair.backlog import ALIASES, PATH, SCHEDULED, SESSION_ID, TIME_TO_LIVE, AliasError, alias_value
from sbpair.errors import ProtocolError
from sbpair.move.message import envelope
from sbpair.move.message.route import BACKLOG, MAX_TTL_HEADER_MS, Facts, MessageForm, Send
from sbpair.timespan import TICKS_PER_MS

REMEMBERED = 4096
MAX_LAYOUTS = 256
"""Limit of layouts per template: if all else is equal, one for each length of a message id."""

_SHORT_PROPERTIES = section(PROPERTIES, b"\xc0")
_BEFORE_ID = len(_SHORT_PROPERTIES) + 4
_SHORT_MAP = section(APPLICATION_PROPERTIES, b"\xc1")
_DATA = section(DATA, b"")
_TEXT, _TIME, _LONG, _SMALL_LONG = 0xA1, 0x83, 0x81, 0x55
_NULL = b"\x40"
_GROUP_ID = 10
_SCHEDULE = section(MESSAGE_ANNOTATIONS, codec.encode(Map([(envelope.SCHEDULE, Timestamp(0))])))[:-8]

PropertyFacts = tuple[Properties, bytes]
"""The properties after the message id, and their raw bytes."""

Parts = tuple[bytes, ...]

Columns = tuple[Sequence[Facts], Sequence["TemplateMessage"], Sequence["str | None"], Sequence[int]]
"""Facts, content, partition keys and lock expiries of several messages."""

AliasFields = tuple[str, str | None, int | None, int | None, bytes]
"""(path, session id, TTL in ticks, scheduled at, the remaining application properties)"""


class MessageNumbers(NamedTuple):
    """Columns of several messages. The application properties are between two positions. Times are in ms since 1970."""

    sequence_numbers: Sequence[int]
    enqueued_at: Sequence[int]
    locked_until: Sequence[int]
    map_starts: Sequence[int]
    map_ends: Sequence[int]


class TemplateMessage(NamedTuple):
    """A message that fits a template: the part that it shares with like messages, and its bytes."""

    shared: SharedFields
    payload: bytes

    @property
    def application_properties(self) -> bytes:
        """The section, encoded."""
        return self.payload[self.shared.layout.map_at : self.shared.rest_at]

    def split(self) -> Sections:
        return Sections.split(self.payload)

    def restore(self, send: Send, now_ms: int) -> tuple[int, Parts]:
        """Return the message as it was before it entered the backlog, encoded: its size, and consecutive parts."""
        shared, payload = self
        last_send, around = shared.restored
        if last_send is not send:
            around = shared.restore(send)
        if around is None:
            return shared.restore_now(payload, send, now_ms)
        added, before, message_id, after, rest = around
        return len(payload) + added, (before, payload[message_id], after, payload[rest])


Around: TypeAlias = "tuple[int, bytes, slice, bytes, slice]"
"""(bytes added, bytes before the message id, where it is, bytes up to the body, where that is)"""


class SharedFields:
    """The fields that like messages share: layout, properties after the message id, and application properties.

    `kept` are the application properties without the aliases, and `rest_at` the position of body and footer.
    `restored` is the last Send with what surrounds the variable parts of a restored message: like messages have one.
    """

    __slots__ = ("about", "kept", "layout", "properties", "rest_at", "restored")

    def __init__(self, layout: FieldLayout, tail: bytes, application_properties: bytes) -> None:
        self.layout = layout
        self.properties = _property_facts(layout.count, tail)
        *direction, self.kept = _direction(layout.template, self.properties[0], application_properties)
        self.about = (*direction, self.properties[0].content_type)
        self.rest_at = layout.map_at + len(application_properties)
        self.restored: tuple[Send | None, Around | None] = None, None

    def restore(self, send: Send) -> Around | None:
        """Return what surrounds the variable parts; None if the properties are long or depend on the time."""
        layout, found = self.layout, _around_message_id(self.layout, self.properties, send)
        around = None
        if found is not None:
            before, after = found[0], found[1] + self.kept
            added = len(before) + len(after) + layout.id_end - layout.id_at - self.rest_at
            around = added, before, slice(layout.id_at, layout.id_end), after, slice(self.rest_at, None)
        self.restored = send, around
        return around

    def restore_now(self, payload: bytes, send: Send, now_ms: int) -> tuple[int, Parts]:
        """Restore a message whose properties are long or depend on the time."""
        layout = self.layout
        raw = payload[layout.id_at - _BEFORE_ID : layout.map_at]
        if layout.template.form.destination is not None:
            send = envelope.as_stated(send, layout.template.ttl, self.properties[0], now_ms)
        properties = envelope.properties_of(Sections(properties=raw), send, now_ms)
        parts = _before_properties(layout.template, send), properties, self.kept, payload[self.rest_at :]
        return sum(map(len, parts)), parts


_shared_fields = lru_cache(REMEMBERED)(SharedFields)


def _around_message_id(layout: FieldLayout, properties: PropertyFacts, send: Send) -> tuple[bytes, bytes] | None:
    """Return the restored bytes before the message id, and those between it and the application properties.

    None if they depend on the time, or do not fit the short form.
    """
    decoded, tail = properties
    expires = decoded.absolute_expiry_time is not None
    if send.ttl_ms is not None and (expires or send.ttl_ms >= MAX_TTL_HEADER_MS):
        return None
    before, count = _before_properties(layout.template, send), layout.count
    if send.session_id is not None and layout.template.form.destination is None:
        text = send.session_id.encode()
        tail, count = _with_group_id(count, tail, bytes((_TEXT, len(text) & 0xFF)) + text)
    size = _BEFORE_ID - 5 + layout.id_end - layout.id_at + len(tail)
    if size > 255:
        return None
    beginning = _SHORT_PROPERTIES + bytes((size, count, _TEXT, layout.id_end - layout.id_at))
    return before + beginning, tail


def _before_properties(template: EnvelopeTemplate, send: Send) -> bytes:
    annotations = template.annotations
    if send.scheduled_at is not None:
        if not annotations and -(1 << 63) <= send.scheduled_at < 1 << 63:
            annotations = _SCHEDULE + send.scheduled_at.to_bytes(8, signed=True)
        else:
            annotations = envelope.annotations_of(Sections(message_annotations=annotations), send)
    return _header(template.header, send.ttl_ms) + template.delivery_annotations + annotations


def _with_group_id(count: int, tail: bytes, group_id: bytes) -> tuple[bytes, int]:
    """Return the bytes after the message id, with a group id, and the resulting number of fields."""
    fields = splice.fields(_without_id(count, tail))
    fields += [_NULL] * (_GROUP_ID + 1 - len(fields))
    return b"".join((*fields[1:_GROUP_ID], group_id, *fields[_GROUP_ID + 1 :])), len(fields)


def _without_id(count: int, tail: bytes) -> bytes:
    """Return a properties section with a null message id before the given tail."""
    return section(PROPERTIES, bytes((0xC0, len(tail) + 2, count)) + _NULL + tail)


_header = lru_cache(REMEMBERED)(envelope.header_of)


class EnvelopeTemplate:
    """The fixed bytes of a message up to its properties, and the positions of its numbers.

    `header`, both kinds of annotations and `partition_key` are kept by a move, and equal for all messages of the
    template. So is their `destination`, unless aliases name it.
    `layouts` are the continuations, by the bytes between `size`, where the properties begin, and `id_at`.
    """

    def __init__(
        self, sections: Sections, gaps: list[tuple[int, str]], names: list[str], form: MessageForm = BACKLOG
    ) -> None:
        """Build a template. `gaps` are (position, format) of its variable parts, in order; `names` name the numbers
        among them.
        """
        self.form = form
        self.ttl = sections.read_header().ttl
        self.before = sections.header + sections.delivery_annotations + sections.message_annotations
        self.size = len(self.before)
        self.id_at = self.size + _BEFORE_ID
        self.header = sections.header
        self.delivery_annotations = envelope.delivery_annotations_of(sections)
        self.annotations = splice.without(
            sections.message_annotations, envelope.is_one_of(envelope.SERVICE_ANNOTATIONS)
        )
        self.partition_key = envelope.partition_key(sections)
        self.destination, _ = form.destination_for(envelope.dead_letter_source(sections))
        self.names = names
        self.format, self.end = ">", 0
        for position, kind in gaps:
            self.format += f"{position - self.end}s{kind}"
            self.end = position + struct.calcsize(f">{kind}")
        self.layouts: dict[bytes, FieldLayout] = {}

    def learn_layout(self, payload: bytes) -> FieldLayout | None:
        """Return the layout of a message of this template, remembered for the next; None if it is not the usual one."""
        beginning = payload[self.size : self.id_at]
        if len(beginning) < _BEFORE_ID or not beginning.startswith(_SHORT_PROPERTIES):
            return None
        size, count, kind, id_size = beginning[len(_SHORT_PROPERTIES) :]
        if kind != _TEXT or size < id_size + 3:
            return None
        if len(self.layouts) >= MAX_LAYOUTS:
            self.layouts.clear()
        parts = self, beginning, count, id_size, size - id_size - 3
        bare = FieldLayout(*parts) if self.form.destination is not None else None
        found = self.layouts[beginning] = FieldLayout(*parts, has_map=True, bare=bare)
        return found

    def fits(self, payload: bytes) -> bool:
        """Return whether a message equals the template up to its properties."""
        pattern = struct.Struct(f"{self.format}{self.size - self.end}s")
        if len(payload) < pattern.size:
            return False
        values = zip(pattern.unpack_from(payload), pattern.unpack(self.before), strict=True)
        return all(value == known for value, known in values if isinstance(known, bytes))

    @classmethod
    def learn(cls, payload: bytes, sections: Sections, form: MessageForm = BACKLOG) -> EnvelopeTemplate | None:
        """Return the template of a decoded message; None if its numbers are not encoded as usual."""
        header, delivery = sections.header, sections.delivery_annotations
        if not payload.startswith(header + delivery + sections.message_annotations + sections.properties):
            return None
        gaps: list[tuple[int, str]] = []
        for name, at, code in _values(delivery):
            if name == envelope.LOCK_TOKEN and code == _TOKEN:
                gaps.append((len(header) + at, "16x"))
        names = []
        for name, at, code in _values(sections.message_annotations):
            if name in _NUMBERS:
                if code not in _NUMBER_FORMATS:
                    return None  # the first of two equal names counts, whatever its type
                names.append(name)
                gaps.append((len(header) + len(delivery) + at, _NUMBER_FORMATS[code]))
            elif name in _REMOVED_NUMBERS and code in _REMOVED_FORMATS:
                gaps.append((len(header) + len(delivery) + at, f"{struct.calcsize(_REMOVED_FORMATS[code])}x"))
        return cls(sections, gaps, names, form) if sorted(names) == sorted(_NUMBERS) else None


class FieldLayout:
    """The layout of a template's messages up to the size of their application properties, for one length of ids.

    `unpack` splits a message; `constant` picks the parts that must equal `constants`. `variable` picks the others: the
    three numbers, the message id, the properties after it, and the size of the application properties.

    `has_map` is whether the messages have application properties. `bare` is the layout of those without, if they can
    be moved.
    """

    def __init__(
        self,
        template: EnvelopeTemplate,
        beginning: bytes,
        count: int,
        id_size: int,
        tail_size: int,
        *,
        has_map: bool = False,
        bare: FieldLayout | None = None,
    ) -> None:
        self.template = template
        self.has_map = has_map
        self.bare = bare
        self.count = count
        self.id_at = template.id_at
        self.id_end = self.id_at + id_size
        before_id = f"{template.format}{self.id_at - template.end}s"
        map_format, map_head = (f"{len(_SHORT_MAP)}sB", _SHORT_MAP + b"\x00") if has_map else ("0s0s", b"")
        pattern = struct.Struct(f"{before_id}{id_size}s{tail_size}s{map_format}")
        self.size = pattern.size
        self.map_at = self.size - len(map_head)
        self.unpack = pattern.unpack_from
        values = pattern.unpack(template.before + beginning + bytes(id_size + tail_size) + map_head)
        *fixed, id_index, tail_index, map_index, size_index = range(len(values))
        numbers = [index for index in fixed if isinstance(values[index], int)]
        self.constant = itemgetter(*(index for index in fixed if index not in numbers), map_index)
        self.constants = self.constant(values)
        in_order = [numbers[template.names.index(name)] for name in _NUMBERS]
        self.variable = itemgetter(*in_order, id_index, tail_index, size_index)

    def fits(self, payload: bytes) -> bool:
        """Return whether a message has this layout up to its application properties, or to its body without any."""
        if len(payload) < self.size or self.constant(self.unpack(payload)) != self.constants:
            return False
        return self.has_map or payload.startswith(_DATA, self.size)

    def read_numbers(self, payloads: Sequence[bytes]) -> MessageNumbers:
        """Read only the numbers of messages. Raises one of NOT_TEMPLATED if one of them has another layout.

        Their aliases and properties may be unreadable: `read` finds that.
        """
        sequence_numbers, enqueued_at, locks, _, _, ends = self._columns(payloads)
        return MessageNumbers(sequence_numbers, enqueued_at, locks, [self.map_at] * len(payloads), ends)

    def read(self, queue: str, payloads: Sequence[bytes]) -> Columns:
        """Decode messages of a queue. Raises one of NOT_TEMPLATED if one of them does not fit."""
        *numbers, locks, raw_ids, tails, ends = self._columns(payloads)
        properties = map(getitem, payloads, map(slice, repeat(self.map_at), ends))
        shared = list(map(_shared_fields, repeat(self), tails, properties))
        *directions, content_types = zip(*map(_get_about, shared), strict=True)
        about = (map(bytes.decode, raw_ids), *directions, map(len, payloads), content_types)
        # A third of the cost of Facts(…) and TemplateMessage(…). `repeat` never ends.
        facts = map(_new, repeat(Facts), zip(repeat(queue), *numbers, *about, repeat(""), strict=False))
        messages = map(_new, repeat(TemplateMessage), zip(shared, payloads, strict=True))
        return list(facts), list(messages), [self.template.partition_key] * len(payloads), locks

    def _columns(self, payloads: Sequence[bytes]) -> tuple[Sequence[Any], ...]:
        """Return the `variable` parts, with the position of the body in place of the last size.

        Raises one of NOT_TEMPLATED unless all messages have this layout, and one section of data up to their ends.
        Hot path: each step is one call for all messages.
        """
        if min(map(len, payloads)) < self.size:
            raise ProtocolError(_REASON)
        values = list(map(self.unpack, payloads))
        if not all(map(eq, map(self.constant, values), repeat(self.constants))):
            raise ProtocolError(_REASON)
        *columns, sizes = zip(*map(self.variable, values), strict=True)
        ends = list(map(self.size.__add__, sizes)) if self.has_map else [self.size] * len(payloads)
        if not all(map(bytes.startswith, payloads, map(data_heads, map(sub, map(len, payloads), ends)), ends)):
            raise ProtocolError(_REASON)
        return *columns, ends


NOT_TEMPLATED = (ProtocolError, IndexError, ValueError, struct.error)
_REASON = "the message does not fit the template"
_new: Callable[..., Any] = tuple.__new__
_get_about = attrgetter("about")
_NUMBERS = (envelope.SEQUENCE_NUMBER, envelope.ENQUEUED, envelope.LOCKED_UNTIL)
_NUMBER_CODES = (_TIME, _LONG)
_NUMBER_FORMATS = {_TIME: "q", _LONG: "q", _SMALL_LONG: "b"}
_REMOVED_NUMBERS = (envelope.ENQUEUE_SEQUENCE_NUMBER, envelope.PARTITION_ID)
"""Those that a move removes. In a subscription and in partitions they differ from message to message."""

_REMOVED_FORMATS = {**_NUMBER_FORMATS, 0x61: "h"}
_TOKEN = 0x98


def _values(raw: bytes) -> Iterator[tuple[Any, int, int]]:
    """Yield (key, position after the constructor, constructor) of each value of a map section. Raises ProtocolError."""
    pairs = list(splice.map_pairs(raw))
    end = len(raw) - sum(len(pair) for _, pair, _ in pairs)
    for key, pair, value in pairs:
        end += len(pair)
        yield key, end - len(value) + 1, value[0]


@lru_cache(REMEMBERED)
def _property_facts(count: int, tail: bytes) -> PropertyFacts:
    """Decode the properties after the message id. Raises ProtocolError or ValueError if they are malformed."""
    raw = _without_id(count, tail)
    splice.with_fields(raw, PROPERTIES, {})
    properties = Sections(properties=raw).read_properties()
    return properties, tail


def _direction(template: EnvelopeTemplate, properties: Properties, raw: bytes) -> AliasFields:
    """Return where a message goes, and the application properties that it keeps. Raises one of NOT_TEMPLATED."""
    form = template.form
    if form.destination is None:
        return _aliases(raw, form.removed)
    if properties.absolute_expiry_time is not None and properties.creation_time is None:
        raise ProtocolError(_REASON)  # how long it lives follows from its time of enqueueing
    life_ms = envelope.lifetime_ms(template.ttl, properties, 0)
    return template.destination, properties.group_id, life_ms and life_ms * TICKS_PER_MS, None, _kept(raw, form.removed)


@lru_cache(REMEMBERED)
def _kept(raw: bytes, removed: frozenset[str]) -> bytes:
    """Return application properties without some. Raises one of NOT_TEMPLATED if they are not encoded as usual."""
    if not raw:
        return raw
    found, kept = _split_properties(raw, removed)
    return _joined(kept) if found else raw


@lru_cache(REMEMBERED)
def _aliases(raw: bytes, removed: frozenset[str]) -> AliasFields:
    """Decode application properties. Raises one of NOT_TEMPLATED if they are not encoded as usual."""
    found, kept = _split_properties(raw, removed)
    return _decode_aliases({name: value for name, value in found.items() if name in ALIASES}, kept)


@lru_cache(REMEMBERED)
def _encoded(names: frozenset[str]) -> dict[bytes, str]:
    return {codec.encode(name): name for name in names}


def _split_properties(raw: bytes, removed: frozenset[str]) -> tuple[dict[str, bytes], list[bytes]]:
    """Return the application properties to remove, by name, and the others. Raises one of NOT_TEMPLATED."""
    names = _encoded(removed)
    found: dict[str, bytes] = {}
    kept: list[bytes] = []
    position = 6
    for _ in range(raw[5] // 2):
        value_at = position + 2 + raw[position + 1]
        if raw[position] != _TEXT or not raw[position + 2 : value_at].isascii():
            raise ProtocolError(_REASON)
        code = raw[value_at]
        if code == _TEXT:
            end = value_at + 2 + raw[value_at + 1]
        else:
            end = value_at + 9 if code in _NUMBER_CODES else skip(raw, value_at)
        name = names.get(raw[position:value_at])
        if name is None:
            kept.append(raw[position:end])
        elif name in found:
            raise ProtocolError(_REASON)
        else:
            found[name] = raw[value_at:end]
        position = end
    if position != len(raw) or raw[5] % 2 or raw[4] != len(raw) - 5:
        raise ProtocolError(_REASON)
    return found, kept


def _decode_aliases(found: dict[str, bytes], kept: list[bytes]) -> AliasFields:
    values = {name: _alias(name, raw) for name, raw in found.items()}
    path = values.get(PATH)
    if not isinstance(path, str) or None in values.values():
        raise ProtocolError(_REASON)
    session_id, ttl_ticks, scheduled_at = map(values.get, (SESSION_ID, TIME_TO_LIVE, SCHEDULED))
    return path, session_id, ttl_ticks, scheduled_at, _joined(kept)  # type: ignore[return-value]  # `alias_value` checks types


def _joined(pairs: list[bytes]) -> bytes:
    """Return the section of application properties with these pairs; b"" without any."""
    body = b"".join(pairs)
    return _SHORT_MAP + bytes((len(body) + 1, 2 * len(pairs))) + body if pairs else b""


@lru_cache(REMEMBERED)
def _alias(name: str, raw: bytes) -> str | int | None:
    """Return the value of one alias, or None if it is invalid."""
    try:
        return alias_value(name, codec.decode_all(raw))
    except (AliasError, ProtocolError):
        return None
