"""The paired client over real sockets, with faults: no accepted message is lost."""

import asyncio
import threading
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    ServiceBusError,
    ServiceBusServerBusyError,
)

import sbpair
from sbpair import aio
from sbpair.azure.data_plane import from_sdk_error
from sbpair.errors import EntityMissing, NameInvalid, UsageError
from sbpair.failover import side_connections
from sbpair.failover.entity_states import State
from sbpair.failover.events import QueueLeft, SendInDoubt
from sbpair.failover.failover_send import Delivered
from tests.kit.failover_rig import KINDS, PAIRED_CLIENTS, PRIMARY, SYNC_FIRST, Rig, a_message, ids
from tests.kit.shortages import no_file_left

pytestmark = [pytest.mark.usefixtures("impatient"), *PAIRED_CLIENTS]

HOUR = timedelta(hours=1)


def is_missing(error: Any) -> bool:
    """The SDK gives a missing entity the class of a wrong key: what it means is in what caused it."""
    return isinstance(from_sdk_error(error, "sending"), EntityMissing)


def test_a_function_decides_what_counts(rig: Rig) -> None:
    with rig.client(failover_on=is_missing) as (client, log):
        client.get_queue_sender("nowhere").send_messages(a_message("m"), timeout=5)
        assert log.path[:2] == [State.FAILING, State.FAILED_OVER]
    with rig.client(failover_on=lambda _error: False) as (client, log), rig.broken("throttle", PRIMARY, "orders"):
        with pytest.raises(ServiceBusServerBusyError):
            client.get_queue_sender("orders").send_messages(a_message("m"), timeout=5)
        assert log.events == []


@pytest.mark.parametrize("rule", ["default", "article", lambda _error: True])
def test_a_client_without_a_free_file_does_not_fail_over(rig: Rig, rule: Any) -> None:
    with rig.client(failover_on=rule, retries=0) as (client, log):
        sender = client.get_queue_sender("orders")
        with no_file_left(), pytest.raises(ServiceBusError, match="too many open files"):
            sender.send_messages(a_message("refused"), timeout=5)
        sender.send_messages(a_message("m"), timeout=5)
        assert log.events == []
    assert (ids(rig.in_backlog()), ids(rig.in_queue(rig.orders))) == ([], ["m"])


