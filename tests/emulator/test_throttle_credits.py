"""Credit budgets: spending, excess and renewal."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from sbpair.emulator.entities.description import SubscriptionDescription
from sbpair.emulator.entities.rules import SubscriptionRule
from sbpair.emulator.faults.fault_points import CreditBudget, FaultPoints
from sbpair.emulator.service_errors import EntityFull, ServerBusy


@pytest.fixture
def resumed() -> Mock:
    return Mock()


@pytest.fixture
def budget(namespace, clock, resumed) -> CreditBudget:
    return CreditBudget(100, clock, namespace.timers, resumed)


def test_each_second_has_new_credits(budget, clock) -> None:
    for _ in range(10):
        budget.spend(10, "orders")
    with pytest.raises(ServerBusy, match="50009") as refused:
        budget.spend(1, "orders")
    assert (refused.value.condition, refused.value.sub_code) == ("com.microsoft:server-busy", 50009)
    clock.advance(999)
    with pytest.raises(ServerBusy):
        budget.spend(1, "orders")
    clock.advance(1)
    budget.spend(100, "orders")


def test_unspent_credits_are_lost(budget, clock) -> None:
    clock.advance(60_000)
    budget.spend(100, "orders")
    with pytest.raises(ServerBusy):
        budget.spend(1, "orders")


def test_a_large_batch_uses_credits_of_later_seconds(budget, clock) -> None:
    budget.spend(250, "orders")
    clock.advance(1_000)
    with pytest.raises(ServerBusy):
        budget.spend(1, "orders")
    clock.advance(1_000)
    budget.spend(50, "orders")
    with pytest.raises(ServerBusy):
        budget.spend(1, "orders")


def test_deliveries_wait_for_credits(budget, advance, resumed) -> None:
    assert budget.allowed(250, "orders") == 100
    budget.record(100, "orders")
    assert budget.allowed(150, "orders") == 0
    advance(1_000)
    assert resumed.call_count == 1
    assert budget.allowed(50, "orders") == 50
    advance(10_000)
    assert resumed.call_count == 1


def test_the_strictest_of_several_meters_decides(budget, namespace, clock, resumed) -> None:
    other = CreditBudget(10, clock, namespace.timers, resumed)
    both = FaultPoints()
    both.meters += [budget, other]
    assert both.allowed(50, "orders") == 10
    both.record(10, "orders")
    with pytest.raises(ServerBusy):
        both.spend(1, "orders")


def test_each_filter_of_a_topic_costs_a_credit(namespace, queue) -> None:
    topic = namespace.create_topic("news")
    assert (queue.credits_per_message, topic.credits_per_message) == (1, 1)
    for name in ("a", "b"):
        topic.create_subscription(name, SubscriptionDescription(), SubscriptionRule())
    topic.subscription("b").add_rule(SubscriptionRule(name="more"))
    assert topic.credits_per_message == 4


def test_a_namespace_limits_its_connections() -> None:
    points = FaultPoints()
    points.max_connections = 1
    points.connections.add("one")
    points.check_connections()
    points.connections.add("another")
    with pytest.raises(EntityFull, match="ConnectionsQuotaExceeded"):
        points.check_connections()
    assert FaultPoints().max_connections == 5_000
