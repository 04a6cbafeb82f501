"""Idleness of a link on the emulator's clock: an idle link is detached.

Use is recorded where it happens and checked when the idle time would be over, so no message reschedules a timer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sbpair.emulator.clock import NEVER
from sbpair.emulator.service_errors import LinkIdle, ServiceError

if TYPE_CHECKING:
    from collections.abc import Callable

    from sbpair.emulator.clock import Clock, Timers

LINK_IDLE_MS: Final = 600_000


class IdleLink:
    """Detaches a link after ten minutes without a transfer; credit alone does not count as use."""

    __slots__ = ("_clock", "_detach", "_name", "_role", "_timers", "_used_ms", "due_ms")

    def __init__(
        self, clock: Clock, timers: Timers, detach: Callable[[ServiceError], None], name: str, *, publishes: bool
    ) -> None:
        """Begin to watch the link of this name, on which the client publishes or consumes messages."""
        self._name = name
        self._role = "Publisher" if publishes else "Consumer"
        self._clock = clock
        self._timers = timers
        self._detach = detach
        self._used_ms = clock.now_ms()
        self._wait_until(self._used_ms + LINK_IDLE_MS)

    def touch(self) -> None:
        self._used_ms = self._clock.now_ms()

    def stop(self) -> None:
        self.due_ms = NEVER
        # The heap still holds the entry, which must not keep a connection that is gone.
        self._detach = lambda _: None

    def advance(self, now_ms: int) -> None:
        if self._used_ms + LINK_IDLE_MS > now_ms:
            self._wait_until(self._used_ms + LINK_IDLE_MS)
            return
        detach = self._detach
        self.stop()
        detach(
            LinkIdle(
                f"The link '{self._name}' is force detached. Code: {self._role.lower()}. "
                f"Details: AmqpMessage{self._role}.IdleTimerExpired: Idle timeout: 00:10:00."
            )
        )

    def _wait_until(self, at_ms: int) -> None:
        self.due_ms = at_ms
        self._timers.schedule(at_ms, self)
