"""Metrics of a paired client, with and without OpenTelemetry."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry import metrics as api
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from sbpair.failover import events
from sbpair.failover.entity_states import State
from sbpair.failover.events import (
    EntityChanged,
    OutboxBegun,
    OutboxEmptied,
    QueueLeft,
    QueueReturned,
    SendInDoubt,
    SizeUnknown,
    SyphonFaulted,
)


def test_without_opentelemetry_the_listener_is_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_instruments", lambda: None)
    heard: list[Any] = []
    assert events.with_metrics("p", heard.append) == heard.append
    assert events.with_metrics("p", None) is None


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], dict[Any, int]]]:
    """Return a function that returns the measurements of the real package, by instrument and attributes."""
    reader = InMemoryMetricReader()
    monkeypatch.setattr(api, "get_meter", MeterProvider([reader]).get_meter)
    events._instruments.cache_clear()

    def values() -> dict[Any, int]:
        data = reader.get_metrics_data()
        assert data is not None
        [[scope]] = [each.scope_metrics for each in data.resource_metrics]
        return {
            (metric.name.removeprefix("sbpair."), *sorted(point.attributes.items())): point.value
            for metric in scope.metrics
            for point in metric.data.data_points
        }

    yield values
    events._instruments.cache_clear()


OF_THE_PAIR, OF_ORDERS = ("sbpair.pair", "p"), ("sbpair.entity", "orders")


def entered(state: State) -> tuple[Any, ...]:
    return "entity.transitions", OF_ORDERS, OF_THE_PAIR, ("sbpair.state", state.value)


def change(before: State, after: State) -> EntityChanged:
    return EntityChanged("orders", before, after, "")


FAILED_OVER, OUT = ("entity.failed_over", OF_THE_PAIR), ("backlog.queues_out", OF_THE_PAIR)
DOUBTS, KEPT = ("messages.in_doubt", OF_ORDERS, OF_THE_PAIR), ("entity.in_outbox", OF_THE_PAIR)
# Each event, and the measurements that it changes.
COUNTED: list[tuple[Any, dict[Any, int]]] = [
    (change(State.HEALTHY, State.FAILING), {entered(State.FAILING): 1}),
    (change(State.FAILING, State.FAILED_OVER), {entered(State.FAILED_OVER): 1, FAILED_OVER: 1}),
    (change(State.FAILED_OVER, State.FORCED), {entered(State.FORCED): 1}),
    (change(State.FORCED, State.HEALTHY), {entered(State.HEALTHY): 1, FAILED_OVER: 0}),
    (change(State.HEALTHY, State.FAILING), {entered(State.FAILING): 2}),
    (QueueLeft("q", ""), {OUT: 1}),
    (QueueReturned("q"), {OUT: 0}),
    (SendInDoubt("orders", ("a", "b"), ""), {DOUBTS: 2}),
    (OutboxBegun("orders", ""), {KEPT: 1}),
    (OutboxEmptied("orders"), {KEPT: 0}),
    (SyphonFaulted("", 1.0), {("syphon.faults", OF_THE_PAIR): 1}),
    (SizeUnknown("orders", 1, ""), {}),
]


def test_opentelemetry_receives_the_measurements(measured: Callable[[], dict[Any, int]]) -> None:
    heard: list[Any] = []
    listener, expected = events.with_metrics("p", heard.append), dict[Any, int]()
    assert listener
    for event, changed in COUNTED:
        listener(event)
        expected |= changed
        assert measured() == expected, event
    assert heard == [event for event, _ in COUNTED]
    alone = events.with_metrics("p", None)
    assert alone
    alone(SizeUnknown("orders", 1, ""))
