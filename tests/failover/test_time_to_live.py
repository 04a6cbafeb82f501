"""A time to live, however long, from `send` and a paired client through the backlog to the primary."""

import json
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageHeader
from hypothesis import given, settings
from hypothesis import strategies as st

from sbpair.amqp.message import Sections
from sbpair.errors import UsageError
from sbpair.failover import sdk_encoding, sdk_messages
from sbpair.failover.entity_states import State
from sbpair.failover.outbox import OutboxMessage
from sbpair.failover.outbox_delivery import prepare_delivery
from sbpair.failover.sdk_messages import for_backlog, prepare_one
from sbpair.message_io.line_reader import LineReader
from sbpair.move.message.envelope import lifetime_ms, read_facts, restore
from sbpair.move.message.route import MAX_TTL_HEADER_MS, Send, route
from sbpair.timespan import MAX_TICKS, TICKS_PER_DAY, TICKS_PER_MS, show
from tests.failover.test_sdk_messages import encoded
from tests.kit.failover_rig import KINDS, PAIRED_CLIENTS, Rig, a_message, ids

pytestmark = [pytest.mark.usefixtures("impatient"), *PAIRED_CLIENTS]

LAST_MS = 253_402_214_399_999
"""9999-12-30T23:59:59.999Z."""

FOREVER_TICKS = 10_675_199 * TICKS_PER_DAY
SIXTY_DAYS = timedelta(days=60)
TICKS = st.integers(TICKS_PER_MS, MAX_TICKS) | st.sampled_from(
    [
        TICKS_PER_MS,
        999 * TICKS_PER_MS,
        1_500 * TICKS_PER_MS,
        *((MAX_TTL_HEADER_MS + each) * TICKS_PER_MS for each in (-1, 0, 1)),
        FOREVER_TICKS - 1,
        FOREVER_TICKS,
        MAX_TICKS,
    ]
)


def deadline(payload: bytes, enqueued_ms: int) -> int:
    """Return when an encoded message expires that is accepted at a time; the last time for never."""
    sections = Sections.split(payload)
    life = lifetime_ms(sections.read_header().ttl, sections.read_properties(), enqueued_ms)
    return LAST_MS if life is None else min(enqueued_ms + life, LAST_MS)


def restored(backlog_copy: bytes, now_ms: int) -> bytes:
    sections, facts = read_facts("q", backlog_copy)
    decision = route(facts)
    assert isinstance(decision, Send), facts.flaw
    return restore(sections, decision, now_ms)


