"""Clients of a gateway while the primary is away: what they are told, and where their messages are."""

import asyncio
import os
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbpair.amqp.link import LinkDetached
from sbpair.amqp.message import (
    BATCH_FORMAT,
    MESSAGE_ANNOTATIONS,
    Properties,
    Sections,
    batch_of,
    data_body,
    encode_map,
)
from sbpair.amqp.performatives import Accepted
from sbpair.amqp.types import Array, Long, Map, Symbol, Timestamp
from sbpair.emulator.entities.description import QueueDescription
from sbpair.emulator.entities.queue import QueueEntity
from sbpair.errors import PortInUse
from sbpair.failover.events import SendInDoubt, SettledLost, UnpairedSize
from sbpair.gateway.gateway import Gateway, GatewayOptions
from tests.benchmarks.processes import peak_mb
from tests.emulator.peer import Peer, plain
from tests.kit.failover_rig import PAIRED_CLIENTS, ids
from tests.kit.gateway_key import RULE
from tests.kit.gateway_pair import GatewayPair, accepted, gateway_pair, held, restored
from tests.kit.waiting import until
from tests.move.test_aliased import ClientMessage, client_messages
from tests.move.test_envelope import NOW

BUSY, DETACHED, TOO_LARGE = "com.microsoft:server-busy", "amqp:link:detach-forced", "amqp:link:message-size-exceeded"
KILOBYTE = 1024
ALIASES_BYTES = 2 * KILOBYTE
pytestmark = PAIRED_CLIENTS


def keyed(text: str, key: str, **properties: Any) -> bytes:
    """Encode a message with a partition key: those of two keys share no batch."""
    annotations = encode_map(MESSAGE_ANNOTATIONS, {Symbol("x-opt-partition-key"): key})
    named = Properties(message_id=text, **properties).encode()
    return Sections(message_annotations=annotations, properties=named, body=data_body(text.encode())).join()


def fail_after_the_first(queue: QueueEntity, fail: Any) -> None:
    """Let something happen to a queue right after it has accepted a delivery."""
    enqueue = queue.messages.enqueue

    def enqueued(*arguments: Any, **more: Any) -> Any:
        found = enqueue(*arguments, **more)
        queue.messages.enqueue = enqueue  # type: ignore[method-assign]
        asyncio.get_running_loop().call_soon(fail)
        return found

    queue.messages.enqueue = enqueued  # type: ignore[method-assign]


async def test_a_gateway_that_starts_in_an_outage_takes_messages() -> None:
    async with gateway_pair() as (pair, _):
        with pair.away():
            async with pair.gateway() as gateway, pair.peer(gateway) as peer:
                message = plain("first", message_id="first")
                await accepted(peer, await peer.attach_sender("orders"), message)
                (stranded,) = pair.in_backlog()
                assert restored(stranded, 0) == message
        assert ids(await pair.moved()) == ["first"]


async def test_a_sender_keeps_its_link_through_an_outage() -> None:
    async with gateway_pair() as (pair, gateway), pair.peer(gateway) as peer:
        sender = await peer.attach_sender("orders")
        await accepted(peer, sender, plain("before"))
        with pair.away():
            await accepted(peer, sender, plain("meanwhile"))
            assert len(pair.in_backlog()) == 1
        await pair.is_back(gateway)
        await accepted(peer, sender, plain("after"))
        assert [each.body for each in held(pair.orders)] == [data_body(b"before"), data_body(b"after")]
        assert not any(isinstance(each, LinkDetached) for each in peer.events)


async def test_a_receiver_is_detached_by_a_condition_that_every_client_retries() -> None:
    """The client for Go takes a link for alive that ended by server-busy."""
    async with gateway_pair() as (pair, gateway), pair.peer(gateway) as peer:
        receiver = await peer.attach_receiver("orders")
        with pair.away():
            assert (await peer.wait(LinkDetached, of=receiver)).error.condition == DETACHED
            error = await peer.refusal_of(peer.attach_receiver("orders"))
            assert error.condition == DETACHED
        await accepted(peer, await peer.attach_sender("orders"), plain("back"))
        (delivery,) = await peer.take(await peer.attach_receiver("orders"), 1)
        assert delivery.payload.endswith(data_body(b"back"))


