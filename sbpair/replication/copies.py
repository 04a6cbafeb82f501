"""The copies under lock: the application's one, held ones and duplicates. Pure but for the store.

Invariant: a copy is completed as a duplicate only after another copy of its key was *completed*. While the application
has the first one, the others are held. If the first one is released otherwise (abandoned, dead-lettered, lock lost),
the next one becomes the first.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from sbpair.replication.key_store import KeyStatus, Store

if TYPE_CHECKING:
    from sbpair.replication.roles import Side


class Copy(Protocol):
    """A message under lock until `until`, in seconds since 1970. `key` is None if it has none."""

    @property
    def side(self) -> Side: ...
    @property
    def number(self) -> int: ...
    @property
    def key(self) -> str | None: ...
    @property
    def until(self) -> float: ...


CopyT = TypeVar("CopyT", bound=Copy)


class Verdict(Enum):
    GIVE = "it is the first copy"
    GIVE_AGAIN = "an earlier copy may have been processed"
    HOLD = "the application has the first copy"
    DUPLICATE = "a copy was completed"


@dataclass(slots=True)
class _Held(Generic[CopyT]):
    first: CopyT
    others: list[CopyT] = field(default_factory=list)


class Copies(Generic[CopyT]):
    """All copies that this receiver has locked and that have a key."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._held: dict[str, _Held[CopyT]] = {}
        self._next: deque[tuple[CopyT, bool]] = deque()

    def admit(self, copy: CopyT, now: float) -> Verdict:
        """Decide about a received copy. A copy to be given becomes the first."""
        if copy.key is None:
            return Verdict.GIVE
        held = self._held.get(copy.key)
        if held is not None and not _is_same(held.first, copy):
            held.others = [each for each in held.others if not _is_same(each, copy)]
            held.others.append(copy)
            return Verdict.HOLD
        if held is not None:
            # The service delivers the first copy again, so its earlier lock is lost.
            held.first = copy
            return Verdict.GIVE_AGAIN
        status = self._store.status(copy.key, now)
        if status is KeyStatus.DONE:
            return Verdict.DUPLICATE
        self._held[copy.key] = _Held(copy)
        return Verdict.GIVE_AGAIN if status is KeyStatus.DOUBT else Verdict.GIVE

    def completing(self, copy: CopyT, now: float) -> None:
        """Record that a copy is about to be completed: without an answer, its key is in doubt."""
        if copy.key is not None and self._store.status(copy.key, now) is not KeyStatus.DONE:
            self._store.mark(copy.key, KeyStatus.DOUBT, now)

    def completed(self, copy: CopyT, now: float) -> list[CopyT]:
        """Record a completion. Returns the copies that are duplicates now."""
        if copy.key is None:
            return []
        self._store.mark(copy.key, KeyStatus.DONE, now)
        held = self._held.pop(copy.key, None)
        if held is None:
            return []
        if not _is_same(held.first, copy):
            # The application has that copy as well by now, and settles it.
            self._held[copy.key] = _Held(held.first)
        return held.others

    def release(self, copy: CopyT, *, lock_lost: bool = False) -> None:
        """Record that a copy was settled without completion, or lost its lock: the others may be given."""
        held = self._held.get(copy.key) if copy.key is not None else None
        if held is not None and held.first is copy and copy.key is not None:
            del self._held[copy.key]
            self._next.extend((each, lock_lost) for each in held.others)

    def expire(self, now: float) -> None:
        """Release first copies whose locks have expired."""
        for held in [each for each in self._held.values() if each.first.until <= now]:
            self.release(held.first, lock_lost=True)

    def next(self, now: float) -> tuple[CopyT, bool] | None:
        """Return a locked copy whose first one was released, and whether that one may have been processed."""
        while self._next:
            copy, lock_lost = self._next.popleft()
            if copy.until > now:
                return copy, lock_lost
        return None

    def held_with(self, copy: CopyT) -> list[CopyT]:
        """Return the held copies of a copy that the application has."""
        held = self._held.get(copy.key) if copy.key is not None else None
        return list(held.others) if held is not None else []

    @property
    def waiting(self) -> list[CopyT]:
        """All locked copies that the application was not given."""
        return [*(each for held in self._held.values() for each in held.others), *(each for each, _ in self._next)]


def _is_same(one: Copy, other: Copy) -> bool:
    """Return whether two deliveries are of one message in one queue."""
    return (one.side, one.number) == (other.side, other.number)