@settings(deadline=None)
@given(TICKS)
def test_any_time_to_live_keeps_its_deadline_through_the_backlog(ticks: int) -> None:
    given = ServiceBusMessage("x").raw_amqp_message
    given.header = AmqpMessageHeader(time_to_live=-(-ticks // TICKS_PER_MS))
    message, line = prepare_one(given), LineReader().read(json.dumps({"body": "x", "ttl": show(ticks)}).encode())
    assert line is not None
    now_ms = int(time.time() * 1000)
    wanted = LAST_MS if ticks >= FOREVER_TICKS else min(now_ms - (-ticks // TICKS_PER_MS), LAST_MS)
    stranded = sdk_encoding.encode(for_backlog(message, "orders"))
    stored = OutboxMessage(1, 0, False, stranded)
    ways = {
        "direct": encoded(message),
        "line": line.payload,
        "batch": sdk_encoding.encode(message),
        "syphon": restored(stranded, now_ms),
        "outbox": prepare_delivery(stored, now_ms, restored=True).payload,
        "outbox and syphon": restored(prepare_delivery(stored, now_ms, restored=False).payload, now_ms),
    }
    for way, payload in ways.items():
        assert abs(deadline(payload, now_ms) - wanted) <= 60_000 * (wanted == LAST_MS), way
        expires = Sections.split(payload).read_properties().absolute_expiry_time
        assert expires is None or expires <= LAST_MS, way
    assert Sections.split(stranded).read_header().ttl is None, "a copy never expires in the backlog"


@pytest.mark.parametrize(
    "life",
    [timedelta(days=50), SIXTY_DAYS, timedelta(days=9_000 * 365), timedelta(days=10_675_199), timedelta.max],
    ids=str,
)
def test_a_long_time_to_live_is_the_maximum_and_two_times(life: timedelta) -> None:
    message = ServiceBusMessage("x", time_to_live=life)
    before = repr(message)
    prepared = prepare_one(message)
    sections = Sections.split(encoded(prepared))
    ttl, properties = sections.read_header().ttl, sections.read_properties()
    if life.days >= 10_675_199:
        assert (ttl, properties.creation_time, properties.absolute_expiry_time) == (None, None, None)
    else:
        assert abs(properties.creation_time - time.time() * 1000) < 60_000
        wanted = min(properties.creation_time + life // timedelta(milliseconds=1), LAST_MS)
        assert (ttl, properties.absolute_expiry_time) == (MAX_TTL_HEADER_MS, wanted)
    assert encoded(prepare_one(prepared)) == encoded(prepared), "a second preparation changes nothing"
    assert repr(message) == before, "the message of the caller is unchanged"


def test_a_received_message_keeps_its_long_time_to_live_when_sent_again() -> None:
    header, times = {"time_to_live": MAX_TTL_HEADER_MS}, {"creation_time": 5, "absolute_expiry_time": 5 + 2**33}
    again = AmqpAnnotatedMessage(data_body=b"x", header=header, properties={"message_id": "m", **times})
    properties = Sections.split(encoded(prepare_one(again))).read_properties()
    assert (properties.creation_time, properties.absolute_expiry_time) == (5, 5 + 2**33)
    assert read_facts("q", encoded(for_backlog(prepare_one(again), "orders")))[1].ttl_ticks == 2**33 * TICKS_PER_MS


def test_a_negative_time_to_live_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match="time_to_live must be greater than 0") as refused:
        prepare_one(ServiceBusMessage("x", time_to_live=timedelta(seconds=-1)))
    assert refused.value.hint


@KINDS
def test_a_paired_client_sends_a_long_time_to_live_on_either_way(rig: Rig, kind: str, tmp_path: Path) -> None:
    def long(name: str) -> ServiceBusMessage:
        return a_message(name, time_to_live=SIXTY_DAYS)

    with rig.sending(kind, outbox=tmp_path / "outbox.db") as (sender, client, log):
        sender.send_messages(a_message("first"))
        sender.send_messages(long("fast"))
        sender.send_messages([long("one"), long("two")])
        batch = sender.create_message_batch()
        batch.add_message(long("batched"))
        sender.send_messages(batch)
        client.force_failover()
        sender.send_messages(long("around"))
        sender.send_messages([long("three"), long("four")])
        assert log.path == [State.FORCED], "no send counted as an outage"
    stranded = rig.in_backlog()
    assert [each.read_header().ttl for each in stranded] == [None] * 3
    arrived = {each.read_properties().message_id: each for each in rig.brought_back()}
    assert [*arrived] == ["first", "fast", "one", "two", "batched", "around", "three", "four"]
    del arrived["first"]
    for name, sections in arrived.items():
        properties = sections.read_properties()
        lives = (properties.absolute_expiry_time or 0) - (properties.creation_time or 0)
        assert (sections.read_header().ttl, lives) == (MAX_TTL_HEADER_MS, SIXTY_DAYS / timedelta(milliseconds=1)), name


def test_a_long_time_to_live_can_be_scheduled(rig: Rig) -> None:
    at = datetime.now(UTC) + timedelta(hours=1)
    with rig.sending() as (sender, client, _log):
        sender.schedule_messages(a_message("direct", time_to_live=SIXTY_DAYS), at)
        client.force_failover()
        sender.schedule_messages(a_message("around", time_to_live=SIXTY_DAYS), at)
    arrived = rig.brought_back()
    assert ids(arrived) == ["direct", "around"]
    for sections in arrived:
        properties: Any = sections.read_properties()
        lives = properties.absolute_expiry_time - properties.creation_time
        assert lives == SIXTY_DAYS / timedelta(milliseconds=1)


def test_a_batch_holds_messages_with_a_long_time_to_live() -> None:
    batch = sdk_messages.SizedBatch(10_000)
    batch.add_message(ServiceBusMessage("x", time_to_live=SIXTY_DAYS))
    assert isinstance(batch, ServiceBusMessageBatch)
    assert len(batch) == 1
