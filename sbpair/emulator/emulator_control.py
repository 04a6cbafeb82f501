"""The part of an emulator that its control API, its page and Resource Manager use: namespaces, faults, time, names."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from sbpair.amqp_server.refusals import ArgumentInvalid
from sbpair.emulator.clock import Clock, Timers, milliseconds
from sbpair.emulator.faults.fault_kinds import Faults

if TYPE_CHECKING:
    from sbpair.amqp_server.host_names import HostNames
    from sbpair.emulator.entities.namespace import Namespace
    from sbpair.emulator.storage.storage import Storage

MAX_NOW_MS: Final = 253_370_764_800_000
"""The first of January of the year 9999: the service writes no time after that year."""


class EmulatorControl:
    """Namespaces, by name, with their faults and one timer."""

    def __init__(self, host_names: HostNames, clock: Clock) -> None:
        self.host_names = host_names
        self.clock = clock
        self.timers = Timers()
        self.namespaces: dict[str, Namespace] = {}
        self.faults = Faults(self.namespaces, self.advance)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._storage: Storage | None = None

    def advance(self, ms: int | timedelta) -> None:
        """Advance the clock, by milliseconds or a timedelta, and run at once all timers that become due.

        Raises ArgumentInvalid for a time that the service could not write.
        """
        if self.clock.now_ms() + milliseconds(ms) > MAX_NOW_MS:
            raise ArgumentInvalid("The clock ends with the year 9998.")
        self.clock.advance(milliseconds(ms))
        if self._storage is not None:
            self._storage.namespace_changed()
        self._run_timers()

    def start_timers(self) -> None:
        """Run the timers when they are due, in the running loop and without polling."""
        self._loop = asyncio.get_running_loop()
        self.timers.on_earlier = self._set_timer

    def stop_timers(self) -> None:
        self._loop = None
        self._cancel_timer()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _set_timer(self) -> None:
        self._cancel_timer()
        due = self.timers.next_deadline_ms()
        if due is not None and self._loop is not None:
            self._timer = self._loop.call_later(max(0, due - self.clock.now_ms()) / 1000, self._run_timers)

    def _run_timers(self) -> None:
        if self._loop is not None:
            self.timers.advance(self.clock.now_ms())
            self._set_timer()
