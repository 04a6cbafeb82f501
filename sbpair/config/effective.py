"""The effective values, each with its source. Pure; of a secret not even the length is shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from sbpair.config.setting import SIDES, Origin, Setting
from sbpair.model.pair import Endpoint, SasKey, SasToken, authority_of

if TYPE_CHECKING:
    from sbpair.config import Profile

MASK = "***"


def effective(profile: Profile) -> dict[str, Setting]:
    """Return every value of a profile by its key: set, derived and default ones."""
    pair, settings = profile.pair, profile.settings
    values: dict[str, str | int | float | bool] = {
        "backlog_queues": pair.backlog_queues,
        "failover_interval": pair.failover_interval,
        "ping_interval": pair.ping_interval,
    }
    found = {key: settings[key] for key in ("pair", "config", "state")}
    found |= {key: _with_source(value, settings.get(key)) for key, value in values.items()}
    for side, endpoint in zip(SIDES, (pair.primary, pair.secondary), strict=True):
        found |= _side(side, endpoint, settings)
    return found


def _side(side: str, endpoint: Endpoint, settings: Mapping[str, Setting]) -> dict[str, Setting]:
    address = settings[f"{side}.address"]
    values: dict[str, str | int | bool] = {
        "name": endpoint.name,
        "endpoint": authority_of(endpoint.host, endpoint.port),
        "tls": endpoint.tls,
        "ca_file": endpoint.ca_file or "",
    }
    return {
        f"{side}.namespace": Setting(endpoint.authority, address.source, address.origin),
        f"{side}.sign_in": Setting(sign_in(endpoint), address.source, address.origin),
        **{f"{side}.{key}": _derived(value, settings.get(f"{side}.{key}"), side) for key, value in values.items()},
    }


def sign_in(endpoint: Endpoint) -> str:
    """Describe the credential, without secrets."""
    credential = endpoint.credential
    if isinstance(credential, SasKey):
        return f"key {credential.name} {MASK}"
    return f"signature {MASK}" if isinstance(credential, SasToken) else "identity"


def _with_source(value: str | int | float | bool, setting: Setting | None) -> Setting:
    return Setting(value, setting.source, setting.origin) if setting else Setting(value, "", Origin.DEFAULT)


def _derived(value: str | int | bool, setting: Setting | None, side: str) -> Setting:
    if setting or value == "":
        return _with_source(value, setting)
    return Setting(value, f"{side}.namespace", Origin.DERIVED)
