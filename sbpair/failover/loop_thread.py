"""A thread for the background work of programs that block."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import Context
from typing import Any


class LoopThread:
    """A thread with an event loop of its own, which runs one coroutine."""

    def __init__(self, coroutine: Coroutine[Any, Any, None], name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._task = self._loop.create_task(coroutine, context=Context())
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def call(self, function: Callable[[], object]) -> None:
        """Call a function in the loop, unless that has ended."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function)

    def cancel(self) -> None:
        self.call(self._task.cancel)

    def join(self, seconds: float) -> bool:
        """Wait until the coroutine has ended, except in this thread itself. Returns False if time is over first."""
        if threading.current_thread() is self._thread:
            return True
        self._thread.join(seconds)
        return not self.running

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner, suppress(asyncio.CancelledError):
            runner.get_loop().run_until_complete(self._task)