@pytest.mark.parametrize("direction", ["attach_sender", "attach_receiver"])
async def test_a_refused_token_of_the_gateway_is_replaced(direction: str) -> None:
    async with gateway_pair() as (pair, gateway), pair.peer(gateway) as peer:
        receiver = await peer.attach_receiver("orders")
        pair.faults.end(pair.faults.expire_tokens("contoso"))
        assert (await peer.wait(LinkDetached, of=receiver)).error.condition == DETACHED
        await getattr(peer, direction)("orders")
        await peer.flush()
        again = await peer.attach_receiver("orders")
        await accepted(peer, await peer.attach_sender("orders"), plain("x"))
        assert len(await peer.take(again, 1)) == 1


async def test_a_receiver_that_is_closed_gives_its_session_back_at_once() -> None:
    async with gateway_pair() as (pair, gateway), pair.peer(gateway) as one, pair.peer(gateway) as other:
        pair.primary.create_queue("ordered", QueueDescription(requires_session=True))
        await accepted(one, await one.attach_sender("ordered"), plain("x", group_id="s"))
        receiver = await one.attach_receiver("ordered", of="s")
        receiver.close()
        await one.flush()
        receiver = await other.attach_receiver("ordered", of="s")
        assert len(await other.take(receiver, 1)) == 1


# Batches


async def send_a_batch_that_fails_half_way(pair: GatewayPair, gateway: Gateway, down: list[str]) -> Any:
    """Return the state of a batch of two parts. After the first part, these backlog queues are down."""
    with pair.away():
        async with pair.peer(gateway) as peer:
            sender = await peer.attach_sender("orders")
            await accepted(peer, sender, plain("x", message_id="0"))
            (used,) = [queue for queue in pair.backlog if held(queue)]
            wanted = down or [used.path]
            fail_after_the_first(used, lambda: [pair.faults.entity_down("contoso-dr", path) for path in wanted])
            batch = batch_of([keyed("a", "one"), keyed("b", "one"), keyed("c", "two")])
            (answer,) = await peer.send(sender, batch, message_format=BATCH_FORMAT)
            return answer.state


async def test_the_rest_of_a_batch_goes_to_another_queue() -> None:
    async with gateway_pair() as (pair, gateway):
        assert await send_a_batch_that_fails_half_way(pair, gateway, []) == Accepted()
        assert all(map(held, pair.backlog))
        pair.faults.end_all()
        assert sorted(ids(await pair.moved())) == ["0", "a", "b", "c"]


async def test_the_rest_of_a_batch_goes_to_the_outbox(tmp_path: Any) -> None:
    async with gateway_pair(1, outbox=tmp_path / "outbox") as (pair, gateway):
        assert await send_a_batch_that_fails_half_way(pair, gateway, pair.paths) == Accepted()
        outbox: Any = gateway.failover.outbox
        assert outbox.holds("orders")
        pair.faults.end_all()
        await until(lambda: not outbox.holds("orders"))
        assert sorted(ids(await pair.moved())) == ["0", "a", "b", "c"]


async def test_a_batch_that_is_half_accepted_names_the_messages_of_that_half() -> None:
    async with gateway_pair(1) as (pair, gateway):
        state = await send_a_batch_that_fails_half_way(pair, gateway, pair.paths)
        assert state.error.condition == BUSY
        named = [event.message_ids for event in pair.log.of(SendInDoubt) if "the rest of their batch" in event.reason]
        assert named == [("a", "b")]
        assert ids(pair.in_backlog()) == ["0", "a", "b"]


# Scheduled messages


def schedulable(name: str, at_ms: int) -> bytes:
    annotations = encode_map(MESSAGE_ANNOTATIONS, {Symbol("x-opt-scheduled-enqueue-time"): Timestamp(at_ms)})
    named = Properties(message_id=name).encode()
    return Sections(message_annotations=annotations, properties=named, body=data_body(b"x")).join()


async def scheduled(peer: Peer, name: str, at_ms: int) -> list[int]:
    body = Map([("messages", [Map([("message-id", name), ("message", schedulable(name, at_ms))])])])
    reply = await peer.ask("orders/$management", "com.microsoft:schedule-message", body)
    assert reply.get("statusCode") == 200, reply
    numbers: Any = reply.get("body")
    return list(map(int, numbers.get("sequence-numbers")))


async def cancelled(peer: Peer, *numbers: int) -> Map:
    body = Map([("sequence-numbers", Array([Long(number) for number in numbers], of=Long))])
    return await peer.ask("orders/$management", "com.microsoft:cancel-scheduled-message", body)


