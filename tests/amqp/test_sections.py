"""Messages as the raw bytes of their sections: split and joined unchanged, decoded on request, refused where broken."""

import contextlib
import itertools
import uuid
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbpair.amqp import codec
from sbpair.amqp.message import (
    APPLICATION_PROPERTIES,
    DATA,
    DELIVERY_ANNOTATIONS,
    FOOTER,
    HEADER,
    MESSAGE_ANNOTATIONS,
    ORDER,
    PROPERTIES,
    SEQUENCE,
    VALUE,
    Header,
    Properties,
    Sections,
    batch_members,
    batch_of,
    data_body,
    encode_map,
    section,
)
from sbpair.amqp.types import Described, Int, Map, Symbol, UInt, ULong, same, text_of
from sbpair.errors import ProtocolError
from tests.strict_amqp.values import TYPES

HEAD = b"\x00\x53\x75"
NAMES = {code: name for name, code in (each["descriptor"] for each in TYPES.values() if "descriptor" in each)}
SLOT = {code: ORDER[code - HEADER] for code in range(HEADER, DATA)} | {FOOTER: "footer"}

maps = st.lists(st.tuples(st.text(max_size=9), st.none() | st.binary(max_size=300)), max_size=3).map(Map)
CONTENTS: dict[int, st.SearchStrategy[bytes]] = {
    HEADER: st.integers(0, 99).map(lambda count: codec.encode([True, None, UInt(count)])),
    DELIVERY_ANNOTATIONS: maps.map(codec.encode),
    MESSAGE_ANNOTATIONS: maps.map(codec.encode),
    PROPERTIES: st.text(max_size=300).map(lambda text: codec.encode([text])),
    APPLICATION_PROPERTIES: maps.map(codec.encode),
    DATA: st.binary(max_size=400).map(codec.encode),
    SEQUENCE: st.lists(st.text(max_size=5), max_size=3).map(codec.encode),
    VALUE: (maps | st.text(max_size=300) | st.uuids() | st.just(Described(Symbol("x"), []))).map(codec.encode),
    FOOTER: maps.map(codec.encode),
}


@st.composite
def encoded(draw: st.DrawFn, code: int) -> bytes:
    """A section, with its descriptor in any of the forms that it may take."""
    name = NAMES[code].encode()
    descriptor = draw(
        st.sampled_from([bytes((0x53, code)), b"\x80" + code.to_bytes(8), b"\xa3" + bytes((len(name),)) + name])
    )
    return b"\x00" + descriptor + draw(CONTENTS[code])


@st.composite
def bodies(draw: st.DrawFn) -> list[tuple[int, bytes]]:
    code = draw(st.sampled_from([DATA, SEQUENCE, VALUE]))
    times = 1 if code == VALUE else draw(st.integers(1, 4))
    return [(code, draw(encoded(code))) for _ in range(times)]


@st.composite
def messages(draw: st.DrawFn) -> list[tuple[int, bytes]]:
    parts = [(code, draw(encoded(code))) for code in range(HEADER, DATA) if draw(st.booleans())]
    parts += draw(bodies())
    return [*parts, (FOOTER, draw(encoded(FOOTER)))] if draw(st.booleans()) else parts


@given(messages())
@settings(deadline=None, max_examples=100)
def test_a_message_splits_into_sections_and_joins_again(parts: list[tuple[int, bytes]]) -> None:
    payload = b"".join(raw for _, raw in parts)
    found = Sections.split(payload)
    assert found.join() == payload
    assert len(found) == len(payload)
    for code, slot in SLOT.items():
        assert getattr(found, slot) == b"".join(raw for kind, raw in parts if kind == code)
    assert found.body == b"".join(raw for code, raw in parts if DATA <= code <= VALUE)
    found.check()
    expected = [(code, codec.decode_all(raw).value) for code, raw in parts if DATA <= code <= VALUE]
    assert found.read_body() == expected
    assert Sections.split(found.join()) == found


@given(messages(), st.data())
@settings(deadline=None, max_examples=100)
def test_sections_out_of_order_or_twice_are_refused(parts: list[tuple[int, bytes]], data: st.DataObject) -> None:
    code, raw = data.draw(st.sampled_from(parts))
    if code not in (DATA, SEQUENCE):
        with pytest.raises(ProtocolError):
            Sections.split(b"".join(raw for _, raw in parts) + raw)
    ordered = [(code, raw) for code, raw in parts if code not in (DELIVERY_ANNOTATIONS, FOOTER)]
    if len({code for code, _ in ordered}) > 1:
        with pytest.raises(ProtocolError):
            Sections.split(b"".join(raw for _, raw in reversed(ordered)))


