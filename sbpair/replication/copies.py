"""The copies of messages that a receiver has locked, and which of them the application gets.

Invariants: a copy is completed as a duplicate only after another copy of its key was *completed*. While the application
has the first one, the others are held. If the first one is released otherwise (abandoned, dead-lettered, lock lost),
the next one becomes the first.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from sbpair.replication.keys import KeyStatus, KeyStore

if TYPE_CHECKING:
    from sbpair.model.pair import Side
    from sbpair.replication.keys import Received


@dataclass(frozen=True, slots=True, eq=False)
class LockedMessage:
    """A message under lock, with the receiver that it came from. `key` is None if it has none."""

    side: Side
    message: Received
    receiver: Any
    key: str | None

    @property
    def number(self) -> int:
        return self.message.sequence_number or 0

    @property
    def until(self) -> float:
        """When the lock expires by the service's time, in seconds since 1970."""
        locked = self.message.locked_until_utc
        return locked.timestamp() if locked else 0.0


class Verdict(Enum):
    GIVE = "it is the first copy"
    GIVE_AGAIN = "an earlier copy may have been processed"
    HOLD = "the application has the first copy"
    DUPLICATE = "a copy was completed"


class Copies:
    """All copies that this receiver has locked and that have a key."""

    def __init__(self, store: KeyStore) -> None:
        self._store = store
        # The first copy of each key, and then the others.
        self._held: dict[str | None, list[LockedMessage]] = {}
        self._next: deque[tuple[LockedMessage, bool]] = deque()

    def admit(self, copy: LockedMessage, now: float) -> Verdict:
        """Decide about a received copy. A copy to be given becomes the first."""
        if copy.key is None:
            return Verdict.GIVE
        if held := self._held.get(copy.key):
            if _is_same(held[0], copy):
                # The service delivers the first copy again, so its earlier lock is lost.
                held[0] = copy
                return Verdict.GIVE_AGAIN
            self._held[copy.key] = [*(each for each in held if not _is_same(each, copy)), copy]
            return Verdict.HOLD
        status = self._store.status(copy.key, now)
        if status is KeyStatus.DONE:
            return Verdict.DUPLICATE
        self._held[copy.key] = [copy]
        return Verdict.GIVE_AGAIN if status is KeyStatus.DOUBT else Verdict.GIVE

    def is_duplicate(self, key: str, now: float) -> bool:
        """Return whether `admit` would judge any copy with this key a duplicate."""
        return not self._held.get(key) and self._store.status(key, now) is KeyStatus.DONE

    def completing(self, copy: LockedMessage, now: float) -> None:
        """Record that a copy is about to be completed: without an answer, its key is in doubt."""
        if copy.key is not None and self._store.status(copy.key, now) is not KeyStatus.DONE:
            self._store.mark(copy.key, KeyStatus.DOUBT, now)

    def completed(self, copy: LockedMessage, now: float) -> list[LockedMessage]:
        """Record a completion. Returns the copies that are duplicates now."""
        if copy.key is None:
            return []
        self._store.mark(copy.key, KeyStatus.DONE, now)
        held = self._held.pop(copy.key, [])
        if held and not _is_same(held[0], copy):
            # The application has that copy as well by now, and settles it.
            self._held[copy.key] = held[:1]
        return held[1:]

    def release(self, copy: LockedMessage, *, lock_lost: bool = False) -> None:
        """Record that a copy was settled without completion, or lost its lock: the others may be given."""
        held = self._held.get(copy.key)
        if held and held[0] is copy:
            del self._held[copy.key]
            self._next.extend((each, lock_lost) for each in held[1:])

    def expire(self, now: float) -> None:
        """Release first copies whose locks have expired."""
        for first in [held[0] for held in self._held.values() if held[0].until <= now]:
            self.release(first, lock_lost=True)

    def next(self, now: float) -> tuple[LockedMessage, bool] | None:
        """Return a locked copy whose first one was released, and whether that one may have been processed."""
        while self._next:
            copy, lock_lost = self._next.popleft()
            if copy.until > now:
                return copy, lock_lost
        return None

    def held_with(self, copy: LockedMessage) -> list[LockedMessage]:
        """Return the held copies of a copy that the application has."""
        return self._held.get(copy.key, [])[1:]

    @property
    def waiting(self) -> list[LockedMessage]:
        """All locked copies that the application was not given."""
        return [*(each for held in self._held.values() for each in held[1:]), *(each for each, _ in self._next)]


def _is_same(one: LockedMessage, other: LockedMessage) -> bool:
    """Return whether two deliveries are of one message in one queue."""
    return (one.side, one.number) == (other.side, other.number)
