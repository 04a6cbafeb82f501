"""Selection of a pair and its connection details: flags over environment over file.

Each value keeps its source. The environment is an argument, and no repr shows a secret. Connection strings come from
environment variables, secret managers, or files of their own: other users may read the configuration and command lines.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

from sbpair.config.environment import VARIABLES, environment_layer, refuse_secrets
from sbpair.config.file import PAIR_KEYS, config_path, file_layer, file_setting, named_variables, read_pairs
from sbpair.config.setting import (
    IDENTITY_SETTINGS,
    Environment,
    Flags,
    Layer,
    Origin,
    Secret,
    Setting,
    build_endpoint,
    build_pair,
    merged,
    user_path,
)
from sbpair.errors import SbpairError, UsageError, nearest_hint
from sbpair.model.pair import MASK, SIDES, Endpoint, Pair, Transport, sign_in

DEFAULT_PAIR = "default"
UNSET = Setting("", "", Origin.DEFAULT)


@dataclass(frozen=True, slots=True)
class Profile:
    """A pair, the directory of its state, and every configured setting with its source.

    Besides the settings of the pair: `pair` (its name), `config` (the file) and `state` (the directory).
    """

    pair: Pair
    state_directory: Path
    settings: Mapping[str, Setting]


@dataclass(frozen=True, slots=True)
class Survey:
    """The valid parts of a profile, and all its errors. Valid sides are present in any case."""

    profile: Profile | None
    endpoints: Mapping[str, Endpoint]
    errors: tuple[SbpairError, ...] = ()


def load_pair(name: str | None = None, *, config: Path | None = None, environ: Environment | None = None) -> Pair:
    """Return the pair of that name, or the only one, as the command line does.

    `config` is another file than the default; `environ` replaces the process's environment. Raises UsageError if the
    pair does not exist, or the configuration is wrong; its traceback shows all mistakes with their hints.
    """
    try:
        return load(Flags(pair=name, config=config), os.environ if environ is None else environ).pair
    except SbpairError as error:
        for each in (error, *(error.others if isinstance(error, UsageError) else ())):
            also = "" if each is error else f"also: {each.message}"
            error.add_note("\n".join(filter(None, (also, each.hint and f"hint: {each.hint}"))))
        raise


def load(flags: Flags, environ: Environment) -> Profile:
    """Find, merge and check the settings of one pair. Reads the file, and keys from where it says that they are."""
    settings, from_file_only = _settings(flags, environ)
    pair = build_pair(str(settings["pair"].value), settings)
    # Namespaces from flags or the environment make another pair than the file's, with its own state.
    state = state_setting(pair.name if from_file_only else f"{pair.primary.name}+{pair.secondary.name}", flags, environ)
    return Profile(pair, Path(str(state.value)), settings | {"state": state})


def survey(flags: Flags, environ: Environment) -> Survey:
    """Load like `load`, but return all errors instead of raising the first."""
    endpoints: dict[str, Endpoint] = {}
    errors: list[SbpairError] = []
    try:
        settings, _ = _settings(flags, environ)
        for side in SIDES:
            try:
                endpoints[side] = build_endpoint(side, settings, str(settings["pair"].value))
            except SbpairError as error:
                errors.append(error)
        return Survey(None if errors else load(flags, environ), endpoints, tuple(errors))
    except SbpairError as error:
        return Survey(None, endpoints, (error, *(error.others if isinstance(error, UsageError) else ())))


def effective(profile: Profile, environ: Environment) -> dict[str, Setting]:
    """Return every value of a profile by its key: set, derived and default ones. Of a secret, not even the length.

    A proxy that only the environment names is one of them. Raises UsageError if it is malformed.
    """
    pair, settings = profile.pair, profile.settings
    found = {key: settings[key] for key in ("pair", "config", "state")}
    found |= {key: replace(settings.get(key, UNSET), value=getattr(pair, key)) for key in PAIR_KEYS}
    for side, endpoint in zip(SIDES, (pair.primary, pair.secondary), strict=True):
        found |= effective_endpoint(side, endpoint, settings, environ)
    return found


def effective_endpoint(
    side: str, endpoint: Endpoint, settings: Mapping[str, Setting], environ: Environment
) -> dict[str, Setting]:
    """Return every value of one namespace, as `effective` does."""
    values: dict[str, str | bool] = {
        "namespace": endpoint.authority,
        "sign_in": sign_in(endpoint),
        "name": endpoint.name,
        "endpoint": endpoint.amqp_address,
        "tls": endpoint.tls,
        "ca_file": endpoint.ca_file or "",
        "transport": str(endpoint.transport),
    }
    derived = {"name": "namespace", "endpoint": "namespace", "tls": "namespace"}
    if endpoint.proxy:
        derived["transport"] = "proxy"
    found = effective_side(side, endpoint, settings, environ, values, derived)
    own = settings.get(f"{side}.transport")
    if endpoint.transport != (own.value if own else Transport.WEBSOCKET if endpoint.proxy else Transport.TCP):
        found[f"{side}.transport"] = replace(settings[f"{side}.address"], value=str(endpoint.transport))
    return found


def effective_side(
    side: str,
    endpoint: Endpoint,
    settings: Mapping[str, Setting],
    environ: Environment,
    values: Mapping[str, str | bool],
    derived: Mapping[str, str],
) -> dict[str, Setting]:
    """Return `values` and the proxy of a namespace with their sources: an address, own settings, or `derived` ones."""
    address = {"namespace": settings[f"{side}.address"], "sign_in": settings[f"{side}.address"]}
    found = {}
    for name, value in values.items():
        default = Setting("", f"{side}.{derived[name]}", Origin.DERIVED) if name in derived else UNSET
        source = address.get(name) or settings.get(f"{side}.{name}", default)
        found[f"{side}.{name}"] = replace(source, value=value)
    for key in [f"{side}.{name}" for name in ("identity", *IDENTITY_SETTINGS)]:
        if setting := settings.get(key):
            found[key] = replace(setting, value=MASK) if isinstance(setting.value, Secret) else setting
    return found | {f"{side}.proxy": _proxy_setting(settings.get(f"{side}.proxy", UNSET), endpoint, environ)}


def _proxy_setting(setting: Setting, endpoint: Endpoint, environ: Environment) -> Setting:
    """Return the proxy that leads to a namespace, its own or the environment's, without its password."""
    proxy = endpoint.web_proxy(environ)
    if proxy is None:
        return UNSET
    shown = proxy.url if proxy.user is None else proxy.url.replace("://", f"://{MASK}@", 1)
    if endpoint.proxy is None:
        setting = Setting("", proxy.source, Origin.ENVIRONMENT)
    return replace(setting, value=shown)


