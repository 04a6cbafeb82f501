"""The messages of a drill, as an application sends them and the old client writes them to the backlog, and a comparison
of received messages with those sent, in everything that a move keeps. Pure.

Written from the wire format and without the code of a move, so that a mistake there cannot hide here.
"""

from __future__ import annotations

import random
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias, TypeVar

from sbpair.amqp import codec, message, types
from sbpair.amqp.message import Header, Properties, Sections, section
from sbpair.amqp.types import Described, Int, Long, Map, Symbol, Timestamp, Value
from sbpair.errors import ProtocolError
from sbpair.move.receipt import Receipt
from sbpair.timespan import TICKS_PER_MS

DESTINATIONS = ("orders", "billing/invoices", "telemetry")

MINUTE_TICKS = 600_000_000
SCHEDULE_MS = 600_000
"""How far in the future a scheduled message is when it is written."""

_MINUTES = (1, 30, 24 * 60)
_FOREVER_MINUTES = 100 * 24 * 60
"""A time to live that does not fit the header: a hundred days."""

TIMESPAN = Symbol("com.microsoft:timespan")
SESSION_FIELD = 10
"""The position of the session in a properties section; those of the expiry and of the time of creation are 8 and 9."""


@dataclass(frozen=True, slots=True)
class OriginalMessage:
    """One message as the application sent it. `ttl_ticks` is .NET's, `scheduled_at` is milliseconds since 1970.

    In the backlog it has `backlog_header` unless that is empty, and `backlog_times`, expiry and creation in ms. If it
    `expires` there, it comes back as a dead letter.
    """

    number: int
    message_id: str
    destination: str
    sections: Sections
    session_id: str | None
    ttl_ticks: int | None
    scheduled_at: int | None
    backlog_header: bytes = b""
    backlog_times: tuple[int, int] | None = None
    expires: bool = False

    def in_backlog(self) -> bytes:
        """Encode the message as the old client writes it to the backlog: with aliases, and their properties cleared."""
        pairs = list(self.sections.read_application_properties().pairs)
        pairs.append(("x-ms-path", self.destination))
        if self.session_id is not None:
            pairs.append(("x-ms-sessionid", self.session_id))
        if self.ttl_ticks is not None:
            pairs.append(("x-ms-timetolive", Described(TIMESPAN, Long(self.ttl_ticks))))
        if self.scheduled_at is not None:
            pairs.append(("x-ms-scheduledenqueuetimeutc", Timestamp(self.scheduled_at)))
        fields = codec.decode_all(self.sections.properties).value
        fields[SESSION_FIELD] = None
        if self.backlog_times is not None:
            fields[8:10] = map(Timestamp, self.backlog_times)
        return Sections(
            header=self.backlog_header or self.sections.header,
            message_annotations=self.sections.message_annotations,
            properties=_section(message.PROPERTIES, fields),
            application_properties=_section(message.APPLICATION_PROPERTIES, Map(pairs)),
            body=self.sections.body,
            footer=self.sections.footer,
        ).join()


def originals(count: int, *, now_ms: int, seed: int = 0) -> list[OriginalMessage]:
    """Make `count` messages that cover every part of a message. The same seed makes the same messages."""
    rng = random.Random(seed)  # noqa: S311  a drill is repeatable on purpose
    return [_original(number, rng, now_ms) for number in range(count)]


def _original(number: int, rng: random.Random, now_ms: int) -> OriginalMessage:
    message_id = f"drill-{number:06d}-{rng.getrandbits(32):08x}"
    session_id = f"session-{number % 7}" if number % 3 == 0 else None
    scheduled_at = now_ms + SCHEDULE_MS if number % 11 == 5 else None
    return OriginalMessage(
        number=number,
        message_id=message_id,
        destination=DESTINATIONS[rng.randrange(len(DESTINATIONS))],
        sections=Sections(
            header=Header(durable=True, priority=number % 10).encode() if number % 4 == 1 else b"",
            message_annotations=_annotations(number),
            properties=_properties(message_id, number, session_id),
            application_properties=_application_properties(number, rng),
            body=_body(number, rng),
            footer=_section(message.FOOTER, Map([(Symbol("x-drill"), number % 5 == 0)])) if number % 9 == 4 else b"",
        ),
        session_id=session_id,
        ttl_ticks=_ttl_ticks(number, scheduled=scheduled_at is not None),
        scheduled_at=scheduled_at,
    )


def _ttl_ticks(number: int, *, scheduled: bool) -> int | None:
    if number % 2:
        return None
    if number % 10 == 8:
        return _FOREVER_MINUTES * MINUTE_TICKS
    # A scheduled message must live until its time.
    return _MINUTES[-1 if scheduled else number % len(_MINUTES)] * MINUTE_TICKS


