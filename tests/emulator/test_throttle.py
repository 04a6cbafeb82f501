"""Throttling by credits, and the limit of connections."""

from typing import Any
from unittest.mock import Mock

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusServerBusyError

from sbpair.amqp_client.client import connect
from sbpair.amqp_server.refusals import ServerBusy
from sbpair.emulator.entities.description import SubscriptionDescription
from sbpair.emulator.entities.rules import SubscriptionRule
from sbpair.emulator.faults.fault_points import CreditBudget
from sbpair.errors import Throttled, Unreachable
from sbpair.model.connection_string import endpoint_from_connection_string
from sbpair.testing import Emulator, EmulatorOptions, ManualClock
from tests.emulator.atom_client import open_manager
from tests.kit.waiting import PATIENCE_SECONDS

MESSAGE = bytes.fromhex("005375a0026869")


@pytest.fixture
def resumed() -> Mock:
    return Mock()


@pytest.fixture
def budget(namespace, clock, resumed) -> CreditBudget:
    return CreditBudget(100, clock, namespace.timers, resumed)


@pytest.mark.parametrize(
    ("spent", "left"),
    [
        pytest.param([(0, 10)] * 10, [(0, 0), (999, 0), (1, 100)], id="each second has new ones"),
        pytest.param([(60_000, 100)], [(0, 0)], id="unspent ones are lost"),
        pytest.param([(0, 250)], [(1_000, 0), (1_000, 50)], id="a large batch uses those of later seconds"),
    ],
)
def test_credits_are_renewed_each_second(budget, clock, spent, left) -> None:
    """`spent` and `left` have credits after so many ms."""
    for ms, amount in spent:
        clock.advance(ms)
        budget.spend(amount)
    for ms, amount in left:
        clock.advance(ms)
        if amount:
            budget.spend(amount)
        with pytest.raises(ServerBusy, match="50009") as refused:
            budget.spend(1)
    assert (refused.value.condition, refused.value.sub_code) == ("com.microsoft:server-busy", 50009)


def test_each_filter_of_a_topic_costs_a_credit(namespace, queue) -> None:
    topic = namespace.create_topic("news")
    assert (queue.credits_per_message, topic.credits_per_message) == (1, 1)
    for name in ("a", "b"):
        topic.create_subscription(name, SubscriptionDescription(), SubscriptionRule())
    topic.subscription("b").add_rule(SubscriptionRule(name="more"))
    assert topic.credits_per_message == 4


# Seen by clients


def test_the_official_client_reports_a_busy_service(another: Any, official: Any) -> None:
    with another(options=EmulatorOptions(credits=5), clock=ManualClock()) as meagre:
        queue = meagre.queue()
        with official.sender(meagre.connection_string, queue.path) as sender:
            for _ in range(5):
                sender.send_messages(ServiceBusMessage("one credit"))
            with pytest.raises(ServiceBusServerBusyError, match="50009"):
                sender.send_messages(ServiceBusMessage("one too many"))
            meagre.advance(1)
            sender.send_messages([ServiceBusMessage("a batch costs what it holds") for _ in range(5)])
            with pytest.raises(ServiceBusServerBusyError):
                sender.send_messages(ServiceBusMessage("one too many"))


async def test_deliveries_follow_the_credits() -> None:
    async with Emulator([("contoso", 0)], clock=ManualClock(), options=EmulatorOptions(credits=3)) as it:
        queue = it.namespaces["contoso"].create_queue("orders")
        async with connect(endpoint_from_connection_string(it.ready.namespaces[0].connection_string)) as wire:
            sender, receiver = await wire.sender("orders"), await wire.receiver("orders")
            for _ in range(2):
                it.advance(1_000)
                for _ in range(3):
                    await sender.send(MESSAGE)
            it.advance(1_000)
            receiver.grant(6)
            for _ in range(3):
                assert len(await receiver.take(1, seconds=PATIENCE_SECONDS)) == 1
            with pytest.raises(Throttled):
                await wire.peek("orders", 0, 1)
            assert queue.messages.locked_count == 3
            it.advance(1_000)
            for _ in range(3):
                assert len(await receiver.take(1, seconds=PATIENCE_SECONDS)) == 1


async def test_a_management_request_costs_ten() -> None:
    async with open_manager(clock=ManualClock(), options=EmulatorOptions(credits=15)) as manager:
        answers = [await manager.ask("GET", "$namespaceinfo") for _ in range(3)]
    assert [(status, "SubCode=50009" in text) for status, text in answers] == [(200, False), (200, False), (503, True)]


async def test_one_connection_too_many_is_refused() -> None:
    async with Emulator([("contoso", 0)]) as emulator:
        namespace = emulator.namespaces["contoso"]
        namespace.create_queue("orders")
        assert namespace.fault_points.max_connections == 5_000
        namespace.fault_points.max_connections = 1
        endpoint = endpoint_from_connection_string(namespace.connection_string)
        async with connect(endpoint) as first:
            sender = await first.sender("orders")
            with pytest.raises(Unreachable, match="ConnectionsQuotaExceeded"):
                async with connect(endpoint) as second:
                    await second.sender("orders")
            await sender.send(MESSAGE)
        async with connect(endpoint) as again:
            await (await again.sender("orders")).send(MESSAGE)
