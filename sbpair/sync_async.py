"""Sync and async from one source: procedures for callers that block and callers that await, and loops in threads.

A procedure is a generator. It yields a step for each outside action and receives the result, or the error is raised at
the `yield`. The two drivers below are the only difference between sync and async.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import Context
from functools import wraps
from inspect import signature
from time import sleep
from types import TracebackType
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeAlias, TypeVar

from sbpair.errors import UsageError

P = ParamSpec("P")
T = TypeVar("T")

GRACE_SECONDS = 1.0
"""How much longer than its own timeout the SDK may take to notice that the time is over."""


Action: TypeAlias = Callable[[Any, float], Any]
"""A function of an object and a number of seconds."""


class Call(NamedTuple):
    """Call `action(target, seconds)`, such as on an object of the SDK, and await the result if it is awaitable."""

    action: Action
    target: Any
    seconds: float


class Pause(NamedTuple):
    seconds: float


class Work(NamedTuple):
    """Blocking work on this machine. The async driver runs it in a thread."""

    function: Callable[[], Any]


class Gather(NamedTuple):
    """Several procedures run concurrently. The result is the list of their results, in order."""

    procedures: tuple[Generator[Any, Any, Any], ...]


Step: TypeAlias = Call | Pause | Work | Gather
Steps: TypeAlias = Generator[Step, Any, T]


def drive(steps: Steps[T]) -> T:
    """Run a procedure to its end and block meanwhile. The SDK's sync clients enforce their timeouts themselves."""
    try:
        step = next(steps)
        while True:
            try:
                answer = _performed(step)
            except BaseException as error:  # noqa: BLE001  the procedure decides, an interrupt included
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as done:
        result: T = done.value
        return result


async def drive_async(steps: Steps[T]) -> T:
    """Run a procedure to its end and await meanwhile."""
    task = asyncio.current_task()
    cancelled = task.cancelling() if task else 0
    try:
        step = next(steps)
        while True:
            try:
                answer = await _awaited(step)
                if not answer and isinstance(step, Call) and task and task.cancelling() > cancelled:
                    # The SDK swallowed the cancellation, and the canceller would wait forever.
                    raise asyncio.CancelledError  # noqa: TRY301
            except BaseException as error:  # noqa: BLE001  the procedure decides, a cancellation included
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as done:
        result: T = done.value
        return result


def blocking(steps: Callable[Concatenate[Any, P], Steps[T]]) -> Callable[Concatenate[Any, P], T]:
    """Return a method that runs a procedure of an object in its turn, and blocks until it ends."""

    @wraps(steps)
    def method(self: Any, /, *arguments: P.args, **options: P.kwargs) -> T:
        with self._turn:
            return drive(steps(self, *arguments, **options))

    _describe(method, steps)
    return method


def awaiting(steps: Callable[Concatenate[Any, P], Steps[T]]) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """Return an async method that runs a procedure of an object in its turn."""

    @wraps(steps)
    async def method(self: Any, /, *arguments: P.args, **options: P.kwargs) -> T:
        async with self._turn:
            return await drive_async(steps(self, *arguments, **options))

    _describe(method, steps)
    return method


def _describe(method: Any, steps: Callable[..., Steps[Any]]) -> None:
    """Give a method the public name of its procedure, and a signature with the result instead of the steps."""
    method.__name__ = method.__qualname__ = steps.__name__.removeprefix("_")
    result = str(steps.__annotations__["return"]).removeprefix("Steps[").removesuffix("]")
    method.__signature__ = signature(steps).replace(return_annotation=result)


def _performed(step: Step) -> Any:
    if isinstance(step, Call):
        return step.action(step.target, step.seconds)
    if isinstance(step, Work):
        return step.function()
    if isinstance(step, Gather):
        return _in_threads(step)
    return sleep(step.seconds)


async def _awaited(step: Step) -> Any:
    if isinstance(step, Work):
        return await _uninterrupted(asyncio.create_task(asyncio.to_thread(step.function)))
    if isinstance(step, Gather):
        return await _in_tasks(step)
    if isinstance(step, Pause):
        return await asyncio.sleep(step.seconds)
    answer = step.action(step.target, step.seconds)
    if not isinstance(answer, Coroutine):
        return answer
    async with asyncio.timeout(step.seconds + GRACE_SECONDS):
        return await answer


async def _uninterrupted(working: asyncio.Task[T]) -> T:
    """Await a thread's work. A thread cannot be cancelled, so a cancelled caller waits until it has ended."""
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        await asyncio.wait((working,))
        raise


def _in_threads(step: Gather) -> list[Any]:
    """Wait for every thread: each ends with the SDK's own timeout at the latest."""
    first, *others = step.procedures
    with ThreadPoolExecutor(max(1, len(others)), thread_name_prefix="sbpair") as threads:
        pending = [threads.submit(drive, each) for each in others]
        return [drive(first), *(each.result() for each in pending)]


async def _in_tasks(step: Gather) -> list[Any]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(drive_async(each)) for each in step.procedures]
    return [each.result() for each in tasks]


class ReusableTimeout:
    """An asyncio.timeout that is used once per message, with a single timer that is postponed.

    Invariant: it guards one task at a time. A use that does not time out creates and cancels no timer.
    """

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


class LoopThread:
    """A thread with an event loop of its own. It ends with `work`, or by `end`."""

    def __init__(self, name: str, work: Coroutine[Any, Any, object] | None = None) -> None:
        self._loop = asyncio.new_event_loop()
        self._task = self._loop.create_task(work or asyncio.Event().wait(), context=Context())
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop, and return its result. Raises UsageError after the end, or in the loop."""
        if not self.running or threading.current_thread() is self._thread:
            coroutine.close()
            raise UsageError("this object has been closed, or is used by its own event loop", hint="make another one")
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def call(self, function: Callable[[], object]) -> None:
        """Call a function in the loop, unless that has ended."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function)

    def end(self, seconds: float | None = None) -> None:
        """Cancel all that runs in the loop, and wait until the thread has ended, at most `seconds`."""
        self.call(self._task.cancel)
        self.join(seconds)

    def join(self, seconds: float | None) -> bool:
        """Wait until the thread has ended, except in this thread itself. Returns False if time is over first."""
        if threading.current_thread() is self._thread:
            return True
        self._thread.join(seconds)
        return not self.running

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner, suppress(asyncio.CancelledError):
            runner.get_loop().run_until_complete(self._task)
