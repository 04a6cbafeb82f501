"""The form of a source's messages, and the routing decision for each. Pure: it sees Facts, not bytes.

The source reads Facts from a message; the link to the destination applies the decision to the bytes. The time is an
argument.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from itertools import starmap
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

from sbpair.backlog import ALIASES, PATH, PATH_LIMIT, is_segment
from sbpair.move.message.dead_letters import CAUSE, NotSentReason
from sbpair.move.message.renames import Renames
from sbpair.timespan import TICKS_PER_MS, utc

MAX_TTL_HEADER_MS = 0xFFFFFFFF
"""The longest TTL that fits a message's header: 49.7 days."""

WRAPPED_MAX_TTL_MS = 922_337_203_685_477 % 2**32
"""TimeSpan.MaxValue as original clients wrote it into the header of their backlog messages: its lowest 32 bits."""

OTHERS = "*"
"""The name of all destinations that are not counted one by one: not a valid path."""

REMOVED = "removed"
"""The destination of removed messages in receipts, whether they are kept in a file or not."""


@dataclass(frozen=True, slots=True)
class MessageForm:
    """Where each message of a source goes, and which of its application properties a move removes: `removed`.

    With a `destination`, all messages go there and are otherwise kept as they are. Without, the aliases of each message
    name its destination, session, time to live and schedule, which are restored.

    With `origins`, `destination` is "", and each goes where these lead from its DeadLetterSource, in lower case: "" for
    a subscription that gets nothing back.
    """

    removed: frozenset[str]
    destination: str | None = None
    origins: Mapping[str, str] | None = None

    def destination_for(self, source: object) -> tuple[str, str]:
        """Return where a message with this DeadLetterSource goes; "" and the reason for one that stays."""
        if self.origins is None:
            return self.destination or "", ""
        if not isinstance(source, str):
            return "", "it has no DeadLetterSource: no entity has forwarded it as a dead letter"
        found = self.origins.get(source.lower())
        if found is None:
            return "", f"its DeadLetterSource {source[:PATH_LIMIT]!r} was not found before the run began: run again"
        why = f"it is of the subscription {source[:PATH_LIMIT]!r}: --all-subscriptions sends it to the topic"
        return found, "" if found else why


BACKLOG = MessageForm(ALIASES)
BACKLOG_DEAD_LETTERS = MessageForm(ALIASES.union(CAUSE))
"""Dead letters of a backlog queue."""


def kept_for(destination: str) -> MessageForm:
    """Return the form of messages that all go to `destination`, without the cause if they are dead letters."""
    return MessageForm(frozenset(CAUSE), destination)


class Facts(NamedTuple):
    """The facts of a backlog message.

    `enqueued_at` and `scheduled_at` are milliseconds since 1970, `ttl_ticks` is in units of 100 ns, `size` in bytes.
    `path` is None if the message cannot be routed; `flaw` is the reason.
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


def field_getter(kind: type[tuple[Any, ...]], *names: str) -> Callable[[Any], Any]:
    """Return `attrgetter` of fields of a NamedTuple, at a fifth of its cost."""
    return itemgetter(*map(list(kind._fields).index, names))  # type: ignore[attr-defined]  # every NamedTuple has it


class TimeToLive(StrEnum):
    """The start of a restored TTL.

    ORIGINAL: the primary accepts the message, as with the original library.

    REMAINING: the message was enqueued in the backlog, or its scheduled time if that is later, since the service starts
    counting then. So a message still to be scheduled keeps its whole TTL, and one without a TTL never expires.

    DROP_DEFAULT: as ORIGINAL, and a TTL that equals the source's default is left out. The service writes its default
    into the messages that it delivers: a move cannot tell it from a value of the sender.
    """

    ORIGINAL = "original"
    REMAINING = "remaining"
    DROP_DEFAULT = "drop-default"


NO_TTL = 0
"""The TTL of a message whose own is left out."""


REMEMBERED = 4_096


class Send(NamedTuple):
    """Send the message. `ttl_ms` is None for a message that never expires, unless it states a TTL itself."""

    destination: str
    session_id: str | None
    ttl_ms: int | None
    scheduled_at: int | None


@dataclass(frozen=True, slots=True)
class Expire:
    """Dead-letter the message as expired."""

    reason: NotSentReason
    description: str


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Keep the message, which has no destination, in the backlog's dead-letter queue, with the reason."""

    reason: NotSentReason
    description: str


Route: TypeAlias = Send | Expire | DeadLetter


def route(facts: Facts, *, ttl: TimeToLive = TimeToLive.ORIGINAL, now_ms: int = 0) -> Route:
    """Return the decision. `now_ms`, the service's clock in ms since 1970, matters only for TimeToLive.REMAINING."""
    if facts.path is None:
        return DeadLetter(NotSentReason.INVALID, facts.flaw or "the message has no destination")
    decision = _decide(facts.path, facts.session_id, facts.ttl_ticks, facts.scheduled_at)
    if isinstance(decision, DeadLetter):
        return decision
    if decision.ttl_ms is not None and ttl is TimeToLive.REMAINING:
        left_ms = decision.ttl_ms - waited_ms(facts, now_ms)
        if left_ms <= 0:
            return Expire(NotSentReason.EXPIRED, "its time to live ended before it could be moved back")
        decision = decision._replace(ttl_ms=left_ms)
    return decision


