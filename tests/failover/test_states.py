"""The failover state and its timers, in virtual time. tests/model visits each state of one entity and its outbox."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from sbpair.failover.entity_states import (
    Deliver,
    EntityEvent,
    EntityTimers,
    Ping,
    State,
)
from sbpair.failover.events import OutboxStuck, SendInDoubt
from sbpair.failover.shared_state import JITTER, FailoverState
from sbpair.model.connection_string import endpoint_from_connection_string
from sbpair.model.pair import Pair

ENTITIES = ("orders", "Billing/Invoices", "news")
KEY = "SharedAccessKeyName=k;SharedAccessKey=a2V5"


def a_pair(**terms: Any) -> Pair:
    ends = [endpoint_from_connection_string(f"Endpoint=sb://{name}.example/;{KEY}") for name in ("contoso", "dr")]
    return Pair("p", *ends, **terms)


class Middle(random.Random):
    """A random source without jitter that chooses the first item."""

    def uniform(self, a: float, b: float) -> float:
        return (a + b) / 2

    def choice(self, seq: Any) -> Any:
        return seq[0]


def new_state(on_event: Any = None, **terms: Any) -> FailoverState:
    failover_state = FailoverState(a_pair(**terms), on_event, Middle())
    for entity in ENTITIES:
        failover_state.register(entity)
    return failover_state


class Moment(float):
    """A time in one thread. When it is compared with a timer, another thread wants to apply that timer."""

    def __new__(cls, now: float, _compared: Callable[[], None]) -> Moment:
        return super().__new__(cls, now)

    def __init__(self, _now: float, compared: Callable[[], None]) -> None:
        self.compared = compared

    def __ge__(self, other: float) -> bool:
        self.compared()
        return float(self) >= other


@pytest.mark.parametrize("applied_by", ["primary_failed", "side_for"])
def test_a_timer_that_two_threads_apply_leaves_one_for_the_ping(applied_by: str) -> None:
    failover_state = new_state(failover_interval=0 if applied_by == "primary_failed" else 60)
    popped: list[Any] = []
    pinger = threading.Thread(target=lambda: popped.append(failover_state.pop_due(60)))

    def compared() -> None:
        if not pinger.ident:
            pinger.start()
            # Ends at once unless the state is locked, as it should be.
            pinger.join(0.2)

    if applied_by == "side_for":
        failover_state.primary_failed("orders", TimeoutError(), 0)
        assert failover_state.side_for("orders", Moment(60, compared)) == "backlog"
    else:
        failover_state.primary_failed("orders", TimeoutError(), Moment(60, compared))
    pinger.join()
    assert (popped, failover_state.states()["orders"]) == ([None], State.FAILED_OVER)
    assert failover_state.next_due() == 120


def test_a_new_entity_is_forced_while_all_are() -> None:
    failover_state = new_state()
    failover_state.command(EntityEvent.FORCE, None, 0)
    failover_state.register("later")
    assert failover_state.side_for("later", 0) == "backlog"
    failover_state.command(EntityEvent.FAILBACK, None, 0)
    failover_state.register("latest")
    assert set(failover_state.states().values()) == {State.HEALTHY}


def test_pings_of_many_entities_are_spread_at_random() -> None:
    failover_state = FailoverState(a_pair(failover_interval=0, ping_interval=60), chance=random.Random(7))
    for number in range(1_000):
        failover_state.register(f"queue-{number}")
        failover_state.primary_failed(f"queue-{number}", ValueError("gone"), 0)
    first = failover_state.next_due()
    assert first is not None
    assert 60 * (1 - JITTER) <= first < 60 < 60 * (1 + JITTER)
    assert failover_state.pop_due(first - 0.001) is None
    tasks = set()
    while (task := failover_state.pop_due(60 * (1 + JITTER))) is not None:
        tasks.add(task)
    assert len(tasks) == 1_000
    assert failover_state.next_due() is None


def test_a_wait_for_timers_is_ended_when_it_became_shorter() -> None:
    timers, ended = EntityTimers(), list[float]()
    for name, when in (("a", 5), ("b", 7), ("c", 5), ("b", 3), ("a", 1)):
        timers.on_earlier = partial(ended.append, when)
        timers.set(Ping(name), when)
    assert ended == [5, 3, 1]
    assert [timers.pop_due(now) for now in (0.9, 1, 2, 4, 9, 9)] == [None, Ping("a"), None, Ping("b"), Ping("c"), None]


def test_with_every_queue_out_one_is_still_tried() -> None:
    failover_state = new_state(backlog_queues=2)
    first, spare = failover_state.pick_queue(None)
    assert spare
    failover_state.queue_failed(first, ValueError("full"), 0)
    second, spare = failover_state.pick_queue(first)
    assert (second != first, spare) == (True, False)
    failover_state.queue_failed(second, ValueError("full"), 0)
    assert failover_state.pick_queue(second) == (first, False)
    failover_state.queue_accepted(first, 0)
    assert failover_state.pick_queue(second) == (first, False)
    for late in (ValueError("still full"), None):
        failover_state.probed(first, late, 0)
    assert failover_state.queues_out == {second}


def test_a_listener_may_fail_and_may_end_a_failover(caplog: pytest.LogCaptureFixture) -> None:
    published: list[Any] = []

    def listen(event: Any) -> None:
        published.append(event.after)
        if event.after is State.FORCED:
            failover_state.command(EntityEvent.FAILBACK, event.entity, 0)
        raise RuntimeError

    failover_state = new_state(listen)
    failover_state.command(EntityEvent.FORCE, "orders", 0)
    assert published == [State.FORCED, State.HEALTHY]
    assert caplog.text.count("an event listener of a paired client failed") == 2


def test_events_hold_no_secrets_of_an_error() -> None:
    published: list[Any] = []
    failover_state = new_state(published.append)
    failover_state.primary_failed("orders", ValueError("refused\nSharedAccessKey=c2VjcmV0"), 0)
    assert "c2VjcmV0" not in published[0].reason
    assert "\n" not in published[0].reason


@pytest.mark.parametrize(("ids", "named"), [(("a",), "a, sent"), (("a", "b"), "a and 1 more, sent")])
def test_a_doubt_names_one_message_and_how_many_more(ids: tuple[str, ...], named: str) -> None:
    assert named in str(SendInDoubt("orders", ids, "silence"))


def test_a_lasting_refusal_is_reported_once_and_kept_as_stuck() -> None:
    published: list[Any] = []
    failover_state = new_state(published.append, ping_interval=5)
    failover_state.outbox_stored("orders", None, 0)
    for now in (0, 5, 10):
        assert failover_state.pop_due(now) == Deliver("orders")
        error = ValueError("no such entity")
        failover_state.outbox_remains("orders", error, failover_state.target_for("orders", None, now), now)
        assert failover_state.outbox_stuck("ORDERS") is error
    assert published == [OutboxStuck("orders", "ValueError: no such entity")]
    assert failover_state.pop_due(15) == Deliver("orders")
    failover_state.outbox_remains("orders", TimeoutError(), failover_state.target_for("orders", None, 15), 15)
    assert failover_state.outbox_stuck("orders") is None


def test_a_failover_within_a_delivery_starts_no_second_one() -> None:
    failover_state = new_state(failover_interval=5, ping_interval=5)
    failover_state.outbox_stored("orders", ValueError("both away"), 0)
    failover_state.primary_failed("orders", ValueError("gone"), 0)
    assert [failover_state.pop_due(5) for _ in range(2)] == [Deliver("orders"), None]
