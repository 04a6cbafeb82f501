"""Rendering of messages as JSON values."""

from __future__ import annotations

import base64
import json
from typing import Any

from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage
from hypothesis import given, settings
from hypothesis import strategies as st

from sbpair.message_io.render import render_message

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
    rendered = render_message(received(raw))
    assert (rendered["message_id"], rendered["subject"]) == ("m", "s")
    if "body_base64" in rendered:
        assert base64.b64decode(str(rendered["body_base64"])) == body
    else:
        assert str(rendered["body"]).encode() == body
    json.dumps(rendered)
    json.dumps(render_message(received(AmqpAnnotatedMessage(value_body=value))))
    json.dumps(render_message(received(AmqpAnnotatedMessage(sequence_body=[[value]]))))
