"""What a move keeps of a message, to the byte; and that no bytes at all can break the one who moves them."""

import contextlib
import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbpair.amqp import codec
from sbpair.amqp.message import (
    APPLICATION_PROPERTIES,
    DATA,
    DELIVERY_ANNOTATIONS,
    FOOTER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    SEQUENCE,
    VALUE,
    Header,
    Properties,
    Sections,
    data_body,
    encode_map,
    section,
)
from sbpair.amqp.types import Char, Int, Long, Map, Short, Symbol, Timestamp, UByte, UInt, ULong, Value, same
from sbpair.backlog import Aliases, write_aliases
from sbpair.drill.original_reading import WRAPPED_TTL_MS as WRAPPED
from sbpair.errors import ProtocolError
from sbpair.move.message.envelope import (
    ACTIVE,
    LOCK_TOKEN,
    SERVICE_ANNOTATIONS,
    lifetime_ms,
    locked_until,
    message_state,
    read_facts,
    restore,
    without_lock_token,
)
from sbpair.move.message.route import DeadLetter, Send, kept_for, route

NOW = 1_767_225_600_000
MAXIMUM = 0xFFFFFFFF
MINUTE_TICKS = 600_000_000

TEXT = st.text(max_size=12)
VALUES = (
    st.none()
    | st.booleans()
    | TEXT
    | st.binary(max_size=20)
    | st.integers(0, 2**60).map(Long)
    | st.lists(TEXT, max_size=2)
)
NAMES = st.text("abcdefgh", min_size=1, max_size=8)
OWN = st.lists(st.tuples(NAMES | st.integers(0, 9).map(Int), VALUES), max_size=6)
ANNOTATIONS = st.lists(st.tuples(st.builds(lambda name: Symbol(f"x-opt-{name}"), NAMES), VALUES), max_size=4)
BODIES = (
    st.lists(st.binary(max_size=30).map(lambda data: section(DATA, codec.encode(data))), min_size=1, max_size=3)
    | st.lists(
        st.lists(VALUES, max_size=3).map(lambda each: section(SEQUENCE, codec.encode(each))), min_size=1, max_size=2
    )
    | VALUES.map(lambda value: [section(VALUE, codec.encode(value))])
).map(b"".join)
HEADERS = st.none() | st.builds(
    Header,
    durable=st.none() | st.booleans(),
    priority=st.none() | st.integers(0, 9),
    first_acquirer=st.none() | st.booleans(),
    delivery_count=st.none() | st.integers(0, 5),
)
PROPERTY_LISTS = st.lists(st.none() | TEXT, max_size=8).map(
    lambda texts: [*texts[:1], None, *texts[2:6]]  # the second is binary, the seventh on are symbols and times
)
ALIASES = st.builds(
    Aliases,
    path=st.lists(st.text("abcXYZ019._-", min_size=1, max_size=5), min_size=1, max_size=3)
    .map("/".join)
    .filter(lambda path: not {".", ".."} & set(path.split("/"))),
    session_id=st.none() | TEXT,
    ttl_ticks=st.none() | st.integers(1, 2**63 - 1),
    scheduled_at=st.none() | st.integers(0, 2**60),
)
SERVICE = [
    (Symbol("x-opt-sequence-number"), Long(42)),
    (Symbol("x-opt-enqueued-time"), Timestamp(NOW - 5)),
    (Symbol("x-opt-enqueue-sequence-number"), Long(0)),
    (Symbol("x-opt-locked-until"), Timestamp(NOW + 60_000)),
    (Symbol("x-opt-message-state"), Int(0)),
    (Symbol("x-opt-partition-id"), Short(3)),
]


def wide(encoded: bytes) -> bytes:
    if encoded[0] == 0x45:
        return b"\xd0" + (4).to_bytes(4) + bytes(4)
    if encoded[0] >= 0xD0:
        return encoded
    body = encoded[3:]
    return bytes((encoded[0] + 0x10,)) + (len(body) + 4).to_bytes(4) + encoded[2].to_bytes(4) + body


