"""Values of options: the selected pair, durations, findings, and where the management API finds the namespaces."""

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from sbpair import config
from sbpair.cli.next_command import about_pair
from sbpair.cli.options.common import OPTION_GROUPS, PairSelection, option, option_group
from sbpair.cli.render.screen import Screen
from sbpair.config.environment import VARIABLES, refuse_secrets
from sbpair.config.file import config_path, read_pairs
from sbpair.config.setting import Flags, Origin, Setting
from sbpair.errors import SbpairError, UsageError
from sbpair.model.pair import Pair, ResourceGroup

if TYPE_CHECKING:
    from sbpair.model.report import AuditFinding
    from sbpair.relay.relay_settings import ConfiguredRelay

ALL, NONE = "all", "none"
OF_ONE_PAIR = ("SBPAIR_PRIMARY_", "SBPAIR_SECONDARY_", "SBPAIR_LOST")
ALL_PAIRS = option(
    "--all-pairs",
    "All pairs of the file; limits are for each of them",
    panel="Pair",
    default=False,
    excludes=(
        *("--pair", "--primary", "--secondary", "--state", "--to", "--map", "--count", "--outbox", "QUEUE|TOPIC"),
        *("--ramp", "--canary", "--primary-is-back", "--no-reconnect", "--dry-run"),
    ),
    why="leave one of them out; --pair NAME chooses one pair",
)

_management = partial(option, panel="Management")


def selected_pair(connection: PairSelection, screen: Screen, *, count: int | None = None) -> Pair:
    """Return the selected pair. Raises UsageError if the configuration is wrong."""
    return selected_profile(connection, screen, count=count).pair


def selected_profile(
    connection: PairSelection, screen: Screen, *, count: int | None = None, state: Path | None = None
) -> config.Profile:
    """Return the selected pair with its state directory; with -v, print each value and its source."""
    flags = flags_of(connection, count=count, state=state)
    warn_of_unknown_variables(flags, screen)
    return load_profile(flags, screen)


def all_profiles(connection: PairSelection, screen: Screen) -> "dict[str, config.Profile | SbpairError]":
    """Return every pair of the file by its name, or why it cannot be used. Raises UsageError for a file without any."""
    flags = flags_of(connection)
    warn_of_unknown_variables(flags, screen)
    refuse_secrets(os.environ)
    if own := [each for each in VARIABLES if each.startswith(OF_ONE_PAIR) and os.environ.get(each)]:
        raise UsageError(f"--all-pairs: {own[0]} is for one pair", hint="unset it: the file describes each pair")
    path, found = config_path(flags, os.environ), dict[str, config.Profile | SbpairError]()
    for name in sorted(read_pairs(path)):
        with about_pair(name):
            try:
                found[name] = load_profile(replace(flags, pair=name), screen)
            except SbpairError as error:
                found[name] = error
    if not found:
        raise UsageError(
            f"--all-pairs: {path} has no pairs", hint="add [pairs.NAME]; see an example with sbpair config --init"
        )
    return found


def selected_relay(name: str | None, file: Path | None, screen: Screen) -> "ConfiguredRelay":
    """Return the relay of that name, or the only one; with -v, print each value and its source. Raises UsageError."""
    from sbpair.relay.relay_settings import configured_relay

    if name == "":
        raise UsageError("the name of the relay is empty", hint="give its name in the configuration file")
    flags = Flags(config=file)
    warn_of_unknown_variables(flags, screen)
    found = configured_relay(name, flags, os.environ)
    _print_settings(screen, found.effective(os.environ))
    return found


def load_profile(flags: Flags, screen: Screen) -> config.Profile:
    """Return the pair of these flags, as `selected_profile` does."""
    found = config.load(flags, os.environ)
    if screen.detailed:
        _print_settings(screen, config.effective(found, os.environ))
    return found


def _print_settings(screen: Screen, settings: Mapping[str, Setting]) -> None:
    for key, setting in settings.items():
        value, source = in_words(setting)
        if value:
            screen.detail(f"{key}: {value} ({source})")


