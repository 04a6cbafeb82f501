"""The supervision of runs and gateways: their health, answered over HTTP, and to systemd by datagrams.

Invariant: the watchdog is answered in their event loop, and only while all of its work is live. A loop that is blocked
answers neither systemd nor a probe. Health has no secret, and reading it costs a few comparisons. No message to systemd
raises or waits, also if its socket is full; see sd_notify(3) and sd_watchdog_enabled(3).
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeVar

from sbpair.metrics.http_port import HttpPort, Page, Render
from sbpair.operating_system import unix_socket_family

if TYPE_CHECKING:
    from sbpair.syphon.run_store import LiveRun

REPORT_SECONDS: Final = 10.0
"""Time between reports to a unit without a watchdog, or with a slow one."""

LIVE, READY = "/health/live", "/health/ready"
OPTION: Final = "--health-port"
EXTEND_SECONDS: Final = 60
"""How long systemd waits for the next message of a start, which lasts as long as a namespace is away."""

Result = TypeVar("Result")
log = logging.getLogger(__name__)


class RunHealth(NamedTuple):
    """`is_live`: a restart would not help. `is_ready`: it does its work, or was paused. `state` is why, in words."""

    is_live: bool
    is_ready: bool
    state: str


class Supervised(Protocol):
    """The work of a process, as its supervisor reads it."""

    def read(self, *, stopping: bool) -> RunHealth:
        """Return the health of this moment."""

    def has_begun(self) -> bool:
        """Return whether the start of the unit is over."""

    def counts(self) -> str:
        """Return the counts so far, in words."""


class RunsHealth:
    """The health of runs by pair: all of them have to be live and ready. The name of an only one may be ""."""

    def __init__(self, lives: Mapping[str, LiveRun]) -> None:
        self._lives = lives

    def read(self, *, stopping: bool) -> RunHealth:
        """Call it in the run's event loop: a loop that is blocked has none."""
        found = {name: self._read(live, stopping) for name, live in self._lives.items()}
        first, *others = found.values()
        if not others:
            return first
        poor = [f"{name}: {each.state}" for name, each in found.items() if not each.is_ready]
        state = "; ".join((f"{len(found) - len(poor)} of {len(found)} pairs are ready", *poor))
        return RunHealth(all(each.is_live for each in found.values()), not poor, state)

    def has_begun(self) -> bool:
        """Return whether one pair is ready: another one may not be for days."""
        return any(self._read(live, stopping=False).is_ready for live in self._lives.values())

    def _read(self, live: LiveRun, stopping: bool) -> RunHealth:
        run = live.state
        if stuck := live.stuck_queues():
            return RunHealth(is_live=False, is_ready=False, state=f"stuck: {', '.join(stuck[:3])}")
        if stopping:
            state = "stopping"
        elif live.halted:
            state = live.halted
        elif run.away:
            state = f"{' and '.join(sorted(run.away))} away"
        elif not run.connected:
            state = "connecting"
        elif not live.has_lease():
            state = "the lease is not confirmed"
        else:
            return RunHealth(is_live=True, is_ready=True, state="paused" if run.paused else "moving")
        return RunHealth(is_live=True, is_ready=False, state=state)

    def counts(self) -> str:
        total = sum((Counter(live.tally.totals()) for live in self._lives.values()), Counter[str]())
        names = ("received", "sent", "dead_lettered", "expired", "in_doubt")
        return ", ".join(
            f"{total[name]} {name.replace('_', ' ')}" for name in names if name in names[:2] or total[name]
        )