def part(code: int, name: str, value: object, style: str) -> bytes:
    """A section as peers may write it: the usual way, with wide sizes, with a descriptor that is a symbol."""
    encoded = codec.encode(value)
    if style == "symbolic":
        return b"\x00" + codec.encode(Symbol(name)) + encoded
    return section(code, wide(encoded) if style == "wide" else encoded)


def backlog_copy(own, annotations, header, properties, body, footer, aliases, style="usual", delivery=()) -> Sections:
    """A message as the service gives it out of a backlog queue."""
    return Sections(
        header=header.encode() if header else b"",
        delivery_annotations=part(
            DELIVERY_ANNOTATIONS,
            "amqp:delivery-annotations:map",
            Map([*delivery, (Symbol("x-opt-lock-token"), b"t")]),
            style,
        ),
        message_annotations=part(
            MESSAGE_ANNOTATIONS, "amqp:message-annotations:map", Map([*annotations, *SERVICE]), style
        ),
        properties=part(PROPERTIES, "amqp:properties:list", properties, style) if properties is not None else b"",
        application_properties=part(
            APPLICATION_PROPERTIES,
            "amqp:application-properties:map",
            Map([*own, *write_aliases(aliases).items()]),
            style,
        ),
        body=body,
        footer=footer,
    )


def plain(aliases: Aliases, **sections: bytes) -> bytes:
    return Sections(
        **{
            "application_properties": section(APPLICATION_PROPERTIES, codec.encode(write_aliases(aliases))),
            "body": data_body(b"body"),
            **sections,
        }
    ).join()


def moved(payload: bytes) -> Sections:
    sections, facts = read_facts("q", payload)
    decision = route(facts)
    assert isinstance(decision, Send), facts.flaw
    return Sections.split(restore(sections, decision, NOW))


def flaw_of(payload: bytes) -> str:
    _, facts = read_facts("q", payload)
    decision = route(facts)
    assert isinstance(decision, DeadLetter)
    assert decision.description == facts.flaw
    return facts.flaw


