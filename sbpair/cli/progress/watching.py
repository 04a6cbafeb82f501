"""`--watch` of the commands that show a state: readings at intervals, until a signal."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from sbpair.cli.command_loop import run
from sbpair.cli.logs import utc
from sbpair.cli.options.common import Output
from sbpair.cli.options.values import positive_seconds_of
from sbpair.cli.render.screen import Document, Redrawing, Screen, spoken
from sbpair.errors import ExitCode, UsageError

Reading = TypeVar("Reading")


def watch_interval(interval: str | None, fail_on: str | None, *, watch: bool) -> float:
    """Return the seconds of --interval. Raises UsageError for options that do not go with --watch, or without it."""
    if interval is not None and not watch:
        raise UsageError("--interval goes with --watch only", hint="leave it out")
    if fail_on is not None and watch:
        raise UsageError("--fail-on and --watch exclude each other", hint="leave it out")
    return positive_seconds_of("--interval", interval or "5s", limit=86_400)


def watch_readings(
    screen: Screen,
    schema: str,
    every: float,
    read: Callable[[], Awaitable[Reading]],
    *,
    table: Callable[[Reading], Sequence[str]],
    show_line: Callable[[Reading], object],
    document: Callable[[Reading], Document],
) -> int:
    """Show readings: a table in place of the one before on a terminal, and one line for each elsewhere."""
    drawing = Redrawing(screen) if screen.output is Output.TABLE and screen.redrawable else None
    if drawing is not None:
        drawing.draw([], "first reading - Ctrl-C to stop")

    async def main() -> None:
        while True:
            found = await read()
            if drawing is not None:
                drawing.draw(table(found), f"{utc(None)}, every {spoken(every)} - Ctrl-C to stop")
            elif screen.output is Output.TABLE:
                show_line(found)
            else:
                screen.json_line(schema, document(found))
            await asyncio.sleep(every)

    try:
        run(main())
    except KeyboardInterrupt:
        if drawing is not None:
            screen.write("")
    return ExitCode.DONE
