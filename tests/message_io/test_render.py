"""Rendering of messages as JSON values."""

import base64
import json
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage
from hypothesis import given, settings
from hypothesis import strategies as st

from sbpair.amqp import codec
from sbpair.amqp.message import (
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    SEQUENCE,
    VALUE,
    Sections,
    data_body,
    encode_map,
    section,
    value_body,
)
from sbpair.amqp.types import Array, Described, Int, Map, Symbol, Timestamp
from sbpair.message_io.message_json import body_of, render_message, render_peeked
from sbpair.model.document import encoded
from sbpair.move.message.envelope import read_facts
from sbpair.move.peek.peeker import PeekedMessage

PLAIN = st.none() | st.booleans() | st.integers() | st.text() | st.binary() | st.uuids() | st.datetimes()
VALUES = st.recursive(
    PLAIN, lambda inside: st.lists(inside) | st.dictionaries(st.text() | st.binary(), inside), max_leaves=4
)


def received(raw: AmqpAnnotatedMessage) -> ServiceBusReceivedMessage:
    message = object.__new__(ServiceBusReceivedMessage)
    message._raw_amqp_message = raw
    return message


@settings(max_examples=20, deadline=None)
@given(st.binary(), st.dictionaries(st.binary(), VALUES), VALUES)
def test_every_message_renders_as_json(body: bytes, properties: dict[Any, Any], value: Any) -> None:
    raw = ServiceBusMessage(body, message_id="m", subject="s").raw_amqp_message
    raw.application_properties = properties
    rendered = encoded(render_message("primary", received(raw)))
    assert (rendered["message_id"], rendered["subject"]) == ("m", "s")
    if "body_base64" in rendered:
        assert base64.b64decode(str(rendered["body_base64"])) == body
    else:
        assert str(rendered["body"]).encode() == body
    json.dumps(rendered)
    json.dumps(encoded(render_message("primary", received(AmqpAnnotatedMessage(value_body=value)))))
    json.dumps(encoded(render_message("primary", received(AmqpAnnotatedMessage(sequence_body=[[value]])))))


def peeked(**sections: bytes) -> PeekedMessage:
    found, facts = read_facts("orders", Sections(**sections).join())
    return PeekedMessage(facts, found)


@pytest.mark.parametrize(
    ("body", "rendered"),
    [
        (data_body(b"a") + data_body(b"b"), {"body": "ab"}),
        (data_body(b"\xff"), {"body": None, "body_base64": "/w=="}),
        (value_body(Map([("k", Array([Int(1)])), ("d", Described(Symbol("s"), "x"))])), {"body": {"k": [1], "d": "x"}}),
        (section(SEQUENCE, codec.encode([Int(1), "x"])), {"body": [[1, "x"]]}),
        (section(VALUE, b"\xc0\x02\x01\xff"), {"body": None}),
        (section(VALUE, b"\x56\x01"), {"body": True}),
        (value_body(float("nan")), {"body": "nan"}),
        (b"", {"body": ""}),
    ],
)
def test_bodies_of_peeked_messages_render_as_json(body: bytes, rendered: dict[str, Any]) -> None:
    found = encoded(body_of(peeked(body=body).sections))
    assert json.dumps(found) == json.dumps(rendered)  # 1 is equal to True, and another value in JSON


@pytest.mark.parametrize(
    ("state", "due", "name"),
    [
        (0, None, "active"),
        (1, None, "deferred"),
        (1, 1_501, "deferred"),
        (2, 1_501, "scheduled"),
        (2, 1_500, "active"),
        (2, None, "active"),
    ],
)
def test_peeked_messages_have_state_and_time(state: int, due: int | None, name: str) -> None:
    annotations = {Symbol("x-opt-message-state"): Int(state), Symbol("x-opt-enqueued-time"): Timestamp(1_500)}
    if due is not None:
        annotations[Symbol("x-opt-scheduled-enqueue-time")] = Timestamp(due)
    found = render_peeked("primary", peeked(message_annotations=encode_map(MESSAGE_ANNOTATIONS, annotations)), None)
    assert (found.origin.state, found.enqueued_at) == (name, "1970-01-01T00:00:01.500000+00:00")
    assert render_peeked("primary", peeked(body=data_body(b"")), None).enqueued_at is None


def test_sections_that_cannot_be_read_render_as_empty() -> None:
    broken = peeked(header=section(HEADER, b"\xc0\x02\x01\xff"), properties=section(PROPERTIES, b"\xc0\x02\x01\xff"))
    found = render_peeked("primary", broken, body_of(broken.sections))
    assert (found.message_id, found.delivery_count, found.properties) == (None, 0, {})
    json.dumps(encoded(found))
