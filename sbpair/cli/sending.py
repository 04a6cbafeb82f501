"""What `sbpair send` tells while it sends: one line that moves on a terminal, and every change of where messages go."""

import logging
import time
from typing import TYPE_CHECKING

from sbpair.cli.board import Meter
from sbpair.cli.output import Screen, clean

if TYPE_CHECKING:
    from rich.status import Status

    from sbpair.sender.exchange import Delivered
    from sbpair.sender.feed import FeedEvent

REFRESH_SECONDS = 0.1


class Sending:
    """Takes the events of a feed in; entered, it shows on a terminal where nobody types how far it is."""

    def __init__(self, screen: Screen, entity: str, *, typing: bool) -> None:
        self._screen = screen
        self._entity = entity
        self._animated = screen.animated and not typing
        self._status: Status | None = None
        self._meter = Meter(time.monotonic())
        self._shown_at = 0.0

    def __enter__(self) -> "Sending":
        # It logs the events that are told here in other words.
        logging.getLogger("sbpair.sender.availability").setLevel(logging.ERROR)
        if self._animated:
            # A tenth of a second to load, for a terminal only.
            from rich.console import Console

            self._status = Console(stderr=True).status(f"connecting to {clean(self._entity)}")
            self._status.start()
        return self

    def __exit__(self, *_details: object) -> None:
        if self._status is not None:
            self._status.stop()

    def __call__(self, event: "FeedEvent") -> None:
        """Take one event in."""
        from sbpair.sender.events import InDoubt
        from sbpair.sender.exchange import Delivered

        match event:
            case Delivered():
                self._show(event)
            case InDoubt():
                self._screen.detail(str(event))
            case _:
                self._screen.warn(str(event))

    def _show(self, delivered: "Delivered") -> None:
        now = time.monotonic()
        count = delivered.primary + delivered.backlog + delivered.outbox
        rate = self._meter.rate(now, count)
        if self._status is None or now < self._shown_at + REFRESH_SECONDS:
            return
        self._shown_at = now
        aside = "".join(
            f", {number} of them into the {name}"
            for name, number in (("backlog", delivered.backlog), ("outbox", delivered.outbox))
            if number
        )
        self._status.update(f"{count} sent to {clean(self._entity)}{aside}, {rate:.0f} a second")
