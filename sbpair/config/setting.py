"""A value and where it came from, and how layers of them become one. Pure; secrets are in no repr."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TypeAlias

from sbpair.errors import UsageError

Environment: TypeAlias = Mapping[str, str]

SIDES = ("primary", "secondary")


@dataclass(frozen=True, slots=True)
class Secret:
    """A connection string, which no repr and no message shows."""

    text: str = field(repr=False)


class Origin(StrEnum):
    """What kind of place a value came from. The values are part of the JSON contract of `sbpair config`."""

    FLAG = "flag"
    ENVIRONMENT = "environment"
    FILE = "file"
    DEFAULT = "default"
    DERIVED = "derived"


@dataclass(frozen=True, slots=True)
class Setting:
    """A value and where it came from: `--count`, `SBPAIR_PRIMARY_NAME`, `config.toml [pairs.orders]`.

    One that is derived has the key of the setting that it follows from as its source, and a default has none.
    """

    value: str | int | float | bool | Secret
    source: str
    origin: Origin


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


def home(variable: str, fallback: str, environ: Environment) -> Setting:
    """The directory that an XDG variable names, or the usual one under HOME."""
    given = Path(environ.get(variable, ""))
    # The XDG specification has relative paths ignored.
    if given.is_absolute():
        return Setting(str(given), variable, Origin.ENVIRONMENT)
    return Setting(str(Path(environ.get("HOME") or Path.home()) / fallback), "", Origin.DEFAULT)


def either_or(one: str, other: str, place: str) -> UsageError:
    """The error for a place that says in two ways how to sign in."""
    return UsageError(f"{place} has both {one} and {other}", hint="keep one: a key's connection string, or an identity")
