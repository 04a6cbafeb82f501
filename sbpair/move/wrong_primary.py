"""Whether the primary may be the wrong one: a run that finds nothing there stops before it buries a backlog. Pure.

The law: once a single destination has been found, the primary is the right one for good.
"""

from __future__ import annotations

from sbpair.errors import Unsafe

MAX_MISSING = 20
"""How many messages may be dead-lettered for want of their destinations before one has been found."""

MIN_DESTINATIONS = 2
"""One destination that is missing was deleted; it takes several to doubt the namespace."""

NAMED = 3


class WrongPrimaryBreaker:
    """What the lanes of a run have found in the primary. `trusted` is whether it is no longer doubted."""

    def __init__(self, *, trusted: bool = False) -> None:
        self.trusted = trusted
        self._asked: set[str] = set()
        self._missing: dict[str, None] = {}
        self._count = 0

    def asked(self, destination: str) -> None:
        """Whether there is such a destination will soon be known."""
        if not self.trusted and destination not in self._missing:
            self._asked.add(destination)

    def found(self) -> None:
        self.trusted = True

    def limit(self, otherwise: int) -> int:
        """How many messages may be judged at once."""
        return otherwise if self.trusted else min(otherwise, MAX_MISSING)

    def missing(self, destination: str, messages: int) -> Unsafe | None:
        """Count messages whose destination is not there; why they must not be dead-lettered, if that is so."""
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
            hint="look with --dry-run; --allow-missing dead-letters them all the same",
        )
