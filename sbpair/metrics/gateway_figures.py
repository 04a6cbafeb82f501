"""The metrics of a gateway: its figures at any moment, under their names for Prometheus and OpenTelemetry."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sbpair.metrics.live_figures import Figures
from sbpair.metrics.metric_names import ACCEPTED, CONNECTIONS, DELIVERED, LINKS, REJECTED, START_TIME
from sbpair.runs.database import now_ms
from sbpair.runs.run_log import new_id


class GatewayFigures:
    """Reads a gateway by its function `figures`. `info` describes it."""

    def __init__(self, figures: Callable[[], Mapping[str, Any]], info: Mapping[str, str]) -> None:
        self._figures = figures
        self._started_ms = now_ms()
        self.info = {"run": new_id(self._started_ms), **info}

    def read(self) -> Figures:
        """Return the figures of this moment."""
        found = self._figures()
        single = {"connections": CONNECTIONS, "links": LINKS, "rejected": REJECTED, "delivered": DELIVERED}
        return {
            START_TIME: {"": self._started_ms / 1000},
            **{metric: {"": found.get(name, 0)} for name, metric in single.items()},
            ACCEPTED: dict(found.get("accepted", {})),
        }
