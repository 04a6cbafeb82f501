"""The supervision of a run: its health over HTTP, and to systemd.

Invariant: the watchdog is answered in the run's event loop, and only while the run is live. A loop that is blocked
answers neither systemd nor a probe.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, TypeVar

from sbpair.metrics.http_port import HttpPort, Page, listen, url_of
from sbpair.service.run_health import HealthMonitor

if TYPE_CHECKING:
    from sbpair.metrics.http_port import Render
    from sbpair.move.events import SyphonEvent
    from sbpair.move.live_run import LiveRun
    from sbpair.service.systemd_notify import SystemdNotifier

LIVE, READY = "/health/live", "/health/ready"
OPTION: Final = "--health-port"
EXTEND_SECONDS: Final = 60
"""How long systemd waits for the next message of a start, which lasts as long as a namespace is away."""

Result = TypeVar("Result")


class Supervision:
    """`url` is the address of the readiness; "" without a port."""

    def __init__(
        self, monitor: HealthMonitor, port: HttpPort | None, url: str, notifier: SystemdNotifier | None
    ) -> None:
        self.url = url
        self._monitor = monitor
        self._port = port
        self._notifier = notifier
        self._was_ready = False
        self._status = ""

    def observing(self, on_event: Callable[[SyphonEvent], None]) -> Callable[[SyphonEvent], None]:
        """Return `on_event` for a run whose health follows its events."""

        def take(event: SyphonEvent) -> None:
            self._monitor.take(event)
            if self._notifier is not None and not self._was_ready:
                self._notify_ready(self._notifier)
            on_event(event)

        return take

    async def serve_during(self, run: Awaitable[Result], stop: asyncio.Event) -> Result:
        """Run to the end, and answer probes and systemd until then. `stop` asks the run to end."""
        tasks = [asyncio.create_task(self._note_stop(stop), name="note the stop of the run")]
        if self._notifier is not None:
            tasks.append(asyncio.create_task(self._report(self._notifier), name="report to systemd"))
        try:
            return await (run if self._port is None else self._port.serve_during(run))
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
    with ExitStack() as stack:
        url, port = "", None
        if address is not None:
            listening = stack.enter_context(listen(*address, OPTION, OPTION))
            url, port = url_of(listening, READY), HttpPort(listening, "probes", _pages(monitor))
        if notifier is not None:
            stack.callback(notifier.close)
        yield Supervision(monitor, port, url, notifier)


def _pages(monitor: HealthMonitor) -> dict[str, Render]:
    def page(state: str, *, good: bool) -> Page:
        status = HTTPStatus.OK if good else HTTPStatus.SERVICE_UNAVAILABLE
        return Page(f"{state}\n".encode(errors="replace"), "text/plain; charset=utf-8", status)

    def live(_accept: str) -> Page:
        health = monitor.read()
        return page(health.state, good=health.is_live)

    def ready(_accept: str) -> Page:
        health = monitor.read()
        return page(health.state, good=health.is_ready)

    return {LIVE: live, READY: ready}
