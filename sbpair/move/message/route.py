"""The decision on a backlog message. Pure: it sees Facts and no bytes, and the time is an argument.

The source reads Facts out of a message; the link to its destination applies the decision to the bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from itertools import starmap
from operator import attrgetter
from typing import NamedTuple, TypeAlias

from sbpair.backlog import PATH, PATH_LIMIT, TICKS_PER_MS, is_segment

MAX_TTL_HEADER_MS = 0xFFFFFFFF
"""The longest time to live that fits a message's header: 49.7 days."""


class Facts(NamedTuple):
    """What is known of a message in the backlog.

    `enqueued_at` and `scheduled_at` are milliseconds since 1970, `ttl_ticks` is in units of 100 ns, `size` in bytes.
    `path` is None where the message cannot be routed, and `flaw` says why.
    """

    queue: str
    sequence_number: int
    enqueued_at: int
    message_id: str | None
    path: str | None
    session_id: str | None = None
    ttl_ticks: int | None = None
    scheduled_at: int | None = None
    size: int = 0
    content_type: str | None = None
    flaw: str = ""


class TimeToLive(StrEnum):
    """What a restored time to live is counted from.

    ORIGINAL: from when the primary accepts the message, as it was with the original.

    REMAINING: from when it would have begun without the backlog: when the message was enqueued there, or the time that
    it is scheduled for, where that is later, since the service does not count before it. So a message that is still to
    be scheduled keeps all of its time; and one that never expires still never does.
    """

    ORIGINAL = "original"
    REMAINING = "remaining"


REMEMBERED = 4_096


class Send(NamedTuple):
    """Send it on. `ttl_ms` is None for a message that never expires."""

    destination: str
    session_id: str | None
    ttl_ms: int | None
    scheduled_at: int | None


@dataclass(frozen=True, slots=True)
class Expire:
    """It is past its time: dead-letter it as expired."""

    reason: str
    description: str


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """It can go nowhere: keep it in the backlog's dead-letter queue, with why."""

    reason: str
    description: str


Route: TypeAlias = Send | Expire | DeadLetter


INVALID = "InvalidBacklogMessage"
REFUSED = "RefusedByPrimary"
MISSING = "DestinationNotFound"
EXPIRED = "TTLExpiredException"
"""The service's own word, so that whoever looks for what has expired finds these as well."""


def route(facts: Facts, *, ttl: TimeToLive = TimeToLive.ORIGINAL, now_ms: int = 0) -> Route:
    """Decide. `now_ms`, by the service's clock in ms since 1970, is only looked at for TimeToLive.REMAINING."""
    if facts.path is None:
        return DeadLetter(INVALID, facts.flaw or "the message has no destination")
    decision = _directed(facts.path, facts.session_id, facts.ttl_ticks, facts.scheduled_at)
    if isinstance(decision, DeadLetter):
        return decision
    if decision.ttl_ms is not None and ttl is TimeToLive.REMAINING:
        left_ms = decision.ttl_ms - waited_ms(facts, now_ms)
        if left_ms <= 0:
            return Expire(EXPIRED, "its time to live was over before it could be brought back")
        decision = decision._replace(ttl_ms=left_ms)
    return decision


def router(ttl: TimeToLive, now_ms: Callable[[], int]) -> Callable[[Sequence[Facts]], list[Route]]:
    """`route` for many, with what is the same for all messages of a run."""
    if ttl is TimeToLive.ORIGINAL:
        return _as_they_were
    return lambda many: [route(facts, ttl=ttl, now_ms=now_ms()) for facts in many]


def _as_they_were(many: Sequence[Facts]) -> list[Route]:
    if None in map(_path_of, many):
        return list(map(route, many))
    return list(starmap(_directed, map(_direction_of, many)))


_path_of = attrgetter("path")
_direction_of = attrgetter("path", "session_id", "ttl_ticks", "scheduled_at")


@lru_cache(REMEMBERED)
def _directed(path: str, session_id: str | None, ttl_ticks: int | None, scheduled_at: int | None) -> Send | DeadLetter:
    """Most messages say the same as one before them."""
    destination = path.strip("/")
    if len(destination) > PATH_LIMIT or not all(map(is_segment, destination.split("/"))):
        return DeadLetter(INVALID, f"{PATH} is {path[:PATH_LIMIT]!r}, and no entity can have that path")
    ttl_ms = None if ttl_ticks is None else -(-ttl_ticks // TICKS_PER_MS)
    return Send(destination, session_id, ttl_ms, scheduled_at)


def waited_ms(facts: Facts, now_ms: int) -> int:
    """How much of its time to live a message has spent in the backlog, in ms.

    Nothing where nobody said when it came: better that it lives too long than that it is taken for dead.
    """
    if facts.enqueued_at <= 0:
        return 0
    return max(0, now_ms - max(facts.enqueued_at, facts.scheduled_at or 0))


def refused(destination: str, why: str) -> DeadLetter:
    """What becomes of a message that the primary refuses for good."""
    return DeadLetter(REFUSED, f"{destination!r} refused the message: {why}")


def missing(destination: str, why: str) -> DeadLetter:
    """What becomes of a message whose destination does not exist."""
    return DeadLetter(MISSING, f"there is no queue or topic {destination!r} in the primary namespace: {why}")
