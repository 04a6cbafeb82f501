"""Trying again what may work a little later. The only place where management calls are repeated.

The SDK's own retries are switched off: two of them, one inside the other, multiply.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from sbpair.errors import SbpairError, Throttled
from sbpair.model import Retrying

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

Result = TypeVar("Result")

ATTEMPTS = 3
FIRST_WAIT_SECONDS = 1.0
GROWTH = 4.0
# What the SDKs wait for, too: less, and the service counts the attempt against the namespace again.
THROTTLED_WAIT_SECONDS = 10.0


async def attempt(
    what: str,
    action: Callable[[], Awaitable[Result]],
    *,
    sleep: Callable[[float], Awaitable[object]],
    on_event: Callable[[Retrying], object],
) -> Result:
    """`action()`, up to three times while its error is retriable; the last error is raised as it is."""
    for number in range(1, ATTEMPTS):
        try:
            return await action()
        except SbpairError as error:
            if not error.retriable:
                raise
            wait = wait_seconds(number, error)
            on_event(Retrying(what, number, wait, error.message))
        await sleep(wait)
    return await action()


def wait_seconds(number: int, error: SbpairError) -> float:
    """How long to wait after the failed attempt `number`, counted from 1."""
    backed_off: float = FIRST_WAIT_SECONDS * GROWTH ** (number - 1)
    return max(backed_off, THROTTLED_WAIT_SECONDS) if isinstance(error, Throttled) else backed_off
