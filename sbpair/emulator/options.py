"""The requested namespaces of an emulator, and its other options. Plain data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from sbpair.emulator.entities.description import STANDARD, TIERS, EmulatedTier
from sbpair.errors import UsageError


class RequestedNamespace(NamedTuple):
    """A namespace to create in an emulator. Port 0 is any free one."""

    name: str
    port: int
    tier: str = STANDARD.name
    partitions: int = 1

    def check(self) -> EmulatedTier:
        """Return the tier. Raises UsageError for an unknown tier, or a number of partitions that it does not have."""
        tier = TIERS.get(self.tier.lower())
        if tier is None:
            raise UsageError(
                f"expected basic, standard or premium, got '{self.tier}'", hint="choose the tier of the namespace"
            )
        if self.partitions not in tier.partitions:
            raise UsageError(
                f"a {tier.name} namespace cannot have {self.partitions} partitions",
                hint="use premium with 1, 2 or 4; elsewhere partitioning is chosen for each entity",
            )
        return tier


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
