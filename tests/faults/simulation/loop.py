"""An event loop whose time is virtual: when nothing is ready it jumps to the next timer, and nothing ever really waits.

What runs in a Process can be killed between two callbacks, as `kill -9` does: nothing of it runs any more, no cleanup
either. It can be frozen too, as SIGSTOP does: time goes by, and it learns of nothing. Tasks hash by their number, so
that a set of them is walked in the same order in every run.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any

TURNS_AT_ONE_TIME = 10_000
"""So many turns of the loop without any time going by are a busy loop."""

MAX_TURNS = 500_000

PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)


class Stuck(AssertionError):
    """Nothing will ever happen again, or something happens all the time and leads nowhere."""


class Cancellable:
    """A callback of a process. One that is held does not run if its handle is cancelled meanwhile."""

    def __init__(self, callback: Callable[..., object]) -> None:
        self._callback = callback
        self.handle: asyncio.Handle | None = None

    def __call__(self, *arguments: Any) -> None:
        if self.handle is None or not self.handle.cancelled():
            self._callback(*arguments)


class Process:
    """What runs together, and can be killed together."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.dead = self.frozen = False
        self.tasks: list[asyncio.Task[Any]] = []
        self.lose: list[Callable[[], None]] = []
        self._held: list[tuple[Callable[..., object], tuple[Any, ...], Context]] = []

    def start(self, loop: VirtualLoop, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        context = copy_context()
        context.run(PROCESS.set, self)
        return loop.create_task(coroutine, context=context, name=self.name)

    def run(self, callback: Callable[..., object], *arguments: Any) -> None:
        if self.dead or self.frozen:
            self._held.append((callback, arguments, copy_context()))
        else:
            callback(*arguments)

    def thaw(self, loop: VirtualLoop) -> None:
        """Go on with all that has come up since it was frozen, in its order."""
        self.frozen = False
        if not self.dead:
            held, self._held = self._held, []
            for callback, arguments, context in held:
                loop.call_soon(callback, *arguments, context=context)

    async def bury(self, loop: VirtualLoop) -> None:
        """Let what is left of it end, when nothing that it does can matter any more."""
        self.dead = False
        self.thaw(loop)
        for lose in self.lose:
            lose()
        for task in self.tasks:
            task.cancel()
        if self.tasks:
            await asyncio.wait(self.tasks)


class Numbered(asyncio.Task[Any]):
    def __init__(self, coroutine: Coroutine[Any, Any, Any], *, number: int, **options: Any) -> None:
        self._number = number
        super().__init__(coroutine, **options)

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


class _Jump(selectors.DefaultSelector):
    """Waits by moving the loop's time."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[Any]:
        self.loop.passed(timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._now = 0.0
        self._turns = self._turns_now = self._tasks_made = 0
        selector = _Jump()
        selector.loop = self
        super().__init__(selector)
        self._clock_resolution = 1e-6
        self.broken: list[dict[str, Any]] = []
        self.connect: Callable[..., Coroutine[Any, Any, Any]] | None = None
        self.set_task_factory(self._make_task)
        self.set_exception_handler(lambda _, context: self.broken.append(context))

    def time(self) -> float:
        return self._now

    def passed(self, seconds: float | None) -> None:
        self._turns += 1
        if seconds is None:
            raise Stuck(f"nothing will ever happen after {self._now:.3f} s")
        if seconds > 0:
            self._now += seconds
            self._turns_now = 0
            return
        self._turns_now += 1
        if self._turns_now > TURNS_AT_ONE_TIME or self._turns > MAX_TURNS:
            raise Stuck(f"a busy loop at {self._now:.3f} s")

    def be_patient(self) -> None:
        """What went wrong has been noted: let it end."""
        self._turns = self._turns_now = 0

    def _make_task(self, _: Any, coroutine: Any, **options: Any) -> Numbered:
        self._tasks_made += 1
        task = Numbered(coroutine, number=self._tasks_made, loop=self, **options)
        context = options.get("context")
        process = PROCESS.get() if context is None else context.get(PROCESS)
        if process is not None:
            process.tasks.append(task)
            task.add_done_callback(process.tasks.remove, context=Context())
        return task

    def call_soon(self, callback: Any, *arguments: Any, context: Context | None = None) -> asyncio.Handle:
        process = PROCESS.get() if context is None else context.get(PROCESS)
        if process is not None:
            held = Cancellable(callback)
            held.handle = super().call_soon(process.run, held, *arguments, context=context)
            return held.handle
        return super().call_soon(callback, *arguments, context=context)

    def call_at(
        self, when: float, callback: Any, *arguments: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        process = PROCESS.get() if context is None else context.get(PROCESS)
        if process is not None:
            held = Cancellable(callback)
            held.handle = timer = super().call_at(when, process.run, held, *arguments, context=context)
            return timer
        return super().call_at(when, callback, *arguments, context=context)

    def run_in_executor(self, executor: Any, func: Any, *arguments: Any) -> Any:
        """Threads have a time of their own: what they are wanted for is done at once."""
        del executor
        done: asyncio.Future[Any] = self.create_future()
        try:
            done.set_result(func(*arguments))
        except Exception as error:  # noqa: BLE001  it belongs to whoever waits
            done.set_exception(error)
        return done

    async def create_connection(self, factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:
        del options
        assert self.connect is not None, "there is no network"
        return await self.connect(factory, host, port)
