"""Single namespaces: `[namespaces.NAME]` of the configuration file, with the keys of a side, or a host."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from sbpair.config.file import config_path, namespace_layer, read_namespaces, read_pairs, read_relays
from sbpair.config.pair_settings import build_endpoint
from sbpair.config.setting import RELAY_VARIABLES, SIDES, Environment, Flags, Layer, Origin, Setting
from sbpair.errors import UsageError
from sbpair.model.connection_string import holds_secret
from sbpair.model.pair import Ends, is_address

if TYPE_CHECKING:
    from sbpair.model.pair import Endpoint

ADDRESSES = ("NAMESPACE", "CONNECTION_STRING")
PREFIX = "namespaces."
PAIR_VARIABLES = ("SBPAIR_PAIR", *(f"SBPAIR_{side.upper()}_{key}" for side in SIDES for key in ADDRESSES))


@dataclass(frozen=True, slots=True)
class SingleNamespace:
    """A namespace by its name in the file, or its host. `settings` have keys such as `namespaces.NAME.endpoint`."""

    name: str
    endpoint: Endpoint
    settings: Mapping[str, Setting]

    @property
    def ends(self) -> Ends:
        """The ends of a move within it, whose state is its own."""
        return Ends(self.name, self.endpoint, self.endpoint)


def load_namespace(name: str, flags: Flags, environ: Environment, *, may_be_host: bool = True) -> SingleNamespace:
    """Return `[namespaces.NAME]`, or the namespace of a host. Raises UsageError if `name` is neither."""
    path = config_path(flags, environ)
    tables = read_namespaces(path)
    if name in tables:
        return _build(name, namespace_layer(name, tables[name], path, environ), flags)
    if holds_secret(name):
        raise UsageError("--namespace holds a connection string, which is a secret", hint=_hint("", tables, path))
    if may_be_host and "." in name:
        return _build(name, {f"{PREFIX}{name}.address": Setting(name, "--namespace", Origin.FLAG)}, flags)
    raise UsageError(f"namespace {name!r} does not exist", hint=_hint(name, tables, path))


def all_namespaces(flags: Flags, environ: Environment) -> list[SingleNamespace]:
    """Return every namespace of the file. Raises UsageError for a wrong one."""
    path = config_path(flags, environ)
    found = read_namespaces(path).items()
    return [_build(name, namespace_layer(name, table, path, environ), flags) for name, table in found]


def has_pair(flags: Flags, environ: Environment) -> bool:
    """Return whether a pair is configured, or named; a file may have namespaces or relays alone."""
    named = flags.pair or flags.primary or flags.secondary or any(environ.get(each) for each in PAIR_VARIABLES)
    path = config_path(flags, environ)
    others = read_namespaces(path) or read_relays(path) or any(environ.get(each) for each in RELAY_VARIABLES)
    return bool(named or read_pairs(path) or not others)


def _build(name: str, layer: Layer, flags: Flags) -> SingleNamespace:
    settings = dict(layer)
    if flags.transport is not None:
        settings[f"{PREFIX}{name}.transport"] = Setting(flags.transport, "--transport", Origin.FLAG)
    endpoint = build_endpoint(f"{PREFIX}{name}", settings, name)
    if f"{PREFIX}{name}.name" not in settings and is_address(endpoint.host):
        endpoint = replace(endpoint, name=name)
    return SingleNamespace(name, endpoint, settings)


def _hint(name: str, tables: Mapping[str, object], path: Path) -> str:
    if near := difflib.get_close_matches(name, (*tables, *SIDES), 1):
        return f"did you mean {near[0]}?"
    known = f"{path} has: {', '.join(sorted(tables))}" if tables else f"add [namespaces.{name or 'NAME'}] to {path}"
    return f"{known}; or give a host such as contoso.servicebus.windows.net"
