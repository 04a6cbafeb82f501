"""The supervision of a run: its health from its events, answered over HTTP and to systemd.

Invariant: the watchdog is answered in the run's event loop, and only while the run is live. A loop that is blocked
answers neither systemd nor a probe. Health has no secret, and reading it costs a few comparisons.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from http import HTTPStatus
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from sbpair.metrics.http_port import HttpPort, Page, Render
from sbpair.move import events
from sbpair.move.away_sides import AwaySides

if TYPE_CHECKING:
    from sbpair.move.live_run import LiveRun
    from sbpair.service.systemd_notify import SystemdNotifier

LIVE, READY = "/health/live", "/health/ready"
OPTION: Final = "--health-port"
EXTEND_SECONDS: Final = 60
"""How long systemd waits for the next message of a start, which lasts as long as a namespace is away."""

Result = TypeVar("Result")


class RunHealth(NamedTuple):
    """`is_live`: a restart would not help. `is_ready`: it moves messages, or was paused. `state` is why, in words."""

    is_live: bool
    is_ready: bool
    state: str


class HealthMonitor:
    """Takes the events of a run. `stopping` is set by its owner."""

    def __init__(self, live: LiveRun) -> None:
        self.stopping = False
        self._live = live
        self._away = AwaySides()
        self._connected = self._paused = False

    def take(self, event: events.SyphonEvent) -> None:
        """Take one event in."""
        match event:
            case events.QueueOpened() | events.QueueDone() | events.QueueFailed():
                self._away.take(event)
                self._connected = self._connected or isinstance(event, events.QueueOpened)
            case events.RunPaused() | events.RunResumed():
                self._paused = isinstance(event, events.RunPaused)

    def read(self) -> RunHealth:
        """Return the health of this moment. Call it in the run's event loop: a loop that is blocked has none."""
        stuck = self._live.stuck_queues()
        if stuck:
            return RunHealth(is_live=False, is_ready=False, state=f"stuck: {', '.join(stuck[:3])}")
        if self.stopping:
            return RunHealth(is_live=True, is_ready=False, state="stopping")
        if self._away.names:
            return RunHealth(is_live=True, is_ready=False, state=f"{' and '.join(sorted(self._away.names))} away")
        if not self._connected:
            return RunHealth(is_live=True, is_ready=False, state="connecting")
        if not self._live.has_lease():
            return RunHealth(is_live=True, is_ready=False, state="the lease is not confirmed")
        return RunHealth(is_live=True, is_ready=True, state="paused" if self._paused else "moving")

    def counts(self) -> str:
        """Return the counts so far, in words."""
        total: dict[str, int] = {}
        for queue in self._live.tally.counts().queues.values():
            for bucket, count in queue.items():
                total[bucket] = total.get(bucket, 0) + count
        names = ("received", "sent", "dead_lettered", "expired", "in_doubt")
        return ", ".join(
            f"{total.get(name, 0)} {name.replace('_', ' ')}" for name in names if name in names[:2] or total.get(name)
        )


class Supervision:
    """The health of a run over `port`, and to systemd."""

    def __init__(self, monitor: HealthMonitor, port: HttpPort, notifier: SystemdNotifier | None) -> None:
        self.port = port
        self._monitor = monitor
        self._notifier = notifier
        self._was_ready = False
        self._status = ""

    def take(self, event: events.SyphonEvent) -> None:
        """Take one event of the run in."""
        self._monitor.take(event)
        if self._notifier is not None and not self._was_ready:
            self._notify_ready(self._notifier)

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

    async def _note_stop(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._note_stopping()

    def _note_stopping(self) -> None:
        if not self._monitor.stopping:
            self._monitor.stopping = True
            if self._notifier is not None:
                self._notifier.send(STOPPING=1, STATUS=f"stopping: {self._monitor.counts()}")

    def _notify_ready(self, notifier: SystemdNotifier) -> None:
        health = self._monitor.read()
        self._was_ready = health.is_ready and notifier.send(READY=1, STATUS=health.state)

    async def _report(self, notifier: SystemdNotifier) -> None:
        while True:
            health = self._monitor.read()
            if health.is_live and notifier.has_watchdog:
                notifier.send(WATCHDOG=1)
            if not self._was_ready:
                self._notify_ready(notifier)
            if health.is_live and not self._was_ready:
                notifier.send(EXTEND_TIMEOUT_USEC=EXTEND_SECONDS * 1_000_000)
            status = f"{health.state}: {self._monitor.counts()}"
            if status != self._status and notifier.send(STATUS=status):
                self._status = status
            await asyncio.sleep(notifier.interval)


@contextmanager
def open_supervision(
    live: LiveRun, address: tuple[str, int] | None, notifier: SystemdNotifier | None
) -> Iterator[Supervision]:
    """Open a port for probes at `address`, if any. `live` is then given to the run.

    Raises UsageError, or MachineLacks for a port that is not free.
    """
    monitor = HealthMonitor(live)

    def page(is_good: Callable[[RunHealth], bool]) -> Render:
        def render(_accept: str) -> Page:
            health = monitor.read()
            status = HTTPStatus.OK if is_good(health) else HTTPStatus.SERVICE_UNAVAILABLE
            return Page(f"{health.state}\n".encode(errors="replace"), status=status)

        return render

    pages = {READY: page(attrgetter("is_ready")), LIVE: page(attrgetter("is_live"))}
    with closing(HttpPort(address, (OPTION, OPTION), "probes", pages)) as port, ExitStack() as stack:
        if notifier is not None:
            stack.callback(notifier.close)
        yield Supervision(monitor, port, notifier)
