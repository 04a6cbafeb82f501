"""A message as the raw bytes of its seven sections, decoded on demand.

Sections that are not changed are never re-encoded, and so never altered. AMQP 1.0, part 3.2.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from itertools import chain, pairwise
from operator import itemgetter

from sbpair.amqp import codec
from sbpair.amqp.performatives import Anything, Binary, C, Composite, Flag, Int8, Int32, Sym, Text, Time, composite
from sbpair.amqp.types import Map, Symbol, ULong, Value
from sbpair.errors import ProtocolError

HEADER, DELIVERY_ANNOTATIONS, MESSAGE_ANNOTATIONS, PROPERTIES, APPLICATION_PROPERTIES = range(0x70, 0x75)
DATA, SEQUENCE, VALUE, FOOTER = 0x75, 0x76, 0x77, 0x78

BATCH_FORMAT = 0x80013700
"""The message-format of a Service Bus batch: each data section holds one encoded message."""


@composite(HEADER, "amqp:header:list")
class Header(Composite):
    """`ttl` is milliseconds."""

    durable: Flag = None
    priority: Int8 = None
    ttl: Int32 = None
    first_acquirer: Flag = None
    delivery_count: Int32 = None


@composite(PROPERTIES, "amqp:properties:list")
class Properties(Composite):
    """Ids have any AMQP type; times are milliseconds since 1970."""

    message_id: Anything = None
    user_id: Binary = None
    to: Anything = None
    subject: Text = None
    reply_to: Anything = None
    correlation_id: Anything = None
    content_type: Sym = None
    content_encoding: Sym = None
    absolute_expiry_time: Time = None
    creation_time: Time = None
    group_id: Text = None
    group_sequence: Int32 = None
    reply_to_group_id: Text = None


_NAMES = {
    "amqp:header:list": HEADER,
    "amqp:delivery-annotations:map": DELIVERY_ANNOTATIONS,
    "amqp:message-annotations:map": MESSAGE_ANNOTATIONS,
    "amqp:properties:list": PROPERTIES,
    "amqp:application-properties:map": APPLICATION_PROPERTIES,
    "amqp:data:binary": DATA,
    "amqp:amqp-sequence:list": SEQUENCE,
    "amqp:amqp-value:*": VALUE,
    "amqp:footer:map": FOOTER,
}
_MAPS = (DELIVERY_ANNOTATIONS, MESSAGE_ANNOTATIONS, APPLICATION_PROPERTIES, FOOTER)
_LISTS = (HEADER, PROPERTIES, SEQUENCE)
# Width of a value by the high digit of its constructor: 0x4x none, 0x5x one byte, and so on.
_FIXED_WIDTH = {4: 0, 5: 1, 6: 2, 7: 4, 8: 8, 9: 16}


@dataclass(slots=True, repr=False)
class Sections:
    """The raw slices of one message, with descriptors; b"" for a missing section.

    `body` is all body sections. The readers decode on every call.
    """

    header: bytes = b""
    delivery_annotations: bytes = b""
    message_annotations: bytes = b""
    properties: bytes = b""
    application_properties: bytes = b""
    body: bytes = b""
    footer: bytes = b""

    @classmethod
    def split(cls, payload: bytes) -> Sections:
        """Return the sections of an encoded message. Raises ProtocolError if it is not a message."""
        found = cls.__new__(cls)
        return found if _fill(found, payload) else cls._split_carefully(payload, _walk(payload))

    @classmethod
    def _split_carefully(cls, payload: bytes, parts: Sequence[tuple[int, int, int]]) -> Sections:
        found = cls()
        last = body_start = body_end = 0
        for code, start, end in parts:
            if code == FOOTER and last < DATA and not found.footer:
                last = APPLICATION_PROPERTIES  # some clients put it before the body, and the service accepts that
            elif code == DELIVERY_ANNOTATIONS < last and not found.delivery_annotations:
                last = FOOTER  # the Python SDK puts them last, and the service accepts that
            elif code > last and (last < DATA or code == FOOTER) and not (code == FOOTER and found.footer):
                last = code
            elif code != last or code not in (DATA, SEQUENCE):
                raise ProtocolError(f"section 0x{code:02x} of a message is out of order")
            if DATA <= code <= VALUE:
                body_start, body_end = body_start if body_end else start, end
            else:
                setattr(found, _SLOTS[code], payload[start:end])
        found.body = payload[body_start:body_end]
        return found

    def join(self) -> bytes:
        return b"".join(
            (
                self.header,
                self.delivery_annotations,
                self.message_annotations,
                self.properties,
                self.application_properties,
                self.body,
                self.footer,
            )
        )

    def __len__(self) -> int:
        return sum(len(getattr(self, name)) for name in ORDER)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name}={len(getattr(self, name))}" for name in ORDER if getattr(self, name))
        return f"<Sections, bytes: {sizes}>"

    def read_header(self) -> Header:
        return _read(self.header, Header)

    def read_properties(self) -> Properties:
        return _read(self.properties, Properties)

    def read_delivery_annotations(self) -> Map:
        return _read_map(self.delivery_annotations)

    def read_message_annotations(self) -> Map:
        return _read_map(self.message_annotations)

    def read_application_properties(self) -> Map:
        return _read_map(self.application_properties)

    def read_footer(self) -> Map:
        return _read_map(self.footer)

    def read_body(self) -> list[tuple[int, Value]]:
        """Return each body section as (DATA, SEQUENCE or VALUE; its value)."""
        return [(code, codec.decode_all(self.body[start:end]).value) for code, start, end in _walk(self.body)]

    def check(self) -> None:
        """Decode every section. Raises ProtocolError for a malformed one."""
        self.read_header(), self.read_properties()
        self.read_delivery_annotations(), self.read_message_annotations(), self.read_application_properties()
        self.read_body(), self.read_footer()


ORDER = tuple(item.name for item in fields(Sections))
_SLOTS = dict(enumerate((*ORDER[:5], "body", "body", "body", "footer"), HEADER))


def _fill(sections: Sections, payload: bytes) -> bool:
    """Set the slices of a message in its common form; return whether it has that form. Hot path."""
    position, size = 0, len(payload)
    codes: list[int] = []
    parts = [b""]
    while position < size:
        common = _COMMON_HEADS.get(payload[position : position + 4])
        if common is None or position + 8 > size:
            return False
        code, width = common
        end = position + (5 + payload[position + 4] if width == 1 else 8 + _U32(payload, position + 4)[0])
        codes.append(code)
        parts.append(payload[position:end])
        position = end
    pick = _in_order(tuple(codes)) if position == size else None
    if pick is None:
        return False
    (
        sections.header,
        sections.delivery_annotations,
        sections.message_annotations,
        sections.properties,
        sections.application_properties,
        sections.body,
        sections.footer,
    ) = pick(parts)
    return True


@lru_cache(256)
def _in_order(codes: tuple[int, ...]) -> Callable[[list[bytes]], tuple[bytes, ...]] | None:
    """Return a function that picks the fields of Sections from the sections with these codes; index 0 is b"".

    None unless the codes are in order, each once, with at most one body section.
    """
    if not all(before < after for before, after in pairwise(codes)) or sum(DATA <= code <= VALUE for code in codes) > 1:
        return None
    places = {_SLOTS[code]: place for place, code in enumerate(codes, 1)}
    return itemgetter(*(places.get(name, 0) for name in ORDER))


def encode_map(code: int, values: Map | dict[Symbol, Value] | dict[str, Value]) -> bytes:
    """Return a section that holds a map; b"" for an empty map."""
    return section(code, codec.encode(values)) if len(values) else b""


def section(code: int, encoded: bytes) -> bytes:
    return bytes((0x00, 0x53, code)) + encoded


def data_body(data: bytes) -> bytes:
    return section(DATA, codec.encode(data))


def value_body(value: Value) -> bytes:
    return section(VALUE, codec.encode(value))


def batch_members(payload: bytes) -> list[bytes]:
    """Return the encoded messages of a batch (message-format BATCH_FORMAT), in order. Raises ProtocolError."""
    found: list[bytes] = []
    position, size = 0, len(payload)
    while payload.startswith(_LONG_DATA, position) and position + 8 <= size:
        start = position + 8
        position = start + _U32(payload, position + 4)[0]
        if position > size:
            raise ProtocolError("a message is cut short")
        found.append(payload[start:position])
    if position < size:
        rest = payload[position:]
        found += [codec.decode_all(rest[start:end]).value for code, start, end in _walk(rest) if code == DATA]
    return found


def batch_of(members: Sequence[bytes], envelope: bytes = b"") -> bytes:
    """Return the payload of a batch (message-format BATCH_FORMAT). `envelope` is its common sections."""
    return b"".join((envelope, *chain.from_iterable(zip(map(member_head, map(len, members)), members, strict=True))))


@lru_cache(4096)
def member_head(size: int) -> bytes:
    """Return the bytes before a member of a batch: the head of a data section."""
    return _LONG_DATA + size.to_bytes(4)


_LONG_DATA = bytes((0x00, 0x53, DATA, 0xB0))
_U32 = struct.Struct(">I").unpack_from


def is_plain(payload: bytes) -> bool:
    """Return whether a message is properties with only a text id, then one data section, the most common form."""
    try:
        if not payload.startswith(_SHORT_PROPERTIES) or payload[6] != 0xA1:
            return False
        end, id_end = 5 + payload[4], 8 + payload[7]
        if id_end > end or payload[id_end:end].strip(b"\x40"):
            return False
        return ends_in_data(payload, end)
    except (IndexError, struct.error):
        return False


def ends_in_data(payload: bytes, at: int) -> bool:
    """Return whether one data section fills the rest."""
    return payload.startswith(data_heads(len(payload) - at), at)


@lru_cache(4096)
def data_heads(size: int) -> tuple[bytes, ...]:
    """Return the possible heads of a data section of `size` bytes in all."""
    short = _SHORT_DATA + bytes((size - 5,)) if 5 <= size < 261 else None
    long = member_head(size - 8) if size >= 8 else None
    return tuple(filter(None, (long, short)))


_SHORT_DATA = bytes((0x00, 0x53, DATA, 0xA0))
_SHORT_PROPERTIES = bytes((0x00, 0x53, PROPERTIES, 0xC0))


def skip(buffer: bytes, position: int) -> int:
    """Return the position after the value at `position`, without decoding it. Raises ProtocolError."""
    try:
        end = _skip(buffer, position)
    except (IndexError, KeyError):
        raise ProtocolError("a message is cut short, or not a message") from None
    if end > len(buffer):
        raise ProtocolError("a message is cut short")
    return end


def _skip(buffer: bytes, position: int, depth: int = 0) -> int:
    code = buffer[position]
    while code == 0x00:
        depth += 1
        if depth > codec.MAX_DEPTH:
            raise ProtocolError(f"AMQP values nest deeper than {codec.MAX_DEPTH}")
        position = _skip(buffer, position + 1, depth)
        code = buffer[position]
    group = code >> 4
    if group >= 10:
        if group % 2 == 0:
            return position + 2 + buffer[position + 1]
        return position + 5 + int.from_bytes(buffer[position + 1 : position + 5])
    return position + 1 + _FIXED_WIDTH[group]


def _walk(payload: bytes) -> list[tuple[int, int, int]]:
    """Return (section code, start, end) of each section, in order."""
    found: list[tuple[int, int, int]] = []
    position, size = 0, len(payload)
    while position < size:
        common = _COMMON_HEADS.get(payload[position : position + 4])
        if common is not None and position + 4 + common[1] <= size:
            code, width = common
            if width == 1:
                end = position + 5 + payload[position + 4]
            else:
                end = position + 8 + int.from_bytes(payload[position + 4 : position + 8])
            if end > size:
                raise ProtocolError("a message is cut short")
            found.append((code, position, end))
            position = end
            continue
        if payload[position] != 0x00:
            raise ProtocolError("a message has bytes outside its sections")
        if payload[position + 1 : position + 2] == b"\x53" and position + 2 < size:
            code, value_at = payload[position + 2], position + 3
        else:
            descriptor, value_at = codec.decode(payload, position + 1)
            code = _section_code(descriptor)
        end = skip(payload, value_at)
        _check_section(code, payload[value_at])
        found.append((code, position, end))
        position = end
    return found


# The common heads of sections: {first four bytes: (section code, width of the size)}. Hot path.
_COMMON_HEADS = {
    bytes((0x00, 0x53, code, constructor)): (code, width)
    for codes, constructors in ((_MAPS, (0xC1, 0xD1)), (_LISTS, (0xC0, 0xD0)), ((DATA,), (0xA0, 0xB0)))
    for code in codes
    for constructor, width in zip(constructors, (1, 4), strict=True)
}


def _section_code(descriptor: Value) -> int:
    if isinstance(descriptor, ULong):
        return int(descriptor)
    return _NAMES.get(descriptor, 0) if isinstance(descriptor, Symbol) else 0


def _check_section(code: int, constructor: int) -> None:
    if constructor not in _CONSTRUCTORS.get(code, ()):
        raise ProtocolError(f"section 0x{code:02x} of a message has the wrong type")


_CONSTRUCTORS = {
    **dict.fromkeys(_MAPS, (0xC1, 0xD1)),
    **dict.fromkeys(_LISTS, (0x45, 0xC0, 0xD0)),
    DATA: (0xA0, 0xB0),
    VALUE: range(256),
}


def _read(raw: bytes, cls: type[C]) -> C:
    return cls.from_list(codec.decode_all(raw).value) if raw else cls()


def _read_map(raw: bytes) -> Map:
    if not raw:
        return Map()
    value = codec.decode_all(raw).value
    if not isinstance(value, Map):
        raise ProtocolError("a section is not a map")
    return value
