"""What an emulator can be asked to be beyond namespaces on ports. Plain data: nothing is started here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class EmulatorOptions:
    """`tls`: speak TLS on every port as well. `ca_file`: where to write what is to be trusted, by itself a
    private place.

    `identity`: be a managed identity, and accept the tokens that it hands out. `accept_any_token`: accept every bearer
    token that is well-formed and has not run out. `credits`: throttle each namespace to so many credits a second.
    """

    tls: bool = False
    ca_file: Path | None = None
    identity: bool = False
    accept_any_token: bool = False
    credits: int | None = None


PLAIN = EmulatorOptions()
