"""The short cut through backlog messages agrees with the general road, on what it knows and on what it does not."""

from __future__ import annotations

import uuid
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from sbpair.amqp import codec
from sbpair.amqp.message import (
    APPLICATION_PROPERTIES,
    DELIVERY_ANNOTATIONS,
    MESSAGE_ANNOTATIONS,
    Header,
    Properties,
    Sections,
    data_body,
    section,
    value_body,
)
from sbpair.amqp.types import Int, Long, Map, Symbol, Timestamp
from sbpair.backlog import Aliases, write_aliases
from sbpair.errors import ProtocolError
from sbpair.move.envelope import facts_of, locked_until, restored
from sbpair.move.route import Send, route
from sbpair.move.usual import Reader

NOW = 1_767_225_600_000
TEXT = st.text(max_size=12)

ALIASES = st.builds(
    Aliases,
    path=st.sampled_from(["orders", "Orders/eu", "a" * 200, "no path!"]),
    session_id=st.none() | TEXT | st.just("s" * 250),
    ttl_ticks=st.none() | st.sampled_from([1, 600_000_000, 2**63 - 1]) | st.integers(1, 2**63 - 1),
    scheduled_at=st.none() | st.integers(-(2**63), 2**63 - 1),
)
PROPERTIES = st.builds(
    Properties,
    message_id=TEXT | st.just("m" * 240) | st.none() | st.integers(0, 9).map(Int),
    subject=st.none() | TEXT,
    content_type=st.none() | st.just(Symbol("application/json")),
    absolute_expiry_time=st.none() | st.just(NOW),
    group_id=st.none() | TEXT,
)
OWN = st.lists(st.tuples(TEXT, st.none() | TEXT | st.integers(0, 9).map(Int) | st.binary(max_size=300)), max_size=3)


def numbers(sequence: int, enqueued: int, locked: int) -> list[tuple[Symbol, object]]:
    return [
        (Symbol("x-opt-enqueue-sequence-number"), Long(0)),
        (Symbol("x-opt-message-state"), Int(0)),
        (Symbol("x-opt-sequence-number"), Long(sequence)),
        (Symbol("x-opt-enqueued-time"), Timestamp(enqueued)),
        (Symbol("x-opt-locked-until"), Timestamp(locked)),
    ]


def backlog_copy(sequence: int, properties: Properties, aliases: Aliases, own: object, extra: str | None) -> Sections:
    annotations = numbers(1_000 + sequence, NOW + sequence, NOW + 60_000 + sequence)
    if extra is not None:
        annotations.append((Symbol("x-opt-partition-key"), extra))
    fields = codec.encode(Map([*own, *write_aliases(aliases).items()]))
    return Sections(
        header=Header(delivery_count=0).encode(),
        delivery_annotations=section(
            DELIVERY_ANNOTATIONS, codec.encode(Map([(Symbol("x-opt-lock-token"), uuid.UUID(int=sequence))]))
        ),
        message_annotations=section(MESSAGE_ANNOTATIONS, codec.encode(Map(annotations))),
        properties=properties.encode(),
        application_properties=section(APPLICATION_PROPERTIES, fields),
        body=data_body(b"x" * 300),
    )


MESSAGES = st.builds(
    backlog_copy,
    st.integers(0, 2**40),
    PROPERTIES,
    ALIASES,
    OWN,
    st.none() | st.sampled_from(["key", "another"]),
)


def taught(*known: Sections) -> Reader:
    reader = Reader("q")
    for sections in known:
        payload = sections.join()
        general, facts = facts_of("q", payload)
        if not facts.flaw:
            reader.learn(payload, general)
    return reader


def compare(reader: Reader, payload: bytes) -> bool:
    """Whether the short cut was taken; that it led where the road does."""
    read = reader.read(payload)
    if read is None:
        return False
    usual, facts, locked = read
    sections, told = facts_of("q", payload)
    assert facts == told
    assert locked == locked_until(sections)
    key = sections.read_message_annotations().get("x-opt-partition-key")
    assert usual.partition_key == key
    decision = route(facts)
    if isinstance(decision, Send):
        assert usual.restored(decision, NOW) == restored(sections, decision, NOW)
    return True


@given(MESSAGES, MESSAGES)
@settings(max_examples=300)
def test_a_message_reads_and_is_restored_as_it_is_in_general(known: Sections, other: Sections) -> None:
    reader = taught(known)
    compare(reader, known.join())
    compare(reader, other.join())


@given(MESSAGES, st.data())
@settings(max_examples=300)
def test_a_damaged_message_reads_as_it_does_in_general(known: Sections, data: st.DataObject) -> None:
    reader = taught(known)
    payload = bytearray(known.join())
    for _ in range(data.draw(st.integers(1, 2))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(payload[: data.draw(st.integers(0, len(payload)))]) if data.draw(st.booleans()) else bytes(payload)
    try:
        facts_of("q", cut)
    except ProtocolError:
        assert reader.read(cut) is None
        return
    compare(reader, cut)


PLAIN = backlog_copy(1, Properties(message_id="one"), Aliases("orders"), [], None)


def test_messages_that_differ_in_numbers_and_texts_take_the_short_cut() -> None:
    reader = taught(PLAIN)
    full = Aliases("billing/eu", "session 7", 600_000_000, NOW)
    for number, aliases in enumerate((Aliases("orders"), full, replace(full, session_id=None))):
        sections = backlog_copy(number, Properties(message_id=f"id-{number}"), aliases, [("mine", "kept")], None)
        assert compare(reader, sections.join())


def test_a_reader_knows_more_than_one_way_to_write() -> None:
    keyed = backlog_copy(2, Properties(message_id="two"), Aliases("orders"), [], "key")
    reader = taught(PLAIN, keyed)
    assert compare(reader, PLAIN.join())
    assert compare(reader, keyed.join())


def test_what_is_written_in_another_way_is_left_to_the_general_road() -> None:
    reader = taught(PLAIN)
    assert not compare(reader, replace_body(PLAIN, value_body("text")).join())
    assert not compare(reader, replace_body(PLAIN, data_body(b"a") * 2).join())
    assert reader.read(b"") is None
    assert reader.read(PLAIN.join()[:-1]) is None


def replace_body(sections: Sections, body: bytes) -> Sections:
    whole = Sections.split(sections.join())
    whole.body = body
    return whole
