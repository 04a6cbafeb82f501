"""Circuit breaker for a wrong primary: a run that finds no destination stops before it dead-letters a backlog. Pure.

Invariant: once one destination has been found, the primary is trusted.
"""

from __future__ import annotations

from sbpair.errors import Unsafe

MAX_MISSING = 20
"""How many messages may be dead-lettered for missing destinations before one has been found."""

MIN_DESTINATIONS = 2
"""A single missing destination may be deleted: several are needed to doubt the namespace."""

NAMED = 3


class WrongPrimaryBreaker:
    """Destinations that the workers of a run have found and missed. `trusted` ends all doubt."""

    def __init__(self, *, trusted: bool = False) -> None:
        self.trusted = trusted
        self._asked: set[str] = set()
        self._missing: dict[str, None] = {}
        self._count = 0

    def asked(self, destination: str) -> None:
        """Record that a lookup of `destination` is pending."""
        if not self.trusted and destination not in self._missing:
            self._asked.add(destination)

    def found(self) -> None:
        self.trusted = True

    def limit(self, otherwise: int) -> int:
        """Return how many messages may be refused at once."""
        return otherwise if self.trusted else min(otherwise, MAX_MISSING)

    def missing(self, destination: str, messages: int) -> Unsafe | None:
        """Count messages of a missing destination. Return the error if they must not be dead-lettered."""
        if self.trusted:
            return None
        self._asked.discard(destination)
        self._missing[destination] = None
        self._count += messages
        if self._count <= MAX_MISSING or len(self._missing) < MIN_DESTINATIONS or self._asked:
            return None
        some = ", ".join([*self._missing][:NAMED])
        return Unsafe(
            f"none of the {len(self._missing)} queues or topics that the first messages are for is in the primary "
            f"namespace ({some}): is it the right one?",
            hint="check with --dry-run; --allow-missing dead-letters them anyway",
        )
