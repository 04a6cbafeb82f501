"""The configuration file: its path, its permitted keys, and its settings of one pair.

It holds no secrets: a connection string in it is rejected, and its text never repeated.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from sbpair.config.environment import PAIR_VARIABLES, RELAY_VARIABLES
from sbpair.config.setting import (
    ONE_ADDRESS,
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
from sbpair.errors import MachineLacks, SbpairError, UsageError, nearest_hint, noting, raise_all
from sbpair.model.connection_string import holds_secret, looks_like_connection_string
from sbpair.model.pair import SIDES, Endpoint, Ends, is_address
from sbpair.model.toml_text import Positions, parse_toml
from sbpair.operating_system.files import make_directories, open_new, read_document

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
    named = [side.get(key) for side in sides if isinstance(side, dict) for key in VARIABLE_KEYS]
    return {str(each) for names in named for each in (names if isinstance(names, list) else [names])}


def create_file(path: Path, text: str, *, options: str = "--config or SBPAIR_CONFIG") -> None:
    """Create a file that `options` name, and its directory. Raises UsageError if it exists, and MachineLacks."""
    try:
        make_directories(path.parent)
        descriptor = open_new(path)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as file:
                file.write(text)
        except OSError:
            path.unlink()
            raise
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
    place = _Place(str(path), (f"{kind}s",), _parsed(path)[1])
    raise_all(
        UsageError(
            f"{place.of(name)}: {'…' if holds_secret(name) else name!r} cannot be the name of a {kind}",
            hint="use up to 64 letters, digits, '.', '-' and '_'; primary and secondary are the sides of a pair",
        )
        for name in tables
        if name in SIDES or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name)
    )
    return tables


def _read_tables(path: Path, kind: str) -> dict[str, object]:
    content, positions = _parsed(path)
    place = _Place(str(path), (), positions)
    tables = _table(content, ("pairs", "namespaces", "relays"), place).get(kind, {})
    if not isinstance(tables, dict):
        raise UsageError(f"{place.of(kind)}: {kind} is not a table", hint=f"write [{kind}.NAME]")
    return tables


def _parsed(path: Path) -> tuple[dict[str, object], Positions]:
    text = read_document(path, hint="name a file, with --config or SBPAIR_CONFIG", missing="")
    return parse_toml(text, str(path))


@dataclass(frozen=True, slots=True)
class _Place:
    """A table of a file, or another source, with the lines of its keys: `config.toml:3 [pairs.orders]`."""

    source: str
    table: tuple[str, ...] = ()
    positions: Positions = field(default_factory=dict)

    def __str__(self) -> str:
        return self._text(self.table)

    def of(self, key: str) -> str:
        """Return the text with the line of a key."""
        return self._text((*self.table, key))

    def below(self, name: str) -> _Place:
        return replace(self, table=(*self.table, name))

    def _text(self, keys: tuple[str, ...]) -> str:
        found, table = self.positions.get(keys), ".".join(self.table)
        return f"{self.source}{f':{found.line}' if found else ''}{f' [{table}]' if table else ''}"


def file_layer(name: str, table: object, path: Path, environ: Environment) -> Layer:
    """Return the settings of `[pairs.NAME]` and its two sides. Raises UsageError with each wrong key and its place."""
    place, wrong = _Place(str(path), ("pairs", name), _parsed(path)[1]), list[UsageError]()
    values = _values(table, PAIR_KEYS, place, wrong, others=SIDES)
    layer = {key: Setting(value, place.of(key), Origin.FILE) for key, value in values.items()}
    layer |= _sides_layer(table, place, environ, SIDE_KEYS, wrong)
    raise_all(wrong)
    return layer


def namespace_layer(name: str, table: object, path: Path, environ: Environment) -> Layer:
    """Return the settings of `[namespaces.NAME]`. Raises UsageError with each wrong key and its place."""
    place = _Place(str(path), ("namespaces", name), _parsed(path)[1])
    return _side_layer(f"namespaces.{name}", table, place, environ)


def relay_layer(name: str, table: object, path: Path, environ: Environment) -> Layer:
    """Return the settings of the sides of `[relays.NAME]`. Raises UsageError with each wrong key and its place."""
    place, wrong = _Place(str(path), ("relays", name), _parsed(path)[1]), list[UsageError]()
    _values(table, (), place, wrong, others=SIDES)
    layer = _sides_layer(table, place, environ, RELAY_SIDE_KEYS, wrong)
    raise_all(wrong)
    return layer


def _sides_layer(
    table: object, place: _Place, environ: Environment, keys: tuple[str, ...], wrong: list[UsageError]
) -> dict[str, Setting]:
    layer: dict[str, Setting] = {}
    for side, own in table.items() if isinstance(table, dict) else ():
        if side in SIDES:
            with noting(wrong):
                layer |= _side_layer(side, own, place.below(side), environ, keys)
    return layer


def _side_layer(
    side: str, table: object, place: _Place, environ: Environment, keys: tuple[str, ...] = SIDE_KEYS
) -> Layer:
    wrong = list[UsageError]()
    values, layer = _values(table, keys, place, wrong), dict[str, Setting]()
    for alternatives, hint in ((ADDRESS_KEYS, ONE_ADDRESS), (("proxy", "proxy_env"), ONE_PROXY)):
        given = [key for key in alternatives if key in values]
        if len(given) > 1:
            wrong.append(conflict(given[0], given[1], place.of(given[1]), hint))
    for key, value in values.items():
        with noting(wrong):
            name, setting = _setting(key, value, place.of(key), environ)
            layer[f"{side}.{name}"] = setting
    raise_all(wrong)
    return layer


def _setting(key: str, value: str | int | bool, place: str, environ: Environment) -> tuple[str, Setting]:
    """Return the name and the setting of a key. Raises UsageError for a variable that is not set."""
    if key == "connection_string_file":
        return "address", key_file(str(value), f"{place}: {key}")
    if key not in VARIABLE_KEYS:
        return "address" if key == "namespace" else key, Setting(value, place, Origin.FILE)
    variable, *others = str(value).split()
    more = [_setting(key, each, place, environ)[1] for each in others]
    if not environ.get(variable):
        # A client secret may look like a name.
        shown = variable if key != "client_secret_env" or variable.isupper() else "that client_secret_env names"
        hint = f"export {variable if shown == variable else 'NAME'}='{_EXAMPLES[key]}'"
        raise UsageError(f"{place}: the variable {shown} is not set", hint=hint)
    return VARIABLE_KEYS[key], Setting(Secret(environ[variable], more=tuple(more)), variable, Origin.ENVIRONMENT)


def _values(
    table: object, keys: tuple[str, ...], place: _Place, wrong: list[UsageError], others: tuple[str, ...] = ()
) -> dict[str, str | int | bool]:
    """Return the values of these keys; note what is wrong, and every key that is not one of them or of the others."""
    values: dict[str, str | int | bool] = {}
    with noting(wrong):
        _table(table, (*keys, *others), place)
    for key, value in table.items() if isinstance(table, dict) else ():
        if key in keys:
            with noting(wrong):
                values[key] = _scalar(value, key, place.of(key))
    return values


def _table(table: object, known: tuple[str, ...], place: _Place) -> Mapping[str, object]:
    if not isinstance(table, dict):
        raise UsageError(f"{place} is not a table", hint="write it as [table] with key = value lines")
    raise_all(_wrong_key(key, known, place.of(key)) for key in table if key not in known)
    return table


def _wrong_key(key: str, known: tuple[str, ...], place: str) -> UsageError:
    if key in ("connection_string", "client_secret"):
        return _secret_in_file(place, key)
    shown = "…" if holds_secret(key, is_setting=True) else key
    hint = nearest_hint(key, known, f"known keys: {', '.join(known)}")
    return UsageError(f"{place}: unknown key {shown!r}", hint=hint)


def _scalar(value: object, key: str, place: str) -> str | int | bool:
    if key == "connection_string_env" and isinstance(value, list) and value and {*map(type, value)} == {str}:
        return " ".join(str(_scalar(each, key, place)) for each in value)
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
    layer = _side_layer(f"{PREFIX}{variable}", {"connection_string_env": variable}, _Place(source), environ)
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