def _properties(message_id: str, number: int, session_id: str | None) -> bytes:
    fields: list[Value] = [None] * 13
    fields[0] = message_id
    if number % 5 == 1:
        fields[1], fields[3] = b"user", "subject \u2603"
        fields[5] = (types.ULong(number), uuid.UUID(int=number), b"\x00\xff", "text")[number % 4]
    if number % 5 == 2:
        fields[2], fields[4], fields[6] = "to", "reply-to", Symbol("application/octet-stream")
        fields[11], fields[12] = types.UInt(number), "reply-session"
    fields[SESSION_FIELD] = session_id
    return _section(message.PROPERTIES, fields)


def _annotations(number: int) -> bytes:
    if number % 6:
        return b""
    pairs: list[tuple[Value, Value]] = [
        (Symbol("x-opt-drill"), [Int(number), {Symbol("deep"): types.Array([Long(1), Long(2**40)])}]),
        (Symbol("x-opt-partition-key"), f"session-{number % 7}"),
    ]
    return _section(message.MESSAGE_ANNOTATIONS, Map(pairs))


def every_type(number: int) -> list[tuple[str, Value]]:
    """Make a property of every AMQP type that a property can have, and of the described types that .NET writes."""
    return [
        ("null", None),
        ("true", True),
        ("false", False),
        ("ubyte", types.UByte(number % 256)),
        ("ushort", types.UShort(number % 65536)),
        ("uint", types.UInt(number)),
        ("uint0", types.UInt(0)),
        ("uint-large", types.UInt(0xFFFFFFFF)),
        ("ulong", types.ULong(2**63 + number)),
        ("ulong0", types.ULong(0)),
        ("byte", types.Byte(-(number % 128))),
        ("short", types.Short(-(number % 32768))),
        ("int", Int(-number)),
        ("int-large", Int(2**31 - 1)),
        ("long", Long(2**40 + number)),
        ("long-small", Long(5)),
        ("float", types.Float(1.5)),
        ("double", number / 7),
        ("decimal32", types.Decimal32(b"\x22\x50\x00\x2a")),
        ("decimal64", types.Decimal64(b"\x22\x34" + number.to_bytes(6))),
        ("decimal128", types.Decimal128(b"\x22\x08" + number.to_bytes(14))),
        ("char", types.Char("\u20ac")),
        ("timestamp", Timestamp(1_767_225_600_000 + number)),
        ("uuid", uuid.UUID(int=2**100 + number)),
        ("binary", bytes([number % 256]) * 300),
        ("string", "snow \u2603"),
        ("string-long", "x" * 300),
        ("symbol", Symbol("a-symbol")),
        ("timespan", Described(TIMESPAN, Long(number * 10_000))),
        ("datetime-offset", Described(Symbol("com.microsoft:datetime-offset"), Long(638_000_000_000_000_000))),
        ("uri", Described(Symbol("com.microsoft:uri"), "https://example.invalid/")),
    ]


def _application_properties(number: int, rng: random.Random) -> bytes:
    if number % 8 == 7:
        return b""
    pairs = every_type(number) if number % 8 == 0 else rng.sample(every_type(number), 3)
    return _section(message.APPLICATION_PROPERTIES, Map(pairs))


def _body(number: int, rng: random.Random) -> bytes:
    kind = number % 6
    if kind == 0:
        return _section(message.VALUE, Map([("text", "a value"), ("list", [Int(1), "two", 3.0]), ("n", Long(number))]))
    if kind == 1:
        return b"".join(_section(message.SEQUENCE, [Int(part), "part", None]) for part in range(3))
    if kind == 2:
        return b"".join(_section(message.DATA, rng.randbytes(40)) for _ in range(3))
    if number == 3:
        return _section(message.DATA, rng.randbytes(200_000))
    return _section(message.DATA, b"" if number % 50 == 4 else rng.randbytes(rng.randrange(1, 2_000)))


def _section(code: int, value: Value) -> bytes:
    return section(code, codec.encode(value))


Original = TypeVar("Original")

MAX_HEADER_TTL_MS = 0xFFFFFFFF
MAX_EXAMPLES = 20
"""The number of altered and of lost messages that a result names."""

# The service sets these on any message; the schedule has its own check.
_SERVICE_ANNOTATIONS = (
    "x-opt-sequence-number",
    "x-opt-enqueued-time",
    "x-opt-enqueue-sequence-number",
    "x-opt-locked-until",
    "x-opt-message-state",
    "x-opt-scheduled-enqueue-time",
)


_RAW = ("body", "footer", "application_properties")


