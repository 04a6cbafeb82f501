"""Procedures that may wait, written once for callers that block and callers that await.

A procedure is a generator. It yields a step for each outside action and receives the result, or the error is raised at
the `yield`. The two drivers below are the only difference between sync and async.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from time import sleep
from typing import Any, NamedTuple, TypeAlias, TypeVar

T = TypeVar("T")

GRACE_SECONDS = 1.0
"""How much longer than its own timeout the SDK may take to notice that the time is over."""


class Call(NamedTuple):
    """Call `action(target, seconds)` on an object of the SDK, and await the result if it is awaitable."""

    action: Callable[[Any, float], Any]
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
                if not answer and isinstance(step, Call):
                    _raise_swallowed_cancellation(task, cancelled)
            except BaseException as error:  # noqa: BLE001  the procedure decides, a cancellation included
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as done:
        result: T = done.value
        return result


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


def _raise_swallowed_cancellation(task: asyncio.Task[Any] | None, cancelled: int) -> None:
    """Raise a cancellation that the SDK swallowed: the canceller would wait forever."""
    if task and task.cancelling() > cancelled:
        raise asyncio.CancelledError


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
