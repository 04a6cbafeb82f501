"""Events in the order in which they happened, published outside of the lock under which they happened."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import RLock

from sbpair.failover.events import OutboxClosed, OutboxEmptied, QueueReturned, SenderEvent

INFORMATIONAL = (QueueReturned, OutboxEmptied, OutboxClosed)

log = logging.getLogger("sbpair.failover.events")


class EventQueue:
    """Guards a state with `lock`, and publishes its events to the log and to `on_event`.

    An exception of `on_event` is logged and affects no message.
    """

    def __init__(self, on_event: Callable[[SenderEvent], None] | None) -> None:
        self.lock = RLock()
        self._on_event = on_event
        self._pending: deque[SenderEvent] = deque()
        self._depth = 0
        self._publishing = RLock()

    def add(self, event: SenderEvent) -> None:
        """Add an event of the current change."""
        self._pending.append(event)

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Hold the lock, and publish the added events when the outermost change ends."""
        with self.lock:
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                outermost = not self._depth
        if outermost and self._pending:
            self._publish()

    def _publish(self) -> None:
        with self._publishing:
            while self._pending:
                event = self._pending.popleft()
                log.log(logging.INFO if isinstance(event, INFORMATIONAL) else logging.WARNING, "%s", event)
                if self._on_event is None:
                    continue
                try:
                    self._on_event(event)
                except Exception:
                    log.exception("an event listener of a paired client failed")