def unknown_variables(flags: Flags, environ: Environment) -> dict[str, str]:
    """Return SBPAIR_ variables that have no effect, each with the name it probably stands for, or ""."""
    unknown = sorted(each for each in environ if each.startswith("SBPAIR_") and each not in VARIABLES)
    if unknown:
        named = named_variables(Path(str(file_setting(flags, environ).value)))
        unknown = [each for each in unknown if each not in named]
    return {each: "".join(difflib.get_close_matches(each, VARIABLES, 1, cutoff=0.85)) for each in unknown}


def flag_layer(flags: Flags) -> Layer:
    given: dict[str, tuple[str | int | None, str]] = {
        "primary.address": (flags.primary, "--primary"),
        "secondary.address": (flags.secondary, "--secondary"),
        **{f"{side}.transport": (flags.transport, "--transport") for side in SIDES},
        "backlog_queues": (flags.backlog_queues, "--count"),
    }
    return {key: Setting(value, source, Origin.FLAG) for key, (value, source) in given.items() if value is not None}


def state_setting(pair: str, flags: Flags, environ: Environment) -> Setting:
    """Return `--state`, else a directory of the pair among the user's, without creating it."""
    if flags.state:
        return Setting(str(flags.state), "--state", Origin.FLAG)
    return user_path("state", quote(pair, safe="+"), environ)


def _settings(flags: Flags, environ: Environment) -> tuple[dict[str, Setting], bool]:
    """Return all settings, merged, and whether both namespaces come from the file."""
    refuse_secrets(environ)
    path = config_path(flags, environ)
    tables = read_pairs(path)
    from_environment = environment_layer(environ)
    if lost := environ.get("SBPAIR_LOST"):
        from_environment = {**from_environment, "lost": Setting(lost, "SBPAIR_LOST", Origin.ENVIRONMENT)}
    chosen = _choose(flags, environ, tables, path, from_environment)
    name = str(chosen.value)
    from_file = file_layer(name, tables[name], path, environ) if name in tables else {}
    settings = merged(flag_layer(flags), from_environment, from_file)
    addresses = [f"{side}.address" for side in SIDES]
    from_file_only = all(settings.get(each) is from_file.get(each) for each in addresses)
    return settings | {"pair": chosen, "config": file_setting(flags, environ)}, from_file_only


def _other_pairs(name: str, tables: Mapping[str, object], path: Path) -> str:
    if not tables and not path.exists():
        return f"{path} does not exist: create it, with an example: sbpair config --init"
    return nearest_hint(name, tables, f"{path} has: {', '.join(sorted(tables)) or 'no pairs'}")


def _choose(
    flags: Flags, environ: Environment, tables: Mapping[str, object], path: Path, from_environment: Layer
) -> Setting:
    source = "--pair" if flags.pair else "SBPAIR_PAIR"
    if name := flags.pair or environ.get("SBPAIR_PAIR"):
        if name not in tables:
            raise UsageError(f"{source}: pair {name!r} does not exist", hint=_other_pairs(name, tables, path))
        return Setting(name, source, Origin.FLAG if flags.pair else Origin.ENVIRONMENT)
    if len(tables) == 1:
        return Setting(next(iter(tables)), str(path), Origin.FILE)
    addressed = {*flag_layer(flags), *from_environment} >= {"primary.address", "secondary.address"}
    if len(tables) > 1 and not addressed:
        raise UsageError(f"{path} has several pairs", hint=f"choose one: --pair {' | '.join(sorted(tables))}")
    return replace(UNSET, value=DEFAULT_PAIR)