@settings(deadline=None)
@given(
    own=OWN,
    annotations=ANNOTATIONS,
    header=HEADERS,
    properties=st.none() | PROPERTY_LISTS,
    body=BODIES,
    footer=st.just(b"") | OWN.map(lambda pairs: section(FOOTER, codec.encode(Map(pairs)))),
    aliases=ALIASES,
    style=st.sampled_from(["usual", "wide", "symbolic"]),
    delivery=OWN,
)
def test_a_move_keeps_what_it_promises(own, annotations, header, properties, body, footer, aliases, style, delivery):
    before = backlog_copy(own, annotations, header, properties, body, footer, aliases, style, delivery)
    after = moved(before.join())

    assert after.body == before.body
    assert after.footer == before.footer

    # Delivery annotations: less the lock token, and the rest as it was.
    if delivery:
        pairs = b"".join(codec.encode(key) + codec.encode(value) for key, value in delivery)
        assert after.delivery_annotations.endswith(pairs)
        assert same(after.read_delivery_annotations(), Map(delivery))
    else:
        assert after.delivery_annotations == b""

    # Application properties: less the aliases, and the encoded pairs of the rest as they were.
    if own:
        assert codec.encode(Map(own))[-1:] == after.application_properties[-1:]
        pairs = b"".join(codec.encode(key) + codec.encode(value) for key, value in own)
        assert after.application_properties.endswith(pairs)
        assert same(after.read_application_properties(), Map(own))
    else:
        assert after.application_properties == b""

    # Annotations: the service's own are gone, a schedule is there, the rest as it was.
    kept = [(key, value) for key, value in annotations if key not in SERVICE_ANNOTATIONS]
    schedule = Symbol("x-opt-scheduled-enqueue-time")
    wanted = kept if aliases.scheduled_at is None else [*kept, (schedule, Timestamp(aliases.scheduled_at))]
    assert same(after.read_message_annotations(), Map(wanted))

    # Header: durable and priority stay, the counters are reset.
    was, now = before.read_header(), after.read_header()
    assert (now.durable, now.priority, now.first_acquirer, now.delivery_count) == (
        was.durable,
        was.priority,
        None,
        None,
    )

    ttl_ms = None if aliases.ttl_ticks is None else -(-aliases.ttl_ticks // 10_000)
    assert now.ttl == (None if ttl_ms is None else min(ttl_ms, MAXIMUM))

    # Properties: to the byte, but for what was asked for.
    if aliases.session_id is None and (ttl_ms is None or ttl_ms < MAXIMUM):
        assert after.properties == before.properties
    had, has = before.read_properties(), after.read_properties()
    changed = set()
    if aliases.session_id is not None:
        assert has.group_id == aliases.session_id
        changed.add("group_id")
    if ttl_ms is not None and ttl_ms >= MAXIMUM:
        assert has.creation_time == NOW
        assert has.absolute_expiry_time == min(NOW + ttl_ms, LAST_EXPIRY)
        changed |= {"creation_time", "absolute_expiry_time"}
    for name, _, _ in Properties.TYPES:
        assert name in changed or same(getattr(had, name), getattr(has, name))


LAST_EXPIRY = 253_402_214_399_999
"""9999-12-30T23:59:59.999Z."""

HUNDRED_DAYS_MS = 100 * 24 * 3_600_000
OLD = {
    "header": Header(ttl=WRAPPED).encode(),
    "properties": Properties(absolute_expiry_time=LAST_EXPIRY, creation_time=NOW - 2).encode(),
}
STALE = {"properties": Properties(absolute_expiry_time=NOW - 1, creation_time=NOW - 2).encode()}


@pytest.mark.parametrize(
    ("ticks", "had", "ttl", "times"),
    [
        (MAXIMUM * 10_000 - 10_000, {}, MAXIMUM - 1, (None, None)),
        # The maximum alone is none.
        (MAXIMUM * 10_000, {}, MAXIMUM, (NOW, NOW + MAXIMUM)),
        # More than 49 days do not fit the header.
        (HUNDRED_DAYS_MS * 10_000, {}, MAXIMUM, (NOW, NOW + HUNDRED_DAYS_MS)),
        (2**63 - 1, {}, MAXIMUM, (NOW, LAST_EXPIRY)),
        (1, {}, 1, (None, None)),
        # Original clients wrote a wrapped maximum, and the last expiry, into the header of a message for the backlog.
        (MINUTE_TICKS, OLD, 60_000, (NOW, NOW + 60_000)),
        (HUNDRED_DAYS_MS * 10_000, OLD, MAXIMUM, (NOW, NOW + HUNDRED_DAYS_MS)),
        (MINUTE_TICKS, STALE, 60_000, (NOW, NOW + 60_000)),
        # One that is no alias is what the sender wished, unless it is the largest, which is none.
        (None, {"header": Header(ttl=5_000).encode()}, 5_000, (None, None)),
        (None, {"header": Header(ttl=MAXIMUM, delivery_count=3).encode()}, None, (None, None)),
    ],
)
def test_a_time_to_live_is_in_the_header_or_in_two_times(ticks, had, ttl, times):
    after = moved(plain(Aliases("q", ttl_ticks=ticks), **had))
    properties = after.read_properties()
    assert after.read_header().ttl == ttl
    assert (properties.creation_time, properties.absolute_expiry_time) == times
    assert bool(after.header) == (ttl is not None)


@pytest.mark.parametrize(
    ("ttl", "expires", "created", "left"),
    [
        (7, 99, 1, 7),
        (0, 99, 1, None),
        (MAXIMUM, 99, 1, 98),
        (WRAPPED, 99, 1, 98),
        (WRAPPED, LAST_EXPIRY, NOW, LAST_EXPIRY - NOW),
        (WRAPPED, None, 1, WRAPPED),
        (None, 99, None, 94),
        (None, 5, None, None),
        (None, 99, 0, None),
        (None, None, 1, None),
    ],
)
def test_a_life_is_what_the_header_or_the_expiry_states(
    ttl: int | None, expires: int | None, created: int | None, left: int | None
) -> None:
    assert lifetime_ms(ttl, Properties(absolute_expiry_time=expires, creation_time=created), 5) == left


def test_a_schedule_replaces_an_older_one():
    old = section(MESSAGE_ANNOTATIONS, codec.encode(Map([(Symbol("x-opt-scheduled-enqueue-time"), Timestamp(1))])))
    after = moved(plain(Aliases("q", scheduled_at=7), message_annotations=old))
    assert same(after.read_message_annotations(), Map([(Symbol("x-opt-scheduled-enqueue-time"), Timestamp(7))]))


def test_a_value_that_is_broken_and_not_an_alias_travels_as_it_came():
    broken = b"\xa1\x01k" + b"\xa1\x02\xff\xfe"  # a string that is no UTF-8
    alias = codec.encode("x-ms-path") + codec.encode("orders")
    raw = bytes((0x00, 0x53, 0x74, 0xC1, len(broken + alias) + 1, 4)) + broken + alias
    after = moved(plain(Aliases("x"), application_properties=raw))
    assert after.application_properties == bytes((0x00, 0x53, 0x74, 0xC1, len(broken) + 1, 2)) + broken


def test_the_facts_say_what_is_known_of_a_message():
    aliases = Aliases("orders", "s", 600_000_000, 5)
    properties = ["id-1", None, None, None, None, None, Symbol("text/plain")]
    payload = backlog_copy([], [], None, properties, data_body(b"x"), b"", aliases).join()
    sections, facts = read_facts("q", payload)
    assert (facts.queue, facts.sequence_number, facts.enqueued_at, facts.message_id) == ("q", 42, NOW - 5, "id-1")
    assert (facts.path, facts.session_id, facts.ttl_ticks, facts.scheduled_at) == ("orders", "s", 600_000_000, 5)
    assert (facts.size, facts.content_type, facts.flaw) == (len(payload), "text/plain", "")
    assert locked_until(sections) == NOW + 60_000
    assert message_state(sections) == ACTIVE
    _, facts = read_facts("q", plain(Aliases("x"), header=Header(ttl=7).encode()), kept_for("to"))
    assert (facts.path, facts.ttl_ticks) == ("to", 70_000)


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ({"header": section(0x70, codec.encode(["no", UByte(1)]))}, "its header cannot be read"),
        ({"header": b"\x00\x53\x70\xc0\x00"}, "its header cannot be read"),
        ({"properties": section(PROPERTIES, codec.encode([None, "no binary"]))}, "its properties cannot be read"),
        ({"properties": section(PROPERTIES, codec.encode([None] * 14))}, "its properties cannot be read"),
        ({"properties": b"\x00\x53\x73\xc0\x03\x02\x40"}, None),
        ({"message_annotations": b"\x00\x53\x72\xc1\x02\x02\x40"}, "its message annotations cannot be read"),
        ({"application_properties": b"\x00\x53\x74\xc1\x00"}, "its application properties cannot be read"),
        ({"application_properties": b"\x00\x53\x74\xc1\x02\x01\x40"}, "its application properties cannot be read"),
    ],
)
def test_a_corrupt_section_is_a_flaw_that_says_which(broken, said):
    payload = plain(Aliases("orders"), **broken)
    if said is None:
        with pytest.raises(ProtocolError):
            read_facts("q", payload)
    else:
        assert said in flaw_of(payload)


