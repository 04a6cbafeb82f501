"""The event loop of a command, and its signal handlers.

A signal of `operating_system.signals` cancels. A command that can stop gracefully stops on the first one, and stops at
once on the second. Once it is done, it prints its result in spite of the next one.
"""

import asyncio
import gc
from collections.abc import Awaitable, Callable
from typing import TypeVar

from sbpair.operating_system import signals

HURRY_SECONDS = 10.0
"""Time limit of a quick stop, after which it is cancelled."""

Result = TypeVar("Result")


class CommandInterrupted(Exception):
    """A signal cancelled the command. Internal to this module."""


def run(main: Awaitable[Result]) -> Result:
    """Run a coroutine to its end. Raises KeyboardInterrupt if a signal cancels it."""
    return _run(lambda _stop, _hurry: main, graceful=False)


def run_gracefully(main: Callable[[asyncio.Event, asyncio.Event], Awaitable[Result]]) -> Result:
    """Run `main(stop, hurry)`: the first signal sets `stop`, the second `hurry`, and the third cancels."""
    return _run(main, graceful=True)


def _run(main: Callable[[asyncio.Event, asyncio.Event], Awaitable[Result]], *, graceful: bool) -> Result:
    # A mover creates few reference cycles, and collecting after every 700 objects takes a tenth of its time.
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    try:
        return asyncio.run(_until_signalled(main, graceful=graceful))
    except CommandInterrupted:
        raise KeyboardInterrupt from None


async def _until_signalled(
    main: Callable[[asyncio.Event, asyncio.Event], Awaitable[Result]], *, graceful: bool
) -> Result:
    stop, hurry = asyncio.Event(), asyncio.Event()
    loop, task = asyncio.get_running_loop(), asyncio.current_task()

    def cancel() -> None:
        if task is not None:
            task.cancel()

    def signalled() -> None:
        if hurry.is_set() or not graceful:
            cancel()
        elif stop.is_set():
            hurry.set()
            loop.call_later(HURRY_SECONDS, cancel)
        stop.set()

    handled = signals.call_when_signalled(loop, signalled)
    try:
        result = await main(stop, hurry)
    except asyncio.CancelledError:
        raise CommandInterrupted from None
    if graceful:
        signals.ignore_next(loop, handled)
    return result
