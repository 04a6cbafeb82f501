"""One way to write a step that may wait, for callers that block and for those that await.

A procedure is a generator. It yields a Call where something is to be done outside, and is given what came of it: the
answer, or the error, raised in its place. The two drivers at the end are all that differs between sync and async.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from time import sleep
from typing import Any, NamedTuple, TypeAlias, TypeVar

T = TypeVar("T")

GRACE_SECONDS = 1.0
"""The SDK is given so much longer than its own time-out to notice that it is over."""


class Call(NamedTuple):
    """Use the SDK's object, in so many seconds, and await what that answers where it can be awaited."""

    use: Callable[[Any, float], Any]
    on: Any
    seconds: float


class Pause(NamedTuple):
    seconds: float


class Work(NamedTuple):
    """Do something that waits for this machine alone; where others may not wait with it, in a thread."""

    do: Callable[[], Any]


class Gather(NamedTuple):
    """Go through several procedures at the same time. The answer is what each of them came to, in their order."""

    procedures: tuple[Generator[Any, Any, Any], ...]


Step: TypeAlias = Call | Pause | Work | Gather
Steps: TypeAlias = Generator[Step, Any, T]


def run(steps: Steps[T]) -> T:
    """Block until it is done. The SDK's sync clients keep their time-outs themselves: nobody else could."""

    try:
        step = next(steps)
        while True:
            try:
                answer = None
                if isinstance(step, Call):
                    answer = step.use(step.on, step.seconds)
                elif isinstance(step, Work):
                    answer = step.do()
                elif isinstance(step, Gather):
                    answer = _in_threads(step)
                else:
                    sleep(step.seconds)
            except BaseException as error:  # noqa: BLE001  the procedure decides, an interrupt included
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as done:
        result: T = done.value
        return result


async def run_async(steps: Steps[T]) -> T:
    """Await until it is done."""

    task = asyncio.current_task()
    cancelled = task.cancelling() if task else 0
    try:
        step = next(steps)
        while True:
            try:
                answer = await _awaited(step)
                if not answer and isinstance(step, Call):
                    _check_kept(task, cancelled)
            except BaseException as error:  # noqa: BLE001  the procedure decides, a cancellation included
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as done:
        result: T = done.value
        return result


async def _awaited(step: Step) -> Any:
    if isinstance(step, Work):
        return await _to_its_end(asyncio.create_task(asyncio.to_thread(step.do)))
    if isinstance(step, Gather):
        return await _in_tasks(step)
    if isinstance(step, Pause):
        return await asyncio.sleep(step.seconds)
    answer = step.use(step.on, step.seconds)
    if not isinstance(answer, Coroutine):
        return answer
    async with asyncio.timeout(step.seconds + GRACE_SECONDS):
        return await answer


async def _to_its_end(working: asyncio.Task[T]) -> T:
    """A thread cannot be called off: whoever gives up waits for it still, and knows then that it has ended."""
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        await asyncio.wait((working,))
        raise


def _check_kept(task: asyncio.Task[Any] | None, cancelled: int) -> None:
    """The SDK keeps some cancellations to itself: whoever asked for one would wait on."""
    if task and task.cancelling() > cancelled:
        raise asyncio.CancelledError


def _in_threads(step: Gather) -> list[Any]:
    """None is left behind: each ends when the SDK's own time-out does, at the latest."""
    first, *others = step.procedures
    with ThreadPoolExecutor(max(1, len(others)), thread_name_prefix="sbpair") as threads:
        pending = [threads.submit(run, each) for each in others]
        return [run(first), *(each.result() for each in pending)]


async def _in_tasks(step: Gather) -> list[Any]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(run_async(each)) for each in step.procedures]
    return [each.result() for each in tasks]
