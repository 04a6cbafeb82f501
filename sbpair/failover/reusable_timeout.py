"""An asyncio.timeout that is used once per message, with a single timer that is postponed.

Invariant: it guards one task at a time. A use that does not time out creates and cancels no timer.
"""

from __future__ import annotations

import asyncio
from types import TracebackType


class ReusableTimeout:
    """A context manager by `limit`. Call `cancel` when it is no longer needed."""

    def __init__(self) -> None:
        self._task: asyncio.Task[object] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._timed_out = False
        self._cancellations = 0

    def limit(self, seconds: float) -> ReusableTimeout:
        """Limit a block: `with timeout.limit(5):` raises TimeoutError if it takes longer."""
        self._task = task = asyncio.current_task()
        if task is None:
            raise RuntimeError("only a task can have a timeout")
        self._cancellations = task.cancelling()
        loop = asyncio.get_running_loop()
        self._due = due = loop.time() + seconds
        if self._timer is None or due < self._timer.when():
            self._schedule(loop)
        return self

    def cancel(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _at: TracebackType | None
    ) -> None:
        task, self._task = self._task, None
        if self._timed_out and task is not None:
            self._timed_out = False
            # As in asyncio.timeout, a foreign cancellation stays a cancellation.
            if task.uncancel() <= self._cancellations and kind is asyncio.CancelledError:
                raise TimeoutError from error

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        self.cancel()
        self._timer = loop.call_at(self._due, self._on_timer, loop)

    def _on_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        if self._task is None:
            return
        if loop.time() < self._due:
            self._schedule(loop)
        else:
            self._timed_out = True
            self._task.cancel()
