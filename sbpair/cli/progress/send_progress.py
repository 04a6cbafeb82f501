"""The progress of `sbpair send`: a live line on a terminal, and changes of the destination as text."""

import logging
import time
from typing import TYPE_CHECKING

from sbpair.cli.progress.move_board import RateMeter
from sbpair.cli.render.screen import Screen, clean

if TYPE_CHECKING:
    from rich.status import Status

    from sbpair.failover.failover_send import Delivered
    from sbpair.message_io.send_lines import SendEvent

REFRESH_SECONDS = 0.1


class SendProgress:
    """Shows the number of sent messages on a terminal while it is entered, unless the user types the lines."""

    def __init__(self, screen: Screen, entity: str, *, typing: bool) -> None:
        self._screen = screen
        self._entity = entity
        self._animated = screen.animated and not typing
        self._status: Status | None = None
        self._meter = RateMeter(time.monotonic())
        self._shown_at = 0.0

    def __enter__(self) -> "SendProgress":
        # It logs the events that are printed here in other words.
        logging.getLogger("sbpair.failover.events").setLevel(logging.ERROR)
        if self._animated:
            # A tenth of a second to load, for a terminal only.
            from rich.console import Console

            self._status = Console(stderr=True).status(f"connecting to {clean(self._entity)}")
            self._status.start()
        return self

    def __exit__(self, *_details: object) -> None:
        if self._status is not None:
            self._status.stop()

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
