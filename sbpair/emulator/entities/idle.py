"""What happens to links and entities that nobody uses, on the emulator's clock: links are detached, entities deleted.

Use is noted where it happens, and looked at when the time would be over: nothing is rescheduled for every message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from sbpair.emulator.clock import NEVER
from sbpair.emulator.service_errors import LinkIdle, ServiceError

if TYPE_CHECKING:
    from collections.abc import Callable

    from sbpair.emulator.clock import Clock
    from sbpair.emulator.timers import Timers

LINK_IDLE_MS: Final = 600_000


class IdleLink:
    """Ends a link on which nothing has come or gone for ten minutes; credit alone is no use of it."""

    __slots__ = ("_clock", "_end", "_timers", "_used_ms", "due_ms")

    def __init__(self, clock: Clock, timers: Timers, end: Callable[[ServiceError], None]) -> None:
        self._clock = clock
        self._timers = timers
        self._end = end
        self._used_ms = clock.now_ms()
        self._wait_until(self._used_ms + LINK_IDLE_MS)

    def touch(self) -> None:
        self._used_ms = self._clock.now_ms()

    def stop(self) -> None:
        self.due_ms = NEVER
        # The heap still holds the entry, which must not keep a connection that is gone.
        self._end = _nobody

    def advance(self, now_ms: int) -> None:
        if self._used_ms + LINK_IDLE_MS > now_ms:
            self._wait_until(self._used_ms + LINK_IDLE_MS)
            return
        end = self._end
        self.stop()
        end(LinkIdle("The link is force detached. Details: IdleTimerExpired: Idle timeout: 00:10:00."))

    def _wait_until(self, at_ms: int) -> None:
        self.due_ms = at_ms
        self._timers.schedule(at_ms, self)


def _nobody(refusal: ServiceError) -> None:
    del refusal


class AutoDeletable(Protocol):
    """An entity that may go when it is not used."""

    @property
    def auto_delete_ms(self) -> int:
        """NEVER where it stays."""

    @property
    def last_used_ms(self) -> int:
        """When it was used last."""

    @property
    def is_in_use(self) -> bool:
        """Whether somebody waits for messages, or messages for their time."""


class AutoDelete:
    """Deletes an entity that was not used for its AutoDeleteOnIdle. `arm` it again after every change of that."""

    __slots__ = ("_clock", "_delete", "_entity", "_timers", "due_ms")

    def __init__(self, entity: AutoDeletable, clock: Clock, timers: Timers, delete: Callable[[], None]) -> None:
        self.due_ms = NEVER
        self._entity = entity
        self._clock = clock
        self._timers = timers
        self._delete = delete

    def arm(self) -> None:
        limit = self._entity.auto_delete_ms
        self.due_ms = NEVER
        if limit < NEVER:
            self._wait_until(max(self._entity.last_used_ms, self._clock.now_ms()) + limit)

    def stop(self) -> None:
        self.due_ms = NEVER

    def advance(self, now_ms: int) -> None:
        limit = self._entity.auto_delete_ms
        due = (now_ms if self._entity.is_in_use else self._entity.last_used_ms) + limit
        if due > now_ms:
            self._wait_until(due)
            return
        self.stop()
        try:
            self._delete()
        except ServiceError:
            # A partition of it is down: later, then.
            self._wait_until(now_ms + limit)

    def _wait_until(self, at_ms: int) -> None:
        self.due_ms = at_ms
        self._timers.schedule(at_ms, self)
