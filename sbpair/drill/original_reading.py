"""Messages in a backlog as we read the original's clients, from published texts; no running client was captured. Pure.

The tables are the reading: what a message becomes depends on the client that sent it and on what its body was made of.
"""

from __future__ import annotations

import uuid
from dataclasses import replace

from sbpair.amqp import codec, message
from sbpair.amqp.message import Sections, encode_map, section
from sbpair.amqp.types import Decimal128, Described, Int, Long, Symbol, Timestamp, Value
from sbpair.drill.drill_messages import SESSION_FIELD, TIMESPAN, OriginalMessage, originals
from sbpair.timespan import LAST_EXPIRY_MS

READING = "as we read the original; no running client was captured"

WRAPPED_TTL_MS = 1_566_804_069
"""TimeSpan.MaxValue in the header, as the lowest 32 bits of its milliseconds: the backlog keeps a message 18 days."""

CLIENTS = {"AMQP": (True, True), "AMQP, package 2.x": (True, False), "its own protocol": (False, False)}
"""Clients, and whether they wrap: a time to live leaves WRAPPED_TTL_MS, the last expiry and the time of sending behind.

And whether an object of an AMQP type is a value section; if not, it is .NET's binary XML in a data section.
"""


def binary_xml(name: str, content: bytes, namespace: str = "") -> bytes:
    """Encode an element of a namespace of .NET's or of a class ([MC-NBFX] 2.2). `content` are the records that follow.

    These are what .NET 10 writes for the same value.
    """
    names = name, namespace if ":" in namespace else f"http://schemas.microsoft.com/2003/10/Serialization/{namespace}"
    heads = (bytes((record, len(text))) + text.encode() for record, text in zip((0x40, 0x08), names, strict=True))
    return b"".join((*heads, content))


_GUID, _URI = "00112233-4455-6677-8899-aabbccddeeff", "https://shop.example/a?b=c&d=%C3%A4"
_DECIMAL = Decimal128(bytes.fromhex("0c3800000000000000000000075bcd15"))  # .NET's own form of 12345.6789
_SPAN = Described(TIMESPAN, Long(54_300_000_000))
_TYPED = b"\x09\x01i\x29http://www.w3.org/2001/XMLSchema-instance"
_INTS = b"\x40\x03int\x83\x40\x03int\x81\x40\x03int\x89\x05\x40\x03int\x8d\xa0\x86\x01\x00\x01"
_POINT = b"\x40\x01X\x83\x40\x01Y\x89\xfe\x01"

BODIES: dict[str, tuple[Value, bytes | None]] = {
    "string": ("hello", binary_xml("string", b"\x99\x05hello")),
    "int": (Int(42), binary_xml("int", b"\x89\x2a")),
    "bool": (True, binary_xml("boolean", b"\x87")),
    "decimal": (_DECIMAL, binary_xml("decimal", b"\x95\0\0\x04\0\0\0\0\0\x15\xcd\x5b\x07\0\0\0\0")),
    "DateTime": (Timestamp(1_767_270_896_789), binary_xml("dateTime", b"\x97\x22\x81\xf5\x2b\x32\x49\xde\x48")),
    "Guid": (uuid.UUID(_GUID), binary_xml("guid", b"\x99\x24" + _GUID.encode())),
    "byte[]": (b"\x00\x01\x02\x03\xff", binary_xml("base64Binary", b"\x9e\x03\x00\x01\x02\x9f\x02\x03\xff")),
    "Uri": (Described(Symbol("com.microsoft:uri"), _URI), binary_xml("anyURI", b"\x99\x23" + _URI.encode())),
    "TimeSpan": (_SPAN, binary_xml("duration", b"\x99\x0aPT1H30M30S")),
    "List<int>": ([Int(1), Int(0), Int(5), Int(100_000)], binary_xml("ArrayOfint", _TYPED + _INTS, "Arrays")),
    "a struct": (None, binary_xml("Point", _TYPED + _POINT, "http://schemas.datacontract.org/2004/07/Shop")),
    "Stream": (None, bytes(range(256))),
    "nothing": (None, None),
}
"""The argument of a BrokeredMessage by its type: the value if AMQP has such a type, and the data; None for no body."""

OWN: dict[str, Value] = {"count": Long(5), "price": _DECIMAL, "life": _SPAN, "name": "snow \u2603", "at": Timestamp(0)}
UNKNOWN_ANNOTATIONS = {"x-opt-enqueue-sequence-number": Long(7), "x-opt-message-state": Int(0)}
"""Annotations that the original did not know: messages that its syphon moved have them as application properties."""

_TEXTS: dict[int, Value] = {2: "to", 3: "label", 4: "reply-to", 5: "correlation", 6: Symbol("text/plain"), 12: "reply"}


def messages_as_read(count: int, *, now_ms: int, seed: int = 0) -> list[OriginalMessage]:
    """Make `count` messages of every client with every body, sent at `now_ms`. The same seed makes the same ones."""
    return [_as_read(each, now_ms) for each in originals(count, now_ms=now_ms, seed=seed)]


def _as_read(original: OriginalMessage, now_ms: int) -> OriginalMessage:
    number, session = original.number, original.session_id
    value, data = list(BODIES.values())[number % len(BODIES)]
    wraps, keeps_values = list(CLIENTS.values())[number // len(BODIES) % len(CLIENTS)]
    wraps = wraps and original.ttl_ticks is not None
    body = b"" if data is None else message.data_body(data)
    if keeps_values and value is not None:
        body = message.value_body(value)
    fields = {**(_TEXTS if number % 5 == 1 else {}), 0: original.message_id, SESSION_FIELD: session}
    own = (OWN if number % 5 else {}) | (UNKNOWN_ANNOTATIONS if number % 7 < 3 else {})
    annotations = {Symbol("x-opt-partition-key"): session} if session and number % 5 < 2 else {}
    return replace(
        original,
        sections=Sections(
            message_annotations=encode_map(message.MESSAGE_ANNOTATIONS, annotations),
            properties=section(message.PROPERTIES, codec.encode([fields.get(at) for at in range(13)])),
            application_properties=encode_map(message.APPLICATION_PROPERTIES, own),
            body=body,
        ),
        backlog_header=message.Header(ttl=WRAPPED_TTL_MS).encode() if wraps else b"",
        backlog_times=(LAST_EXPIRY_MS, now_ms) if wraps else None,
        expires=wraps and number % 4 == 0,
    )
