"""Which pair is meant, and how its namespaces are reached: flags over environment over file.

Every value remembers where it came from. The environment is an argument, secrets are in no repr, and a connection
string is taken from environment variables alone: files and command lines are read by others.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from sbpair.config.file import config_path, file_layer, file_setting, pair_names, read
from sbpair.config.pair import endpoint_of, pair_of
from sbpair.config.setting import SIDES, Environment, Flags, Layer, Origin, Secret, Setting, either_or, home, merged
from sbpair.errors import SbpairError, UsageError

if TYPE_CHECKING:
    from sbpair.model.pair import Endpoint, Pair

__all__ = [
    "VARIABLES",
    "Environment",
    "Flags",
    "Layer",
    "Origin",
    "Profile",
    "Secret",
    "Setting",
    "Survey",
    "config_path",
    "file_setting",
    "load",
    "load_pair",
    "merged",
    "misspelt",
    "pair_names",
    "survey",
]

ENVIRONMENT_KEYS = ("CONNECTION_STRING", "NAMESPACE", "NAME", "ENDPOINT")
VARIABLES = (
    "SBPAIR_CONFIG",
    "SBPAIR_PAIR",
    *(f"SBPAIR_{side.upper()}_{key}" for side in SIDES for key in ENVIRONMENT_KEYS),
)
DEFAULT_PAIR = "default"


@dataclass(frozen=True, slots=True)
class Profile:
    """A pair, the directory of its state, and every setting that somebody made, with where it came from.

    Besides the settings of the pair: `pair` (its name), `config` (the file) and `state` (the directory).
    """

    pair: Pair
    state_directory: Path
    settings: Mapping[str, Setting]


@dataclass(frozen=True, slots=True)
class Survey:
    """What there is of a profile, and all that is wrong with it. Sides that make sense are there in any case."""

    profile: Profile | None
    endpoints: Mapping[str, Endpoint]
    errors: tuple[SbpairError, ...] = ()


def load_pair(name: str | None = None, *, config: Path | None = None, environ: Environment | None = None) -> Pair:
    """The pair of that name, or the only one, as the command line would find it.

    `config` is the file, instead of the usual one; `environ` stands for the process's own environment. Raises
    UsageError where there is no such pair, or where the configuration is wrong.
    """
    return load(Flags(pair=name, config=config), os.environ if environ is None else environ).pair


def load(flags: Flags, environ: Environment) -> Profile:
    """Find, merge and check everything about one pair. Reads the file, and nothing else."""
    settings, of_the_file = _settings(flags, environ)
    pair = pair_of(str(settings["pair"].value), settings)
    # Whoever says elsewhere which namespaces are meant, means another pair than the profile's.
    state = state_setting(pair.name if of_the_file else f"{pair.primary.name}+{pair.secondary.name}", flags, environ)
    return Profile(pair, Path(str(state.value)), settings | {"state": state})


def survey(flags: Flags, environ: Environment) -> Survey:
    """As `load`, but what is wrong is told and not raised, so that one thing does not hide another."""
    try:
        profile = load(flags, environ)
    except SbpairError as error:
        first = error
    else:
        return Survey(profile, {"primary": profile.pair.primary, "secondary": profile.pair.secondary})
    try:
        settings, _ = _settings(flags, environ)
    except SbpairError as error:
        return Survey(None, {}, (error,))
    endpoints, errors = {}, []
    for side in SIDES:
        try:
            endpoints[side] = endpoint_of(side, settings, str(settings["pair"].value))
        except SbpairError as error:
            errors.append(error)
    return Survey(None, endpoints, tuple(errors) or (first,))


def misspelt(environ: Environment) -> dict[str, str]:
    """Variables that nobody reads, and the names that they were meant to have, by all appearances."""
    unknown = [each for each in environ if each.startswith("SBPAIR_") and each not in VARIABLES]
    near = {each: difflib.get_close_matches(each, VARIABLES, 1, cutoff=0.85) for each in sorted(unknown)}
    return {each: found[0] for each, found in near.items() if found}


def flag_layer(flags: Flags) -> Layer:
    said: dict[str, tuple[str | int | None, str]] = {
        "primary.address": (flags.primary, "--primary"),
        "secondary.address": (flags.secondary, "--secondary"),
        "backlog_queues": (flags.backlog_queues, "--count"),
    }
    return {key: Setting(value, source, Origin.FLAG) for key, (value, source) in said.items() if value is not None}


def environment_layer(environ: Environment) -> Layer:
    """SBPAIR_PRIMARY_… and SBPAIR_SECONDARY_… with CONNECTION_STRING, NAMESPACE, NAME and ENDPOINT."""
    layer: dict[str, Setting] = {}
    for side in SIDES:
        variables = {key: f"SBPAIR_{side.upper()}_{key}" for key in ENVIRONMENT_KEYS}
        said = {key: environ[variable] for key, variable in variables.items() if environ.get(variable)}
        if "CONNECTION_STRING" in said and "NAMESPACE" in said:
            raise either_or(variables["CONNECTION_STRING"], variables["NAMESPACE"], "the environment")
        for key, text in said.items():
            value = Secret(text) if key == "CONNECTION_STRING" else text
            short = "address" if key in ("CONNECTION_STRING", "NAMESPACE") else key.lower()
            layer[f"{side}.{short}"] = Setting(value, variables[key], Origin.ENVIRONMENT)
    return layer


def state_setting(pair: str, flags: Flags, environ: Environment) -> Setting:
    """`--state`, else `$XDG_STATE_HOME/sbpair/<pair>`. It is not made here."""
    if flags.state:
        return Setting(str(flags.state), "--state", Origin.FLAG)
    directory = home("XDG_STATE_HOME", ".local/state", environ)
    return replace(directory, value=str(Path(str(directory.value)) / "sbpair" / quote(pair, safe="+")))


def _settings(flags: Flags, environ: Environment) -> tuple[dict[str, Setting], bool]:
    """All that was said, merged, and whether both namespaces are the file's."""
    path = config_path(flags, environ)
    tables = read(path)
    from_environment = environment_layer(environ)
    chosen = _choose(flags, environ, tables, path, from_environment)
    name = str(chosen.value)
    from_file = file_layer(name, tables[name], path, environ) if name in tables else {}
    settings = merged(flag_layer(flags), from_environment, from_file)
    addresses = [f"{side}.address" for side in SIDES]
    of_the_file = all(settings.get(each) is from_file.get(each) for each in addresses)
    return settings | {"pair": chosen, "config": file_setting(flags, environ)}, of_the_file


