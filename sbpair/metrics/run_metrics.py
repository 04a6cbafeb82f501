"""The metrics of one run of a command: over a port, by OpenTelemetry, or both."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, TypeVar

from sbpair.errors import MachineLacks
from sbpair.metrics.live_figures import LiveFigures
from sbpair.metrics.metrics_endpoint import MetricsEndpoint, listen, url_of
from sbpair.metrics.telemetry import open_telemetry
from sbpair.move.live_run import LiveRun

if TYPE_CHECKING:
    from sbpair.metrics.exposition import Render
    from sbpair.move.events import SyphonEvent

Result = TypeVar("Result")
OnEvent = Callable[["SyphonEvent"], None]


class RunMetrics:
    """`live` is given to the run. `url` is the address of the metrics; "" without a port."""

    def __init__(self, live: LiveRun, figures: LiveFigures, endpoint: MetricsEndpoint | None, url: str) -> None:
        self.live = live
        self.url = url
        self._figures = figures
        self._endpoint = endpoint

    def observing(self, on_event: OnEvent) -> OnEvent:
        """Return `on_event` for a run whose metrics have the state of its queues and destinations."""

        def take(event: SyphonEvent) -> None:
            self._figures.take(event)
            on_event(event)

        return take

    async def serve_during(self, run: Awaitable[Result]) -> Result:
        """Run to the end, and answer scrapes until then."""
        if self._endpoint is None:
            return await run
        serving = asyncio.create_task(self._endpoint.serve(), name="serve metrics")
        try:
            return await run
        finally:
            serving.cancel()
            with suppress(asyncio.CancelledError):
                await serving


@contextmanager
def open_metrics(info: Mapping[str, str], address: tuple[str, int] | None) -> Iterator[RunMetrics]:
    """Open a port at `address`, if any, and the telemetry that the environment asks for. `info` describes the run.

    Raises UsageError, or MachineLacks for a port that is not free or a missing package.
    """
    live = LiveRun()
    figures = LiveFigures(live, info)
    with ExitStack() as stack:
        url, endpoint = "", None
        if address is not None:
            render = _renderer(figures)
            listening = stack.enter_context(listen(*address))
            url, endpoint = url_of(listening), MetricsEndpoint(listening, render)
        telemetry = open_telemetry(figures)
        if telemetry is not None:
            stack.callback(telemetry.close)
            live.traced = telemetry.traced if telemetry.tracer is not None else None
        yield RunMetrics(live, figures, endpoint, url)


def _renderer(figures: LiveFigures) -> Render:
    try:
        from sbpair.metrics.exposition import renderer
    except ImportError as error:
        raise MachineLacks("prometheus-client is not installed", hint="pip install 'sbpair[metrics]'") from error
    return renderer(figures)
