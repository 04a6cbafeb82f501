"""Receivers that wait for messages, and the call that wakes them soon."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

CallSoon = Callable[[Callable[[], None]], object]
"""Schedules a callback: a loop's `call_soon`, so that a burst of sends wakes a receiver once; `call_now` in tests."""


def call_now(callback: Callable[[], None]) -> None:
    callback()


class Consumer(Protocol):
    """A receiver with credit. Compared and hashed by identity."""

    def wake(self) -> None:
        """React to messages that may be there: call `receive` now with the credit there is, and nothing else."""


class Waker:
    """Schedules `wake` once for a burst of reasons, and never while it runs."""

    __slots__ = ("_call_soon", "_wake", "is_pending", "is_running")

    def __init__(self, call_soon: CallSoon, wake: Callable[[], None]) -> None:
        self._call_soon = call_soon
        self._wake = wake
        self.is_pending = False
        """Whether `wake` is scheduled or running."""
        self.is_running = False

    def schedule(self) -> None:
        if not self.is_pending:
            self.is_pending = True
            self._call_soon(self._run)

    def _run(self) -> None:
        self.is_running = True
        try:
            self._wake()
        finally:
            self.is_running = self.is_pending = False