async def test_messages_are_scheduled_in_both_namespaces() -> None:
    at_ms = 4_000_000_000_000
    async with gateway_pair() as (pair, gateway):
        async with pair.peer(gateway) as peer:
            (number,) = await scheduled(peer, "healthy", at_ms)
            assert number > 0
            assert (await cancelled(peer, number)).get("statusCode") == 200
        with pair.away():
            async with pair.peer(gateway) as peer:
                assert await scheduled(peer, "away", at_ms) == [-1]
            async with pair.peer(gateway) as peer:
                refusal = await cancelled(peer, -1)
                assert "cannot be cancelled" in str(refusal.get("statusDescription")), refusal
        (stranded,) = pair.in_backlog()
        assert restored(stranded, 0) == schedulable("away", at_ms)
        await pair.is_back(gateway)
        async with pair.peer(gateway) as peer:
            assert "cannot be cancelled" in str((await cancelled(peer, -1)).get("statusDescription"))


# Transactions


async def test_a_transaction_that_is_cut_before_its_end_sends_nothing() -> None:
    async with gateway_pair() as (pair, gateway), pair.peer(gateway) as peer:
        control, txn_id, sender = await peer.begin_sending("orders")
        await peer.send_in(txn_id, sender, plain("in it"))
        with pair.away():
            await peer.wait(LinkDetached, of=control)
            assert (await peer.send_in(txn_id, sender, plain("later"))).error.condition == "amqp:not-allowed"
        assert (held(pair.orders), pair.in_backlog()) == ([], [])


# Duplicates


async def test_duplicate_detection_finds_a_message_that_was_sent_again() -> None:
    async with gateway_pair(timeout=2.0) as (pair, gateway), pair.peer(gateway) as peer:
        pair.primary.create_queue("once", QueueDescription(requires_duplicate_detection=True))
        sender = await peer.attach_sender("once")
        pair.faults.swallow_acks("contoso", "once", count=1)
        await accepted(peer, sender, plain("x", message_id="again"))
        assert pair.log.doubtful_ids == {"again"}
        assert ids(pair.in_backlog()) == ["again"]
        await pair.moved()
        assert ids(held(pair.primary.queue("once"))) == ["again"]


# Order


@pytest.mark.parametrize(("tier", "is_partitioned"), [("standard", False), ("standard", True), ("premium", False)])
async def test_a_session_keeps_its_order_through_an_outage(tier: str, is_partitioned: bool) -> None:
    async with gateway_pair(tiers=(tier, "standard")) as (pair, gateway), pair.peer(gateway) as peer:
        pair.primary.create_queue(
            "ordered", QueueDescription(requires_session=True, enable_partitioning=is_partitioned)
        )
        sender = await peer.attach_sender("ordered")
        names = [f"{number:02d}" for number in range(30)]
        for name in names[:10]:
            await accepted(peer, sender, plain(name, message_id=name, group_id=f"s-{int(name) % 2}"))
        with pair.away():
            # In flight together: each waits for those before it.
            await accepted(
                peer, sender, *(plain(each, message_id=each, group_id=f"s-{int(each) % 2}") for each in names[10:])
            )
            await pair.is_back(gateway)
        await pair.moved()
        async with pair.peer(gateway) as other:
            for session in (0, 1):
                receiver = await other.attach_receiver("ordered", of=f"s-{session}")
                found = [Sections.split(each.payload) for each in await other.take(receiver, 15)]
                assert ids(found) == names[session::2]


# Sizes


async def send_unchecked(peer: Peer, link: Any, payload: bytes) -> Any:
    """Send a message of any size, and return the state that answers it."""
    (answer,) = await peer.send(link, payload)
    return answer.state


@pytest.mark.parametrize(
    ("tiers", "stated"),
    [
        (("standard", "standard"), 256 * KILOBYTE - ALIASES_BYTES),
        (("premium", "premium"), 1024 * KILOBYTE - ALIASES_BYTES),
        (("premium", "standard"), 256 * KILOBYTE - ALIASES_BYTES),
        (("standard", "premium"), 256 * KILOBYTE),
    ],
    ids=str,
)
@pytest.mark.parametrize("is_away", [False, True], ids=["healthy", "away"])
async def test_a_link_states_what_both_namespaces_take(
    tiers: tuple[str, str], stated: int, is_away: bool, tmp_path: Any
) -> None:
    async with gateway_pair(tiers=tiers, limits_file=tmp_path / "limits") as (pair, gateway):
        async with pair.peer(gateway) as peer:
            assert (await peer.attach_sender("orders")).remote.max_message_size == stated
        if is_away:
            with pair.away("contoso", "contoso-dr"):
                async with pair.gateway(limits_file=tmp_path / "limits") as other, pair.peer(other) as peer:
                    assert (await peer.attach_sender("orders")).remote.max_message_size == stated


