"""FIFO of messages that wait for one destination, and which of them may be sent at the same time. Pure.

Invariant: of messages with an order among them, none is sent before those in front of it are accepted. All messages of
a destination have one order, until it turns out to accept only messages of one key in a batch: then it is partitioned,
and only messages of one key have an order among them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from sbpair.move.context import DEFAULT_BATCH_LIMITS
from sbpair.move.interface import get_place

if TYPE_CHECKING:
    from sbpair.move.interface import ReceivedMessage, RoutedMessage

MAX_ROUND = 1_000
"""How many messages are sent in one round. Those beyond a batch are sent in the next one."""


class DestinationQueue:
    """Waiting messages in backlog order, and the batches that the destination accepts, learnt from its refusals."""

    def __init__(self, *, ordered: bool = True, min_round: int = DEFAULT_BATCH_LIMITS.min_round) -> None:
        self._ordered = ordered
        self._min_round = min_round
        self._waiting: deque[RoutedMessage] = deque()
        self._by_key = self._one_by_one = False
        self._suspects: set[int] = set()
        self._all_accepted, self._mixed_keys = True, False

    def __len__(self) -> int:
        """Count waiting messages, without those being sent."""
        return len(self._waiting)

    def __iter__(self) -> Iterator[RoutedMessage]:
        return iter(self._waiting)

    @property
    def is_full_round(self) -> bool:
        """Whether a wait for more messages gains nothing: they are many, or are sent one by one anyway."""
        return len(self._waiting) >= self._min_round or not self._in_batches

    @property
    def _in_batches(self) -> bool:
        return not (self._by_key or self._one_by_one or self._suspects)

    def add(self, routed: Sequence[RoutedMessage]) -> None:
        """Add messages. A redelivery gets its old place, in front of those behind it in the backlog."""
        added = sorted(routed, key=get_place)
        if self._waiting and added[0].ordinal < self._waiting[-1].ordinal:
            self.put_back(added)
        else:
            self._waiting += added

    def take(self, limit: int) -> list[RoutedMessage]:
        if limit >= len(self._waiting):
            routed = list(self._waiting)
            self._waiting.clear()
            return routed
        return [self._waiting.popleft() for _ in range(min(limit, len(self._waiting)))]

    def put_back(self, routed: Iterable[RoutedMessage]) -> None:
        """Add messages that were not accepted, each in its old place."""
        back = sorted(routed, key=get_place)
        if back and self._waiting and back[-1].ordinal > self._waiting[0].ordinal:
            self._waiting = deque(sorted([*back, *self._waiting], key=get_place))
        else:
            self._waiting.extendleft(reversed(back))

    def drop(self, message: ReceivedMessage) -> bool:
        """Remove a message. Return False if it does not wait here."""
        for routed in self._waiting:
            if routed.message is message:
                self._waiting.remove(routed)
                return True
        return False

    def next_round(self, limit: int, max_groups: int) -> list[list[RoutedMessage]]:
        """Remove and return groups of messages that may be sent at the same time, each in order."""
        if self._in_batches:
            return [self.take(min(limit, MAX_ROUND))] if max_groups and self._waiting else []
        groups: dict[str | int | None, list[RoutedMessage]] = {}
        closed: set[str | int | None] = set()
        kept: list[RoutedMessage] = []
        for routed in self.take(min(limit, MAX_ROUND)):
            alone = self._one_by_one or routed.ordinal in self._suspects
            key = self._group_key(routed, alone=alone)
            group = groups.get(key)
            if key in closed or (alone and group) or (group is None and len(groups) == max_groups):
                closed.add(key)
                kept.append(routed)
                continue
            groups.setdefault(key, []).append(routed)
            if alone:
                closed.add(key)
        self._waiting.extendleft(reversed(kept))
        return list(groups.values())

    def _group_key(self, routed: RoutedMessage, *, alone: bool) -> str | int | None:
        """Return the key of messages that may not overtake each other."""
        if alone and not self._ordered:
            return routed.ordinal
        return partition_key_of(routed) if self._by_key else None

    def batch_refused(self, routed: Sequence[RoutedMessage]) -> None:
        """Send each of these alone from now on: one of them is the cause, or the batch as such."""
        self._suspects.update(each.ordinal for each in routed)
        self._all_accepted = True
        self._mixed_keys = len({partition_key_of(each) for each in routed}) > 1

    def sent_alone(self, routed: RoutedMessage, *, accepted: bool) -> None:
        """Record an outcome. If each message of a refused batch is accepted alone, the batch was the cause."""
        if routed.ordinal not in self._suspects:
            return
        self._suspects.discard(routed.ordinal)
        self._all_accepted = self._all_accepted and accepted
        if not self._suspects and self._all_accepted:
            self._one_by_one = self._one_by_one or not self._mixed_keys
            self._by_key = self._by_key or self._mixed_keys


def partition_key_of(routed: RoutedMessage) -> str | None:
    """Return the key that decides on the partition, unless the entity detects duplicates."""
    return routed.send.session_id or routed.message.partition_key
