"""Relays of the configuration: `[relays.NAME]` of the file, and the relay `default` of environment variables.

Nothing is connected.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from sbpair.config import effective_side
from sbpair.config.environment import RELAY_KEYS, environment_layer, refuse_secrets
from sbpair.config.file import config_path, read_relays, relay_layer
from sbpair.config.setting import Environment, Flags, Layer, Secret, Setting, build_endpoint, merged
from sbpair.errors import ConnectionStringError, NameInvalid, UsageError, nearest_hint
from sbpair.model.connection_string import holds_secret
from sbpair.model.pair import SIDES, Endpoint, Side, sign_in
from sbpair.relay.relay_endpoint import RelayEndpoint, RelayPair, split_entity_path

FROM_ENVIRONMENT = "default"
"""The relay whose sides SBPAIR_RELAY_PRIMARY_… and SBPAIR_RELAY_SECONDARY_… set. They change no other one."""

VARIABLES = "SBPAIR_RELAY_PRIMARY_CONNECTION_STRING and SBPAIR_RELAY_SECONDARY_CONNECTION_STRING"


@dataclass(frozen=True, slots=True)
class ConfiguredRelay:
    """A relay by its name. `endpoints` are the namespaces of its sides.

    `settings` are all configured values, by keys such as `relays.orders.primary.path`.
    """

    name: str
    pair: RelayPair
    endpoints: Mapping[Side, Endpoint]
    settings: Mapping[str, Setting]

    def effective(self, environ: Environment) -> dict[str, Setting]:
        """Return every value by its key, set and default ones, without secrets. Raises UsageError."""
        found: dict[str, Setting] = {}
        for side in SIDES:
            endpoint, prefix = self.endpoints[side], f"relays.{self.name}.{side}"
            values = {
                "namespace": self.pair[side].namespace,
                "name": endpoint.name,
                "path": self.pair[side].path,
                "sign_in": sign_in(endpoint),
                "ca_file": endpoint.ca_file or "",
            }
            # A connection string may have the path.
            own = {f"{prefix}.path": self.settings[f"{prefix}.address"], **self.settings}
            found |= effective_side(prefix, endpoint, own, environ, values, {"name": "namespace"})
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
    found, settings = _settings(name, flags, environ)
    sides = {side: _side(found, side, settings) for side in SIDES}
    endpoints = {side: endpoint for side, (endpoint, _) in sides.items()}
    try:
        pair = RelayPair(*(relay for _, relay in sides.values()))
    except UsageError as error:
        raise UsageError(f"relay {found!r}: {error.message}", hint=error.hint) from None
    return ConfiguredRelay(found, pair, endpoints, settings)


def configured_relays(flags: Flags, environ: Environment) -> list[ConfiguredRelay]:
    """Return every configured relay. Raises UsageError for a wrong one."""
    return [configured_relay(each, flags, environ) for each in relay_names(flags, environ)]


def relay_names(flags: Flags, environ: Environment) -> list[str]:
    """Return the relays of the file and the environment. Raises UsageError, MachineLacks."""
    from_environment = [FROM_ENVIRONMENT] if _environment_layer(environ) else []
    return sorted({*read_relays(config_path(flags, environ)), *from_environment})


def _settings(name: str | None, flags: Flags, environ: Environment) -> tuple[str, dict[str, Setting]]:
    """Return the relay `name`, or SBPAIR_RELAY, or the only one, with its settings. Raises UsageError, MachineLacks."""
    refuse_secrets(environ)
    path = config_path(flags, environ)
    names, wanted = relay_names(flags, environ), name or environ.get("SBPAIR_RELAY")
    if wanted and wanted not in names:
        if holds_secret(wanted):
            raise UsageError(
                "the name of a relay holds a connection string, which is a secret", hint="give the relay's name"
            )
        known = f"there are: {', '.join(names)}" if names else f"add [relays.{wanted}.primary] to {path}"
        if not names and wanted == FROM_ENVIRONMENT:
            known += f", or set {VARIABLES}"
        raise UsageError(f"relay {wanted!r} does not exist", hint=nearest_hint(wanted, names, known))
    if not wanted and len(names) != 1:
        if names:
            raise UsageError("several relays are configured", hint=f"choose one: {' | '.join(names)}")
        raise UsageError(
            "no relay is configured",
            hint=f"add [relays.NAME.primary] and [relays.NAME.secondary] to {path}, or set {VARIABLES}",
        )
    chosen = wanted or names[0]
    tables = read_relays(path)
    from_file = relay_layer(chosen, tables[chosen], path, environ) if chosen in tables else {}
    from_environment = _environment_layer(environ) if chosen == FROM_ENVIRONMENT else {}
    settings = merged(from_environment, from_file)
    return chosen, {f"relays.{chosen}.{key}": setting for key, setting in settings.items()}


def _environment_layer(environ: Environment) -> Layer:
    return environment_layer(environ, "SBPAIR_RELAY", RELAY_KEYS)


def _side(relay: str, side: Side, configured: Mapping[str, Setting]) -> tuple[Endpoint, RelayEndpoint]:
    prefix, settings = f"relays.{relay}.{side}", dict(configured)
    address = settings.get(f"{prefix}.address")
    if address is None:
        raise UsageError(
            f"relay {relay!r} has no {side} namespace",
            hint=f"give [{prefix}] a namespace and a path, or a connection_string_env",
        )
    path = settings.get(f"{prefix}.path")
    if isinstance(address.value, Secret):
        secret = address.value.opened(address.source)
        try:
            rest, own = split_entity_path(secret.text, None if path is None else str(path.value))
        except ConnectionStringError as error:
            raise ConnectionStringError(f"{address.source}: {error.message}", hint=error.hint) from None
        settings[f"{prefix}.address"] = replace(address, value=replace(secret, text=rest))
        if own is not None and path is None:
            path = replace(address, value=own)
    endpoint = build_endpoint(prefix, settings, relay)
    if path is None:
        raise UsageError(
            f"{address.source}: the {side} of relay {relay!r} has no path",
            hint=f'write path = "orders" into [{prefix}], or use a connection string with EntityPath',
        )
    try:
        return endpoint, RelayEndpoint.of_namespace(endpoint, str(path.value))
    except NameInvalid as error:
        raise NameInvalid(f"{path.source}: {error.message}", hint=error.hint) from None
    except UsageError as error:
        raise UsageError(f"{address.source}: {error.message}", hint=error.hint) from None
