"""The backlog queues that may be used. Pure; the callers that share a rotation provide the lock.

Invariant: a queue that failed is out for every sender until a probe or a message gets through.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

Choose = Callable[[Sequence[str]], str]


class Rotation:
    """The backlog queues of a pair, by path."""

    def __init__(self, queues: Sequence[str]) -> None:
        self._queues = tuple(queues)
        self._out: set[str] = set()

    @property
    def out(self) -> frozenset[str]:
        return frozenset(self._out)

    def pick(self, current: str | None, choose: Choose) -> str:
        """Return `current` while it is in, else a random queue that is in, else any queue."""
        if current is not None and current not in self._out:
            return current
        return choose([queue for queue in self._queues if queue not in self._out] or self._queues)

    def has_alternative(self, queue: str) -> bool:
        """Return whether another queue than this one is in."""
        return any(each != queue and each not in self._out for each in self._queues)

    def fail(self, queue: str) -> bool:
        """Take a queue out. Returns False if it was out."""
        was_in = queue not in self._out
        self._out.add(queue)
        return was_in

    def succeed(self, queue: str) -> bool:
        """Put a queue back in. Returns False if it was in."""
        was_out = queue in self._out
        self._out.discard(queue)
        return was_out
