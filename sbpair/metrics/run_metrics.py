"""The metrics of one run of a command: over a port in the formats of Prometheus, by OpenTelemetry, or both.

Invariant: no package of OpenTelemetry is imported and nothing is sent unless one of its standard environment variables
asks for metrics, or for a span for each batch. No failure of an exporter stops or delays a run; at its end, the
exporters have CLOSE_SECONDS together.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from sbpair.errors import MachineLacks
from sbpair.metrics.http_port import HttpPort, Page, Render
from sbpair.metrics.live_figures import FigureReader, LiveFigures
from sbpair.metrics.metric_names import RUN_INFO, Metric

if TYPE_CHECKING:
    from sbpair.move.interface import Destination
    from sbpair.syphon.run_store import LiveRun

PATH: Final = "/metrics"
PAIR: Final = "pair"
"""The label, or attribute, of the series of each pair."""


@contextmanager
def open_metrics(
    lives: Mapping[str, LiveRun], info: Mapping[str, str], address: tuple[str, int] | None, *, by_pair: bool = False
) -> Iterator[HttpPort]:
    """Open a port at `address`, if any, and the telemetry that the environment asks for. `info` describes all runs.

    `lives` are by pair, and then given to the runs; with `by_pair`, each series has its pair as a label. Raises
    UsageError; MachineLacks for a port that is not free or a missing package.
    """
    figures = [LiveFigures(live, {**info, PAIR: name}) for name, live in lives.items()]
    with open_figures(figures, address, by_pair=by_pair) as (port, telemetry):
        if telemetry is not None:
            for live in lives.values():
                live.traced = telemetry.traced if telemetry.tracer is not None else None
        yield port


@contextmanager
def open_figures(
    figures: Sequence[FigureReader], address: tuple[str, int] | None, *, by_pair: bool = False
) -> Iterator[tuple[HttpPort, Telemetry | None]]:
    """Do the same for figures that have readers already. Yields the telemetry, too."""
    pages = {} if address is None else {PATH: renderer(*figures, by_pair=by_pair)}
    options = ("--metrics-port", "--metrics-address")
    with closing(HttpPort(address, options, "metrics", pages)) as port, ExitStack() as stack:
        telemetry = open_telemetry(figures, by_pair=by_pair)
        if telemetry is not None:
            stack.callback(telemetry.close)
        yield port, telemetry


def renderer(*runs: FigureReader, by_pair: bool = False) -> Render:
    """Return a function that renders the figures of the moment, and those of this process. Raises MachineLacks."""
    try:
        from prometheus_client import CollectorRegistry, ProcessCollector
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
        from prometheus_client.exposition import choose_encoder
    except ImportError as error:
        raise MachineLacks("prometheus-client is not installed", hint="pip install 'sbpair[metrics]'") from error

    class RunCollector:
        def collect(self) -> Iterator[Any]:
            info = InfoMetricFamily(RUN_INFO, "The run")
            found = []
            for figures in runs:
                info.add_metric([], figures.info)
                found.append(([figures.info[PAIR]] if by_pair else [], figures.read()))
            yield info
            for metric in found[0][1]:
                kind = CounterMetricFamily if metric.is_counter else GaugeMetricFamily
                labels = [PAIR] * by_pair + [metric.label] * bool(metric.label)
                family = kind(metric.prometheus_name, metric.text, labels=labels, unit=metric.base_unit)
                for pair, read in found:
                    for label, value in read[metric].items():
                        family.add_metric([*pair, label] if metric.label else pair, float(value))
                yield family

    registry = CollectorRegistry(auto_describe=False)
    registry.register(RunCollector())
    ProcessCollector(registry=registry)

    def render(accept: str) -> Page:
        encode, content_type = choose_encoder(accept)
        return Page(encode(registry), content_type)

    return render


log = logging.getLogger(__name__)

CLOSE_SECONDS: Final = 2.0
CLOSING: Final = "close telemetry"
"""The name of the threads that export the rest."""
SCOPE: Final = "sbpair"
SIGNALS: Final = ("TRACES", "METRICS")
MAX_TEXT: Final = 200
EXTRA: Final = "pip install 'sbpair[otel]'"
_SECRETS: Final = re.compile(r"(?<=://)[^/@\s]*@|(?<=\?)[^\s'\")]+")
"""The parts of a URL that may hold a secret: user and password, and the query."""


def wanted_exporters(environ: Mapping[str, str] = os.environ) -> dict[str, list[str]]:
    """Return the names of the exporters that the environment asks for, by signal; {} if it asks for none."""
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return {}
    found = {}
    for signal in SIGNALS:
        names = environ.get(f"OTEL_{signal}_EXPORTER", "").lower().replace(",", " ").split()
        endpoints = ("OTEL_EXPORTER_OTLP_ENDPOINT", f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT")
        if not names and any(environ.get(name, "").strip() for name in endpoints):
            names = ["otlp"]
        if names := [name for name in names if name != "none"]:
            found[signal] = names
    return found


def open_telemetry(
    runs: Sequence[FigureReader], environ: Mapping[str, str] = os.environ, *, by_pair: bool = False
) -> Telemetry | None:
    """Return the telemetry that the environment asks for; None without any. A missing package is a warning."""
    wanted = wanted_exporters(environ)
    if not wanted:
        return None
    try:
        from opentelemetry.sdk.resources import Resource
    except ImportError:
        log.warning("OTEL_ variables ask for telemetry, and the OpenTelemetry SDK is not installed: %s", EXTRA)
        return None
    telemetry = Telemetry()
    own = () if not by_pair else ("run", PAIR)
    resource = Resource.create(_resource_attributes(runs[0], environ, own))
    for signal, open_signal in (("TRACES", telemetry.open_traces), ("METRICS", telemetry.open_metrics)):
        opened = [_open_exporter(signal, name, environ) for name in wanted.get(signal, ())]
        if exporters := [each for each in opened if each is not None]:
            open_signal(exporters, resource, {each.info[PAIR] if by_pair else "": each for each in runs})
    return telemetry


class Telemetry:
    """The telemetry of one run. `tracer` is None if no spans are wanted."""

    def __init__(self) -> None:
        self.tracer: Any = None
        self._providers: list[Any] = []
        self._failures = _FirstFailure(logging.WARNING)
        self._logger = logging.getLogger("opentelemetry")
        self._logger.addHandler(self._failures)

    def open_traces(self, exporters: Iterable[Any], resource: Any, _runs: Mapping[str, FigureReader]) -> None:
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        for exporter in exporters:
            provider.add_span_processor(BatchSpanProcessor(exporter))
        self.tracer = provider.get_tracer(SCOPE)
        self._providers.append(provider)

    def open_metrics(self, exporters: Iterable[Any], resource: Any, runs: Mapping[str, FigureReader]) -> None:
        from opentelemetry.metrics import Observation
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

        readers = [PeriodicExportingMetricReader(exporter) for exporter in exporters]
        provider = MeterProvider(readers, resource=resource, shutdown_on_exit=False)
        meter = provider.get_meter(SCOPE)

        def observe(metric: Metric) -> Any:
            def read(_options: object) -> list[Any]:
                key, pair_key = f"{SCOPE}.{metric.label}", f"{SCOPE}.{PAIR}"
                return [
                    Observation(value, ({key: label} if label else {}) | ({pair_key: pair} if pair else {}))
                    for pair, figures in runs.items()
                    for label, value in figures.read()[metric].items()
                ]

            return read

        for metric in next(iter(runs.values())).read():
            create = meter.create_observable_counter if metric.is_counter else meter.create_observable_gauge
            create(metric.name, [observe(metric)], metric.unit, metric.text)
        self._providers.append(provider)

    def traced(self, queue: str, destination: Destination) -> Destination:
        """Return a destination that records a span for each batch of this queue."""
        from sbpair.metrics.batch_spans import TracedDestination

        send = {"messaging.operation.name": "send", "messaging.operation.type": "send"}
        return TracedDestination(
            destination, self.tracer, {"messaging.system": "servicebus", **send, f"{SCOPE}.queue": queue}
        )

    def close(self) -> None:
        """Export the last figures and spans, for CLOSE_SECONDS at most."""
        until = time.monotonic() + CLOSE_SECONDS
        closing = [
            threading.Thread(target=_shut_down, args=(provider,), name=CLOSING, daemon=True)
            for provider in self._providers
        ]
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join(max(0.0, until - time.monotonic()))
        if any(thread.is_alive() for thread in closing):
            log.warning("the last telemetry was not exported within %g s", CLOSE_SECONDS)
        self._logger.removeHandler(self._failures)


def _shut_down(provider: Any) -> None:
    with suppress(Exception):  # the SDK raises any exception
        provider.shutdown()


def _resource_attributes(figures: FigureReader, environ: Mapping[str, str], without: Sequence[str]) -> dict[str, str]:
    named = environ.get("OTEL_SERVICE_NAME") or "service.name=" in environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    info = {f"{SCOPE}.{name}": value for name, value in figures.info.items() if name not in without}
    return {**({} if named else {"service.name": SCOPE}), "service.instance.id": figures.info["run"], **info}


def _open_exporter(signal: str, name: str, environ: Mapping[str, str]) -> Any:
    """Return an exporter, which reads its own settings from the environment; None with a warning."""
    if name == "otlp":
        protocols = (f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
        protocol = next(filter(None, map(environ.get, protocols)), "http/protobuf")
        name = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}.get(protocol, protocol)
    from importlib.metadata import entry_points

    found = [*entry_points(group=f"opentelemetry_{signal.lower()}_exporter", name=name)]
    if not found:
        hint = "use --metrics-port" if name == "prometheus" else EXTRA
        log.warning("the OpenTelemetry exporter %r for %s is not installed: %s", name, signal.lower(), hint)
        return None
    try:
        # Results are on stdout.
        return found[0].load()(**({"out": sys.stderr} if name == "console" else {}))
    except Exception as error:  # noqa: BLE001  # an exporter raises any exception
        log.warning("the OpenTelemetry exporter %r for %s cannot be used: %s", name, signal.lower(), printable(error))
        return None


def printable(found: object) -> str:
    """Return a text of the SDK without the parts that may be secret, and not too long."""
    text = _SECRETS.sub("***", str(found))
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}…"


class _FirstFailure(logging.Handler):
    """Logs the first failure of the SDK as a warning, and all others for debugging only."""

    _seen = False

    def emit(self, record: logging.LogRecord) -> None:
        level, self._seen = (logging.DEBUG if self._seen else logging.WARNING), True
        log.log(level, "telemetry: %s", printable(record.getMessage()))
