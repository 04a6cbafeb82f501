"""A deadline on the emulator's clock that can be postponed at no cost."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from sbpair.emulator.clock import NEVER

if TYPE_CHECKING:
    from sbpair.emulator.entities.namespace import Namespace


class RelayDeadline:
    """A call of `on_due` in `ms` milliseconds, counted again from each `postpone`; NEVER for none."""

    def __init__(self, namespace: Namespace, ms: int, on_due: Callable[[], None]) -> None:
        self._clock, self._timers = namespace.clock, namespace.timers
        self._ms = ms
        self._on_due = on_due
        self._at_ms = self.due_ms = min(NEVER, self._clock.now_ms() + ms)
        if ms < NEVER:
            self._timers.schedule(self.due_ms, self)

    def postpone(self) -> None:
        self._at_ms = self._clock.now_ms() + self._ms

    def cancel(self) -> None:
        self.due_ms = NEVER
        # The timers keep this entry until it would have been due, which can be an hour.
        self._on_due = _nothing

    def advance(self, now_ms: int) -> None:
        """Call `on_due`, or wait on if the deadline was postponed."""
        if now_ms < self._at_ms:
            self.due_ms = self._at_ms
            self._timers.schedule(self.due_ms, self)
        else:
            self.due_ms = NEVER
            self._on_due()


def _nothing() -> None:
    """Replace the call of a deadline that was cancelled."""
