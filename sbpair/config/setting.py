"""Values with their sources, and the merge of layers. Pure; no repr shows a secret."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Literal, TypeAlias

from sbpair.errors import UsageError
from sbpair.operating_system.files import user_directory

Environment: TypeAlias = Mapping[str, str]

SIDES = ("primary", "secondary")

RELAY_KEYS = ("CONNECTION_STRING", "NAMESPACE", "NAME", "PATH", "CA_FILE", "PROXY")
RELAY_VARIABLES = ("SBPAIR_RELAY", *(f"SBPAIR_RELAY_{side.upper()}_{key}" for side in SIDES for key in RELAY_KEYS))


@dataclass(frozen=True, slots=True)
class Secret:
    """A connection string, or a proxy with its credentials, hidden from every repr and message."""

    text: str = field(repr=False)


class Origin(StrEnum):
    """The kind of a value's source. The values are part of the JSON contract of `sbpair config`."""

    FLAG = "flag"
    ENVIRONMENT = "environment"
    FILE = "file"
    DEFAULT = "default"
    DERIVED = "derived"


@dataclass(frozen=True, slots=True)
class Setting:
    """A value and its source: `--count`, `SBPAIR_PRIMARY_NAME`, `config.toml [pairs.orders]`.

    The source of a derived value is the key that it follows from; a default has none.
    """

    value: str | int | float | bool | Secret
    source: str
    origin: Origin


# Keys are such as `backlog_queues` or `primary.endpoint`. `primary.address` is a namespace's name or connection string:
# they exclude each other.
Layer: TypeAlias = Mapping[str, Setting]


@dataclass(frozen=True, slots=True)
class Flags:
    """The options of the command line; None if not given."""

    pair: str | None = None
    config: Path | None = None
    state: Path | None = None
    primary: str | None = None
    secondary: str | None = None
    transport: str | None = None
    backlog_queues: int | None = None


def merged(*layers: Layer) -> dict[str, Setting]:
    """Merge layers, the highest first. Only the highest layer with a side's address configures that side.

    Lower layers' name and endpoint for it belong to another namespace, and are dropped.
    """
    settings: dict[str, Setting] = {}
    for layer in layers:
        closed = {side for side in SIDES if f"{side}.address" in settings}
        for key, setting in layer.items():
            if key.partition(".")[0] not in closed:
                settings.setdefault(key, setting)
    return settings


def user_path(kind: Literal["config", "state"], name: str, environ: Environment) -> Setting:
    """Return a path in this user's directory of a kind, and the XDG variable that it follows."""
    directory, variable = user_directory(kind, environ)
    return Setting(str(directory / name), variable, Origin.ENVIRONMENT if variable else Origin.DEFAULT)


ONE_ADDRESS = "keep one: the connection string of a key, or the namespace for an identity"
ONE_PROXY = "keep one: proxy_env names the variable of a proxy with user and password"


def conflict(one: str, other: str, place: str, hint: str = ONE_ADDRESS) -> UsageError:
    """Return the error for two values of one setting in one place."""
    return UsageError(f"{place} has both {one} and {other}", hint=hint)