def _other_pairs(name: str, tables: Mapping[str, object], path: Path) -> str:
    if near := difflib.get_close_matches(name, tables, 1):
        return f"did you mean {near[0]}?"
    if not tables and not path.exists():
        return f"pairs are named in a file, and there is no {path}: sbpair config --example shows one"
    return f"{path} has: {', '.join(sorted(tables)) or 'no pairs'}"


def _choose(
    flags: Flags, environ: Environment, tables: Mapping[str, object], path: Path, from_environment: Layer
) -> Setting:
    source = "--pair" if flags.pair else "SBPAIR_PAIR"
    if name := flags.pair or environ.get("SBPAIR_PAIR"):
        if name not in tables:
            raise UsageError(f"{source}: there is no pair {name!r}", hint=_other_pairs(name, tables, path))
        return Setting(name, source, Origin.FLAG if flags.pair else Origin.ENVIRONMENT)
    if len(tables) == 1:
        return Setting(next(iter(tables)), str(path), Origin.FILE)
    addressed = {*flag_layer(flags), *from_environment} >= {"primary.address", "secondary.address"}
    if len(tables) > 1 and not addressed:
        raise UsageError(f"{path} has several pairs, and none was chosen", hint=f"--pair {' | '.join(sorted(tables))}")
    return Setting(DEFAULT_PAIR, "", Origin.DEFAULT)
