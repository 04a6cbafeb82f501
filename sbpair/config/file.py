"""The configuration file: its path, its permitted keys, and its settings of one pair.

It holds no secrets: a connection string in it is rejected, and its text never repeated.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from sbpair.config.environment import PAIR_VARIABLES, RELAY_VARIABLES
from sbpair.config.setting import (
    ONE_PROXY,
    Environment,
    Flags,
    Layer,
    Origin,
    Secret,
    Setting,
    build_endpoint,
    conflict,
    key_file,
    secret_in,
    user_path,
)
from sbpair.errors import MachineLacks, SbpairError, UsageError, nearest_hint, raise_all
from sbpair.model.connection_string import holds_secret, looks_like_connection_string
from sbpair.model.pair import SIDES, Endpoint, Ends, is_address
from sbpair.operating_system.files import check_dotted_keys, make_directories, open_new, read_document

PAIR_KEYS = ("backlog_queues", "failover_interval", "ping_interval", "lost", "when_lost")
ADDRESS_KEYS = ("namespace", "connection_string_env", "connection_string_file")
IDENTITY_KEYS = ("identity", "client_id", "tenant", "authority", "client_secret_env")
RELAY_SIDE_KEYS = ("name", *ADDRESS_KEYS, *IDENTITY_KEYS, "path", "ca_file", "proxy", "proxy_env")
SIDE_KEYS = (*(each for each in RELAY_SIDE_KEYS if each != "path"), "endpoint", "tls", "transport")
VARIABLE_KEYS = {"connection_string_env": "address", "proxy_env": "proxy", "client_secret_env": "client_secret"}
"""Keys that name an environment variable with a secret, and the setting that it has."""

_EXAMPLES = {
    "connection_string_env": "Endpoint=sb://…",
    "proxy_env": "http://USER:PASSWORD@HOST:PORT",
    "client_secret_env": "…",
}


def file_setting(flags: Flags, environ: Environment) -> Setting:
    """Return `--config`, else SBPAIR_CONFIG, else `config.toml` in the user's directory. It need not exist."""
    if flags.config:
        return Setting(str(flags.config), "--config", Origin.FLAG)
    if environ.get("SBPAIR_CONFIG"):
        return Setting(environ["SBPAIR_CONFIG"], "SBPAIR_CONFIG", Origin.ENVIRONMENT)
    return user_path("config", "config.toml", environ)


def config_path(flags: Flags, environ: Environment) -> Path:
    """Return the file's path. One named explicitly must exist."""
    setting = file_setting(flags, environ)
    if holds_secret(str(setting.value), is_setting=True):
        raise secret_in(setting.source)
    path = Path(str(setting.value))
    if setting.source in ("--config", "SBPAIR_CONFIG") and not path.exists():
        raise UsageError(f"{setting.source}: {path} does not exist", hint="check the path")
    return path


def pair_names(flags: Flags, environ: Environment) -> list[str]:
    """Return the pairs of the file for shell completion; none if the file is unreadable."""
    try:
        return sorted(read_pairs(config_path(flags, environ)))
    except SbpairError:
        return []


def named_variables(path: Path) -> set[object]:
    """Return the variables of secrets that the file names; none if it is unreadable."""
    try:
        tables = [table for table in read_pairs(path).values() if isinstance(table, dict)]
        namespaces = list(read_namespaces(path).values())
        tables += [table for table in read_relays(path).values() if isinstance(table, dict)]
    except SbpairError:
        return set()
    sides = [table.get(side) for table in tables for side in SIDES] + namespaces
    return {side.get(key) for side in sides if isinstance(side, dict) for key in VARIABLE_KEYS}