@given(messages())
@settings(deadline=None, max_examples=100)
def test_delivery_annotations_may_come_last(parts: list[tuple[int, bytes]]) -> None:
    rest = b"".join(raw for code, raw in parts if code != DELIVERY_ANNOTATIONS)
    annotations = section(DELIVERY_ANNOTATIONS, codec.encode(Map([("x", Int(1))])))
    expected = Sections.split(rest)
    expected.delivery_annotations = annotations
    assert Sections.split(rest + annotations) == expected
    with pytest.raises(ProtocolError, match="out of order"):
        Sections.split(rest + annotations + data_body(b"more"))


@given(messages(), st.booleans())
@settings(deadline=None, max_examples=100)
def test_a_footer_may_come_before_the_body_once(parts: list[tuple[int, bytes]], with_annotations: bool) -> None:
    before = b"".join(raw for code, raw in parts if code < DATA and code != DELIVERY_ANNOTATIONS)
    body = b"".join(raw for code, raw in parts if DATA <= code < FOOTER)
    last = section(DELIVERY_ANNOTATIONS, codec.encode(Map([("x", Int(1))]))) if with_annotations else b""
    footer = section(FOOTER, codec.encode(Map([("f", Int(1))])))
    expected = Sections.split(before + body + footer + last)
    assert Sections.split(before + footer + body + last) == expected
    for wrong in (before + footer + footer + body, before + footer + body + footer):
        with pytest.raises(ProtocolError, match="out of order"):
            Sections.split(wrong)


@pytest.mark.parametrize(("first", "second"), list(itertools.permutations([DATA, SEQUENCE, VALUE], 2)))
def test_a_body_has_one_kind_of_section(first: int, second: int) -> None:
    contents = {DATA: codec.encode(b"x"), SEQUENCE: codec.encode([]), VALUE: codec.encode(None)}
    with pytest.raises(ProtocolError, match="out of order"):
        Sections.split(section(first, contents[first]) + section(second, contents[second]))