def router(
    ttl: TimeToLive,
    now_ms: Callable[[], int],
    duplicate_windows: Mapping[str, int] | None = None,
    renames: Renames | None = None,
    default_ttl_ms: int | None = None,
) -> Callable[[Sequence[Facts]], list[Route]]:
    """Return a function that routes many messages by the same rules.

    A message that was enqueued within the window of its destination, in ms by its path in lower case, is not sent: the
    destination may know its id.
    `default_ttl_ms` is that of the source.
    """
    if ttl is TimeToLive.DROP_DEFAULT:
        kept = router(TimeToLive.ORIGINAL, now_ms, duplicate_windows, renames)
        if default_ttl_ms is None:
            return kept
        return lambda many: [
            each._replace(ttl_ms=NO_TTL) if isinstance(each, Send) and each.ttl_ms == default_ttl_ms else each
            for each in kept(many)
        ]
    if renames:
        as_written = router(ttl, now_ms, duplicate_windows)
        return lambda many: [
            each._replace(destination=renames(each.destination)) if isinstance(each, Send) else each
            for each in as_written(many)
        ]
    if duplicate_windows:
        every = router(ttl, now_ms)

        def unless_known(facts: Facts, decision: Route) -> Route:
            if not isinstance(decision, Send):
                return decision
            known_until = facts.enqueued_at + duplicate_windows.get(decision.destination.lower(), 0)
            return _known_until(known_until) if known_until > now_ms() else decision

        return lambda many: list(map(unless_known, many, every(many)))
    if ttl is TimeToLive.ORIGINAL:
        return _route_original
    return lambda many: [route(facts, ttl=ttl, now_ms=now_ms()) for facts in many]


def _known_until(at_ms: int) -> DeadLetter:
    until = utc(-(-at_ms // 1000))
    return DeadLetter(NotSentReason.DUPLICATE, f"the destination detects duplicates, and may drop it until {until}")


def _route_original(many: Sequence[Facts]) -> list[Route]:
    if None in map(_path_of, many):
        return list(map(route, many))
    return list(starmap(_decide, map(_direction_of, many)))


_path_of = field_getter(Facts, "path")
_direction_of = field_getter(Facts, "path", "session_id", "ttl_ticks", "scheduled_at")


@lru_cache(REMEMBERED)
def _decide(path: str, session_id: str | None, ttl_ticks: int | None, scheduled_at: int | None) -> Send | DeadLetter:
    """Route by content; cached, since most messages repeat an earlier one."""
    destination = path.strip("/")
    if not is_routable(destination):
        return DeadLetter(NotSentReason.INVALID, f"{PATH} is {path[:PATH_LIMIT]!r}, which is not a valid path")
    ttl_ms = None if ttl_ticks is None else -(-ttl_ticks // TICKS_PER_MS)
    return Send(destination, session_id, ttl_ms, scheduled_at)


def is_routable(path: str | None) -> bool:
    """Return whether a message can be for this path. Of a name with `~`, the service decides."""
    destination = "" if path is None else path.strip("/").replace("~", "-")
    return len(destination) <= PATH_LIMIT and all(map(is_segment, destination.split("/")))


def waited_ms(facts: Facts, now_ms: int) -> int:
    """Return how much of its TTL a message has spent in the backlog, in ms.

    0 if its enqueued time is unknown: living too long is better than expiring too early.
    """
    if facts.enqueued_at <= 0:
        return 0
    return max(0, now_ms - max(facts.enqueued_at, facts.scheduled_at or 0))


def without_sessions(routing: Callable[[Sequence[Facts]], list[Route]]) -> Callable[[Sequence[Facts]], list[Route]]:
    """Return a function that routes messages as `routing` does, except for those of sessions, which stay."""
    why = "newer messages of its session may be there: a run with --once looks for them, --order none does not"
    stays = DeadLetter(NotSentReason.REFUSED, why)
    return lambda many: [stays if isinstance(each, Send) and each.session_id else each for each in routing(many)]


def remove_all(many: Sequence[Facts]) -> list[Route]:
    """Return the decisions of a run that removes messages: each goes to the kept file, as it is."""
    return [_REMOVE] * len(many)


_REMOVE = Send(REMOVED, None, None, None)


def refused(destination: str, why: str) -> DeadLetter:
    """Return the decision for a message that its destination refuses for good."""
    if destination == REMOVED:
        return DeadLetter(NotSentReason.REFUSED, f"it cannot be kept: {why}")
    return DeadLetter(NotSentReason.REFUSED, f"{destination!r} refused the message: {why}")


def missing(destination: str, namespace: str = "primary") -> DeadLetter:
    """Return the decision for a message whose destination does not exist in a namespace."""
    description = f"queue or topic {destination!r} does not exist in the {namespace} namespace"
    return DeadLetter(NotSentReason.MISSING, description)