def create_file(path: Path, text: str, *, options: str = "--config or SBPAIR_CONFIG") -> None:
    """Create a file that `options` name, and its directory. Raises UsageError if it exists, and MachineLacks."""
    try:
        make_directories(path.parent)
        with os.fdopen(open_new(path), "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        if path.is_dir():
            raise UsageError(f"{path} is a directory", hint=f"name a file, with {options}") from error
        if path.exists():
            raise UsageError(f"{path} exists, and is not overwritten", hint="edit it, or name another file") from error
        hint = f"name another file with {options.partition(' ')[0]}"
        below_file = isinstance(error, (FileExistsError, NotADirectoryError))
        why = "a part of its path is not a directory" if below_file else error.strerror
        raise MachineLacks(f"{path} cannot be created: {why}", hint=hint) from error


def read_pairs(path: Path) -> dict[str, object]:
    """Return the tables under `pairs`, by name; none without a file. Raises UsageError, MachineLacks."""
    return _read_tables(path, "pairs")


def read_namespaces(path: Path) -> dict[str, object]:
    """Return the tables under `namespaces`, as `read_pairs` does."""
    return _named_tables(path, "namespace")


def read_relays(path: Path) -> dict[str, object]:
    """Return the tables under `relays`, as `read_pairs` does."""
    return _named_tables(path, "relay")


def _named_tables(path: Path, kind: str) -> dict[str, object]:
    tables = _read_tables(path, f"{kind}s")
    for name in tables:
        if name in SIDES or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name):
            shown = "…" if holds_secret(name) else name
            hint = "use up to 64 letters, digits, '.', '-' and '_'; primary and secondary are the sides of a pair"
            raise UsageError(f"{path}: {shown!r} cannot be the name of a {kind}", hint=hint)
    return tables


def _read_tables(path: Path, kind: str) -> dict[str, object]:
    text = read_document(path, hint="name a file, with --config or SBPAIR_CONFIG", missing="")
    check_dotted_keys(text, str(path))
    try:
        content: dict[str, object] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path} is not TOML: {error}", hint="see https://toml.io") from error
    except RecursionError:
        raise UsageError(f"{path} is nested too deeply", hint="write tables with key = value lines") from None
    entries = _table(content, ("pairs", "namespaces", "relays"), str(path))
    tables = entries.get(kind, {})
    if not isinstance(tables, dict):
        raise UsageError(f"{path}: {kind} is not a table", hint=f"write [{kind}.NAME]")
    return tables


def file_layer(name: str, table: object, path: Path, environ: Environment) -> Layer:
    """Return the settings of `[pairs.NAME]` and its two sides. Raises UsageError with each wrong key and its place."""
    place, layer, wrong = f"{path} [pairs.{name}]", dict[str, Setting](), list[UsageError]()
    sides = [(side, table[side]) for side in SIDES if side in table] if isinstance(table, dict) else []
    for side, own in (("", table), *sides):
        try:
            if side:
                layer |= _side_layer(side, own, f"{path} [pairs.{name}.{side}]", environ)
            else:
                entries = _table(own, (*PAIR_KEYS, *SIDES), place)
                values = {key: _scalar(entries[key], key, place) for key in PAIR_KEYS if key in entries}
                layer = {key: Setting(value, place, Origin.FILE) for key, value in values.items()}
        except UsageError as error:
            wrong += [error, *error.others]
    raise_all(wrong)
    return layer


def namespace_layer(name: str, table: object, path: Path, environ: Environment) -> Layer:
    """Return the settings of `[namespaces.NAME]`. Raises UsageError with the key and its place."""
    return _side_layer(f"namespaces.{name}", table, f"{path} [namespaces.{name}]", environ)


def relay_layer(name: str, table: object, path: Path, environ: Environment) -> Layer:
    """Return the settings of the sides of `[relays.NAME]`. Raises UsageError with the key and its place."""
    entries = _table(table, SIDES, f"{path} [relays.{name}]")
    layer: Layer = {}
    for side, given in entries.items():
        place = f"{path} [relays.{name}.{side}]"
        layer = {**layer, **_side_layer(side, given, place, environ, RELAY_SIDE_KEYS)}
    return layer


