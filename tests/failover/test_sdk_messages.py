"""Outgoing messages as the SDK encodes them, their backlog copies, and their restoration by the syphon."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import MessageSizeExceededError
from hypothesis import given, settings
from hypothesis import strategies as st

from sbpair.amqp.message import Sections
from sbpair.backlog import ALIASES, PING_TYPE
from sbpair.errors import UsageError
from sbpair.failover import sdk_messages
from sbpair.failover.sdk_encoding import encoded_size
from sbpair.failover.sdk_messages import SizedBatch, batches, for_backlog, is_small, with_schedule
from sbpair.move.message.envelope import read_facts, restore
from sbpair.move.message.route import Send, route

NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)
WORDS = st.text(max_size=20)
NAMES = WORDS.filter(lambda name: name not in ALIASES)
IDS = st.text(min_size=1, max_size=20)


def a_message(body: Any, *, session_id: str | None, partition_key: str | None, **own: Any) -> ServiceBusMessage:
    """Return a message whose partition key is its session if it has both, as the SDK requires."""
    key = partition_key and (session_id or partition_key)
    return ServiceBusMessage(body, session_id=session_id, partition_key=key, **own)


MESSAGES = st.builds(
    a_message,
    st.none() | st.binary(max_size=50) | WORDS,
    application_properties=st.none()
    | st.dictionaries(
        NAMES, WORDS | st.booleans() | st.integers(-(2**31), 2**31 - 1) | st.floats(allow_nan=False) | st.uuids()
    ),
    session_id=st.none() | IDS,
    message_id=st.none() | IDS,
    scheduled_enqueue_time_utc=st.none() | st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1)),  # noqa: DTZ001
    time_to_live=st.none() | st.timedeltas(timedelta(seconds=1), timedelta(days=49)),
    content_type=st.none() | st.text(st.characters(codec="ascii"), max_size=20),
    correlation_id=st.none() | IDS,
    subject=st.none() | WORDS,
    partition_key=st.none() | IDS,
    to=st.none() | WORDS,
    reply_to=st.none() | WORDS,
)


def encoded(message: AmqpAnnotatedMessage) -> bytes:
    """Return the bytes that the SDK sends."""
    wrapped = ServiceBusMessage(
        None, message=PyamqpTransport.to_outgoing_amqp_message(message), raw_amqp_message=message
    )
    return bytes(PyamqpTransport.encode_message(wrapped))


def timeless(payload: bytes) -> dict[str, Any]:
    """Return a message without the two times that the SDK derives from the clock for a time to live."""
    sections = Sections.split(payload)
    properties = replace(sections.read_properties(), creation_time=None, absolute_expiry_time=None)
    return {
        "ttl": sections.read_header().ttl,
        "annotations": sorted(map(repr, sections.read_message_annotations().pairs)),
        "properties": properties,
        "application": sorted(map(repr, sections.read_application_properties().pairs)),
        "body": sections.body,
    }


@settings(max_examples=200, deadline=None)
@given(MESSAGES)
def test_the_syphon_restores_the_message_from_its_backlog_copy(message: ServiceBusMessage) -> None:
    before = repr(message.raw_amqp_message.__dict__), repr(message.raw_amqp_message.properties)
    sent = sdk_messages.prepare_one(message)
    straight = encoded(sent)
    sections, facts = read_facts("q", encoded(for_backlog(sent, "billing/Invoices")))
    assert facts.flaw == ""
    own = sections.read_properties()
    assert (own.group_id, own.absolute_expiry_time, own.creation_time) == (None, None, None)
    assert sections.read_header().ttl is None
    assert "x-opt-scheduled-enqueue-time" not in sections.read_message_annotations()
    towards = route(facts)
    assert isinstance(towards, Send)
    assert towards.destination == "billing/Invoices"
    assert timeless(restore(sections, towards, 0)) == timeless(straight)
    assert (repr(message.raw_amqp_message.__dict__), repr(message.raw_amqp_message.properties)) == before


def test_aliases_have_the_bytes_of_the_original_client() -> None:
    message = ServiceBusMessage(
        b"x", session_id="s", time_to_live=timedelta(minutes=1), scheduled_enqueue_time_utc=NEW_YEAR
    )
    payload = encoded(for_backlog(sdk_messages.prepare_one(message), "orders"))
    assert b"\xa1\x09x-ms-path\xa1\x06orders" in payload
    assert b"\xa1\x0ex-ms-sessionid\xa1\x01s" in payload
    assert b"\x00\xa3\x16com.microsoft:timespan\x81" + bytes.fromhex("0000000023c34600") in payload
    assert b"\xa1\x1cx-ms-scheduledenqueuetimeutc\x83" + bytes.fromhex("0000019b76daa800") in payload


@pytest.mark.parametrize(
    "at",
    [
        NEW_YEAR,
        NEW_YEAR.replace(tzinfo=None),
        NEW_YEAR.astimezone(timezone(timedelta(hours=5, minutes=30))),
        1_767_225_600_000,
        {"TYPE": "TIMESTAMP", "VALUE": 1_767_225_600_000},
    ],
)
@pytest.mark.parametrize("key", ["x-opt-scheduled-enqueue-time", b"x-opt-scheduled-enqueue-time"])
def test_a_schedule_is_read_in_every_form_of_the_sdk(key: Any, at: Any) -> None:
    raw = AmqpAnnotatedMessage(data_body=b"x", annotations={key: at, "x-opt-mine": 1})
    sections, facts = read_facts("q", encoded(for_backlog(sdk_messages.prepare_one(raw), "orders")))
    assert facts.scheduled_at == 1_767_225_600_000
    assert dict(sections.read_message_annotations().pairs) == {"x-opt-mine": 1}


def test_a_time_to_live_above_49_days_is_an_alias() -> None:
    properties = {"creation_time": 1_000, "absolute_expiry_time": 1_000 + 5_000_000_000}
    raw = AmqpAnnotatedMessage(data_body=b"x", properties=properties)
    _, facts = read_facts("q", encoded(for_backlog(sdk_messages.prepare_one(raw), "orders")))
    assert facts.ttl_ticks == 5_000_000_000 * 10_000


@pytest.mark.parametrize("properties", [None, {"subject": "s"}])
def test_a_message_without_an_id_gets_one_in_its_copy(properties: Any) -> None:
    message = AmqpAnnotatedMessage(data_body=b"x", properties=properties)
    ids = [sdk_messages.prepare_one(message).properties.message_id for _ in range(3)]
    assert len(set(ids)) == 3
    assert message.properties is None or message.properties.message_id is None


def test_only_a_message_that_was_changed_is_sent_as_a_copy() -> None:
    without, with_id = ServiceBusMessage(b"x"), ServiceBusMessage(b"x", message_id="own")
    without.message_id = None
    [one], content = sdk_messages.prepare(without)
    assert content is one
    assert sdk_messages.prepare(with_id)[1] is with_id
    prepared, contents = sdk_messages.prepare([without, with_id])
    assert contents == [prepared[0], with_id]


@pytest.mark.parametrize("own", ["mine", 7, b"bytes"])
def test_an_existing_id_is_kept(own: Any) -> None:
    # A property may have a name that is no text.
    named = {b"\xff": "x"}
    raw = AmqpAnnotatedMessage(data_body=b"x", properties={"message_id": own}, application_properties=named)
    assert sdk_messages.prepare_one(raw) is raw


@pytest.mark.parametrize("key", [*sorted(ALIASES), b"x-ms-path"])
def test_a_message_with_an_alias_is_refused(key: Any) -> None:
    for message in (
        ServiceBusMessage("x", application_properties={key: "elsewhere"}),
        AmqpAnnotatedMessage(data_body=b"x", application_properties={key: "elsewhere"}),
        {"body": "x", "application_properties": {key: "elsewhere"}},
    ):
        with pytest.raises(UsageError, match="already"):
            sdk_messages.prepare_one(message)
        with pytest.raises(UsageError, match="already"):
            SizedBatch(1000).add_message(message)


def test_scheduling_does_not_change_the_original() -> None:
    message = sdk_messages.prepare_one(ServiceBusMessage("x", partition_key="k"))
    later = with_schedule(message, NEW_YEAR)
    assert later.annotations == {b"x-opt-partition-key": "k", b"x-opt-scheduled-enqueue-time": NEW_YEAR}
    assert message.annotations == {b"x-opt-partition-key": "k"}


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 400), st.sampled_from([None, "a", "b"]))), st.integers(400, 2_000))
def test_batches_keep_order_key_and_limit(sizes: list[Any], limit: int) -> None:
    messages = [sdk_messages.prepare_one(ServiceBusMessage(b"x" * size, partition_key=key)) for size, key in sizes]
    packs = list(batches(messages, limit, ServiceBusMessageBatch, lambda each: each))
    assert [each for _, inside in packs for each in inside] == messages
    for content, inside in packs:
        if isinstance(content, ServiceBusMessageBatch):
            assert len(content) == len(inside) > 1
            assert content.size_in_bytes <= limit
            assert len({str(each.annotations) for each in inside}) == 1
        else:
            assert inside == [content]


def test_a_message_too_large_for_a_batch_goes_alone() -> None:
    messages = [sdk_messages.prepare_one(ServiceBusMessage(b"x" * size)) for size in (10, 5000, 10, 10)]
    packs = list(batches(messages, 1000, ServiceBusMessageBatch, lambda each: each))
    assert [len(inside) for _, inside in packs] == [1, 1, 2]
    assert packs[1][0] is messages[1]


@given(MESSAGES)
def test_the_encoded_size_is_that_of_the_sdk(message: ServiceBusMessage) -> None:
    sent = sdk_messages.prepare_one(message)
    assert 0 <= encoded_size(sent) - len(encoded(sent)) <= 8


def test_a_small_message_fits_every_tier_with_the_largest_header() -> None:
    message = sdk_messages.prepare_one(ServiceBusMessage(b"x" * sdk_messages.SMALL_BODY_BYTES, session_id="s" * 128))
    assert is_small(message)
    assert encoded_size(for_backlog(message, "o" * 260)) + 65_536 < sdk_messages.SMALLEST_TIER_BYTES
    assert not is_small(sdk_messages.prepare_one(ServiceBusMessage(b"x" * (sdk_messages.SMALL_BODY_BYTES + 1))))
    assert not is_small(sdk_messages.prepare_one(AmqpAnnotatedMessage(value_body="x")))


def test_a_batch_keeps_exactly_its_messages() -> None:
    batch = SizedBatch(300)
    batch.add_message(ServiceBusMessage(b"x"))
    with pytest.raises(MessageSizeExceededError):
        batch.add_message(ServiceBusMessage(b"x" * 300))
    assert (len(batch), len(batch.prepared)) == (1, 1)


def test_the_ping_equals_that_of_the_original_client() -> None:
    sections = Sections.split(encoded(sdk_messages.ping_message("fresh")))
    own = sections.read_properties()
    assert (own.content_type, own.group_id, sections.read_header().ttl) == (PING_TYPE, "fresh", 1000)
