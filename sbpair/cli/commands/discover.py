"""`sbpair discover`: runs `sbpair.management.discovery`, prints the old pairs, and writes a configuration of them."""

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sbpair import config
from sbpair.cli.command_loop import run
from sbpair.cli.next_command import next_command
from sbpair.cli.options.common import option
from sbpair.cli.progress.reporting import PeekProgress
from sbpair.cli.render.screen import Screen, plural, spoken
from sbpair.cli.render.table import columns
from sbpair.config.environment import PAIR_VARIABLES, VARIABLES
from sbpair.config.file import create_file, endpoint_of_variable
from sbpair.config.setting import PUBLIC_SUFFIX, Flags
from sbpair.errors import UsageError
from sbpair.model.pair import AMQPS_PORT, Endpoint, Identity, check_subscription
from sbpair.model.report import Outcome

if TYPE_CHECKING:
    from sbpair.management.discovery import Discovery, OldPair

VARIABLE = "--connection-string-env"
WINNING = ("SBPAIR_PRIMARY_", "SBPAIR_SECONDARY_", "SBPAIR_LOST")
ANY_HOST = f"any{PUBLIC_SUFFIX}"
ANY = Endpoint("any", ANY_HOST, ANY_HOST, AMQPS_PORT, tls=True, credential=Identity())
"""Stands for the namespaces of the public cloud."""

ITSELF = "the backlog is in the primary itself: a pair needs two namespaces"
TITLES = ("PAIR", "PRIMARY", "STATE", "BACKLOG IN", "QUEUES", "MESSAGES", "DEAD", "OLDEST", "NOTE")
NOTES = {
    "found": "",
    "unreadable": "the name resolves, and the namespace is not among those that could be read",
    "unresolved": 'the name no longer resolves: if the primary is lost for good, add lost = "primary"',
    "unknown": "the namespace is not among those that could be read, and its name could not be looked up",
}


def command(
    *,
    subscription: list[str] | None = option(
        "--subscription ID", "Only this one; repeatable [default: all that can be read]", parse=check_subscription
    ),
    connection_string_env: list[str] | None = option(
        f"{VARIABLE} VARIABLE",
        "Instead, a variable with the connection string of a namespace; repeatable",
        excludes="--subscription",
    ),
    write: Path | None = option("--write FILE", "Write the pairs to a new configuration file"),
    screen: Screen,
) -> int:
    """Find old pairs: backlog queues in all namespaces that you can read.

    Reads the namespaces of all subscriptions through Azure Resource Manager, as the identity that is signed in: Reader
    is enough to count. Ages of messages need Listen. Shows the messages and dead letters in the backlog queues of each
    primary, and whether that was found, cannot be read, or its name no longer resolves. Changes nothing in Azure. If a
    pair is configured, looks in its cloud, or on its emulator.

    Without Resource Manager, --connection-string-env names variables with a key each, which needs Manage. The file has
    these names, and never a key.

    Examples:
      sbpair discover --write pairs.toml
      sbpair discover --subscription 00000000-0000-0000-0000-000000000000
      sbpair discover --connection-string-env OLD --connection-string-env OLD_DR

    Exit codes: 0 all were read; 3 some namespaces could not be read; 5 or 6 if all failures have that exit code
    """
    if write is not None and os.path.lexists(write):
        raise UsageError(f"--write: {write} exists, and is not overwritten", hint="name another file")
    keyed = [endpoint_of_variable(each, VARIABLE, os.environ) for each in dict.fromkeys(connection_string_env or ())]
    beside = ANY if keyed else _configured()
    from sbpair.management import discovery

    with PeekProgress(screen) as progress:
        if keyed:
            found = run(discovery.discover_by_keys(keyed, on_event=progress))
        else:
            found = run(discovery.discover_by_manager(beside, subscription or (), on_event=progress))
    pairs = [each for each in found.pairs if each.primary != each.secondary]
    file = None
    try:
        if write is not None and pairs:
            create_file(write, "\n".join(_file(pairs)) + "\n", options="--write")
            file = write
    finally:
        _print(screen, found, file)
    if file is not None:
        screen.say(f"next: {next_command('status', '--config', write, '--pair', pairs[0].name)}")
        if winning := [each for each in VARIABLES if each.startswith(WINNING) and os.environ.get(each)]:
            screen.warn(f"the environment wins over {write}: unset {' '.join(winning)}")
    elif write is not None:
        screen.warn(f"{write} was not written: no pairs were found")
    for item in found.read.of(Outcome.FAILED):
        screen.warn(f"skipped {item.name}: {item.reason}")
    return found.read.exit_code_for()


def _configured() -> Endpoint:
    """Return a namespace of the configured pair, else ANY. Raises UsageError for a wrong one in the environment."""
    survey = config.survey(Flags(), os.environ)
    if not survey.endpoints and any(map(os.environ.get, PAIR_VARIABLES)):
        raise survey.errors[0]
    return next(iter(survey.endpoints.values()), ANY)


def _file(pairs: Sequence["OldPair"]) -> Iterator[str]:
    yield "# Pairs that sbpair discover has found: choose one with --pair NAME. No secrets belong here."
    for pair in pairs:
        name = json.dumps(pair.name)
        yield from ("", *([f"# {pair.primary}: {NOTES[pair.state]}"] if NOTES[pair.state] else []))
        yield from (f"[pairs.{name}]", f"backlog_queues = {pair.backlog_queues}")
        for side, settings in pair.sides.items():
            yield f"[pairs.{name}.{side}]"
            yield from (f"{key} = {json.dumps(value)}" for key, value in settings.items())


def _print(screen: Screen, found: "Discovery", file: Path | None) -> None:
    from sbpair.cli.results.status import DiscoverResult
    from sbpair.management.audit_findings import Unseen

    rows: list[tuple[object, ...]] = [TITLES]
    for pair in found.pairs:
        total = pair.backlog
        oldest = "" if total.oldest_seconds is None else spoken(total.oldest_seconds)
        used = max(pair.queues, key=lambda each: each.messages or 0).note
        note = "; ".join(filter(None, (ITSELF if pair.primary == pair.secondary else NOTES[pair.state], used)))
        counts = (len(pair.queues), total.messages, total.dead_letters, oldest)
        rows.append((pair.name, pair.primary, pair.state, pair.secondary, *counts, note))
    skipped = tuple(Unseen(item.name, item.reason) for item in found.read.of(Outcome.FAILED))
    summary = f"{plural(len(found.pairs), 'pair')} in {plural(found.namespaces, 'namespace')}"
    shown = DiscoverResult(found.namespaces, found.pairs, skipped, file)
    screen.show(shown, [*columns(rows), "", summary] if found.pairs else [summary])
