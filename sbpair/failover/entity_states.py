"""The states of an entity, the events that change them, and timers. Pure: time and randomness are arguments.

Invariant: TRANSITIONS is complete. An event that is not in the table changes no state, so a late answer does no harm.

    healthy      messages go to the primary
    failing      messages go to the primary; the failover timer runs
    failed over  messages go to the backlog; the primary is pinged
    broken       a ping was refused permanently: sends raise that error; the primary is pinged
    forced       messages go to the backlog by command, which only a command ends; nothing is pinged
    held         the primary is lost: messages go to the backlog until they are released; nothing is pinged
    lost         the primary is lost: messages go to the secondary's own entity, and nothing changes that
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from types import MappingProxyType
from typing import Final, TypeAlias


class State(Enum):
    HEALTHY = "healthy"
    FAILING = "failing"
    FAILED_OVER = "failed over"
    BROKEN = "broken"
    FORCED = "forced"
    HELD = "held"
    LOST = "lost"


class EntityEvent(Enum):
    SENT = "the primary accepted a message"
    FAILED = "a send failed with an error that counts"
    TIME_UP = "the failover interval has passed"
    PING_ACCEPTED = "the primary accepted a ping"
    PING_UNANSWERED = "a ping failed, perhaps temporarily"
    PING_REFUSED = "a ping was refused permanently"
    FORCE = "failover was commanded"
    FAILBACK = "failback was commanded"
    HOLD = "the primary is lost: messages wait in the backlog for a release"
    LOST = "the primary is lost: messages go to the secondary's own entity"


LOSSES: Final = frozenset((EntityEvent.HOLD, EntityEvent.LOST))


TRANSITIONS: Final = MappingProxyType(
    {
        (State.HEALTHY, EntityEvent.FAILED): State.FAILING,
        (State.HEALTHY, EntityEvent.FORCE): State.FORCED,
        (State.FAILING, EntityEvent.SENT): State.HEALTHY,
        (State.FAILING, EntityEvent.TIME_UP): State.FAILED_OVER,
        (State.FAILING, EntityEvent.FORCE): State.FORCED,
        (State.FAILING, EntityEvent.FAILBACK): State.HEALTHY,
        (State.FAILED_OVER, EntityEvent.SENT): State.HEALTHY,
        (State.FAILED_OVER, EntityEvent.PING_ACCEPTED): State.HEALTHY,
        (State.FAILED_OVER, EntityEvent.PING_REFUSED): State.BROKEN,
        (State.FAILED_OVER, EntityEvent.FORCE): State.FORCED,
        (State.FAILED_OVER, EntityEvent.FAILBACK): State.HEALTHY,
        (State.BROKEN, EntityEvent.SENT): State.HEALTHY,
        (State.BROKEN, EntityEvent.PING_ACCEPTED): State.HEALTHY,
        (State.BROKEN, EntityEvent.FORCE): State.FORCED,
        (State.BROKEN, EntityEvent.FAILBACK): State.HEALTHY,
        (State.FORCED, EntityEvent.FAILBACK): State.HEALTHY,
        **{(state, EntityEvent.HOLD): State.HELD for state in State if state is not State.LOST},
        **{(state, EntityEvent.LOST): State.LOST for state in State},
    }
)

SENDS_TO_BACKLOG: Final = frozenset((State.FAILED_OVER, State.FORCED, State.HELD))
_PINGED: Final = frozenset((State.FAILED_OVER, State.BROKEN))
_PING_ENDS: Final = frozenset((EntityEvent.PING_ACCEPTED, EntityEvent.PING_UNANSWERED, EntityEvent.PING_REFUSED))


@dataclass(frozen=True, slots=True)
class EntityStatus:
    """State and timer of one entity. `timer` is when its timer is due, `pinging` whether a ping is in progress.

    `error` caused the state: a failure that counted, or the refusal of a ping.
    """

    state: State = State.HEALTHY
    timer: float | None = None
    pinging: bool = False
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class Delays:
    """Delays in seconds. `ping` is called for each ping, because it adds jitter."""

    failover: float
    ping: Callable[[], float]


def next_status(
    status: EntityStatus, event: EntityEvent, now: float, delays: Delays, error: Exception | None = None
) -> EntityStatus:
    """Return the status after `event`. The caller sends a ping if `pinging` has become true."""
    state = TRANSITIONS.get((status.state, event), status.state)
    pinging = status.pinging and event not in _PING_ENDS
    if state is not status.state:
        return EntityStatus(state, _timer(state, now, delays), pinging, error)
    if event in _PING_ENDS and state in _PINGED:
        return replace(status, timer=now + delays.ping(), pinging=False)
    if event is EntityEvent.TIME_UP and state in _PINGED:
        # A ping in progress sets the timer when it ends.
        return replace(status, timer=None, pinging=True)
    return status if pinging == status.pinging else replace(status, pinging=pinging)


def _timer(state: State, now: float, delays: Delays) -> float | None:
    if state is State.FAILING:
        return now + delays.failover
    return now + delays.ping() if state in _PINGED else None


@dataclass(frozen=True, slots=True)
class Ping:
    """Send a ping to an entity of the primary, and report the result with `pinged`."""

    entity: str


@dataclass(frozen=True, slots=True)
class Probe:
    """Check whether a backlog queue accepts links again, and report the result with `probed`."""

    queue: str


@dataclass(frozen=True, slots=True)
class Deliver:
    """Deliver an entity's messages from the outbox, and report the end with `outbox_emptied` or `outbox_remains`."""

    entity: str


TimerTask: TypeAlias = Ping | Probe | Deliver


class EntityTimers:
    """Timer tasks and the times when they are due, earliest first. `on_earlier` is called when the first one changes.

    Setting a task again replaces its time. The caller provides the lock.
    """

    def __init__(self) -> None:
        self.on_earlier: Callable[[], None] = lambda: None
        self._due: dict[TimerTask, tuple[float, int, TimerTask]] = {}
        self._heap: list[tuple[float, int, TimerTask]] = []
        self._count = 0

    def set(self, task: TimerTask, when: float) -> None:
        first = self._heap[0][0] if self._heap else None
        self._count += 1
        self._due[task] = when, self._count, task
        heapq.heappush(self._heap, self._due[task])
        if first is None or when < first:
            self.on_earlier()

    def cancel(self, task: TimerTask) -> None:
        self._due.pop(task, None)

    def next_due(self) -> float | None:
        """Return when the first task is due, or None without tasks."""
        while self._heap and self._due.get(self._heap[0][2]) != self._heap[0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now: float) -> TimerTask | None:
        """Remove and return the first task if it is due."""
        when = self.next_due()
        if when is None or when > now:
            return None
        task = heapq.heappop(self._heap)[2]
        del self._due[task]
        return task
