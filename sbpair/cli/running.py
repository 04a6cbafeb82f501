"""An event loop for one command, and what signals do to it.

The first SIGINT or SIGTERM asks for a stop, where the command knows how to stop; the second cancels.
"""

import asyncio
import gc
import signal
from collections.abc import Awaitable, Callable
from typing import TypeVar

Result = TypeVar("Result")


class Interrupted(Exception):
    """A signal ended the command before it was done. Never leaves this module."""


def run(main: Callable[[asyncio.Event], Awaitable[Result]], *, graceful: bool = False) -> Result:
    """Run `main(stop)` to its end. Raises KeyboardInterrupt where a signal cancelled it.

    With `graceful`, the first signal only sets `stop`.
    """
    # What a mover makes goes when it is let go of: looking for cycles after every 700 objects cost a tenth of its time.
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    try:
        return asyncio.run(_until_signalled(main, graceful=graceful))
    except Interrupted:
        raise KeyboardInterrupt from None


async def _until_signalled(main: Callable[[asyncio.Event], Awaitable[Result]], *, graceful: bool) -> Result:
    stop = asyncio.Event()
    task = asyncio.current_task()

    def signalled() -> None:
        if task is not None and (stop.is_set() or not graceful):
            task.cancel()
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, signalled)
    try:
        return await main(stop)
    except asyncio.CancelledError:
        raise Interrupted from None