async def test_a_message_that_is_too_large_for_the_backlog_is_refused() -> None:
    large = plain("x" * (300 * KILOBYTE), message_id="large")
    async with gateway_pair(tiers=("premium", "standard")) as (pair, gateway), pair.peer(gateway) as peer:
        sender = await peer.attach_sender("orders")
        assert (await send_unchecked(peer, sender, large)).error.condition == TOO_LARGE
        await accepted(peer, sender, plain("x" * (250 * KILOBYTE), message_id="fits"))
        assert ids(held(pair.orders)) == ["fits"]
        assert not pair.log.events


async def test_a_message_that_only_the_primary_takes_may_be_allowed() -> None:
    large = plain("x" * (300 * KILOBYTE), message_id="large")
    options: dict[str, Any] = {"tiers": ("premium", "standard"), "allow_unpaired_size": True}
    async with gateway_pair(**options) as (pair, gateway), pair.peer(gateway) as peer:
        sender = await peer.attach_sender("orders")
        assert sender.remote.max_message_size == 1024 * KILOBYTE
        await accepted(peer, sender, large)
        assert ids(held(pair.orders)) == ["large"]
        assert [event.size for event in pair.log.of(UnpairedSize)] == [len(large)]
        with pair.away():
            assert (await send_unchecked(peer, sender, large)).error is not None
            await accepted(peer, sender, plain("small"))


@pytest.mark.slow
@pytest.mark.parametrize("is_away", [False, True], ids=["healthy", "away"])
async def test_a_message_of_100_mb_passes(is_away: bool) -> None:
    largest = QueueDescription(max_message_size_in_kilobytes=102_400)
    async with gateway_pair(1, ("premium", "premium"), backlog=largest, timeout=40.0) as (pair, gateway):
        pair.primary.create_queue("large", largest)
        body = bytes(102_400 * KILOBYTE - ALIASES_BYTES - 100)
        before = peak_mb(os.getpid()) or 0.0
        async with pair.peer(gateway) as peer:
            sender = await peer.attach_sender("large")
            with pair.away() if is_away else nullcontext():
                await accepted(peer, sender, Sections(body=data_body(body)).join())
        (found,) = pair.in_backlog() if is_away else held(pair.primary.queue("large"))
        assert found.body == data_body(body)
        # The peer, the gateway and the namespace are this one process, and each has a copy or two.
        assert (peak_mb(os.getpid()) or 0.0) - before < 1_200


# Several gateways


async def test_two_gateways_of_a_machine_share_no_port(tmp_path: Any) -> None:
    limits = tmp_path / "limits"
    async with gateway_pair(limits_file=limits) as (pair, one), pair.gateway(limits_file=limits) as other:
        with pytest.raises(PortInUse, match="--port"):
            await Gateway(pair.pair, GatewayOptions(rule=RULE, port=one.port)).__aenter__()
        with pair.away():
            for gateway, name in ((one, "one"), (other, "other")):
                async with pair.peer(gateway) as peer:
                    await accepted(peer, await peer.attach_sender("orders"), plain(name, message_id=name))
        assert sorted(ids(await pair.moved())) == ["one", "other"]


# The outbox


async def test_a_full_outbox_refuses_and_drops_nothing(tmp_path: Any) -> None:
    async with gateway_pair(outbox=tmp_path / "outbox") as (pair, gateway), pair.peer(gateway) as peer:
        outbox: Any = gateway.failover.outbox
        outbox._limits = 2, 1 << 20
        sender = await peer.attach_sender("orders")
        with pair.away("contoso", "contoso-dr"):
            await accepted(peer, sender, plain("1", message_id="1"))
            await accepted(peer, sender, plain("2", message_id="2"))
            (answer,) = await peer.send(sender, plain("3", message_id="3"))
            assert answer.state.error.condition == BUSY
        await until(lambda: not outbox.holds("orders"))
        await accepted(peer, sender, plain("4", message_id="4"))
        assert sorted(ids(await pair.moved())) == ["1", "2", "4"]


# Messages that are sent settled


