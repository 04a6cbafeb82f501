"""Every state of a client with failover that one entity, a backlog queue and its outbox can reach.

Here the model is the code: the real FailoverState, which has no clock and no connections, in the hands of a client that
may do, at any moment, all that a client can. Time goes on to the next timer. A state is known by its figures, and made
again by its events.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

from azure.servicebus.exceptions import OperationTimeoutError, ServiceBusAuthorizationError

from sbpair.failover.entity_states import SENDS_TO_BACKLOG, Deliver, EntityEvent, Ping, Probe, State, TimerTask
from sbpair.failover.shared_state import FailoverState, SendTarget
from tests.failover.test_states import Middle, a_pair
from tests.model.search import ReplayedModel, Wrong

ENTITY = "orders"
AWAY, REFUSED = OperationTimeoutError(), ServiceBusAuthorizationError()
Event: TypeAlias = tuple[Any, ...]
Figures: TypeAlias = tuple[Any, ...]


class Client:
    """A client: its state, its running timer tasks, and whether its outbox has messages."""

    def __init__(self) -> None:
        self.now = 0.0
        self.running: list[TimerTask] = []
        self.holds = False
        pair = a_pair(failover_interval=2, ping_interval=2, backlog_queues=1)
        self.state = FailoverState(pair, lambda _event: None, Middle())
        self.state.register(ENTITY)

    @property
    def entity(self) -> State:
        return self.state.states()[ENTITY]

    def due(self) -> tuple[tuple[TimerTask, float], ...]:
        """Return when each timer is due, in seconds from now, in the order in which they will be taken."""
        return tuple((task, when - self.now) for when, _, task in sorted(self.state.timers._due.values()))

    def figures(self) -> Figures:
        status = self.state._statuses[ENTITY]
        outbox = self.state._outbox.get(ENTITY)
        return (
            *(status.state, status.timer is None, status.pinging, status.error is REFUSED, self.holds),
            None if outbox is None else (outbox.delivering, outbox.stuck is None),
            frozenset(self.state.queues_out),
            self.due(),
            frozenset(self.running),
        )

    def events(self) -> Iterator[Event]:
        """Iterate over what may happen now. A send is to where the state directs it, or was on its way before."""
        yield from (("sent",), ("failed",), ("force",), ("failback",), ("store",))
        for queue in self.state._queues:
            yield "queue accepts", queue
            yield "queue fails", queue
        if self.state.next_due() is not None:
            yield ("time",)
        for task in self.running:
            if isinstance(task, Deliver):
                if self.holds:
                    yield from (("delivered",), ("remains", AWAY), ("remains", REFUSED), ("remains", None))
            else:
                yield "done", task
                yield "not done", task, AWAY
                if isinstance(task, Ping):
                    yield "not done", task, REFUSED

    def take(self, event: Event) -> None:
        state, now, (what, *details) = self.state, self.now, event
        if what == "sent":
            state.primary_accepted(ENTITY, now)
        elif what == "failed":
            state.primary_failed(ENTITY, AWAY, now)
        elif what in ("force", "failback"):
            state.command(EntityEvent.FORCE if what == "force" else EntityEvent.FAILBACK, ENTITY, now)
        elif what == "store":
            self.holds = True
            state.outbox_stored(ENTITY, AWAY, now)
        elif what == "queue accepts":
            state.queue_accepted(details[0], now)
        elif what == "queue fails":
            state.queue_failed(details[0], AWAY, now)
        elif what == "time":
            self._wait()
        else:
            self._end_task(what, details)

    def _wait(self) -> None:
        self.now = max(self.now, self.state.next_due() or 0.0)
        while (task := self.state.pop_due(self.now)) is not None:
            if task not in self.running:
                self.running.append(task)
            elif not isinstance(task, Probe):  # a queue may have been used meanwhile, and have failed again
                raise Wrong(f"a second {task} runs at the same time")

    def _end_task(self, what: str, details: list[Any]) -> None:
        state, now = self.state, self.now
        if what == "delivered" or what == "remains":
            self.running.remove(Deliver(ENTITY))
            if what == "delivered":
                self.holds = False
                state.outbox_emptied(ENTITY)
            else:
                state.outbox_remains(ENTITY, details[0], SendTarget("primary", ENTITY), now)
            return
        task, error = details[0], (details[1] if what == "not done" else None)
        self.running.remove(task)
        if isinstance(task, Ping):
            state.pinged(ENTITY, error, error is REFUSED, now)
        else:
            state.probed(task.queue, error, now)

    def check(self) -> None:
        """Raise Wrong if what always holds does not."""
        entity, timers = self.entity, {*self.state.timers._due, *self.running}
        if entity is State.FAILING and Ping(ENTITY) not in self.state.timers._due:
            raise Wrong("a failing entity has no timer, and never fails over")
        if entity in (State.FAILED_OVER, State.BROKEN) and Ping(ENTITY) not in timers:
            raise Wrong("an entity that is not healthy is never pinged again")
        if entity in (State.HEALTHY, State.FORCED) and Ping(ENTITY) in self.state.timers._due:
            raise Wrong("an entity is pinged that needs no ping")
        if (ENTITY in self.state.unhealthy) != (entity is not State.HEALTHY):
            raise Wrong("senders would take the fast path to an entity that is not healthy, or miss it")
        if self.holds and Deliver(ENTITY) not in timers:
            raise Wrong("messages in the outbox are never delivered")
        for queue in self.state._queues:
            if (Probe(queue) in timers) < (queue in self.state.queues_out):
                raise Wrong("a backlog queue that failed is never probed again")
        if entity is not State.BROKEN and self.state.to_backlog(ENTITY, self.now) != (entity in SENDS_TO_BACKLOG):
            raise Wrong("a message would go to the wrong side")

    def is_over(self) -> bool:
        return not self.state.timers._due and not self.running

    def close(self) -> None: ...


class FailoverModel(ReplayedModel):
    """The states that a client reaches, for `search`."""

    free = frozenset({"time", "done", "delivered"})

    def start(self) -> Client:
        return Client()
