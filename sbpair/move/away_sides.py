"""The namespaces that a run has lost and not reached again, from its events."""

from __future__ import annotations

from sbpair.move.events import QueueDone, QueueFailed, QueueOpened


class AwaySides:
    """`names` are primary and secondary, if they are away."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def take(self, event: QueueOpened | QueueDone | QueueFailed) -> None:
        """Take one event in."""
        if isinstance(event, QueueOpened):
            self.names.clear()  # it has connections to both
        elif isinstance(event, QueueFailed):
            if event.side is not None:
                self.names.add(event.side)
            elif event.retry_seconds is None:
                self.names.clear()  # it answered
