"""The event loop of a command, and its signal handlers.

SIGINT, SIGTERM or SIGHUP cancels. A command that can stop gracefully stops on the first one, and stops at once on the
second. Once it is done, it prints its result in spite of the next one.
"""

import asyncio
import gc
import signal
from collections.abc import Awaitable, Callable
from typing import TypeVar

HURRY_SECONDS = 10.0
"""Time limit of a quick stop, after which it is cancelled."""

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that stop a command. A lost terminal sends SIGHUP, which `nohup` ignores."""

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

    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, signalled)
    try:
        result = await main(stop, hurry)
    except asyncio.CancelledError:
        raise CommandInterrupted from None
    if graceful:
        _ignore_next_signals(loop)
    return result


def _ignore_next_signals(loop: asyncio.AbstractEventLoop) -> None:
    """Ignore one signal of each kind from now on: by default, it would end the process before it prints its result."""

    def ignore(number: int, _frame: object) -> None:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)

    for number in SIGNALS:
        if loop.remove_signal_handler(number):
            signal.signal(number, ignore)