def _side_layer(side: str, table: object, place: str, environ: Environment, keys: tuple[str, ...] = SIDE_KEYS) -> Layer:
    entries = _table(table, keys, place)
    values = {key: _scalar(value, key, place) for key, value in entries.items()}
    addresses = [key for key in ADDRESS_KEYS if key in values]
    if len(addresses) > 1:
        raise conflict(addresses[0], addresses[1], place)
    if "proxy" in values and "proxy_env" in values:
        raise conflict("proxy", "proxy_env", place, ONE_PROXY)
    layer = {
        f"{side}.{'address' if key == 'namespace' else key}": Setting(value, place, Origin.FILE)
        for key, value in values.items()
        if key not in VARIABLE_KEYS and key != "connection_string_file"
    }
    if (path := values.get("connection_string_file")) is not None:
        layer[f"{side}.address"] = key_file(str(path), f"{place}: connection_string_file")
    for key, setting in VARIABLE_KEYS.items():
        if key in values:
            variable = str(values[key])
            if not environ.get(variable):
                # A client secret may look like a name.
                shown = variable if key != "client_secret_env" or variable.isupper() else "that client_secret_env names"
                hint = f"export {variable if shown == variable else 'NAME'}='{_EXAMPLES[key]}'"
                raise UsageError(f"{place}: the variable {shown} is not set", hint=hint)
            layer[f"{side}.{setting}"] = Setting(Secret(environ[variable]), variable, Origin.ENVIRONMENT)
    return layer


def _table(table: object, known: tuple[str, ...], place: str) -> Mapping[str, object]:
    if not isinstance(table, dict):
        raise UsageError(f"{place} is not a table", hint="write it as [table] with key = value lines")
    raise_all(_wrong_key(key, known, place) for key in table if key not in known)
    return table


def _wrong_key(key: str, known: tuple[str, ...], place: str) -> UsageError:
    if key in ("connection_string", "client_secret"):
        return _secret_in_file(place, key)
    shown = "…" if holds_secret(key, is_setting=True) else key
    hint = nearest_hint(key, known, f"known keys: {', '.join(known)}")
    return UsageError(f"{place}: unknown key {shown!r}", hint=hint)


def _scalar(value: object, key: str, place: str) -> str | int | bool:
    if isinstance(value, str) and looks_like_connection_string(value):
        raise _secret_in_file(place)
    if key in VARIABLE_KEYS and not (isinstance(value, str) and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", value)):
        raise UsageError(
            f"{place}: {key} must be the name of an environment variable", hint=f"export ORDERS='{_EXAMPLES[key]}'"
        )
    if key != "proxy" and isinstance(value, str) and holds_secret(value, is_setting=True):
        raise UsageError(f"{place}: {key} holds a password, which is a secret", hint=f"remove it from {key}")
    kinds: dict[str, tuple[type, str]] = {"backlog_queues": (int, "a whole number"), "tls": (bool, "true or false")}
    kind, wanted = kinds.get(key, (str, "text in quotes"))
    if type(value) is not kind:
        raise UsageError(f"{place}: {key} must be {wanted}", hint=f"correct {key} there")
    assert isinstance(value, (str, int))  # noqa: S101  # for the type checker: `kind` is one of the three
    return value


def _secret_in_file(place: str, key: str = "connection_string") -> UsageError:
    return UsageError(
        f"{place} holds a {key.replace('_', ' ')}, which is a secret",
        hint=f'export it, and write the variable\'s name here: {key}_env = "ORDERS_PRIMARY"',
    )


PREFIX = "namespaces."


@dataclass(frozen=True, slots=True)
class SingleNamespace:
    """A namespace by its name in the file, or its host. `settings` have keys such as `namespaces.NAME.endpoint`."""

    name: str
    endpoint: Endpoint
    settings: Mapping[str, Setting]

    @property
    def ends(self) -> Ends:
        """The ends of a move within it, whose state is its own."""
        return Ends(name=self.name, source=self.endpoint, destination=self.endpoint)


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


def endpoint_of_variable(variable: str, source: str, environ: Environment) -> Endpoint:
    """Return the namespace of the connection string in a variable that `source` names. Raises UsageError."""
    layer = _side_layer(f"{PREFIX}{variable}", {"connection_string_env": variable}, source, environ)
    return _build(variable, layer, Flags()).endpoint


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
    known = f"{path} has: {', '.join(sorted(tables))}" if tables else f"add [namespaces.{name or 'NAME'}] to {path}"
    return nearest_hint(name, (*tables, *SIDES), f"{known}; or give a host such as contoso.servicebus.windows.net")