def test_every_flaw_is_told():
    payload = plain(
        Aliases("orders"),
        header=section(0x70, codec.encode(["no"])),
        application_properties=section(APPLICATION_PROPERTIES, codec.encode({"other": "x"})),
    )
    flaw = flaw_of(payload)
    assert "header" in flaw
    assert "no x-ms-path" in flaw


def test_a_message_id_of_half_a_character_can_be_printed():
    payload = plain(Aliases("orders"), properties=section(PROPERTIES, codec.encode([Char("\ud800")])))
    _, facts = read_facts("q", payload)
    assert facts.message_id == "?"


@settings(max_examples=150, deadline=None)
@given(own=OWN, annotations=ANNOTATIONS, header=HEADERS, properties=PROPERTY_LISTS, aliases=ALIASES, data=st.data())
def test_damage_is_a_flaw_or_a_protocol_error_else_the_message_restores(
    own, annotations, header, properties, aliases, data
):
    whole = backlog_copy(own, annotations, header, properties, data_body(b"x"), b"", aliases).join()
    raw = bytearray(whole)
    for _ in range(data.draw(st.integers(0, 5))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    payload = bytes(raw[: data.draw(st.just(len(raw)) | st.integers(0, len(raw)))])
    with contextlib.suppress(ProtocolError):
        sections, facts = read_facts("q", payload)
        locked_until(sections)
        message_state(sections)
        decision = route(facts)
        assert isinstance(decision, Send) <= (not facts.flaw)
        if isinstance(decision, Send):
            Sections.split(restore(sections, decision, NOW))


def test_numbers_of_another_width_are_numbers_all_the_same():
    annotations = Map([(Symbol("x-opt-sequence-number"), ULong(7)), (Symbol("x-opt-enqueued-time"), UInt(9))])
    payload = plain(Aliases("q"), message_annotations=section(MESSAGE_ANNOTATIONS, codec.encode(annotations)))
    _, facts = read_facts("q", payload)
    assert (facts.sequence_number, facts.enqueued_at) == (7, 9)


# The lock token is the only part of a delivery that the archive leaves out.


TOKEN_HEADERS = [b"", Header(delivery_count=UInt(3)).encode(), Header().encode()]
TOKEN_BODIES = [data_body(b"body"), data_body(f"{LOCK_TOKEN} in a body".encode())]


def delivery_annotations(*pairs: tuple[str, Value]) -> bytes:
    return encode_map(DELIVERY_ANNOTATIONS, Map((Symbol(key), value) for key, value in pairs)) if pairs else b""


TOKEN = (LOCK_TOKEN, uuid.UUID(int=7))
MINE = ("x-opt-hop", "mine")


@pytest.mark.parametrize("header", TOKEN_HEADERS, ids=["none", "counted", "empty"])
@pytest.mark.parametrize("body", TOKEN_BODIES, ids=["plain", "with its name"])
@pytest.mark.parametrize(
    ("delivered", "kept"),
    [
        ((TOKEN,), ()),
        ((TOKEN, MINE), (MINE,)),
        ((MINE, TOKEN), (MINE,)),
        ((MINE,), (MINE,)),
        ((), ()),
        (((LOCK_TOKEN, "text"),), ()),
    ],
    ids=["alone", "first", "last", "none", "no annotations", "of another type"],
)
def test_only_the_lock_token_is_left_out(
    header: bytes, body: bytes, delivered: tuple[tuple[str, Value], ...], kept: tuple[tuple[str, Value], ...]
) -> None:
    payload = Sections(header=header, delivery_annotations=delivery_annotations(*delivered), body=body).join()
    expected = Sections(header=header, delivery_annotations=delivery_annotations(*kept), body=body).join()
    assert without_lock_token(payload) == expected


@given(st.binary(max_size=80), st.sampled_from([b"", LOCK_TOKEN.encode()]), st.sampled_from(TOKEN_HEADERS))
def test_any_other_bytes_stay(payload: bytes, added: bytes, header: bytes) -> None:
    whole = header + payload + added
    found = without_lock_token(whole)
    if found != whole:
        with contextlib.suppress(ProtocolError):
            assert LOCK_TOKEN in Sections.split(whole).read_delivery_annotations()
            return
        raise AssertionError(whole)
