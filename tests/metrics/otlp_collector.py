"""An OpenTelemetry collector on loopback: it takes metrics and spans over OTLP/HTTP, and keeps them parsed."""

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Collector:
    """`status` is the answer to each request. While `answers` is not set, a request has none."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.status = 200
        self.answers = threading.Event()
        self.answers.set()
        self.resources: list[dict[str, str]] = []
        self.spans: list[Any] = []
        self.metrics: dict[str, dict[str, float]] = {}
        """The last value of each series, by metric and label."""
        self.units: dict[str, str] = {}

    def take(self, path: str, body: bytes) -> None:
        if path == "/v1/traces":
            for each in ExportTraceServiceRequest.FromString(body).resource_spans:
                self.resources.append(attributes(each.resource))
                self.spans += [span for scope in each.scope_spans for span in scope.spans]
        elif path == "/v1/metrics":
            for each in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                self.resources.append(attributes(each.resource))
                for metric in (metric for scope in each.scope_metrics for metric in scope.metrics):
                    self.units[metric.name] = metric.unit
                    data = metric.sum if metric.HasField("sum") else metric.gauge
                    self.metrics[metric.name] = dict(map(_point, data.data_points))


def _point(point: Any) -> tuple[str, float]:
    value = point.as_int if point.WhichOneof("value") == "as_int" else point.as_double
    return next(iter(attributes(point).values()), ""), value


def attributes(of: Any) -> dict[str, str]:
    return {each.key: each.value.string_value or str(each.value.int_value) for each in of.attributes}


@contextmanager
def collecting() -> Iterator[Collector]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            collector.answers.wait()
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            collector.take(self.path, body)
            self.send_response(collector.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collector = Collector(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield collector
        finally:
            collector.answers.set()
            server.shutdown()
            thread.join()
