"""What is in force, value by value, and where each came from. Pure; of a secret not even the length is told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from sbpair.config.setting import SIDES, Origin, Setting
from sbpair.model.pair import Endpoint, SasKey, SasToken, authority_of

if TYPE_CHECKING:
    from sbpair.config import Profile

MASK = "***"


def effective(profile: Profile) -> dict[str, Setting]:
    """Every value of a profile by its key: those that were set, that follow from others, and that are defaults."""
    pair, said = profile.pair, profile.settings
    values: dict[str, str | int | float | bool] = {
        "backlog_queues": pair.backlog_queues,
        "failover_interval": pair.failover_interval,
        "ping_interval": pair.ping_interval,
    }
    found = {key: said[key] for key in ("pair", "config", "state")}
    found |= {key: _as_said(value, said.get(key)) for key, value in values.items()}
    for side, endpoint in zip(SIDES, (pair.primary, pair.secondary), strict=True):
        found |= _side(side, endpoint, said)
    return found


def _side(side: str, endpoint: Endpoint, said: Mapping[str, Setting]) -> dict[str, Setting]:
    address = said[f"{side}.address"]
    values: dict[str, str | int | bool] = {
        "name": endpoint.name,
        "endpoint": authority_of(endpoint.host, endpoint.port),
        "tls": endpoint.tls,
        "ca_file": endpoint.ca_file or "",
    }
    return {
        f"{side}.namespace": Setting(endpoint.authority, address.source, address.origin),
        f"{side}.sign_in": Setting(sign_in(endpoint), address.source, address.origin),
        **{f"{side}.{key}": _follows(value, said.get(f"{side}.{key}"), side) for key, value in values.items()},
    }


def sign_in(endpoint: Endpoint) -> str:
    """How the namespace is signed in to, without anything that is secret."""
    credential = endpoint.credential
    if isinstance(credential, SasKey):
        return f"key {credential.name} {MASK}"
    return f"signature {MASK}" if isinstance(credential, SasToken) else "identity"


def _as_said(value: str | int | float | bool, setting: Setting | None) -> Setting:
    return Setting(value, setting.source, setting.origin) if setting else Setting(value, "", Origin.DEFAULT)


def _follows(value: str | int | bool, setting: Setting | None, side: str) -> Setting:
    if setting or value == "":
        return _as_said(value, setting)
    return Setting(value, f"{side}.namespace", Origin.DERIVED)
