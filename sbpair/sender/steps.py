"""One way to write a step that may wait, for callers that block and for those that await.

A procedure is a generator. It yields a Call where something is to be done outside, and is given what came of it: the
answer, or the error, raised in its place. The two drivers at the end are all that differs between sync and async.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
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


Steps: TypeAlias = Generator[Call | Pause, Any, T]


def run(steps: Steps[T]) -> T:
    """Block until it is done. The SDK's sync clients keep their time-outs themselves: nobody else could."""

    try:
        step = next(steps)
        while True:
            try:
                answer = None
                if isinstance(step, Call):
                    answer = step.use(step.on, step.seconds)
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

    try:
        step = next(steps)
        while True:
            try:
                answer = step.use(step.on, step.seconds) if isinstance(step, Call) else asyncio.sleep(step.seconds)
                if isinstance(answer, Coroutine):
                    async with asyncio.timeout(step.seconds + GRACE_SECONDS):
                        answer = await answer
            except BaseException as error:  # noqa: BLE001  the procedure decides, a cancellation included
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as done:
        result: T = done.value
        return result
