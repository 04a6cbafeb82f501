"""Which copy of a message is the application's, and what becomes of the others. No I/O but the store's; time is given.

The law: a copy is completed as a duplicate only where another copy of its key has been *completed*. While the first one
is in the application's hands, the others are held; where that one is given up otherwise (abandoned, dead-lettered, its
lock lost), the next of them is the first.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from sbpair.replication.window import KeyStatus, Store

if TYPE_CHECKING:
    from sbpair.replication.roles import Side


class Copy(Protocol):
    """A message under lock. `until` is when that runs out, in seconds since 1970; `key` is None where it has none."""

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
    GIVE = "it is the first"
    GIVE_AGAIN = "it is not known whether an earlier one was dealt with"
    HOLD = "the application has the first one"
    DUPLICATE = "one was completed"


@dataclass(slots=True)
class _Held(Generic[CopyT]):
    first: CopyT
    others: list[CopyT] = field(default_factory=list)


class Copies(Generic[CopyT]):
    """All copies that are under this receiver's locks and have a key."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._held: dict[str, _Held[CopyT]] = {}
        self._next: deque[tuple[CopyT, bool]] = deque()

    def arrived(self, copy: CopyT, now: float) -> Verdict:
        """What to do with a copy. It is the first from now on where it is to be given."""
        if copy.key is None:
            return Verdict.GIVE
        held = self._held.get(copy.key)
        if held is not None and not _is_same(held.first, copy):
            held.others = [each for each in held.others if not _is_same(each, copy)]
            held.others.append(copy)
            return Verdict.HOLD
        if held is not None:
            # The service has delivered the first one anew: whoever had it has no lock any more.
            held.first = copy
            return Verdict.GIVE_AGAIN
        standing = self._store.standing(copy.key, now)
        if standing is KeyStatus.DONE:
            return Verdict.DUPLICATE
        self._held[copy.key] = _Held(copy)
        return Verdict.GIVE_AGAIN if standing is KeyStatus.DOUBT else Verdict.GIVE

    def completing(self, copy: CopyT, now: float) -> None:
        """It is about to be completed: should nobody learn whether it was, the key is in doubt."""
        if copy.key is not None and self._store.standing(copy.key, now) is not KeyStatus.DONE:
            self._store.mark(copy.key, KeyStatus.DOUBT, now)

    def completed(self, copy: CopyT, now: float) -> list[CopyT]:
        """It is completed. The answer are those that are duplicates now."""
        if copy.key is None:
            return []
        self._store.mark(copy.key, KeyStatus.DONE, now)
        held = self._held.pop(copy.key, None)
        if held is None:
            return []
        if not _is_same(held.first, copy):
            # The application has that one too, by now, and is the one to settle it.
            self._held[copy.key] = _Held(held.first)
        return held.others

    def given_up(self, copy: CopyT, *, again: bool = False) -> None:
        """It was settled otherwise, or its lock is lost (`again`): the others may be given."""
        held = self._held.get(copy.key) if copy.key is not None else None
        if held is not None and held.first is copy and copy.key is not None:
            del self._held[copy.key]
            self._next.extend((each, again) for each in held.others)

    def expire(self, now: float) -> None:
        """Give up first ones whose locks have run out."""
        for held in [each for each in self._held.values() if each.first.until <= now]:
            self.given_up(held.first, again=True)

    def next(self, now: float) -> tuple[CopyT, bool] | None:
        """A copy whose first one was given up, locked still; and whether that one may have been dealt with."""
        while self._next:
            copy, again = self._next.popleft()
            if copy.until > now:
                return copy, again
        return None

    def held_with(self, copy: CopyT) -> list[CopyT]:
        """The others of a copy that is the application's."""
        held = self._held.get(copy.key) if copy.key is not None else None
        return list(held.others) if held is not None else []

    @property
    def waiting(self) -> list[CopyT]:
        """All that are locked and that nobody has been given."""
        return [*(each for held in self._held.values() for each in held.others), *(each for each, _ in self._next)]


def _is_same(one: Copy, other: Copy) -> bool:
    """Whether two deliveries are of one message in one queue."""
    return (one.side, one.number) == (other.side, other.number)
