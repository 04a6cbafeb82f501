"""The exporters that OpenTelemetry's standard environment variables ask for."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Mapping
from typing import Any, Final

log = logging.getLogger(__name__)

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


def open_exporter(signal: str, name: str, environ: Mapping[str, str]) -> Any:
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
