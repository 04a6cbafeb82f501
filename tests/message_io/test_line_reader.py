"""Lines of a file as messages, valid and invalid ones."""

import base64
import json
import os
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbpair.amqp import types
from sbpair.amqp.message import Header, Properties, Sections, batch_members, data_body
from sbpair.amqp.types import Int, Long, Map, Symbol, Timestamp
from sbpair.errors import MachineLacks, UsageError
from sbpair.failover.raw_send import RawMessage
from sbpair.message_io import send_lines
from sbpair.message_io.line_reader import LineReader
from sbpair.message_io.send_lines import SourceLine, SourceLines
from sbpair.move.message.batches import BatchKey
from sbpair.operating_system.read_ahead import ReadAhead


def read(line: bytes, **form: Any) -> Sections:
    message = LineReader(**form).read(line)
    assert message is not None
    return Sections.split(message.payload)


def test_a_line_is_a_body_byte_for_byte() -> None:
    one, other = (read(line, as_json=False) for line in (b"\xff {} \x00", b"a"))
    assert one.body == data_body(b"\xff {} \x00")
    assert one.read_properties().message_id != other.read_properties().message_id is not None


def test_every_field_of_an_object_is_in_the_message() -> None:
    same = {"correlation_id": "c", "to": "t", "reply_to": "r", "content_type": "text/x", "message_id": "1"}
    fields = {
        "body": "grüße",
        "reply-to-session-id": "rs",
        "session-id": "s",
        "PartitionKey": "s",
        "label": "l",
        "ttl": "1m",
        "scheduled": "2031-01-01T01:00:00+01:00",
        "properties": {"text": "x", "int": 1, "long": 2**40, "double": 1.5, "yes": True, "nothing": None},
    }
    message = read(json.dumps(fields | same).encode())
    assert message.body == data_body("grüße".encode())
    assert message.read_header() == Header(ttl=60_000)
    given = [("text", "x"), ("int", Int(1)), ("long", Long(2**40)), ("double", 1.5), ("yes", True), ("nothing", None)]
    assert types.same(message.read_application_properties(), Map(given))
    properties = Properties(**same, subject="l", group_id="s", reply_to_group_id="rs")
    assert message.read_properties() == properties
    at = Timestamp(datetime(2031, 1, 1, tzinfo=UTC).timestamp() * 1000)
    annotations = [(Symbol("x-opt-partition-key"), "s"), (Symbol("x-opt-scheduled-enqueue-time"), at)]
    assert types.same(message.read_message_annotations(), Map(annotations))


WRONG: list[tuple[bytes, str]] = [
    (b"{,", "the line is not JSON"),
    (b"\xff", "the line is not UTF-8"),
    (b"[]", "expected a JSON object, got a list"),
    (b'"text"', "got text"),
    (b"null", "got null"),
    (b"{}", "expected one body"),
    (b'{"body": "a", "body_base64": "YQ=="}', "expected one body"),
    (b'{"body": "a", "body_text": "b"}', "body_text without body_base64"),
    (b'{"body": "a", "body": "b"}', "body: given twice"),
    (b'{"body": "a", "sesionid": "s"}', "did you mean session_id"),
    (b'{"body": "a", "region": "eu"}', "unknown field 'region'; expected one of body"),
    (b'{"body": {"a": 1}}', "body: expected text, got an object"),
    (b'{"body": null}', "body: expected text, got null"),
    (b'{"body": "\\ud800"}', "unpaired surrogate"),
    (b'{"body_base64": "*"}', "body_base64: not base64"),
    (b'{"body": "a", "message_id": 7}', "message_id: expected text, got a number"),
    (b'{"body": "a", "message_id": ""}', "message_id: expected text, got an empty one"),
    (b'{"body": "a", "message_id": "%s"}' % (b"x" * 129), "cannot be longer than 128"),
    (b'{"body": "a", "session_id": "s", "partition_key": "k"}', "cannot be set to a different value"),
    (b'{"body": "a", "ttl": 0}', "ttl must be greater than 0"),
    (b'{"body": "a", "ttl": -1}', "ttl: expected a duration such as 90s, got '-1'"),
    (b'{"body": "a", "ttl": true}', "ttl: expected text, got true or false"),
    (b'{"body": "a", "ttl": 1e999}', "ttl: expected a duration such as 90s, got 'inf'"),
    (b'{"body": "a", "ttl": NaN}', "NaN is not JSON"),
    (b'{"body": "a", "ttl": "999999999w"}', "ttl: too long"),
    (b'{"body": "a", "ttl": %s}' % (b"9" * 5000), "more digits"),
    (b'{"body": "a", "scheduled": "tomorrow"}', "scheduled: 'tomorrow' is not a date and time"),
    (b'{"body": "a", "scheduled": "2031-01-01T00:00:00"}', "has no time zone"),
    (b'{"body": "a", "properties": []}', "properties: expected an object, got a list"),
    (
        b'{"body": "a", "properties": {"n": [1]}}',
        "property 'n': expected text, a number, true, false, null or a typed value, got a list",
    ),
    (b'{"body": "a", "properties": {"n": 18446744073709551616}}', "property 'n': the number has more than 64 bits"),
    (b'{"body": "a", "properties": {"n": -9223372036854775809}}', "property 'n': the number has more than 64 bits"),
    (b'{"body": "a", "properties": {"n": 1e999}}', "got a number that is too large"),
    (b'{"body": "a", "properties": {"n": {"TYPE": "LONG", "VALUE": 1}}}', "got an object"),
    (
        b'{"body": "a", "properties": {"n": "%s"}}' % (b"x" * 32_769),
        "property 'n' has 32769 bytes; Service Bus accepts",
    ),
    (
        b'{"body": "a", "properties": {"a": "%s", "b": "%s", "c": "%s"}}' % ((b"x" * 30_000,) * 3),
        "the properties of the message have 90003 bytes; Service Bus accepts 65536",
    ),
    (b'{"body": "a", "properties": {"n": 1, "n": 2}}', "property 'n': given twice"),
    (b'{"body": "a", "properties": {"x-ms-path": "q"}}', "already has a property x-ms-path"),
    (b'{"a":' * 100_000, "nested too deeply"),
    (b'{"body_kind": "value", "body": %s}' % (b"[" * 900 + b"]" * 900), "nested too deeply"),
    (b'{"body": "a", "annotations": {"\xc3\xbc": 1}}', "a value cannot be encoded"),
    (b'{"body": "a", "properties": {"n": {"type": "lng", "value": "1"}}}', "property 'n': 'lng' is no type of text"),
    (b'{"body": "a", "properties": {"n": {"type": "byte", "value": "128"}}}', "property 'n': '128' is no byte"),
    (b'{"body": "a", "properties": {"n": {"type": "uuid", "value": [1]}}}', "expected a text as the value of a uuid"),
    (b'{"body": "a", "properties": {"n": {"type": "timestamp", "value": "2031-01-01T00:00:00"}}}', "no time zone"),
    (b'{"body": "a", "properties": {"type": "map", "value": [["a"]]}}', "properties: expected the list of pairs"),
    (b'{"body": 1, "body_kind": "sequence"}', "body: expected a list of lists"),
    (b'{"body": "a", "body_kind": "text"}', "body_kind: expected value or sequence, got 'text'"),
    (b'{"body": "a", "priority": 256}', "priority: expected a number up to 255"),
    (b'{"body": "a", "durable": 1}', "durable: expected true or false, got a number"),
    (b'{"body": "a", "content_type": "\xc3\xbc"}', "content_type: expected ASCII text"),
    (b'{"body": "a", "sections": {"body": "!"}}', "sections: not base64"),
    (b'{"body": "a", "sections": {"head": ""}}', "sections: expected an object of sections"),
    (b'{"body": null, "body_text": "a"}', "body_text without body_base64"),
]


