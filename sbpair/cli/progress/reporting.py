"""The forms of progress on stderr, such as one line of sent or peeked messages; and the readings of --watch."""

import asyncio
import logging
import math
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import TYPE_CHECKING, Annotated, Any, Generic, NamedTuple, Self, TypeVar

from sbpair.cli.command_loop import run
from sbpair.cli.logs import utc
from sbpair.cli.options.common import Output
from sbpair.cli.render.screen import Document, Screen, clean, plural, spoken
from sbpair.errors import ExitCode
from sbpair.management.calls import ControlEvent, Listed, QueueProvisioned, SecondSample
from sbpair.model.document import SPREAD, TIME, encoded
from sbpair.model.retries import Retrying

if TYPE_CHECKING:
    from rich.spinner import Spinner as Drawn

    from sbpair.failover.failover_send import Delivered
    from sbpair.message_io.send_lines import SendEvent
    from sbpair.move.events import QueuesFound
    from sbpair.move.peek.peeker import Peeked

Form = TypeVar("Form")


class Progress:
    """Receives events while it is entered. `shown` is entered with it, such as a live table."""

    def __init__(self, shown: AbstractContextManager[object] | None = None) -> None:
        self._shown = shown or nullcontext()

    def __enter__(self) -> Self:
        self._shown.__enter__()
        return self

    def __exit__(self, *details: Any) -> None:
        self._shown.__exit__(*details)


def write_lines(screen: Screen, lines: Iterable[Document]) -> None:
    """Write events as JSON lines to stderr. After stderr fails, messages are moved all the same."""
    with suppress(OSError):
        for line in lines:
            screen.event(line)


Level = TypeVar("Level")
Name = TypeVar("Name")
Item = TypeVar("Item")


class EventLine(NamedTuple, Generic[Level, Name, Item]):
    """A line of an event."""

    time: Annotated[str, "Time of the line, in UTC", TIME]
    level: Annotated[Level, "Level"]
    event: Annotated[Name, "Kind of event"]
    item: Annotated[Item, SPREAD]


def event_line(schema: str, name: str, now_ms: int, item: object, *, level: str = "info") -> Document:
    """Return the line of an event, which has the keys of an item."""
    return {"schema": schema, **encoded(EventLine(utc(now_ms / 1000), level, name, item))}


def choose_form(screen: Screen, live: Form, lines: Form, text: Form) -> Form:
    """Return the form that suits stderr."""
    if screen.animated:
        return live
    return lines if screen.eventful else text


def wall_clock_ms() -> int:
    return int(time.time() * 1000)


REFRESH_SECONDS = 0.1
DUMB_TERMINAL_SECONDS, LINE_SECONDS = 5.0, 30.0
"""Time between lines, where a line cannot be changed: on a terminal without such means, and elsewhere."""


class LineProgress(Progress):
    """Shows one line while it is entered, if `animated`."""

    def __init__(self, screen: Screen, text: str, *, animated: bool) -> None:
        self._screen = screen
        self._status: Drawn | None = None
        live: AbstractContextManager[object] | None = None
        if animated:
            # A tenth of a second to load, for a terminal only.
            from rich.console import Console
            from rich.live import Live
            from rich.spinner import Spinner

            self._status = Spinner("dots", text, style="status.spinner")
            # Lines above it stay whole: the terminal wraps them, so that a command can be copied. Those of stdout come
            # above it only if they go to a terminal: elsewhere they are the result.
            console, is_shown = Console(stderr=True, soft_wrap=True), sys.stdout is not None and sys.stdout.isatty()
            live = Live(self._status, console=console, transient=True, redirect_stdout=is_shown)
        super().__init__(live)


