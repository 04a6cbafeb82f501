"""Checks of queues with the official client for Python: sending, receiving, locks and sessions."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusMessage, ServiceBusMessageState, ServiceBusSubQueue
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import (
    MessageLockLostError,
    MessageSizeExceededError,
    OperationTimeoutError,
    ServiceBusError,
    SessionCannotBeLockedError,
)

from tests.conformance import registry as of
from tests.conformance.bench import Bench, nothing, one, peek_all, raising, take, text, texts
from tests.conformance.registry import check

LARGE = 2**40 + 1
LOCK = timedelta(seconds=5)
LOCK_SECONDS = 5.0
MARGIN_SECONDS = 2.0
PING = "application/vnd.ms-servicebus-ping"


# Send


@check("send", of.MESSAGES)
async def a_message_keeps_its_properties(bench: Bench) -> None:
    queue = await bench.queue()
    properties = {"text": "t", "number": 7, "large": LARGE, "fraction": 1.5, "truth": True, "id": UUID(int=7)}
    sent = ServiceBusMessage(
        "body", message_id="id", correlation_id="correlation", subject="subject", content_type="text/plain", to="to",
        reply_to="reply", session_id="group", reply_to_session_id="reply-group",
        application_properties={**properties, "large": {"TYPE": "LONG", "VALUE": LARGE}},
        time_to_live=timedelta(minutes=1),
    )  # fmt: skip
    await bench.send(queue, sent)
    (found,) = await bench.received(queue)
    assert text(found) == "body"
    fields = ("message_id", "correlation_id", "subject", "content_type", "to", "reply_to", "session_id")
    for name in (*fields, "reply_to_session_id", "time_to_live"):
        assert getattr(found, name) == getattr(sent, name), name
    own = {str(key, "utf-8"): value for key, value in (found.application_properties or {}).items()}
    assert own == {**properties, "text": b"t"}
    assert None not in (found.enqueued_time_utc, found.sequence_number)


@check("send", f"{of.GITHUB}Azure/azure-uamqp-python/issues/169")
async def a_message_keeps_annotations_and_footer(bench: Bench) -> None:
    queue = await bench.queue()
    sent: dict[str, Any] = {
        "annotations": {b"x-note": b"m"}, "delivery_annotations": {b"x-note": b"d"}, "footer": {b"x-note": b"f"},
    }  # fmt: skip
    await bench.send(queue, AmqpAnnotatedMessage(data_body=b"body", **sent))
    found = (await bench.received(queue))[0].raw_amqp_message
    for name, expected in sent.items():
        assert (getattr(found, name) or {}).items() >= expected.items(), name


@check("send", f"{of.GITHUB}dapr/docs/issues/1839")
async def a_path_has_no_case(bench: Bench) -> None:
    queue = await bench.queue()
    await bench.send(queue.upper(), ServiceBusMessage("here"))
    assert texts(await bench.received(queue)) == ["here"]


@check("send", of.PAIRED_NAMESPACES)
async def a_ping_is_never_delivered(bench: Bench) -> None:
    queue = await bench.queue()
    ping = ServiceBusMessage(b"", content_type=PING, time_to_live=timedelta(seconds=MARGIN_SECONDS))
    await bench.send(queue, ping)
    await bench.send(queue, ServiceBusMessage("behind"))
    assert texts(await bench.received(queue)) == ["behind"]


@check("send", of.SEQUENCING)
async def a_batch_arrives_in_order(bench: Bench) -> None:
    queue = await bench.queue()
    await bench.send(queue, *(ServiceBusMessage(str(number)) for number in range(50)))
    found = await bench.received(queue, count=50)
    assert texts(found) == [str(number) for number in range(50)]
    numbers = [message.sequence_number or 0 for message in found]
    assert numbers == sorted(numbers)


@check("send", of.QUOTAS)
async def a_message_that_is_too_large_is_refused(bench: Bench) -> None:
    queue = await bench.queue()
    limit = (await bench.admin.get_queue(queue)).max_message_size_in_kilobytes or 256
    async with bench.sender(queue) as sender, raising(MessageSizeExceededError):
        await sender.send_messages(ServiceBusMessage(b"x" * (limit + 1) * 1024))


@check("send", of.SEQUENCING)
async def a_scheduled_message_waits_for_its_time(bench: Bench) -> None:
    queue = await bench.queue()
    async with bench.sender(queue) as sender, bench.receiver(queue) as receiver:
        (number,) = await sender.schedule_messages(
            [ServiceBusMessage("later")], datetime.now(UTC) + timedelta(seconds=5)
        )
        (waiting,) = await peek_all(receiver)
        assert (waiting.sequence_number, waiting.state) == (number, ServiceBusMessageState.SCHEDULED)
        await nothing(receiver)
        found = await one(receiver)
        await receiver.complete_message(found)
    assert text(found) == "later"
    assert found.scheduled_enqueue_time_utc is not None
    assert found.enqueued_time_utc is not None
    assert found.enqueued_time_utc >= found.scheduled_enqueue_time_utc - timedelta(seconds=1)


@check("send", of.SEQUENCING)
async def a_scheduled_message_can_be_cancelled_once(bench: Bench) -> None:
    queue = await bench.queue()
    async with bench.sender(queue) as sender, bench.receiver(queue) as receiver:
        numbers = await sender.schedule_messages([ServiceBusMessage("never")], datetime.now(UTC) + timedelta(hours=1))
        await sender.cancel_scheduled_messages(numbers)
        assert not await peek_all(receiver)
        async with raising(ServiceBusError):
            await sender.cancel_scheduled_messages(numbers)


@check("send", of.EXPIRATION)
async def an_expired_message_is_dead_lettered(bench: Bench) -> None:
    queue = await bench.queue(dead_lettering_on_message_expiration=True)
    await bench.send(queue, ServiceBusMessage("short", time_to_live=timedelta(seconds=1)))
    await asyncio.sleep(MARGIN_SECONDS)
    async with bench.receiver(queue) as receiver:
        await nothing(receiver)
    found = await bench.dead_letter(queue)
    assert (text(found), found.dead_letter_reason) == ("short", "TTLExpiredException")


@check("send", of.FORWARDING)
async def a_queue_forwards_to_another(bench: Bench) -> None:
    last = await bench.queue()
    first = await bench.queue(forward_to=last)
    await bench.send(last, ServiceBusMessage("before"))
    await bench.send(first, ServiceBusMessage("on", session_id="key", partition_key="key"))
    _, found = await bench.received(last, count=2)
    assert (text(found), found.session_id, found.partition_key) == ("on", "key", "key")
    assert (found.enqueued_sequence_number, found.sequence_number) == (1, 2)
    async with raising(ServiceBusError), bench.receiver(first):
        pass


@check("send", of.DEAD_LETTERS)
async def a_message_that_cannot_be_forwarded_is_a_transfer_dead_letter(bench: Bench) -> None:
    last = await bench.queue()
    first = await bench.queue(forward_to=last)
    await bench.admin.delete_queue(last)
    await bench.send(first, ServiceBusMessage("stranded"))
    found = await bench.dead_letter(first, place=ServiceBusSubQueue.TRANSFER_DEAD_LETTER)
    assert text(found) == "stranded"


# Receive


@check("receive", of.BROWSING)
async def a_peek_shows_messages_and_takes_none(bench: Bench) -> None:
    queue = await bench.queue()
    await bench.send(queue, *(ServiceBusMessage(str(number)) for number in range(3)))
    async with bench.receiver(queue) as receiver:
        first = await receiver.peek_messages(2)
        assert texts(first) == ["0", "1"]
        following = await receiver.peek_messages(5, sequence_number=(first[-1].sequence_number or 0) + 1)
        assert texts(following) == ["2"]
        found = await take(receiver, 3)
        assert [message.delivery_count for message in found] == [0, 0, 0]


@check("receive", of.SETTLEMENT)
async def receive_and_delete_removes_at_once(bench: Bench) -> None:
    queue = await bench.queue()
    await bench.send(queue, ServiceBusMessage("once"))
    async with bench.receiver(queue, receive_mode="receiveanddelete") as receiver:
        await one(receiver)
        assert not await peek_all(receiver)


@check("receive", of.SETTLEMENT)
async def an_abandoned_message_comes_again(bench: Bench) -> None:
    queue = await bench.queue()
    await bench.send(queue, ServiceBusMessage("again"))
    async with bench.receiver(queue) as receiver:
        await receiver.abandon_message(await one(receiver))
        found = await one(receiver)
        assert found.delivery_count == 1
        await receiver.complete_message(found)
        assert not await peek_all(receiver)


@check("receive", of.DEAD_LETTERS)
async def too_many_deliveries_end_in_the_dead_letter_queue(bench: Bench) -> None:
    queue = await bench.queue(max_delivery_count=2)
    await bench.send(queue, ServiceBusMessage("bad"))
    async with bench.receiver(queue) as receiver:
        for _ in range(2):
            await receiver.abandon_message(await one(receiver))
    assert (await bench.dead_letter(queue)).dead_letter_reason == "MaxDeliveryCountExceeded"


@check("receive", f"{of.GITHUB}Azure/azure-sdk-for-net/issues/53437")
async def deliveries_of_dead_letters_are_not_counted(bench: Bench) -> None:
    queue = await bench.queue(lock_duration=LOCK)
    await bench.send(queue, ServiceBusMessage("bad"))
    async with bench.receiver(queue) as receiver:
        await receiver.dead_letter_message(await one(receiver))
    async with bench.receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as dead:
        first = await one(dead)
        await dead.abandon_message(first)
        second = await one(dead)
        # It is not settled: its lock runs out.
        third = await one(dead)
        assert [each.delivery_count for each in (second, third)] == [first.delivery_count] * 2


@check("receive", f"{of.GITHUB}Azure/azure-service-bus-dotnet/issues/484")
async def a_plain_message_has_the_annotations_of_a_forwarded_one(bench: Bench) -> None:
    queue = await bench.queue()
    await bench.send(queue, ServiceBusMessage("plain"))
    annotations = (await bench.received(queue))[0].raw_amqp_message.annotations or {}
    assert annotations.get(b"x-opt-enqueue-sequence-number") == 0, annotations


@check("receive", of.DEAD_LETTERS)
async def a_dead_letter_has_its_reason(bench: Bench) -> None:
    queue = await bench.queue()
    await bench.send(queue, ServiceBusMessage("bad", application_properties={"kept": 1}))
    async with bench.receiver(queue) as receiver:
        await receiver.dead_letter_message(await one(receiver), reason="why", error_description="because")
    found = await bench.dead_letter(queue)
    assert (found.dead_letter_reason, found.dead_letter_error_description) == ("why", "because")
    assert (found.application_properties or {})[b"kept"] == 1


@check("receive", of.FORWARDING)
async def a_dead_letter_is_forwarded_with_its_reason(bench: Bench) -> None:
    last = await bench.queue()
    first = await bench.queue(forward_dead_lettered_messages_to=last)
    await bench.send(first, ServiceBusMessage("bad"))
    async with bench.receiver(first) as receiver:
        await receiver.dead_letter_message(await one(receiver), reason="why", error_description="because")
    (found,) = await bench.received(last)
    assert (text(found), found.dead_letter_reason, found.dead_letter_error_description) == ("bad", "why", "because")


@check("receive", of.DEFERRAL)
async def a_deferred_message_is_received_by_its_number_only(bench: Bench) -> None:
    queue = await bench.queue()
    await bench.send(queue, ServiceBusMessage("aside"))
    async with bench.receiver(queue) as receiver:
        message = await one(receiver)
        await receiver.defer_message(message)
        await nothing(receiver)
        (found,) = await receiver.receive_deferred_messages(message.sequence_number)
        assert (text(found), found.state) == ("aside", ServiceBusMessageState.DEFERRED)
        await receiver.complete_message(found)
        async with raising(ServiceBusError):
            await receiver.receive_deferred_messages(message.sequence_number)


@check("receive", f"{of.GITHUB}Azure/azure-service-bus/issues/375")
async def a_deferral_counts_as_a_delivery(bench: Bench) -> None:
    queue = await bench.queue(max_delivery_count=1)
    await bench.send(queue, ServiceBusMessage("aside"))
    async with bench.receiver(queue) as receiver:
        await receiver.defer_message(await one(receiver))
    assert (await bench.dead_letter(queue)).dead_letter_reason == "MaxDeliveryCountExceeded"


@check("receive", f"{of.GITHUB}Azure/azure-service-bus/issues/451")
async def a_missing_entity_is_named(bench: Bench) -> None:
    missing = bench.name()
    async with raising(ServiceBusError) as caught, bench.receiver(missing):
        pass
    error = caught[0]
    told = f"{error} {getattr(error, 'inner_exception', '')}"
    assert missing in told or "404" in told or "not-found" in told, told


# Locks


@check("locks", of.SETTLEMENT)
async def a_lock_ends_after_its_duration(bench: Bench) -> None:
    queue = await bench.queue(lock_duration=LOCK)
    await bench.send(queue, ServiceBusMessage("slow"))
    async with bench.receiver(queue) as receiver:
        await one(receiver)
        await nothing(receiver)
        again = await one(receiver)
        assert again.delivery_count == 1
        await receiver.complete_message(again)


@check("locks", of.SETTLEMENT)
async def a_message_states_the_end_of_its_lock(bench: Bench) -> None:
    queue = await bench.queue(lock_duration=LOCK)
    await bench.send(queue, ServiceBusMessage("locked"))
    async with bench.receiver(queue) as receiver:
        found = await one(receiver)
    assert found.locked_until_utc is not None
    assert found.enqueued_time_utc is not None
    # It was received after the time of enqueueing.
    assert LOCK <= found.locked_until_utc - found.enqueued_time_utc < 2 * LOCK


@check("locks", of.EXPIRATION)
async def a_locked_message_outlives_its_time(bench: Bench) -> None:
    queue = await bench.queue(dead_lettering_on_message_expiration=True)
    async with bench.receiver(queue) as receiver:  # which is open before the message's time begins
        await bench.send(queue, ServiceBusMessage("short", time_to_live=timedelta(seconds=3 * MARGIN_SECONDS)))
        message = await one(receiver)
        await asyncio.sleep(4 * MARGIN_SECONDS)
        await receiver.complete_message(message)
    async with bench.receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as dead:
        await nothing(dead)


@check("locks", of.SETTLEMENT)
async def a_renewed_lock_lasts(bench: Bench) -> None:
    queue = await bench.queue(lock_duration=LOCK)
    await bench.send(queue, ServiceBusMessage("kept"))
    async with bench.receiver(queue) as receiver:
        message = await one(receiver)
        for _ in range(2):
            await asyncio.sleep(LOCK_SECONDS / 2 + 0.5)
            assert await receiver.renew_message_lock(message) > datetime.now(UTC)
        await receiver.complete_message(message)
        assert not await peek_all(receiver)


@check("locks", of.EXCEPTIONS)
async def a_late_settlement_is_refused(bench: Bench) -> None:
    queue = await bench.queue(lock_duration=LOCK)
    await bench.send(queue, ServiceBusMessage("late"))
    async with bench.receiver(queue) as receiver:
        message = await one(receiver)
        await asyncio.sleep(LOCK_SECONDS + MARGIN_SECONDS)
        async with raising(MessageLockLostError):
            await receiver.complete_message(message)
        peeked = await peek_all(receiver)
        assert texts(peeked) == ["late"], peeked


@check("locks", f"{of.GITHUB}Azure/amqpnetlite/issues/340")
async def a_lock_outlives_its_receiver(bench: Bench) -> None:
    queue = await bench.queue(lock_duration=LOCK)
    await bench.send(queue, ServiceBusMessage("held"))
    async with bench.receiver(queue) as receiver:
        await one(receiver)
    async with bench.receiver(queue) as receiver:
        # The client needs some time to close and to open.
        peeked = await peek_all(receiver)
        assert texts(peeked) == ["held"]
        again = await one(receiver)
        assert again.delivery_count == 1
        await receiver.complete_message(again)


# Sessions


@check("sessions", of.SESSIONS)
async def a_session_comes_in_order_to_one_receiver(bench: Bench) -> None:
    queue = await bench.queue(requires_session=True)
    await bench.send(queue, *(ServiceBusMessage(str(number), session_id="s") for number in range(5)))
    async with bench.receiver(queue, session_id="s") as receiver:
        found = await take(receiver, 5)
        assert texts(found) == list("01234")
        async with raising(SessionCannotBeLockedError), bench.receiver(queue, session_id="s"):
            pass
        for message in found:
            await receiver.complete_message(message)


@check("sessions", of.SESSIONS)
async def the_next_session_is_a_free_one(bench: Bench) -> None:
    queue = await bench.queue(requires_session=True)
    await bench.send(queue, ServiceBusMessage("a", session_id="a"))
    await bench.send(queue, ServiceBusMessage("b", session_id="b"))
    free = {"session_id": NEXT_AVAILABLE_SESSION, "max_wait_time": 5}
    async with bench.receiver(queue, **free) as first, bench.receiver(queue, **free) as second:
        assert {first.session.session_id, second.session.session_id} == {"a", "b"}
        async with raising(OperationTimeoutError), bench.receiver(queue, **free):
            pass


@check("sessions", of.SESSIONS)
async def the_state_of_a_session_is_kept(bench: Bench) -> None:
    queue = await bench.queue(requires_session=True)
    async with bench.receiver(queue, session_id="s") as receiver:
        assert await receiver.session.get_state() is None
        await receiver.session.set_state("half done")
    async with bench.receiver(queue, session_id="s") as receiver:
        assert await receiver.session.get_state() == b"half done"
        assert await receiver.session.renew_lock() > datetime.now(UTC)


@check("sessions", f"{of.GITHUB}Azure/durabletask/pull/1228")
async def a_state_that_was_cleared_is_null(bench: Bench) -> None:
    queue = await bench.queue(requires_session=True)
    async with bench.receiver(queue, session_id="s") as receiver:
        for state in (b"some", None):
            await receiver.session.set_state(state)
            assert await receiver.session.get_state() == state


@check("sessions", of.SESSIONS)
async def a_wait_as_long_as_the_lock_of_a_session_ends_quietly(bench: Bench) -> None:
    queue = await bench.queue(requires_session=True, lock_duration=LOCK)
    async with bench.receiver(queue, session_id="s") as receiver:
        assert await receiver.receive_messages(1, max_wait_time=LOCK_SECONDS) == []


@check("sessions", of.SESSIONS)
async def a_closed_session_returns_its_messages(bench: Bench) -> None:
    queue = await bench.queue(requires_session=True)
    await bench.send(queue, *(ServiceBusMessage(str(number), session_id="s") for number in range(2)))
    for _ in range(2):
        async with bench.receiver(queue, session_id="s") as receiver:
            assert texts(await take(receiver, 2)) == ["0", "1"]


@check("sessions", of.SESSIONS)
async def messages_of_a_session_are_deferred_and_dead_lettered(bench: Bench) -> None:
    queue = await bench.queue(requires_session=True)
    await bench.send(queue, *(ServiceBusMessage(body, session_id="s") for body in ("aside", "bad")))
    async with bench.receiver(queue, session_id="s") as receiver:
        aside, bad = await take(receiver, 2)
        await receiver.defer_message(aside)
        await receiver.dead_letter_message(bad, reason="why")
        (again,) = await receiver.receive_deferred_messages(aside.sequence_number)
        await receiver.complete_message(again)
    found = await bench.dead_letter(queue)
    assert (text(found), found.session_id, found.dead_letter_reason) == ("bad", "s", "why")


@check("sessions", of.EXCEPTIONS)
async def a_settlement_after_the_lock_of_the_session_is_refused(bench: Bench) -> None:
    queue = await bench.queue(requires_session=True, lock_duration=LOCK)
    await bench.send(queue, ServiceBusMessage("late", session_id="s"))
    async with bench.receiver(queue, session_id="s") as receiver:
        message = await one(receiver)
        await asyncio.sleep(LOCK_SECONDS + MARGIN_SECONDS)
        async with raising(ServiceBusError):
            await receiver.complete_message(message)
    async with bench.receiver(queue, session_id="s") as receiver:
        again = await one(receiver)
        assert (text(again), again.delivery_count) == ("late", 1)


@check("sessions", f"{of.GITHUB}Azure/azure-sdk-for-python/issues/738")
async def a_message_without_session_id_is_refused(bench: Bench) -> None:
    queue = await bench.queue(requires_session=True)
    async with raising(ServiceBusError) as caught:
        await bench.send(queue, ServiceBusMessage("none"))
    assert "SessionId" in str(caught[0]), caught[0]


@check("sessions", f"{of.GITHUB}Azure/azure-service-bus/issues/326")
async def a_receiver_must_ask_for_a_session(bench: Bench) -> None:
    queue = await bench.queue(requires_session=True)
    async with raising(ServiceBusError) as caught, bench.receiver(queue):
        pass
    assert "non-sessionful" in str(caught[0]), caught[0]