async def test_a_settled_message_that_nothing_takes_ends_its_link() -> None:
    async with gateway_pair(timeout=1.0) as (pair, gateway), pair.peer(gateway) as peer:
        sender = await peer.attach_sender("orders")
        sender.send(plain("1", message_id="1"), b"1", settled=True)
        await peer.flush()
        await until(lambda: ids(held(pair.orders)) == ["1"])
        with pair.away("contoso", "contoso-dr"):
            sender.send(plain("2", message_id="2"), b"2", settled=True)
            assert (await peer.wait(LinkDetached, of=sender)).error.condition == DETACHED
            assert [event.entity for event in pair.log.of(SettledLost)] == ["orders"]


# A lost primary


async def test_clients_attach_to_the_secondary_once_the_primary_is_lost() -> None:
    async with gateway_pair() as (pair, gateway), pair.peer(gateway) as peer:
        own = pair.secondary.create_queue("orders")
        sender, receiver = await peer.attach_sender("orders"), await peer.attach_receiver("orders")
        gateway.reread_loss(lost=True)
        assert (await peer.wait(LinkDetached, of=receiver)).error.condition == DETACHED
        await accepted(peer, sender, plain("x", message_id="x"))
        assert ids(held(own)) == ["x"]
        (delivery,) = await peer.take(await peer.attach_receiver("orders"), 1)
        assert Sections.split(delivery.payload).body == data_body(b"x")
        assert (held(pair.orders), pair.in_backlog()) == ([], [])


# Slow clients


async def test_a_client_that_does_not_read_slows_no_other() -> None:
    body = "x" * 200 * KILOBYTE
    async with gateway_pair() as (pair, gateway), pair.peer(gateway) as slow, pair.peer(gateway) as other:
        sender = await other.attach_sender("orders")
        for _ in range(100):
            await accepted(other, sender, plain(body))
        pair.primary.create_queue("others")
        (await slow.attach_receiver("orders")).grant(100)
        await slow.flush()  # nothing is read from here on
        sender, receiver = await other.attach_sender("others"), await other.attach_receiver("others")
        for number in range(50):
            await accepted(other, sender, plain(str(number)))
            (delivery,) = await other.take(receiver, 1)
            await other.settle(delivery)
        await until(lambda: any(each.upstream._held for each in gateway.connections))
        buffered = [each.output.transport.get_write_buffer_size() for each in gateway.connections]
        assert max(buffered) < 4 * KILOBYTE * KILOBYTE


# The end


async def test_a_stop_waits_for_messages_that_are_held() -> None:
    async with gateway_pair() as (pair, gateway), pair.peer(gateway) as peer:
        await accepted(peer, await peer.attach_sender("orders"), plain("x"))
        (delivery,) = await peer.take(await peer.attach_receiver("orders"), 1)
        stopping = asyncio.create_task(gateway.stop(30.0))
        await until(lambda: gateway.is_stopping)
        assert (await peer.refusal_of(peer.attach_sender("others"))).condition == "amqp:connection:forced"
        assert not stopping.done()
        await peer.settle(delivery)
        await stopping
        assert held(pair.orders) == []


async def test_a_stop_waits_no_longer_than_its_grace() -> None:
    async with gateway_pair() as (pair, gateway), pair.peer(gateway) as peer:
        await accepted(peer, await peer.attach_sender("orders"), plain("x"))
        await peer.take(await peer.attach_receiver("orders"), 1)
        await gateway.stop(0.1)
        await peer.wait_closed()
        assert len(held(pair.orders)) == 1


# The bytes of a message


def regular(message: ClientMessage) -> ClientMessage:
    """Give a message an id, which a namespace gives to others, and keep the properties with names of their own.

    Namespaces judge the values of others in some messages only.
    """
    own = {key: value for key, value in message.own if isinstance(key, str)}
    return replace(message, properties=["id", *(message.properties or [])[1:]], own=list(own.items()))


@pytest.mark.odd_messages
@settings(max_examples=15, deadline=None)
@given(st.lists(client_messages().map(regular), min_size=1, max_size=20))
async def test_the_backlog_gives_the_bytes_of_the_client_back(messages: list[ClientMessage]) -> None:
    async with gateway_pair(1) as (pair, gateway), pair.peer(gateway) as peer:
        sender = await peer.attach_sender("orders")
        taken = []
        for message in messages:
            # A namespace refuses some of them, such as lists among properties.
            (answer,) = await peer.send(sender, message.sections().join())
            taken += [message] if answer.state == Accepted() else []
        with pair.away():
            for message in taken:
                await accepted(peer, sender, message.sections().join())
        wanted = [each.restored().sections().join() for each in taken]
        assert [restored(each, NOW) for each in pair.in_backlog()] == wanted
