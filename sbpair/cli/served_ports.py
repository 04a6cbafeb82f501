"""The ports of a command that runs for long, for probes and metrics, as its options and the environment ask for them.

Nothing heavy is loaded unless one of them does.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from typing import TYPE_CHECKING, Annotated, NamedTuple

from sbpair.cli.options.moves import LOOPBACK
from sbpair.cli.render.screen import Screen

if TYPE_CHECKING:
    from sbpair.metrics.http_port import HttpPort
    from sbpair.service.run_health import Supervised, Supervision


class ServedPort(NamedTuple):
    url: Annotated[str, "Address of the readiness or the metrics", {"examples": ["http://127.0.0.1:9464/metrics"]}]


OpenMetrics = Callable[[tuple[str, int] | None], "AbstractContextManager[HttpPort]"]


@contextmanager
def open_metrics_port(
    screen: Screen, schema: str, open_at: OpenMetrics, port: int | None, host: str | None
) -> "Iterator[HttpPort | None]":
    """Open the metrics that the options or OpenTelemetry's variables ask for, and print their address."""
    if port is None and not _wants_telemetry():
        yield None
        return
    with open_at(None if port is None else (host or LOOPBACK, port)) as metrics:
        _print_served(screen, schema, "metrics", metrics.url, port)
        yield metrics


@contextmanager
def open_supervision(
    screen: Screen, schema: str, supervised: "Callable[[], Supervised]", health: tuple[str, int] | None
) -> "Iterator[Supervision | None]":
    """Open the port for probes, and notify systemd, if options or environment ask for it."""
    if health is None and not os.environ.get("NOTIFY_SOCKET"):
        yield None
        return
    from sbpair.service.run_health import Supervision, systemd_notifier

    notifier = systemd_notifier(os.environ, os.getpid())
    with closing(Supervision(supervised(), health, notifier)) as supervision:
        _print_served(screen, schema, "health", supervision.port.url, health and health[1])
        yield supervision


def _print_served(screen: Screen, schema: str, title: str, url: str, port: int | None) -> None:
    """Print the address of a port: with --quiet only if it was chosen from the free ones."""
    if not url or (port and screen.quiet):
        return
    if screen.eventful:
        from sbpair.cli.progress import reporting

        now_ms = reporting.wall_clock_ms()
        reporting.write_lines(screen, [reporting.event_line(schema, f"{title}-served", now_ms, ServedPort(url))])
    else:
        screen.say(f"{title} at {url}", always=True)


def _wants_telemetry() -> bool:
    if not any(name.startswith("OTEL_") for name in os.environ):
        return False
    from sbpair.metrics.run_metrics import wanted_exporters

    return bool(wanted_exporters(os.environ))
