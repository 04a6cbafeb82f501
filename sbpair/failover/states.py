"""What one entity's primary is believed to be, and what changes that. Pure: the time and the chance are arguments.

The law: TRANSITIONS is all of it. What is not in the table changes no state, so that an answer that comes late, or of a
ping that nobody waits for any more, does no harm.

    healthy      everything goes to the primary
    failing      it does still, and the failover timer runs
    failed over  everything goes to the backlog; the primary is pinged
    broken       a ping was refused for good: sends raise that error, and the primary is pinged still
    forced       as failed over, by command: only a command ends it, and nothing is pinged
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from types import MappingProxyType
from typing import Final


class State(Enum):
    HEALTHY = "healthy"
    FAILING = "failing"
    FAILED_OVER = "failed over"
    BROKEN = "broken"
    FORCED = "forced"


class EntityEvent(Enum):
    SENT = "the primary accepted a message"
    FAILED = "a send failed with an error that counts"
    TIME_UP = "the failover interval has passed"
    PING_ACCEPTED = "the primary accepted a ping"
    PING_UNANSWERED = "a ping failed in a way that may pass"
    PING_REFUSED = "a ping was refused for good"
    FORCE = "failover was commanded"
    FAILBACK = "the way back was commanded"


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
    }
)

TO_THE_BACKLOG: Final = frozenset((State.FAILED_OVER, State.FORCED))
_PINGED: Final = frozenset((State.FAILED_OVER, State.BROKEN))
_PING_ENDS: Final = frozenset((EntityEvent.PING_ACCEPTED, EntityEvent.PING_UNANSWERED, EntityEvent.PING_REFUSED))


@dataclass(frozen=True, slots=True)
class EntityStatus:
    """Where one entity stands. `timer` is when its timer goes off, `pinging` whether a ping is under way.

    `error` is what led to the state: the first failure that counted, or what a ping was refused with.
    """

    state: State = State.HEALTHY
    timer: float | None = None
    pinging: bool = False
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class Delays:
    """In seconds. `ping` is asked anew for each ping, for its jitter."""

    failover: float
    ping: Callable[[], float]


def after(
    standing: EntityStatus, event: EntityEvent, now: float, delays: Delays, error: Exception | None = None
) -> EntityStatus:
    """Where the entity stands once `event` has happened. A ping is to be sent where `pinging` has become true."""
    state = TRANSITIONS.get((standing.state, event), standing.state)
    pinging = standing.pinging and event not in _PING_ENDS
    if state is not standing.state:
        return EntityStatus(state, _timer(state, now, delays), pinging, error or _kept(standing, state))
    if event in _PING_ENDS and state in _PINGED:
        return replace(standing, timer=now + delays.ping(), pinging=False)
    if event is EntityEvent.TIME_UP and state in _PINGED:
        # One that is under way already sets the timer when it ends.
        return replace(standing, timer=None, pinging=True)
    return standing if pinging == standing.pinging else replace(standing, pinging=pinging)


def _timer(state: State, now: float, delays: Delays) -> float | None:
    if state is State.FAILING:
        return now + delays.failover
    return now + delays.ping() if state in _PINGED else None


def _kept(standing: EntityStatus, state: State) -> Exception | None:
    return None if state is State.HEALTHY else standing.error
