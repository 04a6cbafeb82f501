"""asyncio.timeout for somebody who needs one for each message: the same, by a single timer that is put off.

The law: it watches over one task at a time. Where nothing times out, no timer is made or cancelled for it.
"""

from __future__ import annotations

import asyncio
from types import TracebackType


class ReusableTimeout:
    def __init__(self) -> None:
        self._task: asyncio.Task[object] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._timed_out = False
        self._cancellations = 0

    def over(self, seconds: float) -> ReusableTimeout:
        """`with watch.over(5):` raises TimeoutError where what is awaited inside takes longer."""
        self._task = task = asyncio.current_task()
        if task is None:
            raise RuntimeError("only a task can be watched over")
        self._cancellations = task.cancelling()
        loop = asyncio.get_running_loop()
        self._due = due = loop.time() + seconds
        if self._timer is None or due < self._timer.when():
            self._set(loop)
        return self

    def end(self) -> None:
        """Let go of the timer."""
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
            # As asyncio.timeout does it: a cancellation by somebody else stays one.
            if task.uncancel() <= self._cancellations and kind is asyncio.CancelledError:
                raise TimeoutError from error

    def _set(self, loop: asyncio.AbstractEventLoop) -> None:
        self.end()
        self._timer = loop.call_at(self._due, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        if self._task is None:
            return
        if loop.time() < self._due:
            self._set(loop)
        else:
            self._timed_out = True
            self._task.cancel()