@given(messages(), st.data())
@settings(deadline=None, max_examples=100)
def test_a_broken_message_is_split_and_checked_or_refused(parts: list[tuple[int, bytes]], data: st.DataObject) -> None:
    broken = bytearray(b"".join(raw for _, raw in parts))
    for _ in range(data.draw(st.integers(1, 3))):
        broken[data.draw(st.integers(0, len(broken) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ProtocolError):
        found = Sections.split(bytes(broken))
        assert found.join() == bytes(broken)
        found.check()


@given(messages())
@settings(deadline=None, max_examples=40)
def test_a_message_truncated_in_a_section_is_refused(parts: list[tuple[int, bytes]]) -> None:
    payload = b"".join(raw for _, raw in parts)
    ends = set(itertools.accumulate(len(raw) for _, raw in parts)) | {0}
    for end in set(range(len(payload))) - ends:
        with pytest.raises(ProtocolError):
            Sections.split(payload[:end])


@pytest.mark.parametrize(
    "payload",
    [
        b"no message",
        b"\x40",
        b"\x00",
        b"\x00\x53",
        b"\x00\x53\x75",
        b"\x00\x53\x79\x40",
        b"\x00\x53\x10\x45",
        b"\x00\x43\x40",
        b"\x00\xa3\x04oops\x40",
        b"\x00\xa1\x10amqp:data:binary\xa0\x00",
        section(DATA, codec.encode("text")),
        section(DATA, b"\x40"),
        section(HEADER, codec.encode(Map())),
        section(PROPERTIES, codec.encode("id")),
        section(APPLICATION_PROPERTIES, codec.encode([])),
        section(FOOTER, codec.encode(None)),
        section(SEQUENCE, codec.encode(b"")),
        data_body(b"x") + b"\x00",
        HEAD + b"\xb0\xff\xff\xff\xffx",
        HEAD + b"\xa0\xffx",
        b"\x00\x53\x74\xd1\x7f\xff\xff\xff\x00",
        b"\x00\x53\x77\xb0\x01\x00\x00\x00",
        b"\x00" * 100_000,
        b"\x00\x53\x77" + b"\x00" * 100_000,
    ],
    ids=[str(number) for number in range(24)],
)
def test_bytes_that_are_not_a_message_are_refused(payload: bytes) -> None:
    with pytest.raises(ProtocolError):
        Sections.split(payload)


BROKEN_INSIDE = {
    "header": section(HEADER, codec.encode(["not a flag"])),
    "delivery_annotations": section(DELIVERY_ANNOTATIONS, b"\xc1\x03\x02\x40\x01"),
    "message_annotations": section(MESSAGE_ANNOTATIONS, b"\xc1\x02\x01\x40"),
    "properties": section(PROPERTIES, codec.encode([None, "no binary"])),
    "application_properties": section(APPLICATION_PROPERTIES, b"\xc1\x04\x02\xa1\x05\x40"),
    "body": section(SEQUENCE, b"\xc0\x02\x09\x40"),
    "footer": section(FOOTER, b"\xc1\x03\x04\x40\x40"),
}


@pytest.mark.parametrize("slot", ORDER)
def test_check_finds_an_error_inside_any_section(slot: str) -> None:
    found = Sections.split(BROKEN_INSIDE[slot])
    assert getattr(found, slot) == BROKEN_INSIDE[slot]
    with pytest.raises(ProtocolError):
        found.check()


IDS = ["text", uuid.UUID(int=7), ULong(7), ULong((1 << 64) - 1), b"\x00\xff"]


@pytest.mark.parametrize("message_id", IDS, ids=lambda value: type(value).__name__)
def test_message_and_correlation_ids_keep_their_type(message_id: Any) -> None:
    raw = Properties(message_id=message_id, correlation_id=message_id).encode()
    read = Sections(properties=raw).read_properties()
    assert same(read.message_id, message_id)
    assert same(read.correlation_id, message_id)
    assert read.encode() == raw


def test_the_text_of_an_id_does_not_depend_on_its_type() -> None:
    assert [text_of(value) for value in ("a", uuid.UUID(int=7), ULong(7), b"\x01", None)] == [
        "a",
        "00000000-0000-0000-0000-000000000007",
        "7",
        "01",
        None,
    ]


def test_missing_sections_read_as_empty() -> None:
    nothing = Sections.split(b"")
    assert nothing.read_header() == Header()
    assert nothing.read_properties() == Properties()
    assert len(nothing.read_message_annotations()) == len(nothing.read_application_properties()) == 0
    assert nothing.read_body() == []
    nothing.check()
    assert encode_map(APPLICATION_PROPERTIES, {}) == b""


@given(st.lists(st.binary(max_size=400), max_size=6), st.booleans())
@settings(deadline=None, max_examples=60)
def test_a_batch_holds_its_members_in_order(members: list[bytes], annotated: bool) -> None:
    annotations = encode_map(MESSAGE_ANNOTATIONS, {Symbol("x-opt-partition-key"): "key"}) if annotated else b""
    assert batch_members(annotations + b"".join(map(data_body, members))) == members
    assert batch_members(batch_of(members, annotations)) == members
    assert batch_of(members, annotations).startswith(annotations)


@pytest.mark.parametrize(
    "last", [data_body(b"half")[:-1], HEAD + b"\xb0\x00", HEAD + b"\xb0\xff\xff\xff\xffx", HEAD + b"\xa0\xffx"]
)
def test_a_batch_that_is_broken_is_refused(last: bytes) -> None:
    for before in (b"", data_body(b"whole")):
        with pytest.raises(ProtocolError):
            batch_members(before + last)


@pytest.mark.parametrize("size", [0, 1, 255, 256, 70_000])
@pytest.mark.parametrize("head", [HEAD, b"\x00\x80" + (0x75).to_bytes(8), b"\x00\xa3\x10amqp:data:binary"])
def test_members_of_a_batch_are_found_however_they_are_written(size: int, head: bytes) -> None:
    short = [b"\xa0" + bytes((size,)) + bytes(size)] if size < 256 else []
    for encoded in (*short, b"\xb0" + size.to_bytes(4) + bytes(size)):
        assert list(batch_members(head + encoded + data_body(b"next"))) == [bytes(size), b"next"]
