"""Destinations that the primary lacks, and how many messages of each may be dead-lettered. Pure.

Invariant: the workers of a run share one count per destination. Beyond its limit a destination is held: its messages
stay in the backlog.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping

from sbpair.errors import Unavailable

MAX_MISSING = 20
"""How many messages of a missing destination are dead-lettered before it is held."""

_HINT = "run again once it exists"


class MissingDestinations:
    """Missing destinations by their first spelling. `dead_lettered` counts the messages given up for each."""

    def __init__(self, limit: int | None = MAX_MISSING) -> None:
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
        """Record how many messages of a backlog queue wait, by destination; replaces what was recorded before."""
        self._left[queue] = {destination.lower(): count for destination, count in waiting.items()}

    def held(self, destination: str) -> int:
        """Return how many messages of a held destination were left in the backlog; 0 if it is not held."""
        left = sum(waiting.get(destination.lower(), 0) for waiting in self._left.values())
        return left if self.is_held(destination) else 0

    def hold_error(self, destination: str) -> Unavailable:
        """Return why the messages of a held destination wait."""
        count = self.dead_lettered[self._spellings[destination.lower()]]
        if not self._limit:
            return Unavailable("it does not exist: its messages stay in the source; create it", hint=_HINT)
        return Unavailable(
            f"it does not exist in the primary: {count} of its messages were dead-lettered, the others stay in the"
            " backlog; create it, or pass --allow-missing to dead-letter them all",
            hint=_HINT,
        )
