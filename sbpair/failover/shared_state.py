"""The state shared by all senders of a client: entities, backlog queues, the outbox, and the timers of all three.

No I/O, and no clock: the time is an argument. Invariant: one timer queue for all entities and queues, so that one task
waits for any number of timers.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from sbpair.backlog import queue_path
from sbpair.failover import events
from sbpair.failover.entity_states import (
    LOSSES,
    SENDS_TO_BACKLOG,
    Delays,
    Deliver,
    EntityEvent,
    EntityStatus,
    EntityTimers,
    Ping,
    Probe,
    State,
    TimerTask,
    next_status,
)
from sbpair.failover.events import EventQueue, SenderEvent
from sbpair.failover.failures import describe_error, is_transient
from sbpair.model.pair import Pair

JITTER = 0.1
"""Random share of the interval by which pings and probes come earlier or later, so that clients spread out."""


SendSide: TypeAlias = Literal["primary", "backlog", "secondary"]
"""Where messages go: the primary's entity, a backlog queue, or the secondary's own entity of the same name."""


class SendTarget(NamedTuple):
    """Where messages of an entity may go: to an entity itself, or to a backlog queue."""

    side: SendSide
    path: str


@dataclass(slots=True)
class _EntityOutbox:
    """Messages of one entity are in the outbox. `stuck` is the entity's own lasting refusal."""

    delivering: bool = False
    stuck: Exception | None = None
    reason: str | None = None