def in_words(setting: Setting) -> tuple[str, str]:
    """Return the value of a setting and its source as text."""
    value = setting.value
    text = f"{value:g} s" if isinstance(value, float) else str(value)
    source = f"derived from {setting.source}" if setting.origin is Origin.DERIVED else setting.source
    return {"True": "yes", "False": "no"}.get(text, text), source or "default"


def warn_of_unknown_variables(flags: Flags, screen: Screen) -> None:
    for variable, meant in config.unknown_variables(flags, os.environ).items():
        to_do = f"did you mean {meant}?" if meant else "see sbpair help config"
        screen.warn(f"{variable} is not a known variable, and has no effect; {to_do}")


def flags_of(connection: PairSelection, *, count: int | None = None, state: Path | None = None) -> Flags:
    """Return the options of the command line as the configuration takes them."""
    selected = {name: getattr(connection, name) for name in OPTION_GROUPS[PairSelection]}
    return Flags(**selected, state=state, backlog_queues=count)


def entity_names(given: Iterable[str]) -> list[str]:
    """Return names of queues and topics without repetitions. Raises UsageError if one is not a path."""
    from sbpair.backlog import check_path

    names = list(dict.fromkeys(given))
    for name in names:
        check_path(name, shorten="give the name of a queue or topic")
    return names


def _lease_queue(text: str) -> str:
    from sbpair.runs.session_lease import check_queue

    check_queue(text)
    return text


MOVERS_LEASE = option("--lease QUEUE", "Queue of movers' --lease, to see whether one has it", parse=_lease_queue)


@option_group
class Management:
    """The management API of a command."""

    via: Literal["atom", "arm"] = _management(
        "--via API", "atom: the namespace's own API; arm: Azure Resource Manager", default="atom"
    )
    subscription: str | None = _management(
        "--subscription ID", "Subscription id [env: AZURE_SUBSCRIPTION_ID]", needs="--via arm"
    )
    resource_group: str | None = _management(
        "--resource-group NAME", "Resource group [env: AZURE_RESOURCE_GROUP]", needs="--via arm"
    )


def group_of(management: Management) -> ResourceGroup | None:
    """Return where Resource Manager finds the namespaces; None for `--via atom`. Raises UsageError."""
    if management.via == "atom":
        return None
    return resource_group_of("--via arm", management.subscription, management.resource_group)


def resource_group_of(needs_it: str, subscription: str | None, resource_group: str | None) -> ResourceGroup:
    """Return the resource group of these options, or else of the environment. Raises UsageError."""
    found = []
    for name, given, variable in (
        ("--subscription", subscription, "AZURE_SUBSCRIPTION_ID"),
        ("--resource-group", resource_group, "AZURE_RESOURCE_GROUP"),
    ):
        found.append((os.environ.get(variable) if given is None else given) or "")
        if not found[-1]:
            raise UsageError(f"{needs_it} needs {name}", hint=f"give it, or set {variable}")
    return ResourceGroup(*found)


def findings_of(known: "Collection[AuditFinding]", text: str) -> "frozenset[AuditFinding]":
    """Return the findings of a list such as `missing,extra`. Raises UsageError."""
    names = [name.strip().lower() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in (*known, ALL, NONE)]
    if unknown or not names:
        what = f"--fail-on: {unknown[0]!r} is not a finding" if unknown else "--fail-on names no finding"
        raise UsageError(what, hint=f"expected one or more of {', '.join((*known, ALL, NONE))}, separated by commas")
    if NONE in names and len(set(names)) > 1:
        raise UsageError(f"--fail-on {NONE} cannot be combined with others", hint="leave it out, or the others")
    return frozenset(known) if ALL in names else frozenset(kind for kind in known if kind in names)


def failed_on(
    screen: Screen,
    found: "Mapping[AuditFinding, Collection[object]]",
    kinds: "Collection[AuditFinding]",
    unknown: "Collection[AuditFinding]" = (),
) -> bool:
    """Return whether a kind of --fail-on was found, and warn of all that were, or are `unknown`, with their numbers."""
    failing = [f"{kind} ({len(each)})" for kind, each in found.items() if each and kind in kinds]
    failing += [f"{kind} (unknown without Manage)" for kind in sorted(unknown) if kind in kinds]
    if failing:
        screen.warn(f"exit code 3 for {', '.join(failing)}")
    return bool(failing)
