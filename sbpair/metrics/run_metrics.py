"""The metrics of one run of a command: over a port in the formats of Prometheus, by OpenTelemetry, or both."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sbpair.errors import MachineLacks
from sbpair.metrics.http_port import HttpPort, Page, Render
from sbpair.metrics.live_figures import LiveFigures
from sbpair.metrics.metric_table import RUN_INFO
from sbpair.metrics.telemetry import open_telemetry

if TYPE_CHECKING:
    from sbpair.move.events import SyphonEvent
    from sbpair.move.live_run import LiveRun

PATH: Final = "/metrics"


class RunMetrics(NamedTuple):
    """`take` takes the events of the run, during which `port` serves."""

    take: Callable[[SyphonEvent], None]
    port: HttpPort


@contextmanager
def open_metrics(live: LiveRun, info: Mapping[str, str], address: tuple[str, int] | None) -> Iterator[RunMetrics]:
    """Open a port at `address`, if any, and the telemetry that the environment asks for. `info` describes the run.

    `live` is then given to the run. Raises UsageError; MachineLacks for a port that is not free or a missing package.
    """
    figures = LiveFigures(live, info)
    pages = {} if address is None else {PATH: renderer(figures)}
    options = ("--metrics-port", "--metrics-address")
    with closing(HttpPort(address, options, "metrics", pages)) as port, ExitStack() as stack:
        telemetry = open_telemetry(figures)
        if telemetry is not None:
            stack.callback(telemetry.close)
            live.traced = telemetry.traced if telemetry.tracer is not None else None
        yield RunMetrics(figures.take, port)


def renderer(figures: LiveFigures) -> Render:
    """Return a function that renders the figures of the moment, and those of this process. Raises MachineLacks."""
    try:
        from prometheus_client import CollectorRegistry, ProcessCollector
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
        from prometheus_client.exposition import choose_encoder
    except ImportError as error:
        raise MachineLacks("prometheus-client is not installed", hint="pip install 'sbpair[metrics]'") from error

    class RunCollector:
        def collect(self) -> Iterator[Any]:
            yield InfoMetricFamily(RUN_INFO, "The run", value=figures.info)
            for metric, series in figures.read().items():
                kind = CounterMetricFamily if metric.is_counter else GaugeMetricFamily
                labels = [metric.label] if metric.label else []
                family = kind(metric.prometheus_name, metric.text, labels=labels, unit=metric.base_unit)
                for label, value in series.items():
                    family.add_metric([label] if labels else [], float(value))
                yield family

    registry = CollectorRegistry(auto_describe=False)
    registry.register(RunCollector())
    ProcessCollector(registry=registry)

    def render(accept: str) -> Page:
        encode, content_type = choose_encoder(accept)
        return Page(encode(registry), content_type)

    return render
