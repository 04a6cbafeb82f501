"""The short cuts for usual messages agree with the careful way, on what they know and what they do not."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbpair.amqp import codec, message
from sbpair.amqp.message import (
    APPLICATION_PROPERTIES,
    DATA,
    DELIVERY_ANNOTATIONS,
    FOOTER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    SEQUENCE,
    Header,
    Properties,
    Sections,
    _walk,
    data_body,
    encode_map,
    is_plain,
    section,
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


def split(payload: bytes) -> Sections | None:
    with suppress(ProtocolError):
        return Sections.split(payload)
    return None


def split_carefully(payload: bytes) -> Sections | None:
    with suppress(ProtocolError):
        return Sections._split_carefully(payload, _walk(payload))
    return None


parts = st.sampled_from(
    [
        Header(ttl=5).encode(),
        encode_map(DELIVERY_ANNOTATIONS, {"a": "b"}),
        encode_map(MESSAGE_ANNOTATIONS, {"a": "b"}),
        Properties(message_id="a").encode(),
        encode_map(APPLICATION_PROPERTIES, {"a": "b"}),
        data_body(b"a"),
        section(SEQUENCE, codec.encode(["a"])),
        value_body("v"),
        encode_map(FOOTER, {"a": "b"}),
    ]
)


@given(st.lists(parts, max_size=6).map(b"".join) | messages.map(Sections.join), st.booleans(), st.data())
def test_any_sections_are_split_as_the_careful_way_splits_them(
    whole: bytes, damaged: bool, data: st.DataObject
) -> None:
    payload = bytearray(whole or b"\x00")
    if damaged:
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    assert split(bytes(payload)) == split_carefully(bytes(payload))


@pytest.mark.parametrize("size", [1, 300])
def test_common_sections_are_split_at_once(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "x" * size
    maps = (encode_map(code, {"a": text}) for code in (DELIVERY_ANNOTATIONS, MESSAGE_ANNOTATIONS))
    sections = Sections(
        Header(ttl=5).encode(),
        *maps,
        Properties(message_id=text).encode(),
        encode_map(APPLICATION_PROPERTIES, {"a": text}),
        data_body(text.encode()),
        encode_map(FOOTER, {"a": text}),
    )
    monkeypatch.setattr(message, "_walk", None)
    assert Sections.split(sections.join()) == sections


@given(messages)
def test_a_plain_message_has_an_id_and_data_and_nothing_else(sections: Sections) -> None:
    properties = sections.read_properties()
    if is_plain(sections.join()):
        assert properties == Properties(message_id=properties.message_id)
        assert sections.join() == sections.properties + sections.body
        assert sections.body in (data_body(b""), data_body(b"x" * 300))


@pytest.mark.parametrize("size", [0, 1, 252, 253, 255, 256, 300])
def test_an_id_and_data_in_either_form_are_plain(size: int) -> None:
    properties, data = Properties(message_id="m").encode(), bytes(size)
    short = [section(DATA, b"\xa0" + bytes((size,)) + data)] if size < 256 else []
    for body in (*short, section(DATA, b"\xb0" + size.to_bytes(4) + data)):
        assert is_plain(properties + body)
        assert not is_plain(properties + body + b"\x00")
        assert not is_plain(section(PROPERTIES, b"\xc0\x05\x02\xa1\x01mX") + body)


@given(messages, st.data())
def test_what_is_damaged_is_plain_only_where_it_is_whole(sections: Sections, data: st.DataObject) -> None:
    payload = bytearray(sections.join() or b"\x00")
    payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(payload[: data.draw(st.integers(1, len(payload)))])
    if is_plain(cut):
        found = Sections.split(cut)
        assert (found.properties + found.body, found.footer) == (cut, b"")
