"""Rendering of messages as JSON values."""

import base64
import gzip
import json
import zlib
from dataclasses import replace
from functools import partial
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
    data_body,
    encode_map,
    section,
    value_body,
)
from sbpair.amqp.types import Array, Described, Int, Map, Symbol, Timestamp, ULong, same
from sbpair.message_io.line_reader import LineReader
from sbpair.message_io.message_fields import body_of
from sbpair.message_io.message_json import render_peeked
from sbpair.model.document import encoded
from sbpair.move.message.envelope import read_facts
from sbpair.move.peek.peeker import PeekedMessage
from tests.amqp.test_codec import values

MILLISECONDS = st.integers(-(2**63), 2**63 - 1).map(Timestamp)
TEXTS = st.none() | st.text(max_size=9)
NAMED = st.lists(st.tuples(st.text(max_size=9), values), max_size=4).map(Map)
ANNOTATIONS = st.lists(st.tuples(st.sampled_from("abc").map(lambda name: Symbol(f"x-opt-{name}")), values)).map(Map)
MESSAGES = st.builds(
    Sections,
    header=st.just(b"") | st.builds(Header, durable=st.booleans(), priority=st.integers(0, 255)).map(Header.encode),
    delivery_annotations=ANNOTATIONS.map(lambda found: encode_map(DELIVERY_ANNOTATIONS, found)),
    message_annotations=ANNOTATIONS.map(lambda found: encode_map(MESSAGE_ANNOTATIONS, found)),
    properties=st.builds(
        Properties,
        message_id=TEXTS | st.uuids() | st.binary(max_size=9) | st.integers(0, 2**64 - 1).map(ULong),
        user_id=st.none() | st.binary(max_size=9),
        to=TEXTS,
        subject=TEXTS,
        reply_to=TEXTS,
        correlation_id=TEXTS | st.integers(0, 9).map(ULong),
        content_encoding=st.none() | st.just("gzip"),
        group_id=TEXTS,
        group_sequence=st.none() | st.integers(0, 2**32 - 1),
        reply_to_group_id=TEXTS,
    ).map(Properties.encode)
    | TEXTS.map(lambda text: section(PROPERTIES, codec.encode([text]))),
    application_properties=(NAMED | values.map(lambda key: Map([(key, Int(1)), ("type", 1.0), ("value", True)]))).map(
        lambda found: encode_map(APPLICATION_PROPERTIES, found)
    ),
    body=st.lists(st.binary(max_size=300).map(data_body), max_size=2).map(b"".join)
    | values.map(value_body)
    | st.lists(st.lists(values, max_size=2).map(lambda each: section(SEQUENCE, codec.encode(each)))).map(b"".join),
    footer=ANNOTATIONS.map(lambda found: encode_map(FOOTER, found)),
)


def copied(line: dict[str, Any]) -> dict[str, Any]:
    """Return a line as jq copies it: whole doubles lose their fraction, and numbers are not exact beyond 2^53."""
    exact = lambda text: int(float(text)) if float(text) % 1 == 0 else float(text)  # noqa: E731
    found: dict[str, Any] = json.loads(json.dumps(line), parse_int=exact, parse_float=exact)
    return found


@settings(deadline=None, max_examples=200)
@given(MESSAGES)
def test_a_message_of_a_line_is_that_message_byte_for_byte(sent: Sections) -> None:
    delivered = replace(sent, header=Header(delivery_count=3).encode()) if not sent.header else sent
    message = peeked(**{name: getattr(delivered, name) for name in ORDER})
    line = {"schema": "sbpair/peek/1", **encoded(render_peeked("primary", message, body_of(message.sections)))}
    found = LineReader().read(json.dumps(line).encode())
    assert found is not None
    assert Sections.split(found.payload) == sent
    # Without the bytes, as of a line that was edited, all values have their types.
    edited = LineReader().read(json.dumps(copied({**line, "sections": None})).encode())
    assert edited is not None
    again = Sections.split(edited.payload)
    assert same(again.read_application_properties(), sent.read_application_properties())
    for kind, value in sent.read_body():
        assert kind == DATA or (kind, True) in [(each, same(value, other)) for each, other in again.read_body()]


def peeked(**sections: bytes) -> PeekedMessage:
    found, facts = read_facts("orders", Sections(**sections).join())
    return PeekedMessage(facts, found)


@pytest.mark.parametrize(
    ("body", "rendered"),
    [
        (data_body(b"a") + data_body(b"b"), {"body": "ab"}),
        (data_body(b"\xff"), {"body": None, "body_base64": "/w=="}),
        (
            value_body(Map([("k", Array([Int(1)])), ("d", Described(Symbol("s"), "x"))])),
            {
                "body": {
                    "k": {"type": "array", "value": [1]},
                    "d": {"type": "described", "value": [{"type": "symbol", "value": "s"}, "x"]},
                },
                "body_kind": "value",
            },
        ),
        (section(SEQUENCE, codec.encode([Int(1), "x"])), {"body": [[1, "x"]], "body_kind": "sequence"}),
        (section(VALUE, b"\xc0\x02\x01\xff"), {"body": None}),
        (section(VALUE, b"\x56\x01"), {"body": True, "body_kind": "value"}),
        (value_body(float("nan")), {"body": {"type": "double", "value": "nan"}, "body_kind": "value"}),
        (b"", {"body": ""}),
        (data_body(b"@\x01a\x01"), {"body": None, "body_base64": "QAFhAQ==", "body_text": "<a></a>"}),
        (data_body(b"@\x01a\x99") + data_body(b"\x01\xff"), {"body": None, "body_base64": "QAFhmQH/"}),
    ],
)
def test_bodies_of_peeked_messages_render_as_json(body: bytes, rendered: dict[str, Any]) -> None:
    found = encoded(body_of(peeked(body=body).sections))
    assert json.dumps(found) == json.dumps(rendered)  # 1 is equal to True, and another value in JSON


packed = partial(gzip.compress, mtime=0)
RAW = zlib.compressobj(wbits=-zlib.MAX_WBITS)
DOCUMENT = b"@\x06string\x083http://schemas.microsoft.com/2003/10/Serialization/\x99\x03\xe2\x82\xac"
BOMB = b"a" * (2**20 + 1)


@pytest.mark.parametrize(
    ("encoding", "body", "text"),
    [
        ("gzip", packed("größe".encode()), "größe"),
        ("GZIP", packed(DOCUMENT), "€"),
        ("deflate", zlib.compress(b"x"), "x"),
        ("deflate", RAW.compress(b"raw") + RAW.flush(), "raw"),
        ("gzip", packed(BOMB[1:]), BOMB[1:].decode()),
        ("gzip", packed(BOMB), None),
        ("gzip", packed(BOMB * 100), None),
        ("gzip", packed(b"x" * 1_000)[:-1], None),
        ("gzip", packed(b"x") + b"\0", None),
        ("gzip", packed(b"\xff"), None),
        ("br", packed(b"x"), None),
        ("gzip", b"not compressed", "not compressed"),
    ],
)
def test_compressed_bodies_are_shown_by_their_encoding(encoding: str, body: bytes, text: str | None) -> None:
    found = peeked(properties=Properties(content_encoding=Symbol(encoding)).encode(), body=data_body(body))
    shown = body_of(found.sections)
    assert (shown.body if shown.body_base64 is None else shown.body_text) == text
    assert shown.body_base64 in (None, base64.b64encode(body).decode())


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
