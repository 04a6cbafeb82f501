"""Messages without an id get one; the other properties stay unchanged."""

import pytest

from sbpair.amqp import codec
from sbpair.amqp.message import PROPERTIES, Properties, Sections, data_body, section
from sbpair.amqp.types import Symbol
from sbpair.emulator.entities import service_envelope

BODY = data_body(b"x")


def taken_in(properties: bytes) -> Sections:
    message = service_envelope.read_message(properties + BODY)
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


@pytest.mark.parametrize("subject", ["s", "s" * 225, "s" * 1000])
def test_the_other_properties_stay_unchanged(subject: str) -> None:
    properties = Properties(subject=subject, content_type="text/plain", group_id="g", creation_time=5)
    read = taken_in(properties.encode()).read_properties()
    assert read.message_id is not None
    read.message_id = None
    assert read == properties


@pytest.mark.parametrize(
    "properties",
    [
        Properties(message_id="mine").encode(),
        Properties(message_id=b"\x00").encode(),
        Properties(message_id="").encode(),
        b"\x00" + codec.encode(Symbol("amqp:properties:list")) + b"\xc0\x04\x01\xa1\x01x",
    ],
)
def test_an_id_of_any_type_stays_unchanged(properties: bytes) -> None:
    assert taken_in(properties).properties == properties