class Supervision:
    """The health of a process, over a port at `address`, if any, and to systemd.

    Raises UsageError, or MachineLacks for a port that is not free.
    """

    def __init__(
        self,
        supervised: Supervised,
        address: tuple[str, int] | None = None,
        notifier: SystemdNotifier | None = None,
    ) -> None:
        pages = {READY: self._page(attrgetter("is_ready")), LIVE: self._page(attrgetter("is_live"))}
        self.port = HttpPort(address, (OPTION, OPTION), "probes", pages)
        self.stopping = False
        self._supervised = supervised
        self._notifier = notifier
        self._was_ready = False
        self._status = ""

    def close(self) -> None:
        self.port.close()
        if self._notifier is not None:
            self._notifier.close()

    def take(self, _event: object) -> None:
        """Report to systemd once the start is over."""
        if self._notifier is not None and not self._was_ready:
            self._notify_ready(self._notifier)

    def read(self) -> RunHealth:
        """Return the health of this moment."""
        return self._supervised.read(stopping=self.stopping)

    async def serve_during(self, run: Awaitable[Result], stop: asyncio.Event) -> Result:
        """Run to the end, and answer probes and systemd until then. `stop` asks the run to end."""
        tasks = [asyncio.create_task(self._note_stop(stop), name="note the stop of the run")]
        if self._notifier is not None:
            tasks.append(asyncio.create_task(self._report(self._notifier), name="report to systemd"))
        try:
            return await self.port.serve_during(run)
        finally:
            self._note_stopping()
            for task in tasks:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task

    def _page(self, is_good: Callable[[RunHealth], bool]) -> Render:
        def render(_accept: str) -> Page:
            health = self.read()
            status = HTTPStatus.OK if is_good(health) else HTTPStatus.SERVICE_UNAVAILABLE
            return Page(f"{health.state}\n".encode(errors="replace"), status=status)

        return render

    async def _note_stop(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._note_stopping()

    def _note_stopping(self) -> None:
        if not self.stopping:
            self.stopping = True
            if self._notifier is not None:
                self._notifier.send(STOPPING=1, STATUS=f"stopping: {self._supervised.counts()}")

    def _notify_ready(self, notifier: SystemdNotifier) -> None:
        if self._supervised.has_begun():
            self._was_ready = notifier.send(READY=1, STATUS=self.read().state)

    async def _report(self, notifier: SystemdNotifier) -> None:
        while True:
            health = self.read()
            if health.is_live and notifier.has_watchdog:
                notifier.send(WATCHDOG=1)
            if not self._was_ready:
                self._notify_ready(notifier)
            if health.is_live and not self._was_ready:
                notifier.send(EXTEND_TIMEOUT_USEC=EXTEND_SECONDS * 1_000_000)
            status = f"{health.state}: {self._supervised.counts()}"
            if status != self._status and notifier.send(STATUS=status):
                self._status = status
            await asyncio.sleep(notifier.interval)


class SystemdNotifier:
    """`interval` is the seconds between two reports. `has_watchdog` is whether the unit expects them."""

    def __init__(self, address: str, watchdog_seconds: float | None = None) -> None:
        self.has_watchdog = watchdog_seconds is not None
        # systemd recommends half of the time.
        self.interval = REPORT_SECONDS if watchdog_seconds is None else min(watchdog_seconds / 2, REPORT_SECONDS)
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._socket: socket.socket | None = None
        self._failed = False

    def send(self, **assignments: object) -> bool:
        """Send assignments such as `READY=1` in one datagram. Return whether it was taken; a failure is logged once.

        A full queue of the socket is one: send it again.
        """
        text = "\n".join(f"{name}={' '.join(str(value).splitlines())}" for name, value in assignments.items())
        try:
            if self._socket is None:
                self._socket = socket.socket(unix_socket_family(), socket.SOCK_DGRAM)
                self._socket.setblocking(False)
            self._socket.sendto(text.encode(errors="replace"), self._address)
        except OSError as error:
            if not self._failed:
                log.warning("systemd was not notified at NOTIFY_SOCKET: %s", error.strerror or error)
            self._failed = True
            return False
        self._failed = False
        return True

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()


def systemd_notifier(environ: Mapping[str, str], pid: int) -> SystemdNotifier | None:
    """Return a notifier for the process with this id; None if it is not a service that notifies."""
    address = environ.get("NOTIFY_SOCKET", "")
    if not address:
        return None
    if address[0] not in "/@" or not unix_socket_family():
        log.warning("NOTIFY_SOCKET is not the path of a socket, and is ignored")
        return None
    return SystemdNotifier(address, _watchdog_seconds(environ, pid))


def _watchdog_seconds(environ: Mapping[str, str], pid: int) -> float | None:
    text, meant_for = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", "")
    if not (text.isascii() and text.isdecimal() and int(text)) or meant_for not in ("", str(pid)):
        return None
    return int(text) / 1_000_000