class FailoverState:
    """Every method may be called from any thread, and none waits. Entity names are case-insensitive."""

    def __init__(
        self, pair: Pair, on_event: Callable[[SenderEvent], None] | None = None, chance: random.Random | None = None
    ) -> None:
        self._random = chance or random.Random()  # noqa: S311  it spreads load, and guards nothing
        interval = pair.ping_interval
        self._delays = Delays(pair.failover_interval, lambda: interval * self._random.uniform(1 - JITTER, 1 + JITTER))
        self._queues = [queue_path(pair.primary.name, index) for index in range(pair.backlog_queues)]
        self.queues_out: set[str] = set()
        """Queues that failed. All senders leave them until a probe or a message succeeds."""
        self._paths: dict[str, str] = {}
        self._statuses: dict[str, EntityStatus] = {}
        self._outbox: dict[str, _EntityOutbox] = {}
        self._at_registration = EntityEvent.FAILBACK
        self.lost = False
        """Whether the primary is declared lost: nothing leads to it any more."""
        self._events = EventQueue(on_event)
        self.timers = EntityTimers()
        self.unhealthy: set[str] = set()
        self.fail_at_once = pair.failover_interval == 0
        self.backlog_bytes: int | None = None
        """The maximum message size of the backlog queues, once known."""

    def register(self, entity: str) -> None:
        """Add an entity, unless it is known."""
        with self._events.changing():
            key = entity.lower()
            if key not in self._paths:
                self._paths[key], self._statuses[key] = entity, EntityStatus()
                self._apply(entity, self._at_registration, 0.0)

    def side_for(self, entity: str, now: float) -> SendSide:
        """Return where messages of an entity go. Raises the error of a broken entity."""
        if self._statuses[entity.lower()].state is State.HEALTHY:
            return "primary"
        status = self._failed_over_if_due(entity, now)
        if status.state is State.BROKEN and status.error is not None:
            raise status.error.with_traceback(None)
        if status.state is State.LOST:
            return "secondary"
        return "backlog" if status.state in SENDS_TO_BACKLOG else "primary"

    def primary_accepted(self, entity: str, now: float) -> None:
        if self._statuses[entity.lower()].state is not State.HEALTHY:
            self._apply(entity, EntityEvent.SENT, now)

    def primary_failed(self, entity: str, error: Exception, now: float) -> None:
        """Record that a send to the primary failed with an error that counts."""
        self._apply(entity, EntityEvent.FAILED, now, error)
        # A failover interval of 0 is over when it starts.
        self._failed_over_if_due(entity, now)

    def pick_queue(self, current: str | None) -> tuple[str, bool]:
        """Return the backlog queue to send to, and whether another one could replace it.

        That is `current` while it works, else a random queue that works, else any queue.
        """
        with self._events.lock:
            working = [queue for queue in self._queues if queue not in self.queues_out]
            queue = current if current in working else self._random.choice(working or self._queues)
            return queue, any(each != queue for each in working)

    def queue_failed(self, queue: str, error: Exception, now: float) -> None:
        with self._events.changing():
            if queue not in self.queues_out:
                self.queues_out.add(queue)
                self._events.add(events.QueueLeft(queue, describe_error(error)))
                self._schedule_probe(queue, now)

    def queue_accepted(self, queue: str, now: float) -> None:
        if queue in self.queues_out:
            self.probed(queue, None, now)

    def publish(self, event: SenderEvent) -> None:
        """Publish an event that changes no state."""
        with self._events.changing():
            self._events.add(event)

    def target_for(self, entity: str, queue: str | None, now: float) -> SendTarget | None:
        """Return where a message may be accepted, or None while both sides are out. `queue` is the one last used."""
        if self._statuses[entity.lower()].state is State.BROKEN:
            return None
        if (side := self.side_for(entity, now)) != "backlog":
            return SendTarget(side, self._paths[entity.lower()])
        queue, _ = self.pick_queue(queue)
        return None if queue in self.queues_out else SendTarget("backlog", queue)

    def outbox_stored(self, entity: str, error: Exception | None, now: float) -> None:
        """Record that the outbox has messages of an entity because of `error`, or from an earlier client if None."""
        with self._events.changing():
            self.register(entity)
            key = entity.lower()
            if key in self._outbox:
                return
            self._outbox[key] = _EntityOutbox()
            if error is not None:
                self._events.add(events.OutboxBegun(entity, describe_error(error)))
            self._deliver_at(key, now if error is None else now + self._delays.ping())

    def outbox_stuck(self, entity: str) -> Exception | None:
        """Return the entity's own lasting refusal of its messages in the outbox."""
        found = self._outbox.get(entity.lower())
        return found.stuck if found else None

    def outbox_emptied(self, entity: str) -> None:
        """Record that a delivery has ended with no message left."""
        with self._events.changing():
            key = entity.lower()
            del self._outbox[key]
            self._events.add(events.OutboxEmptied(self._paths[key]))

    def outbox_remains(self, entity: str, error: Exception | None, target: SendTarget | None, now: float) -> None:
        """Record that a delivery has ended with messages left: by an error of `target`, or at the end of its turn."""
        with self._events.changing():
            key = entity.lower()
            kept = self._outbox.setdefault(key, _EntityOutbox())
            kept.stuck = None
            self._deliver_at(key, now if target is not None and error is None else now + self._delays.ping())
            if error is None or is_transient(error):
                return
            if target is not None and target.side != "backlog":
                kept.stuck = error
            if kept.reason != describe_error(error):
                kept.reason = describe_error(error)
                self._events.add(events.OutboxStuck(self._paths[key], kept.reason))

    def command(self, event: EntityEvent, entity: str | None, now: float) -> None:
        """Apply a command to an entity. None means every entity, later ones included; a loss is of all of them."""
        with self._events.changing():
            if entity is not None:
                self.register(entity)
            elif event in LOSSES or not self.lost:
                self.lost = event in LOSSES
                self._at_registration = event
            for path in [entity] if entity is not None else list(self._paths.values()):
                self._apply(path, event, now)

    def states(self) -> dict[str, State]:
        with self._events.lock:
            return {path: self._statuses[key].state for key, path in self._paths.items()}

    def next_due(self) -> float | None:
        """Return when the next timer is due, or None without timers."""
        with self._events.lock:
            return self.timers.next_due()

    def pop_due(self, now: float) -> TimerTask | None:
        """Return the next task that is due, if any. Applies failovers that are due."""
        with self._events.changing():
            while (task := self.timers.pop_due(now)) is not None:
                if isinstance(task, Probe):
                    return task
                if isinstance(task, Deliver):
                    if self._may_deliver(task.entity, now):
                        return task
                    continue
                was_pinging = self._statuses[task.entity.lower()].pinging
                if self._apply(task.entity, EntityEvent.TIME_UP, now).pinging and not was_pinging:
                    return task
        return None

    def pinged(self, entity: str, error: Exception | None, permanent: bool, now: float) -> None:
        """Record the result of a ping: None if it was accepted, else its error and whether that is permanent."""
        refused = EntityEvent.PING_REFUSED if permanent else EntityEvent.PING_UNANSWERED
        self._apply(entity, EntityEvent.PING_ACCEPTED if error is None else refused, now, error)

    def probed(self, queue: str, error: Exception | None, now: float) -> None:
        """Record the result of a probe of a backlog queue."""
        with self._events.changing():
            if error is not None:
                if queue in self.queues_out:
                    self._schedule_probe(queue, now)
            elif queue in self.queues_out:
                self.queues_out.remove(queue)
                self.timers.cancel(Probe(queue))
                self._events.add(events.QueueReturned(queue))
                for key in self._outbox:
                    self._deliver_now(key, now)

    def _apply(self, entity: str, event: EntityEvent, now: float, error: Exception | None = None) -> EntityStatus:
        with self._events.changing():
            key = entity.lower()
            path, before = self._paths[key], self._statuses[key]
            status = self._statuses[key] = next_status(before, event, now, self._delays, error)
            self.unhealthy.discard(key) if status.state is State.HEALTHY else self.unhealthy.add(key)
            if status.timer is None:
                self.timers.cancel(Ping(path))
            elif status.timer != before.timer:
                self.timers.set(Ping(path), status.timer)
            if status.state is not before.state:
                reason = f"{event.value}: {describe_error(error)}" if error else event.value
                self._events.add(events.EntityChanged(path, before.state, status.state, reason))
                self._deliver_now(key, now)
        return status

    def _failed_over_if_due(self, entity: str, now: float) -> EntityStatus:
        """Apply the timer of a failing entity. The timer runner may do the same: applied twice, it starts no ping."""
        with self._events.changing():
            status = self._statuses[entity.lower()]
            if status.state is State.FAILING and status.timer is not None and status.timer <= now:
                status = self._apply(entity, EntityEvent.TIME_UP, now)
        return status

    def _schedule_probe(self, queue: str, now: float) -> None:
        self.timers.set(Probe(queue), now + self._delays.ping())

    def _may_deliver(self, entity: str, now: float) -> bool:
        # Before the target is asked for: that may fail over, which would make a second delivery due.
        self._outbox[entity.lower()].delivering = True
        if self.target_for(entity, None, now) is None:
            # The event that brings a side back makes the delivery due at once.
            self._deliver_at(entity.lower(), now + self._delays.ping())
            return False
        return True

    def _deliver_now(self, key: str, now: float) -> None:
        """Make a waiting delivery due. A running one finds its target itself."""
        if key in self._outbox and not self._outbox[key].delivering:
            self._deliver_at(key, now)

    def _deliver_at(self, key: str, when: float) -> None:
        self._outbox[key].delivering = False
        self.timers.set(Deliver(self._paths[key]), when)
