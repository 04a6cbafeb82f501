"""Progress as one line on a terminal: sent messages, and peeked messages."""

import logging
import math
import sys
import time
from typing import TYPE_CHECKING

from sbpair.cli.progress.boards import RateMeter
from sbpair.cli.progress.reporting import Progress
from sbpair.cli.render.screen import Screen, clean, plural, spoken

if TYPE_CHECKING:
    from rich.status import Status

    from sbpair.failover.failover_send import Delivered
    from sbpair.message_io.send_lines import SendEvent
    from sbpair.model.queues import ControlEvent
    from sbpair.move.events import QueuesFound
    from sbpair.move.peek.peeker import Peeked

REFRESH_SECONDS = 0.1
DUMB_TERMINAL_SECONDS, LINE_SECONDS = 5.0, 30.0
"""Time between lines, where a line cannot be changed: on a terminal without such means, and elsewhere."""


class LineProgress(Progress):
    """Shows one line while it is entered, if `animated`."""

    def __init__(self, screen: Screen, text: str, *, animated: bool) -> None:
        self._screen = screen
        self._status: Status | None = None
        if animated:
            # A tenth of a second to load, for a terminal only.
            from rich.console import Console

            self._status = Console(stderr=True).status(text)
        super().__init__(self._status)


class SendProgress(LineProgress):
    """Shows the number of sent messages, unless the user types the lines. Prints changes of the destination.

    Where no line can be animated, it prints one at intervals.
    """

    def __init__(self, screen: Screen, entity: str, *, typing: bool) -> None:
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
            self._status.update(text)


class PeekProgress(LineProgress):
    """Shows the number of peeked messages, and prints the events of the control plane."""

    def __init__(self, screen: Screen) -> None:
        super().__init__(screen, "peeking", animated=screen.animated)
        self._messages: dict[str, int] = {}

    def __call__(self, event: "QueuesFound | Peeked | ControlEvent") -> None:
        """Report one event."""
        from sbpair.cli.progress.move_progress import print_found
        from sbpair.cli.render import queues
        from sbpair.model.queues import SecondSample
        from sbpair.move.events import QueuesFound
        from sbpair.move.peek.peeker import Peeked

        match event:
            case Peeked(queue, messages):
                self._messages[queue] = messages
                if self._status is not None:
                    self._status.update(f"{plural(sum(self._messages.values()), 'message')} peeked")
            case SecondSample(seconds) if self._status is not None:
                peeked = plural(sum(self._messages.values()), "message")
                self._status.update(f"{peeked} peeked; counting again in {spoken(seconds)} (--sample 0 does not wait)")
            case QueuesFound():
                print_found(self._screen, event)
            case _:
                queues.progress(self._screen, event)
