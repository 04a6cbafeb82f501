"""The metrics of one run of a command: over a port, by OpenTelemetry, or both."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final, TypeVar

from sbpair.errors import MachineLacks
from sbpair.metrics.http_port import HttpPort, listen, url_of
from sbpair.metrics.live_figures import LiveFigures
from sbpair.metrics.telemetry import open_telemetry

if TYPE_CHECKING:
    from sbpair.metrics.http_port import Render
    from sbpair.move.events import SyphonEvent
    from sbpair.move.live_run import LiveRun

Result = TypeVar("Result")
OnEvent = Callable[["SyphonEvent"], None]

PATH: Final = "/metrics"


class RunMetrics:
    """`live` is given to the run. `url` is the address of the metrics; "" without a port."""

    def __init__(self, live: LiveRun, figures: LiveFigures, port: HttpPort | None, url: str) -> None:
        self.live = live
        self.url = url
        self._figures = figures
        self._port = port

    def observing(self, on_event: OnEvent) -> OnEvent:
        """Return `on_event` for a run whose metrics have the state of its queues and destinations."""

        def take(event: SyphonEvent) -> None:
            self._figures.take(event)
            on_event(event)

        return take

    async def serve_during(self, run: Awaitable[Result]) -> Result:
        """Run to the end, and answer scrapes until then."""
        return await (run if self._port is None else self._port.serve_during(run))


@contextmanager
def open_metrics(live: LiveRun, info: Mapping[str, str], address: tuple[str, int] | None) -> Iterator[RunMetrics]:
    """Open a port at `address`, if any, and the telemetry that the environment asks for. `info` describes the run.

    Raises UsageError, or MachineLacks for a port that is not free or a missing package.
    """
    figures = LiveFigures(live, info)
    with ExitStack() as stack:
        url, port = "", None
        if address is not None:
            render = _renderer(figures)
            listening = stack.enter_context(listen(*address, "--metrics-port", "--metrics-address"))
            url, port = url_of(listening, PATH), HttpPort(listening, "metrics", {PATH: render})
        telemetry = open_telemetry(figures)
        if telemetry is not None:
            stack.callback(telemetry.close)
            live.traced = telemetry.traced if telemetry.tracer is not None else None
        yield RunMetrics(live, figures, port, url)


def _renderer(figures: LiveFigures) -> Render:
    try:
        from sbpair.metrics.exposition import renderer
    except ImportError as error:
        raise MachineLacks("prometheus-client is not installed", hint="pip install 'sbpair[metrics]'") from error
    return renderer(figures)
