"""The order of callbacks: which of those that a real loop could run later, or earlier, a schedule does.

Each decision is about one subject that may be late, such as a connection. It is known by its number among those about
this subject, or by its time: with fewer messages in a schedule, one of them often stays the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, MutableSet
from dataclasses import dataclass
from random import Random
from typing import Any, Final

RATES: Final = (0.02, 0.1, 0.4, 0.7)
"""How often a decision deviates from plain order: few deviations find what many hide."""


@dataclass(frozen=True, slots=True)
class Deviation:
    """A decision by which a subject was late. `what` says how."""

    subject: str
    number: int
    at: float
    what: str

    def __str__(self) -> str:
        return f"at {self.at:.6f} s, {self.subject} {self.what}"


@dataclass(frozen=True, slots=True)
class Order:
    """What is late: with a `seed`, each subject with the probability `rate`; else `deviations`, and nothing more.

    `by_time`, they are known by their times instead of their numbers.
    """

    seed: int = 0
    rate: float = 0.0
    deviations: tuple[Deviation, ...] = ()
    by_time: bool = False

    @property
    def is_plain(self) -> bool:
        return not self.seed and not self.deviations


PLAIN: Final = Order()


def order_of(seed: int) -> Order:
    """Return the order of a schedule: plain in one of three."""
    random = Random(f"order {seed}")
    drawn = Order(random.randrange(1, 1 << 32), random.choice(RATES))
    return random.choice((PLAIN, drawn, drawn))


class Decisions:
    """The decisions of one run. `made` are its deviations."""

    def __init__(self, order: Order) -> None:
        self.made: list[Deviation] = []
        self._order = order
        self._random = Random(order.seed)
        self._numbers: Counter[str] = Counter()
        self._wanted = Counter((each.subject, each.at if order.by_time else each.number) for each in order.deviations)

    def is_late(self, subject: str, at: float, what: str | Callable[[], str]) -> bool:
        number = self._numbers[subject] = self._numbers[subject] + 1
        if self._order.seed:
            late = self._random.random() < self._order.rate
        else:
            key = (subject, at if self._order.by_time else number)
            late = self._wanted[key] > 0
            self._wanted[key] -= late
        if late:
            self.made.append(Deviation(subject, number, at, what() if callable(what) else what))
        return late


class InOrder(MutableSet[Any]):
    """A set that is walked in the order of its making."""

    def __init__(self, members: Iterable[Any] = ()) -> None:
        self._members = dict.fromkeys(members)

    def __contains__(self, member: object) -> bool:
        return member in self._members

    def __iter__(self) -> Iterator[Any]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def add(self, value: Any) -> None:
        self._members[value] = None

    def discard(self, value: Any) -> None:
        self._members.pop(value, None)

    def update(self, members: Iterable[Any]) -> None:
        self._members.update(dict.fromkeys(members))


class Backwards(InOrder):
    """A set that is walked in another order."""

    def __iter__(self) -> Iterator[Any]:
        return reversed(self._members)
