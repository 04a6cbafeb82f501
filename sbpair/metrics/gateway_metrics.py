"""The metrics of a gateway: its figures at any moment, under their names for Prometheus and OpenTelemetry."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from sbpair.metrics.live_figures import Figures
from sbpair.metrics.metric_names import CONNECTIONS, ENTITIES, GATEWAY_RECEIVED, GATEWAY_SENT, RETRIED, START_TIME
from sbpair.runs.database import now_ms
from sbpair.runs.run_log import new_id

if TYPE_CHECKING:
    from sbpair.gateway.gateway import Gateway


class GatewayMetrics:
    """Reads a gateway. `info` describes it."""

    def __init__(self, gateway: Gateway, info: Mapping[str, str]) -> None:
        self._gateway = gateway
        self._started_ms = now_ms()
        self.info = {"run": new_id(self._started_ms), **info}

    def read(self) -> Figures:
        """Return the figures of this moment."""
        figures = self._gateway.figures
        return {
            START_TIME: {"": self._started_ms / 1000},
            CONNECTIONS: {"": len(self._gateway.connections)},
            GATEWAY_SENT: {"": figures.sent},
            GATEWAY_RECEIVED: {"": figures.received},
            RETRIED: {"": figures.retried},
            ENTITIES: dict(Counter(each.value for each in self._gateway.failover.states().values())),
        }
