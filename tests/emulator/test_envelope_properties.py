"""Properties as the emulator reads them: cached fields, ids that messages without one get, and damage."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbpair.amqp import codec
from sbpair.amqp.message import PROPERTIES, Properties, Sections, data_body, section
from sbpair.amqp.types import Symbol, ULong, text_of
from sbpair.emulator.entities.service_envelope import PING_CONTENT_TYPE, read_message
from sbpair.errors import ProtocolError

BODY = data_body(b"x")
texts = st.none() | st.text(max_size=9)
times = st.none() | st.integers(0, 10_000)
properties = st.builds(
    Properties,
    message_id=st.none() | st.text(max_size=128) | st.integers(0, 9).map(ULong) | st.binary(max_size=3),
    subject=texts | st.text(min_size=200, max_size=300) | st.just("s" * 1000),
    content_type=st.sampled_from([None, "text/plain", PING_CONTENT_TYPE]),
    creation_time=times,
    absolute_expiry_time=times,
    group_id=texts,
)


def read(raw: bytes, *, with_id: bool) -> tuple[object, ...] | None:
    message = read_message(raw + BODY, with_id=with_id)
    return None if message is None else (message.session_id, message.ttl_ms, message.message_id)


def decoded(raw: bytes, *, with_id: bool) -> tuple[object, ...] | None:
    sender = Sections(properties=raw).read_properties()
    created, expires = sender.creation_time, sender.absolute_expiry_time
    lives = None if created is None or expires is None else max(0, expires - created)
    return (
        None
        if sender.content_type == PING_CONTENT_TYPE
        else (sender.group_id, lives, text_of(sender.message_id) if with_id else None)
    )


@given(properties, st.booleans())
def test_the_fields_read_are_the_senders_and_so_are_its_properties(sender: Properties, with_id: bool) -> None:
    raw = sender.encode()
    message, wanted = read_message(raw + BODY, with_id=with_id), decoded(raw, with_id=with_id)
    if message is None:
        assert wanted is None
        return
    kept, given_id = message.sections.read_properties(), message.message_id
    if sender.message_id is None:
        assert given_id == (kept.message_id if with_id else None)
        kept.message_id = given_id = None
    assert (kept, message.session_id, message.ttl_ms, given_id) == (sender, *wanted)


@given(properties, st.data())
def test_damaged_properties_are_refused_or_read_as_decoded(sender: Properties, data: st.DataObject) -> None:
    raw = bytearray(sender.encode())
    raw[data.draw(st.integers(3, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        wanted = decoded(bytes(raw), with_id=False)
        Sections.split(bytes(raw) + BODY)
    except ProtocolError:
        return
    assert read(bytes(raw), with_id=False) == wanted


@pytest.mark.parametrize("with_id", [False, True])
def test_an_id_that_reaches_beyond_the_properties_is_refused(with_id: bool) -> None:
    with pytest.raises(ProtocolError):
        read(section(PROPERTIES, bytes((0xC0, 4, 1, 0xA1, 9)) + b"a"), with_id=with_id)


def taken_in(properties: bytes) -> Sections:
    message = read_message(properties + BODY)
    assert message is not None
    assert message.sections.body == BODY
    return message.sections


@pytest.mark.parametrize(
    "properties",
    [b"", section(PROPERTIES, b"\x45"), section(PROPERTIES, b"\xc0\x01\x00"), section(PROPERTIES, b"\xc0\x02\x01\x40")],
    ids=["no properties", "an empty list", "no fields", "one field of nothing"],
)
def test_a_message_without_id_gets_one(properties: bytes) -> None:
    ids = {taken_in(properties).read_properties().message_id for _ in range(3)}
    assert len(ids) == 3
    assert {len(str(each)) for each in ids} == {32}


def test_properties_with_a_symbolic_descriptor_stay_unchanged() -> None:
    properties = b"\x00" + codec.encode(Symbol("amqp:properties:list")) + b"\xc0\x04\x01\xa1\x01x"
    assert taken_in(properties).properties == properties
