"""Checks of queues with the official client for Python: sending, receiving, locks and sessions."""

from datetime import UTC, datetime, timedelta

from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusMessage, ServiceBusMessageState, ServiceBusSubQueue
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    OperationTimeoutError,
    ServiceBusError,
)

from tests.conformance import registry as of
from tests.conformance.bench import Bench, nothing, one, peek_all, raising, take, text
from tests.conformance.registry import check

LARGE = 2**40 + 1
LOCK = timedelta(seconds=5)
LOCK_SECONDS = 5.0


# Send


@check("send", of.QUOTAS)
async def a_message_that_is_too_large_is_refused(bench: Bench) -> None:
    queue = await bench.queue()
    limit = (await bench.admin.get_queue(queue)).max_message_size_in_kilobytes or 256
    async with bench.sender(queue) as sender, raising(MessageSizeExceededError):
        await sender.send_messages(ServiceBusMessage(b"x" * (limit + 1) * 1024))


@check("send", of.SEQUENCING)
async def a_scheduled_message_can_be_cancelled_once(bench: Bench) -> None:
    queue = await bench.queue()
    async with bench.sender(queue) as sender, bench.receiver(queue) as receiver:
        numbers = await sender.schedule_messages([ServiceBusMessage("never")], datetime.now(UTC) + timedelta(hours=1))
        await sender.cancel_scheduled_messages(numbers)
        assert not await peek_all(receiver)
        async with raising(ServiceBusError):
            await sender.cancel_scheduled_messages(numbers)


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


@check("receive", of.SETTLEMENT)
async def receive_and_delete_removes_at_once(bench: Bench) -> None:
    queue = await bench.queue()
    await bench.send(queue, ServiceBusMessage("once"))
    async with bench.receiver(queue, receive_mode="receiveanddelete") as receiver:
        await one(receiver)
        assert not await peek_all(receiver)


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


# Sessions


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


@check("sessions", f"{of.GITHUB}Azure/durabletask/pull/1228")
async def a_state_that_was_cleared_is_null(bench: Bench) -> None:
    queue = await bench.queue(requires_session=True)
    async with bench.receiver(queue, session_id="s") as receiver:
        for state in (b"some", None, b"other", b""):
            await receiver.session.set_state(state)
            assert await receiver.session.get_state() == (state or None)


@check("sessions", of.SESSIONS)
async def a_wait_as_long_as_the_lock_of_a_session_ends_quietly(bench: Bench) -> None:
    queue = await bench.queue(requires_session=True, lock_duration=LOCK)
    async with bench.receiver(queue, session_id="s") as receiver:
        assert await receiver.receive_messages(1, max_wait_time=LOCK_SECONDS) == []


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


@check("sessions", f"{of.GITHUB}Azure/azure-service-bus/issues/326")
async def a_receiver_must_ask_for_a_session(bench: Bench) -> None:
    queue = await bench.queue(requires_session=True)
    async with raising(ServiceBusError) as caught, bench.receiver(queue):
        pass
    assert "non-sessionful" in str(caught[0]), caught[0]
