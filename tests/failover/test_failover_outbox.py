"""The paired client with an outbox, over real sockets."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage

import sbpair
from sbpair import aio
from sbpair.emulator.entities.description import QueueDescription
from sbpair.errors import LeaseHeld, StateRefused, UsageError
from sbpair.failover.entity_states import State
from sbpair.failover.events import (
    OutboxBegun,
    OutboxClosed,
    OutboxEmptied,
    OutboxExpired,
    OutboxRefused,
    SendInDoubt,
)
from sbpair.failover.outbox import outbox_depths
from tests.kit.failover_rig import KINDS, PAIRED_CLIENTS, PRIMARY, SECONDARY, Rig, a_message, ids

pytestmark = [pytest.mark.usefixtures("impatient"), *PAIRED_CLIENTS]
HOUR = timedelta(hours=1)
ROOT = Path(__file__).parents[2]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "outbox.db"


@contextmanager
def both_down(rig: Rig) -> Iterator[dict[str, Any]]:
    """Make both sides unavailable. Close one of the faults to restore that side."""
    with ExitStack() as primary, ExitStack() as secondary:
        primary.enter_context(rig.broken("namespace_down", PRIMARY))
        secondary.enter_context(rig.broken("namespace_down", SECONDARY))
        yield {"primary": primary, "secondary": secondary}


def is_empty(event: Any) -> bool:
    return isinstance(event, OutboxEmptied)


@pytest.mark.parametrize(("kind", "back"), [("sync", "primary"), ("aio", "primary"), ("sync", "secondary")])
def test_messages_wait_for_a_side_and_arrive_in_order(rig: Rig, path: Path, kind: str, back: str) -> None:
    at = datetime.now(UTC).replace(microsecond=0) + HOUR
    with rig.sending(kind, outbox=path) as (sender, _client, log), both_down(rig) as sides:
        sender.send_messages(a_message("m0"), timeout=8)
        sender.send_messages([a_message("m1"), a_message("m2", session_id="s", time_to_live=HOUR)], timeout=8)
        batch = sender.create_message_batch()
        batch.add_message(a_message("m3"))
        sender.send_messages(batch, timeout=8)
        assert all(number < 0 for number in sender.schedule_messages(a_message("m4"), at, timeout=8))
        assert [len(log.of(each)) for each in (OutboxBegun, OutboxEmptied)] == [1, 0]
        assert outbox_depths(path)["orders"].messages == 5
        sides[back].close()
        log.wait_for(is_empty)
        there = rig.in_backlog() if back == "secondary" else rig.in_queue(rig.orders)
        assert ids(there) == ["m0", "m1", "m2", "m3", "m4"]
    assert (outbox_depths(path), log.events[-1]) == ({}, OutboxClosed(str(path), 0))
    assert "sbpair timers" not in {thread.name for thread in threading.enumerate()}
    arrived = {each.read_properties().message_id: each for each in rig.brought_back()}
    assert arrived.keys() == {"m0", "m1", "m2", "m3", "m4"}
    assert [each.body for each in arrived.values()] == [b"\x00\x53\x75\xa0\x02" + each.encode() for each in arrived]
    assert arrived["m2"].read_properties().group_id == "s"
    assert 3_500_000 < arrived["m2"].read_header().ttl <= 3_600_000
    annotations = arrived["m4"].read_message_annotations()
    assert annotations.get("x-opt-scheduled-enqueue-time") == at.timestamp() * 1000


@KINDS
def test_the_next_client_delivers_remaining_messages(rig: Rig, path: Path, kind: str) -> None:
    with both_down(rig):
        with rig.client(kind, outbox=path) as (client, log):
            client.force_failover()
            sender = client.get_queue_sender("orders")
            for number in range(3):
                sender.send_messages(a_message(f"m{number}"), timeout=5)
        assert log.events[-1] == OutboxClosed(str(path), 3)
        other = sbpair.Pair("p", rig.pair.secondary, rig.pair.primary)
        with pytest.raises(StateRefused, match="outbox of contoso and contoso-dr, not of contoso-dr and contoso"):
            {"sync": sbpair.PairedClient, "aio": aio.PairedClient}[kind](other, outbox=path)
    with rig.client(kind, outbox=path) as (client, log):
        # Nobody asks it for a sender of this entity.
        log.wait_for(is_empty)
        with pytest.raises(LeaseHeld), rig.client(kind, outbox=path):
            pass
        assert client.states() == {"orders": State.HEALTHY}
    assert ids(rig.in_queue(rig.orders)) == ["m0", "m1", "m2"]
    assert log.of(OutboxBegun) == log.of(SendInDoubt) == []


async def test_an_async_client_may_be_created_before_its_loop(rig: Rig, path: Path) -> None:
    with both_down(rig), rig.client(outbox=path) as (client, _log):
        client.force_failover()
        client.get_queue_sender("orders").send_messages(a_message("m"), timeout=5)
    emptied = asyncio.Event()
    client = aio.PairedClient(rig.pair, outbox=path, on_event=lambda event: emptied.set() if is_empty(event) else None)

    async def deliver() -> None:
        async with client:
            await emptied.wait()
        assert "sbpair timers" not in {task.get_name() for task in asyncio.all_tasks()}

    await asyncio.wait_for(deliver(), 20)
    assert ids(rig.in_queue(rig.orders)) == ["m"]


def test_later_messages_go_behind_those_in_the_outbox(rig: Rig, path: Path) -> None:
    """Messages are sent while the first delivery is held back at its only message."""
    with rig.sending(outbox=path) as (sender, client, log):
        other = client.get_queue_sender("ORDERS")
        with both_down(rig) as sides:
            sender.send_messages(a_message("m0"), timeout=5)
            with rig.broken("throttle", PRIMARY, "orders"):
                sides["primary"].close()
                client.failback()
                for number in range(1, 4):
                    (sender, other)[number % 2].send_messages(a_message(f"m{number}"), timeout=5)
                assert outbox_depths(path)["orders"].messages == 4
            log.wait_for(is_empty)
            other.send_messages(a_message("m4"), timeout=5)
    assert ids(rig.in_queue(rig.orders)) == [f"m{number}" for number in range(5)]


def test_an_unanswered_delivery_is_repeated_and_reported(rig: Rig, path: Path) -> None:
    with both_down(rig), rig.client(outbox=path) as (client, _log):
        client.get_queue_sender("orders").send_messages([a_message("m0"), a_message("m1")], timeout=5)
    with rig.broken("swallow_acks", PRIMARY, "orders"):
        with rig.client(outbox=path) as (client, log):
            while not rig.in_queue(rig.orders):
                continue
        assert log.events[-1] == OutboxClosed(str(path), 2)
    with rig.client(outbox=path) as (client, log):
        log.wait_for(is_empty)
    assert ids(rig.in_queue(rig.orders)) == ["m0", "m1"] * 2
    assert log.doubtful_ids == {"m0", "m1"}


def test_a_refused_message_does_not_block_the_others(rig: Rig, path: Path) -> None:
    with both_down(rig), rig.client(outbox=path) as (client, log):
        client.force_failover()
        sender = client.get_queue_sender("orders")
        sender.send_messages(a_message("m0"), timeout=5)
        # Nobody can say how much a side takes.
        sender.send_messages(ServiceBusMessage(b"x" * 262_200, message_id="large"), timeout=5)
        sender.send_messages(a_message("m1"), timeout=5)
    for _ in range(2):
        with rig.client(outbox=path) as (client, log):
            log.wait_for(lambda event: isinstance(event, OutboxRefused))
            log.wait_for(is_empty)
            client.get_queue_sender("orders").send_messages(a_message("m2"))
        assert [event.message_ids for event in log.of(OutboxRefused)] == [("large",)]
        assert log.events[-1] == OutboxClosed(str(path), 1)
    assert ids(rig.in_queue(rig.orders)) == ["m0", "m1", "m2", "m2"]


def test_a_message_expired_in_the_outbox_is_left_to_the_entity(rig: Rig, path: Path) -> None:
    strict = QueueDescription(dead_lettering_on_message_expiration=True)
    queue = rig.do(lambda: rig.running.namespace.create_queue("strict", strict))
    with both_down(rig), rig.client(outbox=path) as (client, _log):
        client.force_failover()
        sender = client.get_queue_sender("strict")
        # The SDK counts the lives of its own messages in seconds.
        properties = {"message_id": "brief"}
        brief = AmqpAnnotatedMessage(data_body=b"x", header={"time_to_live": 1}, properties=properties)
        sender.send_messages([brief, a_message("lasting", time_to_live=HOUR)], timeout=5)
    with rig.client(outbox=path) as (client, log):
        log.wait_for(is_empty)
    assert log.of(OutboxExpired) == [OutboxExpired("strict", ("brief",))]
    rig.running.advance(1)
    assert ids(rig.in_queue(queue)) == ["lasting"]
    dead = rig.do(lambda: queue.dead_letters.peek(0, 10))
    assert ids([each.sections for each in dead]) == ["brief"]


@pytest.mark.parametrize(
    "wrong",
    [
        *({"outbox": path} for path in ("", "/", "missing/outbox.db")),
        *({"outbox_messages": limit} for limit in (0, True)),
        *({"outbox_bytes": limit} for limit in (0, -1)),
    ],
)
@pytest.mark.parametrize("client", [sbpair.PairedClient, aio.PairedClient])
def test_an_impossible_outbox_is_refused(rig: Rig, path: Path, client: Any, wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="outbox"):
        client(rig.pair, **{"outbox": path, **wrong})
    assert not path.exists()
