"""Comparison of messages in a drill: every altered part that a move keeps is reported."""

import copy
from dataclasses import fields, replace

import pytest

from sbpair.amqp import codec
from sbpair.amqp.message import (
    APPLICATION_PROPERTIES,
    FOOTER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    Header,
    Sections,
    data_body,
    section,
)
from sbpair.amqp.types import Int, Long, Map, Symbol, Timestamp, UInt, ULong
from sbpair.drill import SendTally, Timeline, _result
from sbpair.drill.drill_messages import OriginalMessage, every_type, message_differences, originals
from sbpair.move.message.envelope import read_facts, restore
from sbpair.move.message.route import Send, route
from sbpair.move.receipt import Receipt

NOW = 1_767_225_600_000
SERVICE = [
    (Symbol("x-opt-sequence-number"), Long(1)),
    (Symbol("x-opt-enqueued-time"), Timestamp(NOW)),
    (Symbol("x-opt-locked-until"), Timestamp(NOW)),
]


def arrived(original: OriginalMessage) -> Sections:
    """Encode the message as the primary delivers it after a move."""
    sections, facts = read_facts("q", original.in_backlog())
    decision = route(facts)
    assert isinstance(decision, Send)
    after = Sections.split(restore(sections, decision, NOW))
    annotations = Map([*after.read_message_annotations().pairs, *SERVICE])
    after.message_annotations = section(MESSAGE_ANNOTATIONS, codec.encode(annotations))
    return after


def full() -> OriginalMessage:
    """Make a message with every section and property."""
    (original,) = [each for each in originals(60, now_ms=NOW) if each.number == 0]
    return replace(
        original,
        sections=Sections(
            header=Header(durable=True, priority=7).encode(),
            message_annotations=section(MESSAGE_ANNOTATIONS, codec.encode(Map([(Symbol("x-opt-mine"), Int(5))]))),
            properties=original.sections.properties,
            application_properties=section(APPLICATION_PROPERTIES, codec.encode(Map(every_type(3)))),
            body=data_body(b"body"),
            footer=section(FOOTER, codec.encode(Map([(Symbol("f"), True)]))),
        ),
        ttl_ticks=600_000_000,
        scheduled_at=NOW + 5,
    )


def test_messages_that_came_back_whole_do_not_differ():
    for original in originals(300, now_ms=NOW, seed=5):
        assert message_differences(original, arrived(original)) == []
    assert message_differences(full(), arrived(full())) == []


def flipped(raw: bytes, at: int) -> bytes:
    return raw[:at] + bytes((raw[at] ^ 1,)) + raw[at + 1 :]


@pytest.mark.parametrize("name", ["body", "footer", "properties", "application_properties"])
def test_every_flipped_bit_of_a_kept_section_is_found(name):
    original, whole = full(), arrived(full())
    raw = getattr(whole, name)
    for at in range(len(raw)):
        altered = copy.copy(whole)
        setattr(altered, name, flipped(raw, at))
        assert message_differences(original, altered), f"byte {at} of {name}"


@pytest.mark.parametrize("name", ["header", "properties", "application_properties", "body", "footer"])
def test_a_section_that_is_gone_is_reported(name):
    altered = arrived(full())
    setattr(altered, name, b"")
    assert message_differences(full(), altered)


def header_of(**changed: object) -> bytes:
    return Header(**{"durable": True, "priority": 7, "ttl": 60_000, **changed}).encode()


@pytest.mark.parametrize(
    "header",
    [
        header_of(durable=None),
        header_of(durable=False),
        header_of(priority=6),
        header_of(priority=None),
        header_of(ttl=None),
        header_of(ttl=59_999),
        header_of(ttl=0xFFFFFFFF),
        header_of(delivery_count=1),
    ],
)
def test_each_altered_field_of_the_header_is_reported(header):
    altered = arrived(full())
    altered.header = header
    assert len(message_differences(full(), altered)) == 1


