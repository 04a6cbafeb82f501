"""Times to live above 49.7 days: the header holds 2**32 - 1 ms, and creation and absolute expiry the real one."""

from typing import Any

import pytest

from sbpair.amqp.link import Delivery
from sbpair.amqp.message import (
    MESSAGE_ANNOTATIONS,
    Header,
    Properties,
    Sections,
    batch_of,
    data_body,
    encode_map,
)
from sbpair.amqp.types import Described, Long, Symbol, Timestamp
from sbpair.drill.original_reading import WRAPPED_TTL_MS
from sbpair.emulator.clock import NEVER, ManualClock
from sbpair.emulator.entities.description import QueueDescription, SubscriptionDescription
from sbpair.emulator.entities.rules import SqlAction, SubscriptionRule
from sbpair.emulator.entities.service_envelope import MAX_EXPIRY_MS, TTL_IN_PROPERTIES, encode_peeked, read_delivery
from sbpair.emulator.entities.stored_message import StoredMessage
from sbpair.rules.filters import SqlRuleFilter, TrueRuleFilter
from sbpair.rules.values import from_amqp
from sbpair.timespan import TICKS_PER_MS
from tests.emulator.peer import Peer

MINUTE, DAY = 60_000, 86_400_000
NOW = ManualClock().now_ms()
LONG = (TTL_IN_PROPERTIES, NOW, NOW + 60 * DAY)


def payload(ttl: int | None, created: int | None, expires: int | None, at: int | None = None) -> bytes:
    annotations = {} if at is None else {Symbol("x-opt-scheduled-enqueue-time"): Timestamp(at)}
    return Sections(
        header=Header(ttl=ttl).encode(),
        message_annotations=encode_map(MESSAGE_ANNOTATIONS, annotations),
        properties=Properties(message_id="long", creation_time=created, absolute_expiry_time=expires).encode(),
        body=data_body(b"x"),
    ).join()


def stored(*fields: Any, **others: Any) -> StoredMessage:
    (message,) = read_delivery(payload(*fields, **others), 0)
    return message


def span(ms: int) -> Described:
    return Described(Symbol("com.microsoft:timespan"), Long(ms * TICKS_PER_MS))


@pytest.mark.parametrize(
    ("fields", "lives_ms"),
    [
        (LONG, 60 * DAY),
        ((None, NOW, NOW + 60 * DAY), 60 * DAY),
        ((5_000, NOW, NOW + 60 * DAY), 5_000),
        # The converter of the original's clients wrote "for ever" like this: 18 days are what its header says.
        ((WRAPPED_TTL_MS, NOW, MAX_EXPIRY_MS), WRAPPED_TTL_MS),
        ((TTL_IN_PROPERTIES, NOW, MAX_EXPIRY_MS), MAX_EXPIRY_MS - NOW),
        ((TTL_IN_PROPERTIES, None, None), TTL_IN_PROPERTIES),
        ((TTL_IN_PROPERTIES, None, NOW + 60 * DAY), TTL_IN_PROPERTIES),
        ((TTL_IN_PROPERTIES, NOW, None), TTL_IN_PROPERTIES),
        ((TTL_IN_PROPERTIES, NOW, NOW - 1), 0),
        ((None, None, NOW + 60 * DAY), None),
    ],
)
def test_the_time_to_live_is_the_senders(fields: Any, lives_ms: int | None) -> None:
    assert stored(*fields).ttl_ms == lives_ms


@pytest.mark.parametrize(("default", "days"), [(None, 60), ("P100D", 60), ("P50D", 50), ("P10D", 10)])
def test_a_message_ends_with_its_time_or_the_entitys(make_queue, advance, default: str | None, days: int) -> None:
    own = {} if default is None else {"default_message_time_to_live": default}
    queue = make_queue(dead_lettering_on_message_expiration=True, **own)
    queue.send([stored(*LONG)])
    advance(days * DAY - 1)
    assert (len(queue.messages), len(queue.dead_letters)) == (1, 0)
    advance(1)
    (dead,) = queue.dead_letters.receive(1)
    assert (len(queue.messages), dead.dead_letter.reason, dead.expires_at_ms) == (0, "TTLExpiredException", NEVER)
    sections = Sections.split(encode_peeked(dead))
    read = sections.read_properties()
    assert (sections.read_header().ttl, read.creation_time, read.absolute_expiry_time) == LONG


def test_the_time_of_a_scheduled_message_begins_when_it_is_due(make_queue, advance) -> None:
    queue = make_queue()
    queue.send([stored(*LONG, at=NOW + 30 * DAY)])
    advance(30 * DAY)
    advance(60 * DAY - 1)
    assert len(queue.messages) == 1
    advance(1)
    assert len(queue.messages) == 0


