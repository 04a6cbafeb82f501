"""One way to write a step that may wait, for callers that block and for those that await.

A procedure is a generator. It yields a Call where something is to be done outside, and is given what came of it: the
answer, or the error, raised in its place. The two drivers at the end are all that differs between sync and async.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Generator
from dataclasses import dataclass
from time import sleep
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")

GRACE_SECONDS = 1.0
"""The SDK is given so much longer than its own time-out to notice that it is over."""


@dataclass(frozen=True, slots=True)
class Call:
    """Do it, and await what it answers where that can be awaited, for at most about so many seconds."""

    do: Callable[[], Any]
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Pause:
    seconds: float


Steps: TypeAlias = Generator[Call | Pause, Any, T]


def run(steps: Steps[T]) -> T:
    """Block until it is done. The SDK's sync clients keep their time-outs themselves: nobody else could."""

    def perform(step: Call | Pause) -> Any:
        return sleep(step.seconds) if isinstance(step, Pause) else step.do()

    try:
        step = next(steps)
        while True:
            try:
                answer = perform(step)
            except BaseException as error:  # noqa: BLE001  the procedure decides, an interrupt included
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as done:
        result: T = done.value
        return result


async def run_async(steps: Steps[T]) -> T:
    """Await until it is done."""

    async def perform(step: Call | Pause) -> Any:
        if isinstance(step, Pause):
            return await asyncio.sleep(step.seconds)
        answer = step.do()
        if not inspect.isawaitable(answer):
            return answer
        async with asyncio.timeout(None if step.seconds is None else step.seconds + GRACE_SECONDS):
            return await answer

    try:
        step = next(steps)
        while True:
            try:
                answer = await perform(step)
            except BaseException as error:  # noqa: BLE001  the procedure decides, a cancellation included
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as done:
        result: T = done.value
        return result
