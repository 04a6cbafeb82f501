"""One destination: what waits for it, in backlog order, and which of it may be on its way at the same time. Pure.

The law: of messages that have an order among them, none leaves before those in front of it are accepted. All messages
of a destination have one, until it turns out to take only messages of one key in a batch: then it is partitioned, knows
no order between keys, and those of a key have one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from sbpair.move.batch_limits import DEFAULT_BATCH_LIMITS
from sbpair.move.interface import get_ordinal

if TYPE_CHECKING:
    from sbpair.move.interface import ReceivedMessage, RoutedMessage

MAX_ROUND = 1_000
"""How many messages leave in one round. What is larger than a batch goes in the next one."""


class DestinationQueue:
    """`failures` counts those in a row; `resting` is why it takes nothing for now; `workers` are those who send.

    `cost` is what a message costs in credits, once that is known.
    """

    def __init__(
        self, destination: str, *, ordered: bool = True, min_round: int = DEFAULT_BATCH_LIMITS.min_round
    ) -> None:
        self.destination = destination
        self.failures = 0
        self.resting: str | None = None
        self.workers = 0
        self.cost: float | None = None
        self._ordered = ordered
        self._min_round = min_round
        self._waiting: deque[RoutedMessage] = deque()
        self._keyed = self._singly = False
        self._suspects: set[int] = set()
        self._blameless, self._mixed = True, False

    def __len__(self) -> int:
        """How many messages wait; those on their way are not among them."""
        return len(self._waiting)

    def __iter__(self) -> Iterator[RoutedMessage]:
        return iter(self._waiting)

    @property
    def is_due(self) -> bool:
        """Whether waiting for more messages would spare nothing: there are many, or they leave one by one anyway."""
        together = not (self._keyed or self._singly or self._suspects)
        return len(self._waiting) >= self._min_round or not together or self.resting is not None

    def add(self, orders: Sequence[RoutedMessage]) -> None:
        """Messages have come; one that comes again has its old place, in front of those behind it in the backlog."""
        come = sorted(orders, key=get_ordinal)
        if self._waiting and come[0].ordinal < self._waiting[-1].ordinal:
            self.put_back(come)
        else:
            self._waiting += come

    def take(self, limit: int) -> list[RoutedMessage]:
        """The first ones, off the road."""
        if limit >= len(self._waiting):
            orders = list(self._waiting)
            self._waiting.clear()
            return orders
        return [self._waiting.popleft() for _ in range(min(limit, len(self._waiting)))]

    def put_back(self, orders: Iterable[RoutedMessage]) -> None:
        """What did not get through waits again, in its old place: in front of what came later."""
        back = sorted(orders, key=get_ordinal)
        if back and self._waiting and back[-1].ordinal > self._waiting[0].ordinal:
            self._waiting = deque(sorted([*back, *self._waiting], key=get_ordinal))
        else:
            self._waiting.extendleft(reversed(back))

    def drop(self, arrival: ReceivedMessage) -> bool:
        """Take one that waits off the road, for it is no longer ours. False where it does not wait."""
        for order in self._waiting:
            if order.message is arrival:
                self._waiting.remove(order)
                return True
        return False

    def next_round(self, limit: int, max_groups: int) -> list[list[RoutedMessage]]:
        """Groups of messages that may leave at the same time, each in order; taken off the road."""
        if not (self._keyed or self._singly or self._suspects):
            return [self.take(min(limit, MAX_ROUND))] if max_groups and self._waiting else []
        groups: dict[str | int | None, list[RoutedMessage]] = {}
        closed: set[str | int | None] = set()
        kept: list[RoutedMessage] = []
        for order in self.take(min(limit, MAX_ROUND)):
            alone = self._singly or order.ordinal in self._suspects
            key = self._key(order, alone=alone)
            group = groups.get(key)
            if key in closed or (alone and group) or (group is None and len(groups) == max_groups):
                closed.add(key)
                kept.append(order)
                continue
            groups.setdefault(key, []).append(order)
            if alone:
                closed.add(key)
        self._waiting.extendleft(reversed(kept))
        return list(groups.values())

    def _key(self, order: RoutedMessage, *, alone: bool) -> str | int | None:
        """What messages have in common that may not overtake each other."""
        if alone and not self._ordered:
            return order.ordinal
        return partition_key_of(order) if self._keyed else None

    # What the destination has said.

    def refused_together(self, orders: Sequence[RoutedMessage]) -> None:
        """It does not take these in one batch: one of them is to blame, or the batch. Each goes alone now."""
        self._suspects.update(order.ordinal for order in orders)
        self._blameless = True
        self._mixed = len({partition_key_of(order) for order in orders}) > 1

    def answered_alone(self, order: RoutedMessage, *, accepted: bool) -> None:
        """One that was refused together with others has left by itself. Where none is to blame, it is the batch."""
        if order.ordinal not in self._suspects:
            return
        self._suspects.discard(order.ordinal)
        self._blameless = self._blameless and accepted
        if not self._suspects and self._blameless:
            self._singly = self._singly or not self._mixed
            self._keyed = self._keyed or self._mixed


def partition_key_of(order: RoutedMessage) -> str | None:
    """What decides on the partition of a message in a partitioned entity, unless it detects duplicates."""
    return order.send.session_id or order.message.partition_key
