"""The figures of a run in the formats of Prometheus, by its client library."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.exposition import choose_encoder

from sbpair.metrics.http_port import Page
from sbpair.metrics.metric_table import RUN_INFO

if TYPE_CHECKING:
    from sbpair.metrics.http_port import Render
    from sbpair.metrics.live_figures import LiveFigures


def renderer(figures: LiveFigures) -> Render:
    """Return a function that renders the figures of the moment, and those of this process."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_RunCollector(figures))
    ProcessCollector(registry=registry)

    def render(accept: str) -> Page:
        encode, content_type = choose_encoder(accept)
        return Page(encode(registry), content_type)

    return render


class _RunCollector:
    def __init__(self, figures: LiveFigures) -> None:
        self._figures = figures

    def collect(self) -> Iterator[Any]:
        """Yield a family for each metric, read now."""
        yield InfoMetricFamily(RUN_INFO, "The run", value=self._figures.info)
        for metric, series in self._figures.read().items():
            kind = CounterMetricFamily if metric.is_counter else GaugeMetricFamily
            name = metric.prometheus_name.removesuffix("_total") if metric.is_counter else metric.prometheus_name
            labels = [metric.label] if metric.label else []
            family = kind(name, metric.text, labels=labels, unit=metric.base_unit)
            for label, value in series.items():
                family.add_metric([label] if labels else [], float(value))
            yield family