class SendProgress(LineProgress):
    """Shows the number of sent messages, unless the user types the lines. Prints changes of the destination.

    Where no line can be animated, it prints one at intervals.
    """

    def __init__(self, screen: Screen, entity: str, *, typing: bool) -> None:
        from sbpair.cli.progress.boards import RateMeter

        super().__init__(screen, f"connecting to {clean(entity)}", animated=screen.animated and not typing)
        self._entity = entity
        self._meter = RateMeter(time.monotonic())
        self._interval = DUMB_TERMINAL_SECONDS if sys.stderr.isatty() else LINE_SECONDS
        self._due = 0.0
        if self._status is None:
            self._due = math.inf if typing else time.monotonic() + self._interval
            if sys.stderr.isatty() and not typing:
                screen.say(f"connecting to {entity}")
        # It logs the events that are printed here in other words.
        logging.getLogger("sbpair.failover.events").setLevel(logging.ERROR)

    def __call__(self, event: "SendEvent") -> None:
        """Report one event."""
        from sbpair.failover.events import SendInDoubt
        from sbpair.failover.failover_send import Delivered

        match event:
            case Delivered():
                self._show(event)
            case SendInDoubt():
                self._screen.detail(str(event))
            case _:
                self._screen.warn(str(event))

    def _show(self, delivered: "Delivered") -> None:
        now = time.monotonic()
        count = delivered.total
        rate = self._meter.rate(now, count)
        if now < self._due:
            return
        self._due = now + (self._interval if self._status is None else REFRESH_SECONDS)
        aside = "".join(
            f", {number} of them into the {name}"
            for name, number in (("backlog", delivered.backlog), ("outbox", delivered.outbox))
            if number
        )
        text = f"{count} sent to {clean(self._entity)}{aside}, {rate:.0f} a second"
        if self._status is None:
            self._screen.say(text)
        else:
            self._status.update(text=text)


def print_found(screen: Screen, found: "QueuesFound") -> None:
    """Print the number of backlog queues, and those beyond the pair's count."""
    screen.detail(f"{plural(len(found.queues), 'queue')}{'' if found.managed else ', without the Manage claim'}")
    for queue in found.stranded:
        screen.warn(f"{queue} is beyond the pair's count: no client uses it; it is emptied, too")


class PeekProgress(LineProgress):
    """Shows the number of peeked messages, and prints the events of the control plane."""

    def __init__(self, screen: Screen) -> None:
        super().__init__(screen, "peeking", animated=screen.animated)
        self._messages: dict[str, int] = {}

    def __call__(self, event: "QueuesFound | Peeked | ControlEvent") -> None:
        """Report one event."""
        from sbpair.move.events import QueuesFound
        from sbpair.move.peek.peeker import Peeked

        match event:
            case Peeked(queue, messages):
                self._messages[queue] = messages
                if self._status is not None:
                    self._status.update(text=f"{plural(sum(self._messages.values()), 'message')} peeked")
            case SecondSample(seconds) if self._status is not None:
                peeked = plural(sum(self._messages.values()), "message")
                self._status.update(
                    text=f"{peeked} peeked; counting again in {spoken(seconds)} (--sample 0 does not wait)"
                )
            case QueuesFound():
                print_found(self._screen, event)
            case _:
                print_control_event(self._screen, event)


def print_control_event(screen: Screen, event: ControlEvent) -> None:
    """Print an event of a command that reads or changes queues."""
    match event:
        case Listed(namespace, queues):
            screen.detail(f"{namespace} has {queues} queues under the prefix")
        case Retrying(_what, attempt, wait_seconds, reason):
            screen.say(f"{reason}; attempt {attempt} of 3, retrying in {wait_seconds:.1f} s")
        case SecondSample(seconds):
            screen.detail(f"waiting {spoken(seconds)} for a second sample of the queues")
        case QueueProvisioned(path, outcome, done, total):
            screen.detail(f"{path}: {outcome} ({done} of {total})")


Reading = TypeVar("Reading")


def watch_readings(
    screen: Screen,
    every: float,
    read: Callable[[], Awaitable[Reading]],
    *,
    table: Callable[[Reading], Sequence[str]],
    show_line: Callable[[Reading], object],
    result: Callable[[Reading], object],
) -> int:
    """Show readings: a table in place of the one before on a terminal, and one line for each elsewhere."""
    drawing = screen.redrawing()
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
                screen.show_line(result(found))
            await asyncio.sleep(every)

    try:
        run(main())
    except KeyboardInterrupt:
        if drawing is not None:
            screen.write("")
    return ExitCode.DONE