Alteration: TypeAlias = Annotated[tuple[Annotated[str, "Message id"], Annotated[str, "Difference"]], "One change"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All received messages compared with the sent ones. `duplicated` counts all repeated messages."""

    sent: Annotated[int, "Sent messages"]
    received: Annotated[int, "Received messages"]
    lost: Annotated[int, "Messages that did not arrive"]
    duplicated: Annotated[int, "Messages that arrived more than once"]
    altered: Annotated[int, "Messages that changed"]
    receipt: Annotated[Receipt, "The receipt of the move"]
    alterations: Annotated[tuple[Alteration, ...], "Changes"] = ()
    lost_ids: Annotated[tuple[Annotated[str, "Message id"], ...], "Ids of lost messages"] = ()


def compare_all(
    sent: Collection[str], received: Iterable[tuple[str, list[str]]]
) -> tuple[dict[str, Any], dict[str, int]]:
    """Compare the ids of sent messages with received messages, as (id, differences).

    Returns the fields of a Comparison without its receipt, and the repetitions by id.
    """
    seen: Counter[str] = Counter()
    altered: dict[str, str] = {}
    for message_id, differences in received:
        seen[message_id] += 1
        if differences:
            altered[message_id] = "; ".join(differences)
    repeated = {message_id: times - 1 for message_id, times in seen.items() if times > 1}
    lost = [each for each in sent if not seen[each]]
    figures = {
        "sent": len(sent),
        "received": seen.total(),
        "lost": len(lost),
        "duplicated": sum(repeated.values()),
        "altered": len(altered),
        "alterations": tuple(altered.items())[:MAX_EXAMPLES],
        "lost_ids": tuple(lost[:MAX_EXAMPLES]),
    }
    return figures, repeated


def compared(
    sent: Mapping[str, Original], payload: bytes, differences: Callable[[Original, Sections], list[str]]
) -> tuple[str, list[str]]:
    """Return the id and the differences of a received message; id "" for a message without one or an unreadable one."""
    message_id = ""
    try:
        got = Sections.split(payload)
        message_id = types.text_of(got.read_properties().message_id) or ""
        original = sent.get(message_id)
        return message_id, ["it was never sent"] if original is None else differences(original, got)
    except ProtocolError as error:
        return message_id, [f"unreadable: {error.message}"]


def message_differences(original: OriginalMessage, got: Sections) -> list[str]:
    """Return the differences, one line each; [] for an unaltered message. Raises ProtocolError."""
    return [
        line
        for check in (_section_differences, _header_differences, _annotation_differences)
        for line in check(original, got)
    ]


def byte_differences(had: Sections, got: Sections, sections: Sequence[str] = _RAW) -> list[str]:
    """Compare sections whose bytes are kept."""
    differing = [each for each in sections if getattr(had, each) != getattr(got, each)]
    return [f"the bytes of {each.replace('_', ' ')} differ" for each in differing]


def property_differences(had: Properties, has: Properties) -> list[str]:
    """Compare all properties but those that follow from a time to live."""
    names = [name for name, _, _ in Properties.TYPES if name not in ("absolute_expiry_time", "creation_time")]
    differing = [name for name in names if not types.same(getattr(had, name), getattr(has, name))]
    return [f"the property {name} differs" for name in differing]


def _section_differences(original: OriginalMessage, got: Sections) -> list[str]:
    if (_ttl_ms(original) or 0) <= MAX_HEADER_TTL_MS and original.backlog_times is None:
        return byte_differences(original.sections, got, (*_RAW, "properties"))
    has = got.read_properties()
    lines = byte_differences(original.sections, got)
    lines += property_differences(original.sections.read_properties(), has)
    lifetime = (has.absolute_expiry_time or 0) - (has.creation_time or 0)
    if lifetime != _ttl_ms(original):
        lines.append(f"absolute-expiry-time minus creation-time: expected {_ttl_ms(original)} ms, got {lifetime}")
    return lines


def _header_differences(original: OriginalMessage, got: Sections) -> list[str]:
    had, has = original.sections.read_header(), got.read_header()
    lines = [f"the header's {name} differs" for name in ("durable", "priority") if _differs(had, has, name)]
    ttl = _ttl_ms(original)
    expected = None if ttl is None else min(ttl, MAX_HEADER_TTL_MS)
    if has.ttl != expected and not (expected is None and has.ttl == MAX_HEADER_TTL_MS):
        lines.append(f"time to live: expected {expected} ms, got {has.ttl}")
    if has.delivery_count:
        lines.append(f"delivery count: expected 0, got {has.delivery_count}")
    return lines


def _annotation_differences(original: OriginalMessage, got: Sections) -> list[str]:
    had, has = original.sections.read_message_annotations(), got.read_message_annotations()
    lines = [f"the annotation {key} differs" for key in had if not types.same(had[key], has.get(key))]
    lines += [f"unexpected annotation {key}" for key in has if key not in had and key not in _SERVICE_ANNOTATIONS]
    schedule = has.get("x-opt-scheduled-enqueue-time")
    if schedule != original.scheduled_at:
        lines.append(f"schedule: expected {original.scheduled_at}, got {schedule}")
    return lines


def _ttl_ms(original: OriginalMessage) -> int | None:
    return None if original.ttl_ticks is None else original.ttl_ticks // TICKS_PER_MS


def _differs(had: Header, has: Header, name: str) -> bool:
    left: Any = getattr(had, name)
    right: Any = getattr(has, name)
    # The service may send a default: durable false, priority 4.
    defaults = {"durable": (None, False), "priority": (None, 4)}[name]
    return not (left == right or (left in defaults and right in defaults))
