"""The timers of one client: pings, probes and outbox deliveries, in one queue. No I/O, no clock."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Ping:
    """Send a ping to an entity of the primary, and report the result with `pinged`."""

    entity: str


@dataclass(frozen=True, slots=True)
class Probe:
    """Check whether a backlog queue accepts links again, and report the result with `probed`."""

    queue: str


@dataclass(frozen=True, slots=True)
class Deliver:
    """Deliver an entity's messages from the outbox, and report the end with `outbox_emptied` or `outbox_remains`."""

    entity: str


TimerTask: TypeAlias = Ping | Probe | Deliver


class EntityTimers:
    """Timer tasks and the times when they are due, earliest first. `on_earlier` is called when the first one changes.

    Setting a task again replaces its time. The caller provides the lock.
    """

    def __init__(self) -> None:
        self.on_earlier: Callable[[], None] = lambda: None
        self._due: dict[TimerTask, float] = {}
        self._heap: list[tuple[float, int, TimerTask]] = []
        self._count = 0

    def set(self, task: TimerTask, when: float) -> None:
        first = self._heap[0][0] if self._heap else None
        self._count += 1
        self._due[task] = when
        heapq.heappush(self._heap, (when, self._count, task))
        if first is None or when < first:
            self.on_earlier()

    def cancel(self, task: TimerTask) -> None:
        self._due.pop(task, None)

    def next_due(self) -> float | None:
        """Return when the first task is due, or None without tasks."""
        while self._heap and self._due.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now: float) -> TimerTask | None:
        """Remove and return the first task if it is due."""
        when = self.next_due()
        if when is None or when > now:
            return None
        task = heapq.heappop(self._heap)[2]
        del self._due[task]
        return task