@KINDS
def test_a_client_that_was_idle_for_long_does_not_fail_over(
    rig: Rig, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service ends its links after ten minutes, and its connection, which has none then, five minutes later."""
    passed = 0
    monkeypatch.setattr(side_connections, "monotonic", lambda: monotonic() + passed)
    with rig.sending(kind) as (sender, _, log):
        for number, waits in enumerate([(), (10,), (10, 5), (10, 5, 15)]):
            for minutes in waits:
                rig.running.advance(60 * minutes)
                passed += 60 * minutes
            sender.send_messages(a_message(str(number)), timeout=20)
        assert log.events == []
    assert (ids(rig.in_backlog()), ids(rig.in_queue(rig.orders))) == ([], ["0", "1", "2", "3"])


def test_a_backlog_queue_is_not_left_for_want_of_a_file(rig: Rig) -> None:
    with rig.client(retries=0) as (client, log):
        client.force_failover()
        sender = client.get_queue_sender("orders")
        with no_file_left(), pytest.raises(ServiceBusError, match="too many open files"):
            sender.send_messages(a_message("refused"), timeout=5)
        sender.send_messages(a_message("m"), timeout=5)
        assert log.of(QueueLeft) == []
    assert ids(rig.in_backlog()) == ["m"]


def test_a_deleted_entity_raises_instead_of_filling_the_backlog(rig: Rig) -> None:
    with rig.sending() as (sender, _client, log):
        with rig.broken("entity_down", PRIMARY, "orders"):
            sender.send_messages(a_message("m"), timeout=5)
        rig.do(lambda: rig.running.namespace.delete_queue("orders"))
        log.wait_for(lambda event: getattr(event, "after", None) is State.BROKEN)
        for _ in range(2):
            with pytest.raises(ServiceBusError) as raised:
                sender.send_messages(a_message("refused"), timeout=5)
            assert is_missing(raised.value)
        rig.orders = rig.do(lambda: rig.running.namespace.create_queue("orders"))
        log.wait_for(lambda event: getattr(event, "before", None) is State.BROKEN)
        sender.send_messages(a_message("again"))
    assert (ids(rig.in_backlog()), ids(rig.in_queue(rig.orders))) == (["m"], ["again"])


@KINDS
def test_every_argument_of_an_sdk_sender_goes_to_either_side(rig: Rig, kind: str) -> None:
    with rig.sending(kind) as (sender, client, _log):
        for side in ("p", "b"):
            batch = sender.create_message_batch()
            batch.add_message(a_message(f"{side}6"))
            redacted = ServiceBusMessageBatch()
            redacted.add_message(a_message(f"{side}7"))
            sender.send_messages(a_message(f"{side}0"))
            sender.send_messages([a_message(f"{side}1"), a_message(f"{side}2")])
            sender.send_messages(a_message(f"{side}{number}") for number in (3,))
            sender.send_messages({"body": "x", "message_id": f"{side}4"})
            sender.send_messages(AmqpAnnotatedMessage(data_body=b"x", properties={"message_id": f"{side}5"}))
            sender.send_messages(batch)
            sender.send_messages(redacted)
            sender.send_messages([])
            sender.send_messages(sender.create_message_batch())
            client.force_failover("ORDERS")
        client.failback()
        sender.send_messages(AmqpAnnotatedMessage(data_body=b"x"))
        assert sender.delivered == Delivered(primary=9, backlog=8)
    waiting = rig.in_backlog()
    assert ids(waiting) == [f"b{number}" for number in range(8)]
    assert {each.read_application_properties().get("x-ms-path") for each in waiting} == {"orders"}
    straight = ids(rig.in_queue(rig.orders))
    assert straight[:-1] == [f"p{number}" for number in range(8)]
    assert straight[-1], "it was given an id"


def test_a_message_too_large_for_the_backlog_is_refused_early(rig: Rig) -> None:
    with rig.sending() as (sender, client, log):
        fits = ServiceBusMessage(b"x" * 261_500, message_id="fits")
        sender.send_messages(fits)
        with pytest.raises(MessageSizeExceededError, match=r"has 26\d{4} bytes, 26\d{4} .* accepts 262144"):
            sender.send_messages(ServiceBusMessage(b"x" * 262_080, message_id="large", session_id="s"))
        assert ids(rig.in_queue(rig.orders)) == ["fits"]
        client.force_failover()
        sender.send_messages(fits)
        assert log.of(SendInDoubt) == []
    assert ids(rig.in_backlog()) == ["fits"]


@SYNC_FIRST
def test_scheduled_messages_can_be_cancelled_in_the_primary(rig: Rig, kind: str) -> None:
    at = datetime.now(UTC).replace(microsecond=0) + HOUR
    with rig.sending(kind) as (sender, client, _log):
        numbers = sender.schedule_messages([a_message("kept"), a_message("cancelled")], at)
        sender.cancel_scheduled_messages(numbers[1])
        client.force_failover()
        waiting = sender.schedule_messages(a_message("later"), at)
        assert all(number < 0 for number in waiting)
        with pytest.raises(UsageError, match="backlog"):
            sender.cancel_scheduled_messages(waiting)
        assert sender.schedule_messages([], at) == []
    (alias,) = (each.read_application_properties().get("x-ms-scheduledenqueuetimeutc") for each in rig.in_backlog())
    assert alias == at.timestamp() * 1000
    held = rig.brought_back()
    assert ids(held) == ["kept", "later"]
    schedules = {each.read_message_annotations().get("x-opt-scheduled-enqueue-time") for each in held}
    assert schedules == {at.timestamp() * 1000}


def test_a_topic_fails_over_too(rig: Rig) -> None:
    topic = rig.do(lambda: rig.running.namespace.create_topic("news"))
    del topic
    with rig.client() as (client, _log):
        sender = client.get_topic_sender("news")
        sender.send_messages(a_message("straight"))
        client.force_failover("news")
        sender.send_messages(a_message("around"))
    (waiting,) = rig.in_backlog()
    assert waiting.read_application_properties().get("x-ms-path") == "news"


async def test_a_sender_works_after_a_cancelled_send(rig: Rig) -> None:
    async with aio.PairedClient(rig.pair) as client, client.get_queue_sender("orders") as sender:
        await sender.send_messages(a_message("before"))
        with rig.broken("swallow_acks", PRIMARY):
            sending = asyncio.create_task(sender.send_messages(a_message("cancelled")))
            while "cancelled" not in ids(await asyncio.to_thread(rig.in_queue, rig.orders)):
                continue
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending
        await sender.send_messages(a_message("after"))
    assert ids(rig.in_queue(rig.orders)) == ["before", "cancelled", "after"]


def test_threads_may_share_a_sender(rig: Rig) -> None:
    with rig.sending() as (sender, client, _log):
        client.force_failover()

        def send(first: int) -> None:
            for number in range(first, first + 10):
                sender.send_messages(a_message(f"m{number:02}"))

        threads = [threading.Thread(target=send, args=(first,)) for first in (0, 10, 20, 30)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(ids(rig.in_backlog())) == [f"m{number:02}" for number in range(40)]


def test_invalid_arguments_are_refused_before_sending(rig: Rig) -> None:
    rules = [{"failover_on": rule} for rule in ("everything", "", "Default", None, 7, ["default"])]
    for wrong in (*rules, {"on_failure": "ignore"}, {"retries": -1}):
        with pytest.raises(UsageError, match=next(iter(wrong))):
            sbpair.PairedClient(rig.pair, **wrong)
    with pytest.raises(ValueError, match="greater than 0"):
        sbpair.PairedClient(rig.pair, timeout=0)
    with rig.client() as (client, log):
        for wrong in ("", "a//b", "/orders", "no spaces", "x" * 261):
            with pytest.raises(NameInvalid):
                client.get_queue_sender(wrong)
        sender = client.get_queue_sender("orders")
        with pytest.raises(UsageError, match="already has a property x-ms-path"):
            sender.send_messages(ServiceBusMessage("x", application_properties={"x-ms-path": "elsewhere"}))
        for thing in (None, 7, "text", b"bytes", object(), [a_message("fine"), "text"]):
            with pytest.raises(TypeError):
                sender.send_messages(thing)
        for seconds in (0, -1):
            with pytest.raises(ValueError, match="greater than 0"):
                sender.send_messages(a_message("m"), timeout=seconds)
        sender.send_messages(a_message("sent"))
        sender.close()
        with pytest.raises(ValueError, match="closed"):
            sender.send_messages(a_message("m"))
        assert log.events == []
    with pytest.raises(ValueError, match="closed"):
        client.get_queue_sender("orders")
    assert ids(rig.in_queue(rig.orders)) == ["sent"]
