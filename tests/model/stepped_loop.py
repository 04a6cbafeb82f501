"""An event loop in which time stands still, and that runs until nothing is ready."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any


class SteppedLoop(asyncio.SelectorEventLoop):
    """A loop whose time stands still. `timers` are what waits for a time, with the name and the work of its task."""

    def __init__(self) -> None:
        super().__init__()
        self.timers: list[tuple[str, str, asyncio.TimerHandle, Callable[..., object], tuple[Any, ...]]] = []
        self.broken: list[dict[str, Any]] = []
        self.set_exception_handler(lambda _, context: self.broken.append(context))

    def time(self) -> float:
        return 0.0

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        handle = super().call_at(when, callback, *args, context=context)
        task = asyncio.current_task(self)
        if task is not None and when > 0.0:
            work = getattr(task.get_coro(), "__qualname__", "")
            self.timers.append((task.get_name(), work, handle, callback, args))
        return handle

    def do(self, *steps: Callable[[], object]) -> None:
        """Take steps in the loop, and run until it is quiet."""
        for step in steps:
            self.call_soon(step)
        self.run_until_quiet()

    def run_until_quiet(self) -> None:
        """Run until all that is left waits for somebody else, or for a time."""
        while True:
            self.call_soon(self.stop)
            self.run_forever()
            if not self._ready:  # type: ignore[attr-defined]  # there is no other way to learn that
                break
        assert not self.broken, self.broken

    def end_wait(self, name: str) -> None:
        """End the wait of a task for a time. `name` is the task's, or that of its work."""
        self.timers = [each for each in self.timers if not (each[2].cancelled() or each[2].when() <= 0.0)]
        found = [each for each in self.timers if name in each[:2]]
        assert found, f"{name} does not wait for a time: {self.timers}"
        _, _, handle, callback, args = found[-1]
        handle.cancel()
        self.call_soon(callback, *args)
        self.run_until_quiet()
