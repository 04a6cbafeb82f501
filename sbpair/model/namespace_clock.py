"""The clock of a namespace, as its answers show it: the time by which sbpair forgets, waits and signs.

The local clock may be wrong, and may be set while a process runs. Invariant: once known, the namespace's time goes on
with the seconds since boot, whatever the local clock says.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from sbpair.operating_system import uptime as seconds_since_boot

TOLERATED_SECONDS = 300.0
"""How far the clocks may differ without a warning."""

ASSUMED_LOCK_SECONDS = 60.0
"""A backlog queue's lock duration by its description, assumed where that, or a lock's expiry, cannot be read."""

MAX_LOCK_SECONDS = 300.0
"""The service's limit of a lock duration."""

DATE_STEP_SECONDS = 1.0
"""The precision of a Date header."""

SYNCHRONISE = "synchronise this machine's clock by NTP"

_UNITS = (("years", 31_557_600.0), ("days", 86_400.0), ("hours", 3_600.0), ("minutes", 60.0))


class NamespaceClock:
    """The time of one namespace, unknown until an answer shows it. A copy in another process knows nothing yet.

    A first difference of more than TOLERATED_SECONDS is logged as a warning; copies for tasks do not repeat it.
    """

    def __init__(self, *, wall: Callable[[], float] | None = None, uptime: Callable[[], float] | None = None) -> None:
        self._wall, self._uptime = wall or time.time, uptime or seconds_since_boot
        self._local_offset = self._wall() - self._uptime()
        self._offset: float | None = None
        self._margin = 0.0  # how far it may be wrong, in seconds
        self._warned = False

    def __reduce__(self) -> tuple[Callable[[bool], NamespaceClock], tuple[bool]]:
        return _copy, (self._warned,)

    def known(self) -> float | None:
        """Return the namespace's time, in seconds since 1970; None before an answer has shown it."""
        return None if self._offset is None else self._uptime() + self._offset

    def known_ms(self) -> int | None:
        known = self.known()
        return None if known is None else int(known * 1000)

    def now(self) -> float:
        """Return the namespace's time, in seconds since 1970; while that is unknown, the local time that never jumps.

        That goes on from the time by the local clock when this one was made.
        """
        return self._uptime() + (self._local_offset if self._offset is None else self._offset)

    def now_ms(self) -> int:
        return int(self.now() * 1000)

    def latest(self) -> float:
        """Return the later of both times: a signature may live too long, and must not have expired when it is made."""
        return max(self.now(), self._wall())

    def observe_date(self, date: str | None, took_seconds: float = 0.0) -> None:
        """Take the Date of an HTTP response to a request that took so long. No-op for one without a valid Date."""
        from email.utils import parsedate_to_datetime  # here, and below: help needs neither

        try:
            sent = parsedate_to_datetime(date or "").timestamp()
        except (ValueError, TypeError, OverflowError):
            return
        self._set(sent + (DATE_STEP_SECONDS + took_seconds) / 2, took_seconds)

    def observe_lock(self, until: float, lock_seconds: float | None = None) -> None:
        """Take the expiry of a lock, in seconds since 1970, from a delivery of this moment. No-op for 0.

        A lock begins before its message arrives, so the latest of such times is nearest to the truth. Without its
        duration, that follows from the time so far, or else it is the longest: a lock may seem to live too long, and
        the service refuses what comes too late.
        """
        if until <= 0:
            return
        if lock_seconds is None:
            left = round(until - self.now())
            lock_seconds = left if 0 < left <= MAX_LOCK_SECONDS else MAX_LOCK_SECONDS
        began, known = until - lock_seconds, self.known()
        if known is None or began > known:
            self._set(began, MAX_LOCK_SECONDS)

    def difference(self) -> str:
        """Return how the local clock surely differs by more than TOLERATED_SECONDS, as a clause; else ""."""
        known = self.known()
        behind = 0.0 if known is None else known - self._wall()
        if abs(behind) <= TOLERATED_SECONDS + self._margin:
            return ""
        unit, seconds = next(each for each in _UNITS if round(abs(behind) / each[1]) >= 2)
        way = "behind" if behind > 0 else "ahead of"
        return f"this machine's clock is {abs(behind) / seconds:.0f} {unit} {way} the service's"

    def _set(self, seconds: float, margin: float) -> None:
        self._offset, self._margin = seconds - self._uptime(), margin
        if not self._warned and (difference := self.difference()):
            import logging

            self._warned = True
            logging.getLogger(__name__).warning("%s: %s", difference, SYNCHRONISE)


def _copy(warned: bool) -> NamespaceClock:
    found = NamespaceClock()
    found._warned = warned
    return found
