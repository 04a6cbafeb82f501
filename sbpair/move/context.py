"""The settings and state that the workers of a run share."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from sbpair.errors import Unavailable
from sbpair.move.message.route import TimeToLive
from sbpair.move.receipt import MissingDestination, Tally
from sbpair.move.timings import DEFAULT_MOVE_TIMINGS, MoveTimings
from sbpair.runs.database import now_ms
from sbpair.runs.journal import Journal

if TYPE_CHECKING:
    from sbpair.move.events import SyphonEvent
    from sbpair.move.interface import Destination, ReceivedMessage
    from sbpair.move.message.renames import Renames
    from sbpair.move.rate_limit import RateLimiter
    from sbpair.move.topic_guard import TopicGuard
    from sbpair.runs.journal import Key

DEFAULT_MAX_SKIPPED = 100_000

MAX_MISSING = 20
"""How many messages of a missing destination are dead-lettered before it is held."""

_HINT = "run again once it exists"

SendCost = Callable[[str], Awaitable[float]]
Choose = Callable[["Sequence[ReceivedMessage]", int], Sequence[bool]]

Traced: TypeAlias = "Callable[[str, Destination], Destination]"
"""Wraps the destination of the worker of a queue, to record its sends."""


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Limits of batches, in messages: larger ones cost less per message, and leave more held after a kill.

    `prefetch` are held, besides those of destinations that back off. `min_round` are sent without a wait for more.
    `min_contiguous` deliveries are completed together; from `max_unsettled` accepted ones, all are completed.
    """

    prefetch: int
    min_round: int
    min_contiguous: int
    max_unsettled: int


DEFAULT_BATCH_LIMITS = BatchLimits(prefetch=480, min_round=50, min_contiguous=100, max_unsettled=400)
"""For a worker: larger limits cost memory and gain nothing."""


class MissingDestinations:
    """Destinations that do not exist, by their first spelling.

    Invariant: the workers of a run share one count per destination. Beyond its limit a destination is held: its
    messages stay in the source. `dead_lettered` counts the messages given up for each. `namespace` names where they
    do not exist.
    """

    def __init__(self, limit: int | None = MAX_MISSING, namespace: str = "primary") -> None:
        self.namespace = namespace
        self.dead_lettered: Counter[str] = Counter()
        self._limit = math.inf if limit is None else limit
        self._spellings: dict[str, str] = {}
        self._held: set[str] = set()
        self._left: dict[str, Mapping[str, int]] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._spellings.values())

    def allow(self, destination: str, messages: int) -> int:
        """Return how many of these messages may be dead-lettered. If not all of them, the destination is held."""
        name = self._spellings.setdefault(destination.lower(), destination)
        allowed = int(min(messages, max(0, self._limit - self.dead_lettered[name])))
        self.dead_lettered[name] += allowed
        if allowed < messages:
            self._held.add(name)
        return allowed

    def found(self, destination: str) -> None:
        """Hold the destination no longer: it exists now."""
        self._held.discard(self._spellings.get(destination.lower(), destination))

    def is_held(self, destination: str) -> bool:
        return self._spellings.get(destination.lower()) in self._held

    def note_left(self, queue: str, waiting: Mapping[str, int]) -> None:
        """Record how many messages of a queue wait, by destination; replaces what was recorded before."""
        self._left[queue] = {destination.lower(): count for destination, count in waiting.items()}

    def held(self, destination: str) -> int:
        """Return how many messages of a held destination were left in the source; 0 if it is not held."""
        left = sum(waiting.get(destination.lower(), 0) for waiting in self._left.values())
        return left if self.is_held(destination) else 0

    def result(self) -> tuple[MissingDestination, ...]:
        """Return all of them, for the receipt."""
        return tuple(MissingDestination(name, self.dead_lettered[name], self.held(name)) for name in sorted(self))

    def hold_error(self, destination: str) -> Unavailable:
        """Return why the messages of a held destination wait."""
        count = self.dead_lettered[self._spellings[destination.lower()]]
        if not self._limit:
            return Unavailable("it does not exist: its messages stay in the source; create it", hint=_HINT)
        return Unavailable(
            f"it does not exist in the {self.namespace} namespace: {count} of its messages were dead-lettered, the"
            " others stay in the backlog; create it, or pass --allow-missing to dead-letter them all",
            hint=_HINT,
        )


@dataclass
class MoveContext:
    """`namespace` holds the source. `send_cost` returns the credits of a message by its destination.

    With `keeps_refused`, a message that its destination refuses stays in its source, and is not dead-lettered; so does
    one that was enqueued within the `duplicate_windows`, and with `keeps_sessions` one of a session. `default_ttl_ms`
    is that of the source; None for none, or if unknown.
    `chosen` returns which received messages to move, at a time of the service in ms since 1970; None moves all. At most
    `max_skipped` others are kept locked at once.
    `traced` wraps the destination of each worker, to record its sends; None records nothing.
    `topics` keeps messages from topics that would discard them; None sends them all. `renames` are destinations that
    have another name than the messages say. With `removes`, every message goes to the file of removed ones.
    Those that were enqueued after `until_ms` stay.
    `record_renumbered` records the receipt, before messages are completed that applications know by their sequence
    numbers: it names those; None for others.
    `now_ms` is in ms since 1970. `dead_letter_refusals` has how often the source refused to dead-letter a message,
    and the last reason.
    """

    namespace: str
    tally: Tally = field(default_factory=Tally)
    journal: Journal = field(default_factory=Journal)
    on_event: Callable[[SyphonEvent], None] = lambda _event: None
    batch_limits: BatchLimits = DEFAULT_BATCH_LIMITS
    timings: MoveTimings = DEFAULT_MOVE_TIMINGS
    max_held: int = 1_000
    max_held_bytes: int = 16 * 1024 * 1024
    jitter: Callable[[], float] = random.random
    ordered: bool = True
    ttl: TimeToLive = TimeToLive.ORIGINAL
    chosen: Choose | None = None
    max_skipped: int = DEFAULT_MAX_SKIPPED
    rate_limiter: RateLimiter | None = None
    send_cost: SendCost | None = None
    now_ms: Callable[[], int] = now_ms
    keeps_refused: bool = False
    keeps_sessions: bool = False
    duplicate_windows: Mapping[str, int] | None = None
    default_ttl_ms: int | None = None
    traced: Traced | None = None
    missing: MissingDestinations = field(default_factory=MissingDestinations)
    topics: TopicGuard | None = None
    renames: Renames | None = None
    record_renumbered: Callable[[], object] | None = None
    removes: bool = False
    until_ms: int | None = None
    dead_letter_refusals: dict[Key, tuple[int, str]] = field(default_factory=dict)
