"""Which backlog queues may be turned to. Pure: shared by all senders of a pair, and guarded by whoever shares it.

The law: a queue that failed is out for every sender until it has proved itself, by a probe or by taking a message.
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
        """`current` while it is in, else one at random that is; where none is, any may have to do."""
        if current is not None and current not in self._out:
            return current
        return choose([queue for queue in self._queues if queue not in self._out] or self._queues)

    def spares(self, queue: str) -> bool:
        """Whether there is another queue to turn to than this one."""
        return any(each != queue and each not in self._out for each in self._queues)

    def fail(self, queue: str) -> bool:
        """Take it out; False where it was out already."""
        was_in = queue not in self._out
        self._out.add(queue)
        return was_in

    def succeed(self, queue: str) -> bool:
        """Put it back; False where it was in already."""
        was_out = queue in self._out
        self._out.discard(queue)
        return was_out
