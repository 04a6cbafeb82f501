"""`sbpair config`: prints the merged configuration and the source of each value."""

import os
from importlib.resources import files
from pathlib import Path
from typing import Annotated, NamedTuple

from sbpair import config
from sbpair.cli.options.common import COUNT, STATE, PairSelection, flag
from sbpair.cli.options.values import flags_of, in_words, warn_of_unknown_variables
from sbpair.cli.render.screen import Screen
from sbpair.cli.render.table import columns
from sbpair.config.environment import VARIABLES
from sbpair.config.file import PREFIX, all_namespaces, create_file, file_setting, has_pair
from sbpair.config.setting import Flags, Origin, Setting
from sbpair.errors import UsageError
from sbpair.model.document import document
from sbpair.model.pair import PROVIDER_REMEDIES, shared_provider
from sbpair.relay.relay_settings import configured_relays


class SettingEntry(NamedTuple):
    """A setting."""

    key: Annotated[str, "Name of the setting", {"examples": ["primary.namespace"]}]
    value: Annotated[
        object, "Its value; durations in seconds, secrets masked", {"type": ["string", "number", "boolean", "null"]}
    ]
    source: Annotated[str, "Option, variable, file or setting it comes from; empty for a default"]
    origin: Annotated[Origin, "Kind of source"]


@document("sbpair/config/1", "settings")
class EffectiveSettings:
    """The effective configuration. JSON Lines have one setting each."""

    settings: Annotated[tuple[SettingEntry, ...], "Settings"]


@document("sbpair/config/1")
class PlaceOfFile:
    """With --path or --init."""

    path: Annotated[Path, "Path of the configuration file"]
    exists: Annotated[bool, "Whether the file exists"]


@document("sbpair/config/1")
class ExampleFile:
    """With --example."""

    example: Annotated[str, "An example configuration file"]


def command(
    *,
    path: bool = flag("--path", "Print the path of the configuration file", excludes=("--example", "--init")),
    example: bool = flag("--example", "Print an example configuration file", excludes="--init"),
    init: bool = flag("--init", "Create the configuration file with that example"),
    count: int | None = COUNT,
    state: Path | None = STATE,
    connection: PairSelection,
    screen: Screen,
) -> int:
    """Show the effective configuration and the source of each value.

    Options win over SBPAIR_ variables, and these over the configuration file. It prints no
    secret, and connects to nothing but the Key Vault that has a key.

    Examples:
      sbpair config
      sbpair config --init

    See also: sbpair help config
    """
    flags = flags_of(connection, count=count, state=state)
    file = Path(str(file_setting(flags, os.environ).value))
    text = files("sbpair.config").joinpath("example.toml").read_text("utf-8")
    if init:
        create_file(file, text)
        screen.say("created: put your namespaces into it, then run sbpair config")
    if path or example or init:
        shown = ExampleFile(text) if example else PlaceOfFile(file, file.exists())
        screen.show(shown, [text.rstrip()] if example else [str(file)])
        return 0
    warn_of_unknown_variables(flags, screen)
    _require_some(flags, file)
    namespaces = all_namespaces(flags, os.environ)
    relays = configured_relays(flags, os.environ)
    found: dict[str, Setting] = {}
    if has_pair(flags, os.environ):
        profile = config.load(flags, os.environ)
        found |= config.effective(profile, os.environ)
        if host := shared_provider(profile.pair.primary, profile.pair.secondary):
            what = f"both sides sign in by {host}, and end with their tokens if it goes away"
            screen.say(f"note: {what}: {PROVIDER_REMEDIES}. See how long they last with sbpair doctor")
    for each in namespaces:
        found |= config.effective_endpoint(f"{PREFIX}{each.name}", each.endpoint, each.settings, os.environ)
    for relay in relays:
        found |= relay.effective(os.environ)
    entries = tuple(SettingEntry(key, each.value, each.source, each.origin) for key, each in found.items())
    rows = [(key, *in_words(setting)) for key, setting in found.items()]
    screen.show(EffectiveSettings(entries), columns([("SETTING", "VALUE", "FROM"), *rows]))
    return 0


def _require_some(flags: Flags, file: Path) -> None:
    given = [each for each in (flags.pair, flags.config, flags.primary, flags.secondary) if each]
    if not given and not file.exists() and not any(os.environ.get(each) for each in VARIABLES):
        raise UsageError(
            f"nothing is configured: {file} does not exist, and no SBPAIR_ variable is set",
            hint="start with sbpair config --init; or export SBPAIR_PRIMARY_CONNECTION_STRING and"
            " SBPAIR_SECONDARY_CONNECTION_STRING",
        )
