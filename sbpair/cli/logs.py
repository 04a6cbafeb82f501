"""Logging for the command line: sbpair's own loggers to stderr, as text or as lines of JSON.

Other packages log warnings only: azure's other records contain headers. azure also logs the errors it raises, which are
reported where they are caught.
"""

import json
import logging
import sys
from typing import TextIO

from sbpair import timespan
from sbpair.cli.next_command import PAIR
from sbpair.cli.options.common import Display, LogFormat

utc = timespan.utc
CLOCKS = "sbpair.model.namespace_clock"
LEVELS = (logging.WARNING, logging.INFO, logging.DEBUG)


def stamp(seconds: float | None = None) -> str:
    """Return the time of a line on stderr, in UTC: `10:15:00Z` on a terminal, `2026-11-22T10:15:00Z` elsewhere."""
    return utc(seconds).rpartition("T")[2] if sys.stderr.isatty() else utc(seconds)


def line(level: str, logger: str, message: str, *, at: float | None = None, **more: object) -> str:
    """Return one line of JSON. `at` is in seconds since 1970; the default is now."""
    more |= {"pair": PAIR.get()} if PAIR.get() else {}
    return json.dumps({"time": utc(at), "level": level, "logger": logger, "message": message, **more})


class JsonLines(logging.Formatter):
    """Formats records as JSON lines."""

    def format(self, record: logging.LogRecord) -> str:
        return line(record.levelname.lower(), record.name, record.getMessage(), at=record.created)


class Lines(logging.Formatter):
    """Formats records as `10:15:00Z warning sbpair.amqp_client: …`, without control characters."""

    def format(self, record: logging.LogRecord) -> str:
        pair = f"{PAIR.get()}: " if PAIR.get() else ""
        text = f"{record.levelname.lower()} {record.name}: {pair}{record.getMessage()}"
        printable = "".join(each if each.isprintable() else "\ufffd" for each in text)
        return f"{stamp(record.created)} {printable}"


class Stderr(logging.StreamHandler[TextIO]):
    """Writes to stderr as it is at that moment: a live table redirects it."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr


class Once(logging.Filter):
    """Passes the first record of the clocks of namespaces: all differ from the same local one."""

    def __init__(self) -> None:
        super().__init__()
        self._warned = False

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name != CLOCKS:
            return True
        first, self._warned = not self._warned, True
        return first


def start(display: Display) -> None:
    """Send the logs of this run to stderr. -v is info, -vv is debug."""
    handler = Stderr()
    handler.setFormatter(JsonLines() if display.log_format is LogFormat.JSON else Lines())
    # Py4J logs an interrupt as an error: of the root logger, or of the connection that it cuts.
    handler.addFilter(lambda record: display.verbose > 0 or record.name not in ("root", "py4j.clientserver"))
    handler.addFilter(Once())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("azure").setLevel(logging.WARNING if display.verbose else logging.CRITICAL)
    logging.getLogger("opentelemetry").propagate = False  # its failures are reported once
    # Of azure-servicebus, when a WebSocket fails to connect.
    logging.getLogger("asyncio").addFilter(lambda record: not record.getMessage().startswith("Unclosed c"))
    for name in ("sbpair", "spark"):
        logging.getLogger(name).setLevel(LEVELS[min(display.verbose, len(LEVELS) - 1)])
    logging.captureWarnings(True)
