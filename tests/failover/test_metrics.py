"""Metrics of a paired client, with and without OpenTelemetry."""

from collections.abc import Iterator
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from sbpair.failover import events as metrics
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

PAIR = {"sbpair.pair": "p"}


class Instrument:
    def __init__(self) -> None:
        self.added: list[tuple[int, dict[str, str]]] = []

    def add(self, amount: int, attributes: dict[str, str]) -> None:
        self.added.append((amount, attributes))


@pytest.fixture
def instruments(monkeypatch: pytest.MonkeyPatch) -> Any:
    names = ("transitions", "failed_over", "queues_out", "in_doubt", "in_outbox", "syphon_faults")
    found = {name: Instrument() for name in names}
    monkeypatch.setattr(metrics, "_instruments", lambda: found)
    return found


def test_without_opentelemetry_the_listener_is_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "_instruments", lambda: None)
    heard: list[Any] = []
    assert metrics.with_metrics("p", heard.append) == heard.append
    assert metrics.with_metrics("p", None) is None


def test_transitions_are_counted_and_passed_on(instruments: Any) -> None:
    heard: list[Any] = []
    listener = metrics.with_metrics("p", heard.append)
    assert listener
    path = [State.HEALTHY, State.FAILING, State.FAILED_OVER, State.FORCED, State.HEALTHY]
    events = [EntityChanged("orders", before, after, "") for before, after in pairwise(path)]
    for event in events:
        listener(event)
    assert heard == events
    assert [attributes["sbpair.state"] for _, attributes in instruments["transitions"].added] == [
        *("failing", "failed over", "forced", "healthy")
    ]
    assert instruments["transitions"].added[0] == (1, {**PAIR, "sbpair.entity": "orders", "sbpair.state": "failing"})
    assert instruments["failed_over"].added == [(1, PAIR), (-1, PAIR)]


@pytest.mark.parametrize(
    ("event", "name", "added"),
    [
        (QueueLeft("q", ""), "queues_out", [(1, PAIR)]),
        (QueueReturned("q"), "queues_out", [(-1, PAIR)]),
        (SendInDoubt("orders", ("a", "b"), ""), "in_doubt", [(2, {**PAIR, "sbpair.entity": "orders"})]),
        (OutboxBegun("orders", ""), "in_outbox", [(1, PAIR)]),
        (OutboxEmptied("orders"), "in_outbox", [(-1, PAIR)]),
        (SyphonFaulted("", 1.0), "syphon_faults", [(1, PAIR)]),
        (SizeUnknown("orders", 1, ""), "in_doubt", []),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_event_has_its_instrument(instruments: Any, event: Any, name: str, added: list[Any]) -> None:
    listener = metrics.with_metrics("p", None)
    assert listener
    listener(event)
    assert {each: found.added for each, found in instruments.items() if found.added} == ({name: added} if added else {})


@pytest.fixture
def read() -> Iterator[Any]:
    """Return the measurements of the real package, by instrument."""
    from opentelemetry import metrics as api
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    reader = InMemoryMetricReader()
    api.set_meter_provider(MeterProvider([reader]))
    metrics._instruments.cache_clear()

    def values() -> dict[str, int]:
        scopes = (scope for each in reader.get_metrics_data().resource_metrics for scope in each.scope_metrics)
        return {
            metric.name: sum(point.value for point in metric.data.data_points)
            for scope in scopes
            for metric in scope.metrics
        }

    yield SimpleNamespace(values=values)
    metrics._instruments.cache_clear()


def test_opentelemetry_receives_the_measurements(read: Any) -> None:
    listener = metrics.with_metrics("p", None)
    assert listener
    for event in (
        EntityChanged("orders", State.FAILING, State.FAILED_OVER, ""),
        SendInDoubt("orders", ("a", "b"), ""),
        QueueLeft("q", ""),
        OutboxBegun("orders", ""),
        SyphonFaulted("", 1.0),
    ):
        listener(event)
    assert read.values() == {
        "sbpair.entity.transitions": 1,
        "sbpair.entity.failed_over": 1,
        "sbpair.messages.in_doubt": 2,
        "sbpair.backlog.queues_out": 1,
        "sbpair.entity.in_outbox": 1,
        "sbpair.syphon.faults": 1,
    }