@pytest.mark.parametrize(
    "pairs",
    [
        [],
        [("x-opt-mine", Int(6)), ("x-opt-scheduled-enqueue-time", Timestamp(NOW + 5))],
        [("x-opt-mine", Long(5)), ("x-opt-scheduled-enqueue-time", Timestamp(NOW + 5))],
        [("x-opt-mine", Int(5)), ("x-opt-scheduled-enqueue-time", Timestamp(NOW + 6))],
        [("x-opt-mine", Int(5))],
        [("x-opt-mine", Int(5)), ("x-opt-scheduled-enqueue-time", Timestamp(NOW + 5)), ("x-opt-more", Int(1))],
    ],
)
def test_each_altered_annotation_is_reported(pairs):
    altered = arrived(full())
    encoded = codec.encode(Map([*((Symbol(name), value) for name, value in pairs), *SERVICE]))
    altered.message_annotations = section(MESSAGE_ANNOTATIONS, encoded)
    assert message_differences(full(), altered)


def test_unexpected_schedule_is_reported():
    original = replace(full(), scheduled_at=None)
    assert message_differences(original, arrived(full())) == [f"schedule: expected None, got {NOW + 5}"]


def test_an_alias_that_was_left_behind_is_reported():
    original = full()
    altered = arrived(original)
    altered.application_properties = Sections.split(original.in_backlog()).application_properties
    assert message_differences(original, altered)


@pytest.mark.parametrize("index", range(13))
def test_each_altered_property_of_a_message_that_lives_long_is_reported(index):
    original = replace(full(), ttl_ticks=100 * 24 * 3600 * 10_000_000)
    whole = arrived(original)
    assert message_differences(original, whole) == []
    values = codec.decode_all(whole.properties).value
    other = {1: b"other", 6: Symbol("other"), 7: Symbol("other"), 8: Timestamp(NOW), 9: Timestamp(0), 11: UInt(77)}
    values[index] = other.get(index, "other")
    altered = copy.copy(whole)
    altered.properties = section(PROPERTIES, codec.encode(values))
    assert len(message_differences(original, altered)) == 1


def test_an_id_of_another_type_is_another_id():
    original = replace(full(), ttl_ticks=100 * 24 * 3600 * 10_000_000)
    whole = arrived(original)
    values = codec.decode_all(whole.properties).value
    values[0] = Symbol(values[0])
    whole.properties = section(PROPERTIES, codec.encode(values))
    assert message_differences(original, whole) == ["the property message_id differs"]


def drilled(back, **sending):
    figures = (
        dict.fromkeys((each.name for each in fields(SendTally) if each.type.startswith("Annotated[int")), 0) | sending
    )
    tally = SendTally(entity="orders", receipt=Receipt(), **figures)
    return _result(list(originals(4, now_ms=NOW)), back, Receipt(), tally, Timeline(lambda _event: None))


def whole_back() -> list[tuple[str, bytes]]:
    return [(each.destination, arrived(each).join()) for each in originals(4, now_ms=NOW)]


def test_drill_distinguishes_lost_duplicated_and_altered():
    result = drilled(whole_back())
    assert (result.sent, result.received, result.lost, result.duplicated, result.altered) == (4, 4, 0, 0, 0)
    assert result.exit_code == 0
    first, second, third, _ = whole_back()
    elsewhere = ("billing" if third[0] != "billing" else "orders", third[1])
    result = drilled([first, first, second, elsewhere])
    assert (result.lost, result.duplicated, result.altered, result.exit_code) == (1, 1, 1, 3)
    assert "received at" in result.alterations[0][1]
    assert len(result.lost_ids) == 1
    assert drilled(whole_back(), lost=1).exit_code == 3


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (arrived(originals(1, now_ms=NOW, seed=99)[0]).join(), "it was never sent"),
        *((payload, "unreadable: ") for payload in (b"\x00", b"\x00\x53", b"\x00\x53\x75\xa0\xff", b"no message")),
        (b"", "it was never sent"),
    ],
)
def test_a_message_that_is_foreign_or_unreadable_is_an_alteration(payload, why):
    result = drilled([*whole_back(), ("orders", payload)])
    assert (result.altered, result.exit_code) == (1, 3)
    assert result.alterations[0][1].startswith(why)


def test_originals_are_repeatable_and_cover_every_kind():
    first = originals(200, now_ms=NOW, seed=3)
    assert [each.in_backlog() for each in first] == [each.in_backlog() for each in originals(200, now_ms=NOW, seed=3)]
    assert any(each.session_id and each.ttl_ticks and each.scheduled_at for each in first)
    assert any((each.ttl_ticks or 0) // 10_000 > 0xFFFFFFFF for each in first)
    assert {code for each in first for code, _ in each.sections.read_body()} == {0x75, 0x76, 0x77}
    assert ULong(0) in [value for _, value in every_type(0)]
