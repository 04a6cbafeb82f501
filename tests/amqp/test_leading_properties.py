"""The short cut for plain messages agrees with splitting them, on what it knows and on what it does not."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sbpair.amqp.message import (
    APPLICATION_PROPERTIES,
    FOOTER,
    MESSAGE_ANNOTATIONS,
    Header,
    Properties,
    Sections,
    data_body,
    encode_map,
    is_plain,
    leading_properties,
    value_body,
)
from sbpair.errors import ProtocolError

properties = st.builds(
    Properties, message_id=st.none() | st.text(max_size=300), subject=st.none() | st.text(max_size=9)
)
messages = st.builds(
    Sections,
    header=st.sampled_from([b"", Header(ttl=5).encode()]),
    message_annotations=st.sampled_from([b"", encode_map(MESSAGE_ANNOTATIONS, {"a": "b"})]),
    properties=st.just(b"") | properties.map(Properties.encode),
    application_properties=st.sampled_from([b"", encode_map(APPLICATION_PROPERTIES, {"a": "b"})]),
    body=st.sampled_from([b"", data_body(b""), data_body(b"x" * 300), data_body(b"a") * 2, value_body("v")]),
    footer=st.sampled_from([b"", encode_map(FOOTER, {"a": "b"})]),
)


def told(payload: bytes) -> bytes | None:
    try:
        return leading_properties(payload)
    except ProtocolError:
        return None


def stands_alone(sections: Sections) -> bool:
    before = sections.header or sections.delivery_annotations or sections.message_annotations
    one_body = sections.body.count(b"\x00\x53\x75") < 2
    return not before and not sections.footer and bool(sections.body) and one_body


@given(messages)
def test_the_properties_of_a_plain_message_are_those_that_splitting_finds(sections: Sections) -> None:
    assert told(sections.join()) == (sections.properties if stands_alone(sections) else b"")


@given(messages, st.data())
def test_what_cannot_be_split_is_not_plain(sections: Sections, data: st.DataObject) -> None:
    payload = bytearray(sections.join() or b"\x00")
    payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    found = told(bytes(payload))
    if found:
        assert Sections.split(bytes(payload)).properties == found


@given(messages)
def test_a_plain_message_has_an_id_and_data_and_nothing_else(sections: Sections) -> None:
    payload = sections.join()
    properties = sections.read_properties()
    only_id = properties == Properties(message_id=properties.message_id)
    data = sections.body in (data_body(b""), data_body(b"x" * 300))
    short = len(sections.properties) < 250 and isinstance(properties.message_id, str)
    if is_plain(payload):
        assert only_id
        assert Sections.split(payload).join() == payload
        assert payload == sections.properties + sections.body
    else:
        assert not (stands_alone(sections) and only_id and data and short and not sections.application_properties)


@given(messages, st.data())
def test_what_is_damaged_is_plain_only_where_it_is_whole(sections: Sections, data: st.DataObject) -> None:
    payload = bytearray(sections.join() or b"\x00")
    payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(payload[: data.draw(st.integers(1, len(payload)))])
    if is_plain(cut):
        found = Sections.split(cut)
        assert (found.properties + found.body, found.footer) == (cut, b"")
