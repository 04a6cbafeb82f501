"""Which pair is meant, and how its namespaces are reached: flags over environment over file.

Every value remembers where it came from. The environment is an argument, secrets are in no repr, and a connection
string is taken from environment variables alone: files and command lines are read by others.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias
from urllib.parse import quote, urlsplit

from sbpair.errors import MachineLacks, UsageError
from sbpair.model import (
    AMQPS_PORT,
    TICKS_PER_SECOND,
    Endpoint,
    Identity,
    Pair,
    endpoint_from_connection_string,
    first_label,
    is_address,
    looks_like_connection_string,
    ticks,
)

Environment: TypeAlias = Mapping[str, str]

SIDES = ("primary", "secondary")
PAIR_KEYS = ("backlog_queues", "failover_interval", "ping_interval")
SIDE_KEYS = ("name", "namespace", "connection_string_env", "endpoint", "tls", "ca_file")
ENVIRONMENT_KEYS = ("CONNECTION_STRING", "NAMESPACE", "NAME", "ENDPOINT")
DEFAULT_PAIR = "default"
PUBLIC_SUFFIX = ".servicebus.windows.net"


@dataclass(frozen=True, slots=True)
class Secret:
    """A connection string, which no repr and no message shows."""

    text: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Setting:
    """A value and where it came from: `--count`, `SBPAIR_PRIMARY_NAME`, `config.toml [pairs.orders]`."""

    value: str | int | bool | Secret
    source: str


# Keys are `backlog_queues` or `primary.endpoint`; a namespace's address, be it its name or its connection string, is
# `primary.address`, for the two exclude each other.
Layer: TypeAlias = Mapping[str, Setting]


@dataclass(frozen=True, slots=True)
class Flags:
    """What the command line said; None is "nothing"."""

    pair: str | None = None
    config: Path | None = None
    state: Path | None = None
    primary: str | None = None
    secondary: str | None = None
    backlog_queues: int | None = None


@dataclass(frozen=True, slots=True)
class Profile:
    """A pair, the directory of its state, and where each setting came from."""

    pair: Pair
    state_directory: Path
    sources: Mapping[str, str]


def load_pair(name: str | None = None, *, config: Path | None = None, environ: Environment | None = None) -> Pair:
    """The pair of that name, or the only one, as the command line would find it.

    `config` is the file, instead of the usual one; `environ` stands for the process's own environment. Raises
    UsageError where there is no such pair, or where the configuration is wrong.
    """
    return load(Flags(pair=name, config=config), os.environ if environ is None else environ).pair


def load(flags: Flags, environ: Environment) -> Profile:
    """Find, merge and check everything about one pair. Reads the file, and nothing else."""
    path = config_path(flags, environ)
    tables = _read(path)
    from_environment = environment_layer(environ)
    name = _choose(flags, environ, tables, path, from_environment)
    from_file = file_layer(name, tables[name], path, environ) if name in tables else {}
    settings = merged(flag_layer(flags), from_environment, from_file)
    pair = pair_of(name, settings)
    of_the_file = all(settings[f"{side}.address"] is from_file.get(f"{side}.address") for side in SIDES)
    return Profile(
        pair,
        # Whoever says elsewhere which namespaces are meant, means another pair than the profile's.
        state_directory(name if of_the_file else f"{pair.primary.name}+{pair.secondary.name}", flags, environ),
        {key: setting.source for key, setting in sorted(settings.items())},
    )


def merged(*layers: Layer) -> dict[str, Setting]:
    """The layers, highest first, in one. A layer that says which namespace is meant says so for good.

    What lower layers say about the same side (its name, its endpoint) is then about another namespace, and is left out.
    """
    settings: dict[str, Setting] = {}
    for layer in layers:
        closed = {side for side in SIDES if f"{side}.address" in settings}
        for key, setting in layer.items():
            if key.partition(".")[0] not in closed:
                settings.setdefault(key, setting)
    return settings


def flag_layer(flags: Flags) -> Layer:
    said: dict[str, tuple[str | int | None, str]] = {
        "primary.address": (flags.primary, "--primary"),
        "secondary.address": (flags.secondary, "--secondary"),
        "backlog_queues": (flags.backlog_queues, "--count"),
    }
    return {key: Setting(value, source) for key, (value, source) in said.items() if value is not None}


def environment_layer(environ: Environment) -> Layer:
    """SBPAIR_PRIMARY_… and SBPAIR_SECONDARY_… with CONNECTION_STRING, NAMESPACE, NAME and ENDPOINT."""
    layer: dict[str, Setting] = {}
    for side in SIDES:
        variables = {key: f"SBPAIR_{side.upper()}_{key}" for key in ENVIRONMENT_KEYS}
        said = {key: environ[variable] for key, variable in variables.items() if environ.get(variable)}
        if "CONNECTION_STRING" in said and "NAMESPACE" in said:
            raise _either_or(variables["CONNECTION_STRING"], variables["NAMESPACE"], "the environment")
        for key, text in said.items():
            value = Secret(text) if key == "CONNECTION_STRING" else text
            short = "address" if key in ("CONNECTION_STRING", "NAMESPACE") else key.lower()
            layer[f"{side}.{short}"] = Setting(value, variables[key])
    return layer


def file_layer(name: str, table: object, path: Path, environ: Environment) -> Layer:
    """`[pairs.NAME]` and its two sides. Raises UsageError that names the key and the place."""
    place = f"{path} [pairs.{name}]"
    entries = _table(table, (*PAIR_KEYS, *SIDES), place)
    layer = {key: Setting(_scalar(entries[key], key, place), place) for key in PAIR_KEYS if key in entries}
    for side in SIDES:
        if side in entries:
            layer |= _side_layer(side, entries[side], f"{path} [pairs.{name}.{side}]", environ)
    return layer


def pair_of(name: str, settings: Mapping[str, Setting]) -> Pair:
    """The checked Pair that the merged settings describe."""
    pair = Pair(name, endpoint_of("primary", settings, name), endpoint_of("secondary", settings, name))
    if (count := settings.get("backlog_queues")) and isinstance(count.value, int):
        pair = replace(pair, backlog_queues=count.value)
    if failover := settings.get("failover_interval"):
        pair = replace(pair, failover_interval=_seconds(failover))
    if ping := settings.get("ping_interval"):
        pair = replace(pair, ping_interval=_seconds(ping))
    return pair


def endpoint_of(side: str, settings: Mapping[str, Setting], pair: str) -> Endpoint:
    """One side of a pair: its address, and whatever was said about how to get there."""
    address = settings.get(f"{side}.address")
    if address is None:
        raise UsageError(
            f"pair {pair!r} has no {side} namespace",
            hint=f"set SBPAIR_{side.upper()}_CONNECTION_STRING, or [pairs.{pair}.{side}] in the configuration file",
        )
    endpoint = _addressed(address)
    if name := settings.get(f"{side}.name"):
        endpoint = replace(endpoint, name=str(name.value))
    elif side == "primary" and is_address(endpoint.host):
        raise UsageError(
            f"{address.source}: {endpoint.host} does not say what the primary namespace is called",
            hint="set SBPAIR_PRIMARY_NAME, or name = in the configuration file: backlog queues are named after it",
        )
    return _led(endpoint, side, settings)


def config_path(flags: Flags, environ: Environment) -> Path:
    """`--config`, else SBPAIR_CONFIG, else `$XDG_CONFIG_HOME/sbpair/config.toml`. The first two must exist."""
    if flags.config or environ.get("SBPAIR_CONFIG"):
        path = flags.config or Path(environ["SBPAIR_CONFIG"])
        if not path.exists():
            source = "--config" if flags.config else "SBPAIR_CONFIG"
            raise UsageError(f"{source}: there is no file {path}", hint="check the path")
        return path
    return _home("XDG_CONFIG_HOME", ".config", environ) / "sbpair" / "config.toml"


def state_directory(pair: str, flags: Flags, environ: Environment) -> Path:
    """`--state`, else `$XDG_STATE_HOME/sbpair/<pair>`. It is not made here."""
    return flags.state or _home("XDG_STATE_HOME", ".local/state", environ) / "sbpair" / quote(pair, safe="+")


def _home(variable: str, fallback: str, environ: Environment) -> Path:
    given = Path(environ.get(variable, ""))
    # The XDG specification has relative paths ignored.
    return given if given.is_absolute() else Path(environ.get("HOME") or Path.home()) / fallback


def _read(path: Path) -> dict[str, object]:
    try:
        with path.open("rb") as file:
            content: dict[str, object] = tomllib.load(file)
    except FileNotFoundError:
        return {}
    except (IsADirectoryError, NotADirectoryError) as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror}", hint="name a file, with --config or SBPAIR_CONFIG"
        ) from error
    except OSError as error:
        raise MachineLacks(f"{path} cannot be read: {error.strerror}", hint="check its permissions") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8, as TOML is", hint="save it as UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path} is not TOML: {error}", hint="see https://toml.io for its few rules") from error
    entries = _table(content, ("pairs",), str(path))
    pairs = entries.get("pairs", {})
    if not isinstance(pairs, dict):
        raise UsageError(f"{path}: pairs is not a table", hint="write [pairs.NAME]")
    return pairs


def _choose(
    flags: Flags, environ: Environment, tables: Mapping[str, object], path: Path, from_environment: Layer
) -> str:
    source = "--pair" if flags.pair else "SBPAIR_PAIR"
    if name := flags.pair or environ.get("SBPAIR_PAIR"):
        if name not in tables:
            near = difflib.get_close_matches(name, tables, 1)
            known = f"did you mean {near[0]}?" if near else f"{path} has: {', '.join(sorted(tables)) or 'no pairs'}"
            raise UsageError(f"{source}: there is no pair {name!r}", hint=known)
        return name
    if len(tables) == 1:
        return next(iter(tables))
    addressed = {*flag_layer(flags), *from_environment} >= {"primary.address", "secondary.address"}
    if len(tables) > 1 and not addressed:
        raise UsageError(f"{path} has several pairs, and none was chosen", hint=f"--pair {' | '.join(sorted(tables))}")
    return DEFAULT_PAIR


def _side_layer(side: str, table: object, place: str, environ: Environment) -> Layer:
    entries = _table(table, SIDE_KEYS, place)
    values = {key: _scalar(value, key, place) for key, value in entries.items()}
    if "namespace" in values and "connection_string_env" in values:
        raise _either_or("namespace", "connection_string_env", place)
    layer = {
        f"{side}.{key}": Setting(values[key], place) for key in ("name", "endpoint", "tls", "ca_file") if key in values
    }
    if "namespace" in values:
        layer[f"{side}.address"] = Setting(values["namespace"], place)
    if "connection_string_env" in values:
        variable = str(values["connection_string_env"])
        if not environ.get(variable):
            raise UsageError(f"{place}: the environment has no {variable}", hint=f"export {variable}='Endpoint=sb://…'")
        layer[f"{side}.address"] = Setting(Secret(environ[variable]), variable)
    return layer


def _table(table: object, known: tuple[str, ...], place: str) -> dict[str, object]:
    if not isinstance(table, dict):
        raise UsageError(f"{place} is not a table", hint="write it as [table] with key = value lines")
    for key in table:
        if key == "connection_string":
            raise _secret_in_file(place)
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"known here: {', '.join(known)}"
            raise UsageError(f"{place}: unknown key {_safe(key)!r}", hint=hint)
    return table


def _scalar(value: object, key: str, place: str) -> str | int | bool:
    if isinstance(value, str) and looks_like_connection_string(value):
        raise _secret_in_file(place)
    kinds: dict[str, tuple[type, str]] = {"backlog_queues": (int, "a whole number"), "tls": (bool, "true or false")}
    kind, wanted = kinds.get(key, (str, "text in quotes"))
    if type(value) is not kind:
        raise UsageError(f"{place}: {key} must be {wanted}", hint=f"correct {key} in that place")
    assert isinstance(value, (str, int))  # noqa: S101  # for the type checker: `kind` is one of the three
    return value


def _seconds(setting: Setting) -> float:
    try:
        return ticks(str(setting.value)) / TICKS_PER_SECOND
    except UsageError as error:
        raise UsageError(f"{setting.source}: {error.message}", hint=error.hint) from None


def _addressed(address: Setting) -> Endpoint:
    if isinstance(address.value, Secret):
        try:
            return endpoint_from_connection_string(address.value.text)
        except UsageError as error:
            raise type(error)(f"{address.source}: {error.message}", hint=error.hint) from None
    text = str(address.value)
    if looks_like_connection_string(text):
        raise UsageError(
            f"{address.source} holds a connection string, and wants the name of a namespace",
            hint="put it into SBPAIR_PRIMARY_CONNECTION_STRING or SBPAIR_SECONDARY_CONNECTION_STRING",
        )
    host = (text if "." in text or is_address(text) else text + PUBLIC_SUFFIX).lower()
    if _host_port(f"{host}:1") is None:
        raise UsageError(
            f"{address.source}: {text!r} is not a namespace", hint=f"write contoso or contoso{PUBLIC_SUFFIX}"
        )
    return Endpoint(first_label(host), host, host, AMQPS_PORT, tls=True, credential=Identity())


def _led(endpoint: Endpoint, side: str, settings: Mapping[str, Setting]) -> Endpoint:
    if setting := settings.get(f"{side}.endpoint"):
        found = _host_port(str(setting.value))
        if found is None:
            raise UsageError(f"{setting.source}: {setting.value!r} is not host:port", hint="write 127.0.0.1:5672")
        endpoint = replace(endpoint, host=found[0], port=found[1])
    if setting := settings.get(f"{side}.tls"):
        endpoint = replace(endpoint, tls=bool(setting.value))
    if setting := settings.get(f"{side}.ca_file"):
        endpoint = replace(endpoint, ca_file=str(setting.value))
    return endpoint


def _host_port(text: str) -> tuple[str, int] | None:
    try:
        url = urlsplit(f"//{text}")
        host, port = url.hostname, url.port
    except ValueError:
        return None
    return (host, port) if host and port and url.netloc == text and "@" not in text and " " not in text else None


def _either_or(one: str, other: str, place: str) -> UsageError:
    return UsageError(f"{place} has both {one} and {other}", hint="keep one: a key's connection string, or an identity")


def _secret_in_file(place: str) -> UsageError:
    return UsageError(
        f"{place} holds a connection string, which is a secret",
        hint='export it, and write the variable\'s name here: connection_string_env = "ORDERS_PRIMARY"',
    )


def _safe(key: str) -> str:
    return "…" if looks_like_connection_string(key) else key
