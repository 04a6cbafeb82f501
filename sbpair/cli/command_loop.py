"""The event loop of a command, and its signal handlers.

A signal of `operating_system.signals` cancels. A command that can stop gracefully stops on the first one, and stops at
once on the second. Once it is done, it prints its result in spite of the next one.
"""

import asyncio
import gc
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

from sbpair.azure.credentials import keeping_tokens
from sbpair.errors import EntityMissing, NotAuthenticated, SbpairError
from sbpair.http_tunnel import ask_time
from sbpair.model.connect_errors import key_hint
from sbpair.model.pair import Endpoint
from sbpair.operating_system import signals
from sbpair.operating_system.shortages import check_files

HURRY_SECONDS = 10.0
"""Time limit of a quick stop, after which it is cancelled."""

TIME_SECONDS = 1.0
"""How long a command that is done waits for the time of its namespaces."""

Result = TypeVar("Result")


class CommandInterrupted(Exception):
    """A signal cancelled the command. Internal to this module."""


def run(main: Awaitable[Result], *endpoints: Endpoint) -> Result:
    """Run a coroutine to its end. Raises KeyboardInterrupt if a signal cancels it.

    `endpoints` are those that it reaches by AMQP alone: they are asked for the time, too, to warn of a wrong clock.
    """
    try:
        check_files()
        return _run(lambda _stop, _hurry: main, endpoints, graceful=False)
    finally:
        if asyncio.iscoroutine(main):
            main.close()  # which a signal, or a lack of files, may have kept from beginning


def run_gracefully(main: Callable[[asyncio.Event, asyncio.Event], Awaitable[Result]], *endpoints: Endpoint) -> Result:
    """Run `main(stop, hurry)`: the first signal sets `stop`, the second `hurry`, and the third cancels."""
    check_files()
    return _run(main, endpoints, graceful=True)


async def timed(main: Awaitable[Result], endpoints: Sequence[Endpoint]) -> Result:
    """Return the result, while `endpoints` are asked for the time. The error of a refused token names a wrong clock."""
    asking = [asyncio.create_task(ask_time(each), name=f"ask {each.name} for the time") for each in endpoints]
    try:
        return await main
    except NotAuthenticated as error:
        await _ended(asking)
        blame_clock(error, endpoints)
        raise
    except EntityMissing as error:
        await suggest_entities([error], endpoints)
        raise
    finally:
        await _ended(asking)
        for task in asking:
            task.cancel()


def blame_clock(error: SbpairError | None, endpoints: Sequence[Endpoint]) -> None:
    """Name a wrong clock as the cause of a refused token."""
    difference = next(filter(None, (each.clock.difference() for each in endpoints)), "")
    if isinstance(error, NotAuthenticated) and difference:
        error.hint = key_hint("", difference)


async def suggest_entities(errors: Iterable[SbpairError | None], endpoints: Sequence[Endpoint]) -> None:
    """Name in each hint an entity that is like the missing one, if its namespace is one of these and has one."""
    for error in [each for each in errors if isinstance(each, EntityMissing)]:
        for endpoint in [each for each in endpoints if each.name == error.namespace]:
            from sbpair.azure.atom import nearest_entity  # an error is rare

            error.hint = await nearest_entity(endpoint, error.entity.partition("/$")[0], error.hint)


async def _ended(tasks: Sequence[asyncio.Task[None]]) -> None:
    if tasks:
        await asyncio.wait(tasks, timeout=TIME_SECONDS)


def _run(
    main: Callable[[asyncio.Event, asyncio.Event], Awaitable[Result]], endpoints: Sequence[Endpoint], *, graceful: bool
) -> Result:
    def main_with_time(stop: asyncio.Event, hurry: asyncio.Event) -> Awaitable[Result]:
        return timed(main(stop, hurry), endpoints)

    # A mover creates few reference cycles, and collecting after every 700 objects takes a tenth of its time.
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    try:
        return asyncio.run(_until_signalled(main_with_time, graceful=graceful))
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
        async with keeping_tokens():
            result = await main(stop, hurry)
    except asyncio.CancelledError:
        raise CommandInterrupted from None
    if graceful:
        signals.ignore_next(loop, handled)
    return result