def test_a_copy_of_a_topic_and_a_forwarded_one_live_as_long(namespace, make_queue, advance) -> None:
    topic, last = namespace.create_topic("topic"), make_queue("last")
    copies = topic.create_subscription("copies", SubscriptionDescription())
    topic.create_subscription("forwards", SubscriptionDescription(forward_to="last"))
    topic.send([stored(*LONG)])
    advance(60 * DAY - 1)
    assert (len(copies.messages), len(last.messages)) == (1, 1)
    advance(1)
    assert (len(copies.messages), len(last.messages)) == (0, 0)


@pytest.mark.parametrize(
    ("condition", "fits"),
    [
        ("sys.TimeToLive = @sixty", True),
        ("sys.TimeToLive > @sixty", False),
        ("sys.ExpiresAtUtc = @in_sixty", True),
        ("sys.ExpiresAtUtc < @in_sixty", False),
    ],
)
def test_filters_know_the_whole_time_to_live(namespace, condition: str, fits: bool) -> None:
    values = (("@sixty", from_amqp(span(60 * DAY))), ("@in_sixty", from_amqp(Timestamp(NOW + 60 * DAY))))
    topic, rule = namespace.create_topic("topic"), SubscriptionRule("own", SqlRuleFilter(condition, values))
    subscription = topic.create_subscription("s", SubscriptionDescription(), rule)
    topic.send([stored(*LONG)])
    assert len(subscription.messages) == fits


@pytest.mark.parametrize(
    ("sent", "lives_ms", "seen"),
    [
        ((1_000, None, None), 60 * DAY, LONG),
        (LONG, 90 * DAY, (TTL_IN_PROPERTIES, NOW, NOW + 90 * DAY)),
        (LONG, 1_000, (1_000, NOW, NOW + 1_000)),
        ((1_000, NOW - 5, NOW + 995), 2_000, (2_000, NOW - 5, NOW + 1_995)),
        ((1_000, None, None), 2_000, (2_000, None, None)),
        ((None, NOW, NOW + 1_000), 9_000 * 365 * DAY, (TTL_IN_PROPERTIES, NOW, MAX_EXPIRY_MS)),
    ],
)
def test_an_action_sets_all_of_the_time_to_live(namespace, sent: Any, lives_ms: int, seen: Any) -> None:
    action = SqlAction("SET sys.TimeToLive = @lives", (("@lives", from_amqp(span(lives_ms))),))
    topic, rule = namespace.create_topic("topic"), SubscriptionRule("own", TrueRuleFilter(), action)
    subscription = topic.create_subscription("s", SubscriptionDescription(), rule)
    topic.send([stored(*sent)])
    (copy,) = subscription.messages.receive(1)
    read = copy.sections.read_properties()
    assert (copy.sections.read_header().ttl, read.creation_time, read.absolute_expiry_time) == seen
    assert (copy.ttl_ms, copy.expires_at_ms) == (lives_ms, NOW + lives_ms)


async def test_a_receiver_and_a_peek_see_what_was_sent(peer: Peer) -> None:
    sent = payload(*LONG)
    link = await peer.attach_sender("orders")
    await peer.send(link, batch_of([sent, sent]), message_format=0x80013700)
    (peeked, _) = (await peer.peek("orders"))["body"].get("messages")
    received: list[Delivery] = await peer.take(await peer.attach_receiver("orders"), 2)
    for seen in (peeked.get("message"), *(each.payload for each in received)):
        sections = Sections.split(seen)
        assert sections.read_header().ttl == TTL_IN_PROPERTIES
        assert sections.properties == Sections.split(sent).properties


@pytest.mark.parametrize("default_days", [None, 1, 60])
@pytest.mark.parametrize("own_ms", [None, MINUTE, 2 * DAY])
async def test_a_received_message_has_the_entitys_default_where_it_is_shorter(
    peer: Peer, default_days: int | None, own_ms: int | None
) -> None:
    """By live tests of the client for .NET; a message that was only peeked is as it was sent."""
    default_ms = None if default_days is None else default_days * DAY
    given = {} if default_ms is None else {"default_message_time_to_live": default_ms * TICKS_PER_MS}
    peer.stage.namespace.create_queue("timed", QueueDescription(**given))
    sent = Header(ttl=own_ms).encode() + Properties(message_id="m", subject="s").encode() + data_body(b"x")
    await peer.send(await peer.attach_sender("timed"), sent)
    (peeked,) = (await peer.peek("timed"))["body"]["messages"]
    (delivery,) = await peer.take(await peer.attach_receiver("timed"), 1)
    got, before = Sections.split(delivery.payload), Sections.split(peeked["message"])
    stamped = default_ms if default_ms is not None and (own_ms is None or default_ms < own_ms) else None
    properties, at = got.read_properties(), got.read_message_annotations()["x-opt-enqueued-time"]
    assert (before.read_header().ttl, before.properties) == (own_ms, Sections.split(sent).properties)
    assert got.read_header().ttl == (own_ms if stamped is None else min(stamped, TTL_IN_PROPERTIES))
    expected = (None, None) if stamped is None else (at, at + stamped)
    assert (properties.creation_time, properties.absolute_expiry_time) == expected
    assert (properties.message_id, properties.subject, got.body) == ("m", "s", data_body(b"x"))
