"""Links to sessions, and idle links, with a scripted peer."""

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from sbpair.amqp.link import Delivery, LinkAttached, LinkDetached
from sbpair.amqp.message import Sections
from sbpair.amqp.performatives import Source, Target
from sbpair.amqp.types import Array, Described, Int, Long, Map, Symbol, Timestamp, UInt, ULong
from sbpair.emulator.entities.description import QueueDescription
from sbpair.emulator.entities.stored_message import StoredMessage
from tests.emulator.peer import Peer, Stage, plain

FILTER = Symbol("com.microsoft:session-filter")
TICKS_TO_1970 = 621_355_968_000_000_000
MINUTE = 60_000


def sessions(stage: Stage) -> Any:
    return stage.namespace.create_queue("sessions", QueueDescription(requires_session=True))


def ask_for(session: Any, session_id: str | None, wait_ms: int | None = None, descriptor: Any = FILTER) -> Any:
    """Attach a link to a session and grant credit before the answer."""
    wanted = session_id if descriptor is None else Described(descriptor, session_id)
    link = session.receiver(f"from-{session_id}")
    properties = None if wait_ms is None else {Symbol("com.microsoft:timeout"): UInt(wait_ms)}
    link.open(source=Source("sessions", filter={FILTER: wanted}), target=Target("peer"), properties=properties)
    link.grant(10)
    return link


@pytest.mark.parametrize("asked", [None, "s", "S"])
@pytest.mark.parametrize("descriptor", [FILTER, ULong(0x000001370000000C), None])
async def test_the_answer_describes_the_session_and_has_the_end_of_its_lock(
    peer: Peer, descriptor: Any, asked: str | None
) -> None:
    queue = sessions(peer.stage)
    await peer.send(await peer.attach_sender("sessions"), plain(group_id="s"))
    link = ask_for(await peer.begin(), asked, descriptor=descriptor)
    await peer.wait(LinkAttached, of=link)
    granted, named = link.remote.source.filter[FILTER], asked or "s"
    assert granted == (named if descriptor is None else Described(descriptor, named))
    held = queue.messages.held_session("s")
    until = link.remote.properties["com.microsoft:locked-until-utc"]
    assert type(until) is Long
    assert until == held.locked_until_ms * 10_000 + TICKS_TO_1970
    delivery = await peer.wait(Delivery, of=link)
    annotations = Sections.split(delivery.payload).read_message_annotations()
    assert annotations["x-opt-locked-until"] == held.locked_until_ms
    await peer.settle(delivery)
    assert queue.counts().total == 0


@pytest.mark.parametrize("entity", ["sessions", "orders"])
async def test_a_session_is_not_shared(peer: Peer, entity: str) -> None:
    sessions(peer.stage)
    link = (await peer.begin()).receiver("shared")
    wanted = Described(ULong(0x13_7000_000E), ["s", UUID(int=1)])
    link.open(source=Source(entity, filter={FILTER: wanted}), target=Target("peer"))
    error = (await peer.wait(LinkDetached, of=link)).error
    assert (error.condition, "non-exclusive session receivers" in error.description) == ("amqp:not-allowed", True)


async def test_a_link_is_answered_when_a_session_is_free(peer: Peer) -> None:
    sessions(peer.stage)
    link = ask_for(await peer.begin(), None)
    await peer.send(await peer.attach_sender("sessions"), plain(group_id="s"))
    delivery = await peer.wait(Delivery, of=link)
    assert Sections.split(delivery.payload).read_properties().group_id == "s"


async def test_a_link_is_refused_when_its_time_is_over(peer: Peer) -> None:
    queue = sessions(peer.stage)
    link = ask_for(await peer.begin(), None, wait_ms=5_000)
    await peer.attach_receiver("orders")
    peer.stage.emulator.advance(5_000)
    detached = await peer.wait(LinkDetached, of=link)
    assert detached.error.condition == "com.microsoft:timeout"
    await peer.send(await peer.attach_sender("sessions"), plain(group_id="s"))
    assert queue.messages.locked_count == 0


async def test_a_link_closed_while_waiting_gets_no_session(peer: Peer) -> None:
    queue = sessions(peer.stage)
    session = await peer.begin()
    ask_for(session, None)
    session.end()
    await peer.send(await peer.attach_sender("sessions"), plain(group_id="s"))
    assert queue.messages.accept("s").id == "s"


@pytest.mark.parametrize("flow", [None, ("grant", 5), ("drain",)], ids=["timer", "credit", "drain"])
async def test_a_link_outlives_the_lock_of_its_session_by_a_moment(peer: Peer, flow: tuple[Any, ...] | None) -> None:
    """A flow may be what first meets the end of the lock, before its timer."""
    queue, emulator = sessions(peer.stage), peer.stage.emulator
    await peer.send(await peer.attach_sender("sessions"), plain(group_id="s"))
    link = ask_for(await peer.begin(), "s")
    delivery = await peer.wait(Delivery, of=link)
    emulator.clock.advance(MINUTE)
    if flow:
        getattr(link, flow[0])(*flow[1:])
        await peer.ask("orders/$management", "com.microsoft:nothing", Map())
    emulator.advance(0)
    assert queue.messages.accept("s").id == "s"
    # The link is there, and nothing can be done over it.
    assert (await peer.settle(delivery)).state.error.condition == "com.microsoft:session-lock-lost"
    link.grant(5)
    await peer.send(await peer.attach_sender("sessions"), plain(group_id="s"))
    emulator.advance(500)
    assert (await peer.ask("orders/$management", "com.microsoft:nothing", Map()))["statusCode"] == 501
    assert not any(isinstance(event, (LinkDetached, Delivery)) and event.link is link for event in peer.events)
    emulator.advance(500)
    assert (await peer.wait(LinkDetached, of=link)).error.condition == "com.microsoft:session-lock-lost"


