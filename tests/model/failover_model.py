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
from sbpair.failover.events import EntityChanged, OutboxBegun, OutboxEmptied, QueueLeft, QueueReturned
from sbpair.failover.shared_state import FailoverState, SendTarget
from tests.failover.test_states import Middle, a_pair
from tests.model.search import ReplayedModel, Wrong

ENTITY, SPELT = "Orders", "oRDERS"
SECONDS = 2.0
"""The interval of a failover, and of pings."""

AWAY, REFUSED = OperationTimeoutError(), ServiceBusAuthorizationError()
COMMANDS = {
    "force": EntityEvent.FORCE,
    "failback": EntityEvent.FAILBACK,
    "hold": EntityEvent.HOLD,
    "lose": EntityEvent.LOST,
    "release": EntityEvent.LOST,
}
Event: TypeAlias = tuple[Any, ...]
Figures: TypeAlias = tuple[Any, ...]


class Client:
    """A client: its state, its running timer tasks, and whether its outbox has messages.

    `told` is what its events say: the entity's state, the queues that are out, and whether the outbox has messages.
    Once the primary is declared lost, no message and no timer leads to it.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.running: list[TimerTask] = []
        self.holds = False
        self.told: tuple[Any, frozenset[str], bool] = State.HEALTHY, frozenset(), False
        self._unlike = ""
        pair = a_pair(failover_interval=SECONDS, ping_interval=SECONDS, backlog_queues=1)
        self.state = FailoverState(pair, self._hear, Middle())
        self.state.register(ENTITY)

    def _hear(self, event: Any) -> None:
        entity, out, holds = self.told
        if isinstance(event, EntityChanged):
            entity = event.after if (event.entity, event.before) == (ENTITY, entity) else event
        elif isinstance(event, QueueLeft | QueueReturned):
            out ^= {event.queue}
        elif isinstance(event, OutboxBegun | OutboxEmptied):
            holds = not holds
        self.told = entity, out, holds

    @property
    def entity(self) -> State:
        return self.state.states()[ENTITY]

    def due(self) -> tuple[tuple[TimerTask, float], ...]:
        """Return when each timer is due, in seconds from now, in the order in which they will be taken."""
        return tuple((task, when - self.now) for when, _, task in sorted(self.state.timers._due.values()))

    def figures(self) -> Figures:
        status = self.state._statuses[ENTITY.lower()]
        outbox = self.state._outbox.get(ENTITY.lower())
        return (
            *(status.state, status.timer is None, status.pinging, status.error is REFUSED, self.holds, self.state.lost),
            None if outbox is None else (outbox.delivering, outbox.stuck is None),
            frozenset(self.state.queues_out),
            self.due(),
            frozenset(self.running),
        )

    def events(self) -> Iterator[Event]:
        """Iterate over what may happen now. A send is to where the state directs it, or was on its way before."""
        yield from (("sent",), ("failed",), ("store",), *((each,) for each in COMMANDS if each != "release"))
        if self.state.lost:
            yield ("release",)
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
        entity, out, held = self.entity, set(self.state.queues_out), self.holds
        self._take(*event)
        self._unlike = "".join(self._unexpected(event, entity, out, held))

    def _unexpected(self, event: Event, entity: State, out: set[str], held: bool) -> Iterator[str]:
        """Yield what an event should not have led to, from an entity, queues that were out, and a filled outbox."""
        now_out, due = self.state.queues_out, self.state.timers._due
        if event == ("time",):
            if any(when <= self.now for when, *_ in due.values()):
                yield "a timer that is due was not taken"
            return
        if self.entity is not after(entity, *event):
            yield f"{event} leads from {entity} to {self.entity}"
        if now_out != out_after(out, *event):
            yield f"{event} leads from the queues {out} to {now_out}"
        at_once = self.entity is not entity or now_out < out or event == ("remains", None)
        if self.holds and Deliver(ENTITY) not in self.running and (at_once or event[0] == "remains" or not held):
            when, *_ = due.get(Deliver(ENTITY), (None,))
            if when != self.now + (0 if at_once else SECONDS):
                yield f"after {event}, a delivery is due at {when}"

    def _take(self, what: str, *details: Any) -> None:
        state, now = self.state, self.now
        if what == "sent":
            state.primary_accepted(SPELT, now)
        elif what == "failed":
            state.primary_failed(SPELT, AWAY, now)
        elif what in COMMANDS:
            state.command(COMMANDS[what], SPELT if what in ("force", "failback", "release") else None, now)
        elif what == "store":
            self.holds = True
            state.outbox_stored(SPELT, AWAY, now)
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
            if self.state.lost and isinstance(task, Ping):
                raise Wrong("a timer leads to a primary that is lost")
            if task not in self.running:
                self.running.append(task)
            elif not isinstance(task, Probe):  # a queue may have been used meanwhile, and have failed again
                raise Wrong(f"a second {task} runs at the same time")

    def _end_task(self, what: str, details: tuple[Any, ...]) -> None:
        state, now = self.state, self.now
        if what == "delivered" or what == "remains":
            self.running.remove(Deliver(ENTITY))
            if what == "delivered":
                self.holds = False
                state.outbox_emptied(SPELT)
            else:
                state.outbox_remains(SPELT, details[0], SendTarget("primary", ENTITY), now)
            return
        task, error = details[0], (details[1] if what == "not done" else None)
        self.running.remove(task)
        if isinstance(task, Ping):
            state.pinged(SPELT, error, error is REFUSED, now)
        else:
            state.probed(task.queue, error, now)

    def check(self) -> None:
        """Raise Wrong if what always holds does not."""
        entity, due = self.entity, self.state.timers._due
        timers = {*due, *self.running}
        if entity is State.FAILING and Ping(ENTITY) not in due:
            raise Wrong("a failing entity has no timer, and never fails over")
        if entity in (State.FAILED_OVER, State.BROKEN) and Ping(ENTITY) not in timers:
            raise Wrong("an entity that is not healthy is never pinged again")
        if self.state.lost and entity not in (State.HELD, State.LOST):
            raise Wrong("an entity goes on as if nothing was lost")
        if entity not in (State.FAILING, State.FAILED_OVER, State.BROKEN) and Ping(ENTITY) in due:
            raise Wrong("an entity is pinged that needs no ping")
        if (ENTITY.lower() in self.state.unhealthy) != (entity is not State.HEALTHY):
            raise Wrong("senders would take the fast path to an entity that is not healthy, or miss it")
        if self.holds and Deliver(ENTITY) not in timers:
            raise Wrong("messages in the outbox are never delivered")
        if not all(self.now <= when <= self.now + SECONDS for when, *_ in due.values()):
            raise Wrong("a timer is due before now, or later than its interval")
        if self.told != (entity, self.state.queues_out, self.holds):
            raise Wrong(f"the events tell of {self.told}")
        self._check_queues(timers)
        self._check_target(entity)
        if self._unlike:
            raise Wrong(self._unlike)

    def _check_queues(self, timers: set[TimerTask]) -> None:
        for queue in self.state._queues:
            if (Probe(queue) in timers) < (queue in self.state.queues_out):
                raise Wrong("a backlog queue that failed is never probed again")
            if (Probe(queue) in self.state.timers._due) > (queue in self.state.queues_out):
                raise Wrong("a backlog queue is probed that works")

    def _check_target(self, entity: State) -> None:
        """Raise Wrong if messages do not go where the state says."""
        target = self.state.target_for(SPELT, None, self.now)
        if entity is State.BROKEN:
            expected = None
            try:
                self.state.side_for(SPELT, self.now)
            except ServiceBusAuthorizationError:
                pass
            else:
                raise Wrong("a message to an entity that refuses it is not refused")
        elif entity in SENDS_TO_BACKLOG:
            [queue] = self.state._queues
            expected = None if self.state.queues_out else SendTarget("backlog", queue)
        else:
            expected = SendTarget("secondary" if self.state.lost else "primary", ENTITY)
        if target != expected:
            raise Wrong("a message would go to the wrong side")

    def is_over(self) -> bool:
        return not self.state.timers._due and not self.running

    def close(self) -> None: ...


def after(before: State, what: str, *details: Any) -> State:
    """Return the state of an entity after an event."""
    if before is State.LOST or what in ("lose", "release"):
        return State.LOST
    if before is State.HELD or what == "hold":
        return State.HELD
    if what in ("force", "failback"):
        return State.FORCED if what == "force" else State.HEALTHY
    if what == "sent":
        return before if before is State.FORCED else State.HEALTHY
    if what == "failed":
        return State.FAILING if before is State.HEALTHY else before
    if details and isinstance(details[0], Ping) and before in (State.FAILED_OVER, State.BROKEN):
        return State.HEALTHY if what == "done" else State.BROKEN if details[1] is REFUSED else before
    return before


def out_after(out: set[str], what: str, *details: Any) -> set[str]:
    """Return the queues that are out after an event."""
    if what == "queue fails":
        return out | {details[0]}
    if what == "queue accepts":
        return out - {details[0]}
    return out - {details[0].queue} if what == "done" and isinstance(details[0], Probe) else out


class FailoverModel(ReplayedModel):
    """The states that a client reaches, for `search`."""

    free = frozenset({"time", "done", "delivered"})

    def start(self) -> Client:
        return Client()
