"""The failover state and its timers, in virtual time, against a model that checks everything each second."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from sbpair.failover.entity_states import (
    TRANSITIONS,
    Deliver,
    EntityEvent,
    Ping,
    Probe,
    State,
)
from sbpair.failover.events import EntityChanged, OutboxEmptied, OutboxStuck, QueueLeft, QueueReturned
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


@dataclass
class Believed:
    """The model of one entity, checked every second."""

    state: str = "healthy"
    fails_at: int | None = None
    pings_at: int | None = None
    pinging: bool = False


UNDER_WAY = -1
QUEUES = [f"contoso/x-servicebus-transfer/{index}" for index in range(3)]


class SendersAgainstTheModel(RuleBasedStateMachine):
    FAILOVER, PING = 7, 5

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.events: list[Any] = []
        terms = {"failover_interval": self.FAILOVER, "ping_interval": self.PING, "backlog_queues": 3}
        self.real = new_state(self.events.append, **terms)
        self.model = {entity: Believed() for entity in ENTITIES}
        self.out: dict[str, int | None] = {}
        # When what the outbox has of an entity is delivered.
        self.kept: dict[str, int] = {}
        self.emptied = 0

    entity = st.sampled_from(ENTITIES)
    queue = st.sampled_from(QUEUES)

    @rule(seconds=st.integers(1, 20))
    def time_passes(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now += 1
            tasks = []
            places = {entity: {self._has_place(entity)} for entity in ENTITIES}
            due = {entity for entity, at in self.kept.items() if UNDER_WAY < at <= self.now}
            while (task := self.real.pop_due(self.now)) is not None:
                tasks.append(task)
            deliveries = {each.entity for each in tasks if isinstance(each, Deliver)}
            rest = [each for each in tasks if not isinstance(each, Deliver)]
            assert len(rest) + len(deliveries) == len(tasks)
            assert sorted(map(repr, rest)) == sorted(map(repr, self._expected()))
            due |= {entity for entity, at in self.kept.items() if UNDER_WAY < at <= self.now}
            assert deliveries <= due
            for entity in due:
                # What fails over in this second may do so before or after somebody looks where to deliver.
                assert (entity in deliveries) in places[entity] | {self._has_place(entity)}
                self.kept[entity] = UNDER_WAY if entity in deliveries else self.now + self.PING

    def _has_place(self, entity: str) -> bool:
        state = self.model[entity].state
        return state in ("healthy", "failing") or (state != "broken" and len(self.out) < 3)

    def _expected(self) -> list[Ping | Probe]:
        tasks: list[Ping | Probe] = []
        for entity, each in self.model.items():
            if each.state == "failing" and each.fails_at == self.now:
                self._to(entity, "failed over")
                each.pings_at = self.now + self.PING
            elif each.state in ("failed over", "broken") and each.pings_at == self.now:
                each.pings_at = None
                if not each.pinging:
                    tasks.append(Ping(entity))
                each.pinging = True
        for queue, at in self.out.items():
            if at == self.now:
                self.out[queue] = None
                tasks.append(Probe(queue))
        return tasks

    @rule(entity=entity)
    def a_send_succeeds(self, entity: str) -> None:
        self.real.primary_accepted(entity.upper(), self.now)
        if self.model[entity].state != "forced":
            self._healthy(entity)

    @rule(entity=entity)
    def a_send_fails(self, entity: str) -> None:
        self.real.primary_failed(entity, ValueError("gone"), self.now)
        each = self.model[entity]
        if each.state == "healthy":
            self._to(entity, "failing")
            each.fails_at = self.now + self.FAILOVER

    @rule(entity=entity)
    def a_ping_is_accepted(self, entity: str) -> None:
        self.real.pinged(entity, None, False, self.now)
        each = self.model[entity]
        each.pinging = False
        if each.state in ("failed over", "broken"):
            self._healthy(entity)

    @rule(entity=entity, for_good=st.booleans())
    def a_ping_fails(self, entity: str, for_good: bool) -> None:
        self.real.pinged(entity, ValueError("no"), for_good, self.now)
        each = self.model[entity]
        each.pinging = False
        if each.state == "failed over" and for_good:
            self._to(entity, "broken")
        if each.state in ("failed over", "broken"):
            each.pings_at = self.now + self.PING

    @rule(entity=st.none() | entity)
    def failover_is_forced(self, entity: str | None) -> None:
        self.real.command(EntityEvent.FORCE, entity, self.now)
        for name, each in self.model.items():
            if entity in (None, name):
                self._to(name, "forced")
                each.fails_at = each.pings_at = None

    @rule(entity=st.none() | entity)
    def failback_is_commanded(self, entity: str | None) -> None:
        self.real.command(EntityEvent.FAILBACK, entity, self.now)
        for name in self.model:
            if entity in (None, name):
                self._healthy(name)

    @rule(queue=queue)
    def a_queue_fails(self, queue: str) -> None:
        self.real.queue_failed(queue, ValueError("full"), self.now)
        self.out.setdefault(queue, self.now + self.PING)

    @rule(queue=queue)
    def a_queue_takes_a_message(self, queue: str) -> None:
        self.real.queue_accepted(queue, self.now)
        self._returned(queue)

    @rule(queue=queue, works=st.booleans())
    def a_probe_ends(self, queue: str, works: bool) -> None:
        self.real.probed(queue, None if works else ValueError("still"), self.now)
        if works:
            self._returned(queue)
        elif queue in self.out:
            self.out[queue] = self.now + self.PING

    def _healthy(self, entity: str) -> None:
        each = self.model[entity]
        self._to(entity, "healthy")
        each.fails_at = each.pings_at = None

    def _to(self, entity: str, state: str) -> None:
        if self.model[entity].state != state and self.kept.get(entity, UNDER_WAY) != UNDER_WAY:
            self.kept[entity] = self.now
        self.model[entity].state = state

    def _returned(self, queue: str) -> None:
        if queue in self.out:
            del self.out[queue]
            self.kept = {entity: at if at == UNDER_WAY else self.now for entity, at in self.kept.items()}

    @rule(entity=entity, before=st.booleans())
    def the_outbox_takes_a_message(self, entity: str, before: bool) -> None:
        self.real.outbox_stored(entity.lower(), None if before else ValueError("both away"), self.now)
        self.kept.setdefault(entity, self.now if before else self.now + self.PING)

    @rule(entity=entity)
    def both_sides_are_away(self, entity: str) -> None:
        self.failover_is_forced(entity)
        for queue in QUEUES:
            self.a_queue_fails(queue)
        self.the_outbox_takes_a_message(entity, before=True)

    @rule(entity=entity, passing=st.booleans())
    def a_delivery_ends_with_some_left(self, entity: str, passing: bool) -> None:
        if self.kept.get(entity) == UNDER_WAY:
            error = TimeoutError("slow") if passing else ValueError("no such entity")
            place = self.real.target_for(entity, None, self.now)
            self.real.outbox_remains(entity, error, place, self.now)
            self.kept[entity] = self.now + self.PING
            primary = place is not None and place.side == "primary"
            assert self.real.outbox_stuck(entity) is (error if primary and not passing else None)

    @rule(entity=entity)
    def a_deliverys_turn_is_over(self, entity: str) -> None:
        if self.kept.get(entity) == UNDER_WAY:
            place = self.real.target_for(entity, None, self.now)
            self.real.outbox_remains(entity, None, place, self.now)
            self.kept[entity] = self.now if place is not None else self.now + self.PING

    @rule(entity=entity)
    def a_delivery_ends_with_nothing_left(self, entity: str) -> None:
        if self.kept.get(entity) == UNDER_WAY:
            self.real.outbox_emptied(entity)
            del self.kept[entity]
            self.emptied += 1
            assert self.real.outbox_stuck(entity) is None

    @invariant()
    def both_agree(self) -> None:
        assert {entity: state.value for entity, state in self.real.states().items()} == {
            entity: each.state for entity, each in self.model.items()
        }
        assert (not self.real.unhealthy) is all(each.state == "healthy" for each in self.model.values())
        assert self.real.queues_out == self.out.keys()
        timers = [each.fails_at if each.state == "failing" else each.pings_at for each in self.model.values()]
        kept = [at for at in self.kept.values() if at != UNDER_WAY]
        due = [at for at in (*timers, *self.out.values(), *kept) if at is not None]
        assert self.real.next_due() == min(due, default=None)

    @invariant()
    def messages_go_where_the_model_says(self) -> None:
        for entity, each in self.model.items():
            if each.state == "broken":
                with pytest.raises(ValueError, match="no"):
                    self.real.to_backlog(entity, self.now)
            else:
                assert self.real.to_backlog(entity, self.now) is (each.state in ("failed over", "forced"))

    @invariant()
    def events_match_the_state(self) -> None:
        states = dict.fromkeys(ENTITIES, State.HEALTHY)
        out: set[str] = set()
        assert sum(isinstance(event, OutboxEmptied) for event in self.events) == self.emptied
        for event in self.events:
            if isinstance(event, EntityChanged):
                assert states[event.entity] is event.before is not event.after
                states[event.entity] = event.after
            elif isinstance(event, QueueLeft):
                assert event.queue not in out
                out.add(event.queue)
            elif isinstance(event, QueueReturned):
                out.remove(event.queue)
        assert states == self.real.states()
        assert out == self.real.queues_out


TestSendersAgainstTheModel = SendersAgainstTheModel.TestCase
TestSendersAgainstTheModel.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_every_transition_changes_the_state_and_each_has_an_exit() -> None:
    assert all(before is not then for (before, _), then in TRANSITIONS.items())
    assert {before for before, _ in TRANSITIONS} == set(State) == set(TRANSITIONS.values())
    assert all((state, EntityEvent.FAILBACK) in TRANSITIONS for state in State if state is not State.HEALTHY)


def test_an_interval_of_zero_fails_over_at_the_first_failure() -> None:
    failover_state = new_state(failover_interval=0)
    failover_state.primary_failed("orders", ValueError("gone"), 5)
    assert failover_state.to_backlog("orders", 5)
    assert not failover_state.to_backlog("news", 5)


def test_a_sender_applies_a_due_timer_itself() -> None:
    failover_state = new_state(failover_interval=60)
    failover_state.primary_failed("orders", ValueError("gone"), 0)
    assert not failover_state.to_backlog("orders", 59.9)
    assert failover_state.to_backlog("orders", 60)


class Moment(float):
    """A time in one thread. When it is compared with a timer, another thread wants to apply that timer."""

    def __new__(cls, now: float, _compared: Callable[[], None]) -> Moment:
        return super().__new__(cls, now)

    def __init__(self, _now: float, compared: Callable[[], None]) -> None:
        self.compared = compared

    def __ge__(self, other: float) -> bool:
        self.compared()
        return float(self) >= other


@pytest.mark.parametrize("applied_by", ["primary_failed", "to_backlog"])
def test_a_timer_that_two_threads_apply_leaves_one_for_the_ping(applied_by: str) -> None:
    failover_state = new_state(failover_interval=0 if applied_by == "primary_failed" else 60)
    popped: list[Any] = []
    pinger = threading.Thread(target=lambda: popped.append(failover_state.pop_due(60)))

    def compared() -> None:
        if not pinger.ident:
            pinger.start()
            # Ends at once unless the state is locked, as it should be.
            pinger.join(0.2)

    if applied_by == "to_backlog":
        failover_state.primary_failed("orders", TimeoutError(), 0)
        assert failover_state.to_backlog("orders", Moment(60, compared))
    else:
        failover_state.primary_failed("orders", TimeoutError(), Moment(60, compared))
    pinger.join()
    assert (popped, failover_state.states()["orders"]) == ([None], State.FAILED_OVER)
    assert failover_state.next_due() == 120


def test_a_new_entity_is_forced_while_all_are() -> None:
    failover_state = new_state()
    failover_state.command(EntityEvent.FORCE, None, 0)
    failover_state.register("later")
    assert failover_state.to_backlog("later", 0)
    failover_state.command(EntityEvent.FAILBACK, None, 0)
    failover_state.register("latest")
    assert set(failover_state.states().values()) == {State.HEALTHY}


def test_pings_of_ten_thousand_entities_are_spread_at_random() -> None:
    failover_state = FailoverState(a_pair(failover_interval=0, ping_interval=60), chance=random.Random(7))
    sooner: list[None] = []
    failover_state.timers.on_earlier = lambda: sooner.append(None)
    for number in range(10_000):
        failover_state.register(f"queue-{number}")
        failover_state.primary_failed(f"queue-{number}", ValueError("gone"), 0)
    first = failover_state.next_due()
    assert first is not None
    assert 60 * (1 - JITTER) <= first < 60 < 60 * (1 + JITTER)
    assert failover_state.pop_due(first - 0.001) is None
    tasks = set()
    while (task := failover_state.pop_due(60 * (1 + JITTER))) is not None:
        tasks.add(task)
    assert len(tasks) == 10_000
    assert failover_state.next_due() is None
    # The one who waits is woken when its wait became shorter, and not for each.
    assert len(sooner) < 100


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


def test_a_failing_listener_receives_the_next_event(caplog: pytest.LogCaptureFixture) -> None:
    published = []

    def listen(event: object) -> None:
        published.append(event)
        raise RuntimeError

    failover_state = new_state(listen)
    failover_state.command(EntityEvent.FORCE, "orders", 0)
    failover_state.command(EntityEvent.FAILBACK, "orders", 0)
    assert [event.after for event in published] == [State.FORCED, State.HEALTHY]
    assert caplog.text.count("an event listener of a paired client failed") == 2


def test_a_listener_may_force_a_failover() -> None:
    published: list[Any] = []

    def listen(event: Any) -> None:
        published.append(event.after)
        if event.after is State.FORCED:
            failover_state.command(EntityEvent.FAILBACK, event.entity, 0)

    failover_state = new_state(listen)
    failover_state.command(EntityEvent.FORCE, "orders", 0)
    assert published == [State.FORCED, State.HEALTHY]


def test_events_hold_no_secrets_of_an_error() -> None:
    published: list[Any] = []
    failover_state = new_state(published.append)
    failover_state.primary_failed("orders", ValueError("refused\nSharedAccessKey=c2VjcmV0"), 0)
    assert "c2VjcmV0" not in published[0].reason
    assert "\n" not in published[0].reason


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