async def test_the_management_node_answers_about_sessions(peer: Peer) -> None:
    sessions(peer.stage)
    """A peek that names a link to a session, and no session, stays in that one."""
    node, name = "sessions/$management", {"session-id": "s"}
    await peer.send(await peer.attach_sender("sessions"), plain(group_id="s"), plain(group_id="t"))
    lost = await peer.ask(node, "com.microsoft:get-session-state", Map(name.items()))
    assert (lost["statusCode"], lost["errorCondition"]) == (410, "com.microsoft:session-lock-lost")
    delivery = await peer.wait(Delivery, of=ask_for(await peer.begin(), "s"))
    page = Map([("last-updated-time", Timestamp(253_402_300_800_000)), ("skip", Int(1)), ("top", Int(9))])
    listed = await peer.ask(node, "com.microsoft:get-message-sessions", page)
    assert (list(listed["body"]["sessions-ids"]), listed["body"]["skip"]) == (["t"], 2)
    page = Map([("last-updated-time", Timestamp(253_402_300_800_000)), ("skip", Int(2)), ("top", Int(9))])
    nothing = await peer.ask(node, "com.microsoft:get-message-sessions", page)
    assert (nothing["statusCode"], nothing["errorCondition"]) == (204, "com.microsoft:session-not-found")
    tokens = Array([UUID(bytes_le=delivery.tag)])
    body = Map([("from-sequence-number", Long(0)), ("message-count", Int(9))])
    for link, count in (({}, 2), ({"associated-link-name": "from-s"}, 1), ({"associated-link-name": "other"}, 2)):
        peeked = await peer.ask(node, "com.microsoft:peek-message", body, **link)
        assert len(peeked["body"]["messages"]) == count
    settle = Map([*name.items(), ("disposition-status", "completed"), ("lock-tokens", tokens)])
    assert (await peer.ask(node, "com.microsoft:update-disposition", settle))["statusCode"] == 200


async def test_ready_messages_are_deleted_in_batches(peer: Peer) -> None:
    """Neither one under lock, nor one that is scheduled, nor a later one."""
    queue, operation, node = peer.stage.queue, "com.microsoft:batch-delete-messages", "orders/$management"
    sender = await peer.attach_sender("orders")
    await peer.send(sender, *[plain(str(n)) for n in range(6)])
    await peer.take(await peer.attach_receiver("orders"), 1)
    queue.schedule([StoredMessage(plain(), 10, scheduled_at_ms=queue.namespace.clock.now_ms() + MINUTE)])
    peer.stage.emulator.advance(1)
    later = Timestamp(queue.namespace.clock.now_ms())
    await peer.send(sender, plain("later"))
    body = Map([("message-count", Int(4)), ("enqueued-time-utc", later)])
    assert (await peer.ask(node, operation, body))["body"]["message-count"] == 4
    assert (await peer.ask(node, operation, body))["body"]["message-count"] == 1
    assert (await peer.ask(node, operation, body))["statusCode"] == 204
    peer.stage.namespace.create_queue("parts", QueueDescription(enable_partitioning=True))
    for entity, limit in (("orders", 501), ("parts", 1)):
        body = Map([("message-count", Int(limit)), ("enqueued-time-utc", later)])
        assert (await peer.ask(f"{entity}/$management", operation, body))["statusCode"] == 400
    assert [message.sequence_number for message in queue.messages.peek(0, 9)] == [1, 7, 8]
    assert [message.sequence_number for message in queue.messages.receive(9)] == [8]


async def test_idle_links_and_links_of_disabled_or_deleted_entities_end(peer: Peer) -> None:
    idle, sender = await peer.attach_receiver("orders"), await peer.attach_sender("orders")
    peer.stage.emulator.advance(6 * MINUTE)
    await peer.send(sender, plain())
    peer.stage.emulator.advance(4 * MINUTE)
    detached = await peer.wait(LinkDetached, of=idle)
    assert detached.error.condition == "amqp:link:detach-forced"
    assert "IdleTimerExpired" in detached.error.description
    peer.stage.emulator.advance(6 * MINUTE)
    assert (await peer.wait(LinkDetached, of=sender)).error.condition == "amqp:link:detach-forced"
    sender, receiver = await peer.attach_sender("orders"), await peer.attach_receiver("orders")
    for link, status in ((sender, "SendDisabled"), (receiver, "ReceiveDisabled")):
        peer.stage.queue.update(replace(peer.stage.queue.description, status=status))
        assert (await peer.wait(LinkDetached, of=link)).error.condition == "com.microsoft:entity-disabled"
    peer.stage.namespace.create_queue("short-lived")
    sender = await peer.attach_sender("short-lived")
    peer.stage.namespace.delete_queue("short-lived")
    assert (await peer.wait(LinkDetached, of=sender)).error.condition == "amqp:not-found"