@pytest.mark.parametrize(("line", "what"), WRONG, ids=[what for _, what in WRONG])
def test_an_invalid_line_is_refused_with_its_reason(line: bytes, what: str) -> None:
    with pytest.raises(UsageError) as raised:
        LineReader().read(line)
    assert what in raised.value.message
    assert raised.value.hint


@given(st.binary(max_size=300))
def test_a_body_may_be_any_bytes_as_base64(body: bytes) -> None:
    assert read(json.dumps({"body_base64": base64.b64encode(body).decode()}).encode()).body == data_body(body)


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_any_line_is_a_message_or_refused(line: bytes) -> None:
    with suppress(UsageError):
        assert read(line).read_properties().message_id


@given(
    st.lists(st.binary(max_size=20).filter(lambda line: b"\n" not in line and not line.endswith(b"\r")), max_size=30)
)
def test_lines_are_split_alike_for_every_chunk_size(written: list[bytes]) -> None:
    whole = b"\r\n".join(written)
    found = [line for start in (1, 3, 64) for line in _split_by(whole, start)]
    kept = [line for line in written if line]
    assert [line for line in found if line] == kept * 3


def _split_by(whole: bytes, size: int) -> list[bytes]:
    chunks = [whole[start : start + size] for start in range(0, len(whole), size)]
    return [line for lines in send_lines._split(chunks, "f") for line in lines]


async def test_an_unreadable_file_is_reported() -> None:
    with pytest.raises(MachineLacks, match="/ cannot be read"):
        await anext(ReadAhead(SourceLines(os.open("/", os.O_RDONLY), "/", LineReader(), 0)))


@given(
    st.lists(
        st.tuples(st.sampled_from([None, "a", "b"]), st.sampled_from([0, 10, 90_000, 150_000, 262_000, 300_000])),
        max_size=12,
    )
)
def test_line_batches_keep_order_and_one_key_each(described: list[tuple[str | None, int]]) -> None:
    lines = [
        SourceLine(number, RawMessage(b"", bytes(size), BatchKey(session, None)))
        for number, (session, size) in enumerate(described, 1)
    ]
    batches = list(send_lines.line_batches(lines, 100))
    assert [line for _, members in batches for line in members] == lines
    for (payload, message_format), members in batches:
        assert len({line.message.key for line in members}) == 1
        inside = batch_members(payload) if message_format else [payload]
        assert inside == [line.message.payload for line in members]
        assert not message_format or len(payload) <= 262_144


def test_a_checked_file_is_left_at_its_start(tmp_path: Any) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text('{"body": "a"}\n{"body": "b"}\n{')
    descriptor = os.open(path, os.O_RDONLY)
    with pytest.raises(UsageError, match="line 3: the line is not JSON"):
        send_lines.check_lines(descriptor, "m.jsonl", LineReader(), 0)
    os.lseek(descriptor, 0, os.SEEK_SET)
    path.write_text('{"body": "a"}\n')
    send_lines.check_lines(descriptor, "m.jsonl", LineReader(), 0)
    assert os.read(descriptor, 100) == b'{"body": "a"}\n'
    os.close(descriptor)
