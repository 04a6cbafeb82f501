"""The relay pair of the configuration: `[relays.NAME]` of the file, or environment variables. Connects to nothing."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from sbpair.config.relays import RelaySettings, effective_relay_side, load_relay_settings, relay_names
from sbpair.config.setting import Environment, Flags, Secret, Setting, build_endpoint
from sbpair.errors import ConnectionStringError, NameInvalid, UsageError
from sbpair.model.pair import Endpoint
from sbpair.relay.relay_endpoint import SIDES, RelayEndpoint, RelayPair, Side, split_entity_path


@dataclass(frozen=True, slots=True)
class ConfiguredRelay:
    """A relay by its name. `endpoints` are the namespaces of its sides, `settings` every configured value."""

    name: str
    pair: RelayPair
    endpoints: Mapping[Side, Endpoint]
    settings: RelaySettings

    def effective(self, environ: Environment) -> dict[str, Setting]:
        """Return every value by its key, set and default ones, without secrets. Raises UsageError."""
        found: dict[str, Setting] = {}
        for side in SIDES:
            prefix, shown = self.settings.prefix(side), (self.pair[side].namespace, self.pair[side].path)
            found |= effective_relay_side(prefix, self.endpoints[side], shown, self.settings.settings, environ)
        return found


def load_relay_pair(
    name: str | None = None, *, config: Path | None = None, environ: Environment | None = None
) -> RelayPair:
    """Return the relay pair of that name, or the only one, as the command line does.

    `config` is another file than the default; `environ` replaces the process's environment. Raises UsageError if the
    relay does not exist, or the configuration is wrong.
    """
    return configured_relay(name, Flags(config=config), os.environ if environ is None else environ).pair


def configured_relay(name: str | None, flags: Flags, environ: Environment) -> ConfiguredRelay:
    """Return the relay of that name, or the only one. Raises UsageError with the source of a wrong value."""
    found = load_relay_settings(name, flags, environ)
    sides = {side: _side(found, side) for side in SIDES}
    endpoints = {side: endpoint for side, (endpoint, _) in sides.items()}
    try:
        pair = RelayPair(*(relay for _, relay in sides.values()))
    except UsageError as error:
        raise UsageError(f"relay {found.name!r}: {error.message}", hint=error.hint) from None
    return ConfiguredRelay(found.name, pair, endpoints, found)


def configured_relays(flags: Flags, environ: Environment) -> list[ConfiguredRelay]:
    """Return every configured relay. Raises UsageError for a wrong one."""
    return [configured_relay(each, flags, environ) for each in relay_names(flags, environ)]


def _side(relay: RelaySettings, side: Side) -> tuple[Endpoint, RelayEndpoint]:
    prefix, settings = relay.prefix(side), dict(relay.settings)
    address = settings.get(f"{prefix}.address")
    if address is None:
        raise UsageError(
            f"relay {relay.name!r} has no {side} namespace",
            hint=f"give [{prefix}] a namespace and a path, or a connection_string_env",
        )
    path = settings.get(f"{prefix}.path")
    if isinstance(address.value, Secret):
        try:
            rest, own = split_entity_path(address.value.text, None if path is None else str(path.value))
        except ConnectionStringError as error:
            raise ConnectionStringError(f"{address.source}: {error.message}", hint=error.hint) from None
        settings[f"{prefix}.address"] = replace(address, value=Secret(rest))
        if own is not None and path is None:
            path = replace(address, value=own)
    endpoint = build_endpoint(prefix, settings, relay.name)
    if path is None:
        raise UsageError(
            f"{address.source}: the {side} of relay {relay.name!r} has no path",
            hint=f'write path = "orders" into [{prefix}], or use a connection string with EntityPath',
        )
    try:
        return endpoint, RelayEndpoint.of_namespace(endpoint, str(path.value))
    except NameInvalid as error:
        raise NameInvalid(f"{path.source}: {error.message}", hint=error.hint) from None
    except UsageError as error:
        raise UsageError(f"{address.source}: {error.message}", hint=error.hint) from None
