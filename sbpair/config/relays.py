"""Relays: `[relays.NAME]` of the configuration file, and the relay `default` of environment variables."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

from sbpair.config import effective_side, environment_layer, refuse_secrets
from sbpair.config.file import config_path, read_relays, relay_layer
from sbpair.config.setting import (
    RELAY_KEYS,
    Environment,
    Flags,
    Layer,
    Setting,
    merged,
)
from sbpair.errors import UsageError
from sbpair.model.connection_string import holds_secret
from sbpair.model.pair import Endpoint, sign_in

FROM_ENVIRONMENT = "default"
"""The relay whose sides SBPAIR_RELAY_PRIMARY_… and SBPAIR_RELAY_SECONDARY_… set. They change no other one."""

VARIABLES = "SBPAIR_RELAY_PRIMARY_CONNECTION_STRING and SBPAIR_RELAY_SECONDARY_CONNECTION_STRING"


@dataclass(frozen=True, slots=True)
class RelaySettings:
    """The settings of one relay. Their keys are such as `relays.orders.primary.path`."""

    name: str
    settings: Mapping[str, Setting]

    def prefix(self, side: str) -> str:
        return f"relays.{self.name}.{side}"


def relay_names(flags: Flags, environ: Environment) -> list[str]:
    """Return the relays of the file and the environment. Raises UsageError, MachineLacks."""
    from_environment = [FROM_ENVIRONMENT] if _environment_layer(environ) else []
    return sorted({*read_relays(config_path(flags, environ)), *from_environment})


def load_relay_settings(name: str | None, flags: Flags, environ: Environment) -> RelaySettings:
    """Return the settings of the relay `name`, or SBPAIR_RELAY, or the only one. Raises UsageError, MachineLacks."""
    refuse_secrets(environ)
    path = config_path(flags, environ)
    names, wanted = relay_names(flags, environ), name or environ.get("SBPAIR_RELAY")
    if wanted and wanted not in names:
        if holds_secret(wanted):
            raise UsageError(
                "the name of a relay holds a connection string, which is a secret", hint="give the relay's name"
            )
        near = difflib.get_close_matches(wanted, names, 1)
        known = f"there are: {', '.join(names)}" if names else f"add [relays.{wanted}.primary] to {path}"
        if not names and wanted == FROM_ENVIRONMENT:
            known += f", or set {VARIABLES}"
        raise UsageError(f"relay {wanted!r} does not exist", hint=f"did you mean {near[0]}?" if near else known)
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
    return RelaySettings(chosen, {f"relays.{chosen}.{key}": setting for key, setting in settings.items()})


def effective_relay_side(
    prefix: str, endpoint: Endpoint, shown: tuple[str, str], settings: Mapping[str, Setting], environ: Environment
) -> dict[str, Setting]:
    """Return every value of one side of a relay by its key, without secrets. `shown` are its namespace and path."""
    namespace, path = shown
    values = {
        "namespace": namespace,
        "name": endpoint.name,
        "path": path,
        "sign_in": sign_in(endpoint),
        "ca_file": endpoint.ca_file or "",
    }
    # A connection string may have the path.
    own = {f"{prefix}.path": settings[f"{prefix}.address"], **settings}
    return effective_side(prefix, endpoint, own, environ, values, {"name": "namespace"})


def _environment_layer(environ: Environment) -> Layer:
    return environment_layer(environ, "SBPAIR_RELAY", RELAY_KEYS)
