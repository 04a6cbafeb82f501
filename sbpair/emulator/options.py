"""Options of an emulator beside its namespaces. Plain data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class EmulatorOptions:
    """Options of an emulator.

    `tls`: serve TLS on every port, beside plain connections. `ca_file`: file for the CA certificate [default: a
    temporary one]. `identity`: offer a managed identity and accept the tokens it issues. `accept_any_token`: accept
    any well-formed bearer token that has not expired. `credits`: throttle each namespace to so many credits a second.
    """

    tls: bool = False
    ca_file: Path | None = None
    identity: bool = False
    accept_any_token: bool = False
    credits: int | None = None


DEFAULT_OPTIONS = EmulatorOptions()
