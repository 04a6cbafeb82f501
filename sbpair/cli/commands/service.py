"""`sbpair service`: prints definitions of services and of alerts, by `sbpair.service`."""

import shlex
from typing import Annotated, Any, Literal

from sbpair import __version__
from sbpair.cli.app import PROGRAM, load
from sbpair.cli.commands.gateway import GatewayTerms
from sbpair.cli.next_command import written_command
from sbpair.cli.options.common import COUNT, OPTION_GROUPS, PairSelection, argument, option
from sbpair.cli.options.moves import MoveTerms
from sbpair.cli.options.rules import given_params, name_of
from sbpair.cli.options.values import selected_pair
from sbpair.cli.render.screen import Screen, clean
from sbpair.errors import UsageError
from sbpair.model.document import document

Kind = Literal["systemd", "kubernetes", "containerapp", "compose"]
Runs = Literal["syphon", "gateway"]
INSTALLED = "/usr/local/bin/sbpair"
CA_FILE = "_CA_FILE"
HIDDEN = ("/home/", "/root/", "/run/user/", "/tmp/", "/var/tmp/")  # noqa: S108  the directories of a unit's settings
GATEWAY_DEFINED = ("key_file", "state", "count", "health_port", "ready", "show_key", *OPTION_GROUPS[PairSelection])
DEFINED = ("once", "watch", "dry_run", "state", "count", "health_port", *OPTION_GROUPS[PairSelection])
"""Options of the syphon, and of the gateway, that a definition has already."""


@document("sbpair/service/1")
class Definition:
    """The definition of a service that starts a syphon, or of alerts. JSON Lines have the document."""

    kind: Annotated[
        Literal["systemd", "kubernetes", "containerapp", "compose", "bicep", "terraform"],
        "Kind of service, or language",
    ]
    name: Annotated[str, "Name of the service, or the start of those of alerts"]
    secrets: Annotated[tuple[str, ...], "Names of the variables with secrets that it needs"]
    text: Annotated[str, "The file"]


def group() -> None:
    """Print definitions of services that start a syphon, and of alerts.

    Examples:
      sbpair service print systemd
      sbpair service alerts terraform
      sbpair service print kubernetes --schedule "*/15 * * * *"

    See also: sbpair help service
    """


def print_service(
    *,
    kind: Kind = argument("KIND", "systemd, kubernetes, containerapp or compose"),
    runs: Runs = option("--for COMMAND", "Start a syphon, or a gateway beside an application", default="syphon"),
    name: str | None = option("--name NAME", "Name of the service [default: sbpair-COMMAND]"),
    image: str | None = option("--image IMAGE", "Image of containers [default: sbpair:VERSION]"),
    program: str | None = option("--program PATH", f"Program that systemd starts [default: {INSTALLED}]"),
    schedule: str | None = option("--schedule CRON", "Start --once at these times in UTC, instead of --watch"),
    more: str | None = option("--with OPTIONS", "Further options of that command, in quotes"),
    count: int | None = COUNT,
    connection: PairSelection,
    screen: Screen,
) -> int:
    """Print a systemd unit, or a file for Kubernetes, Container Apps or Compose.

    It describes the selected pair, names its secrets, and has none. Nothing is contacted.

    Examples:
      sbpair service print systemd --program /opt/sbpair/bin/sbpair
      sbpair service print kubernetes --with "--lease sbpair-lease --rate 100"
      sbpair service print kubernetes --for gateway --with "--allow-user 1000"

    Exit codes: 2 a wrong option, also of the command that it starts

    See also: sbpair help service
    """
    if kind == "systemd" and image is not None:
        raise UsageError("--image is for containers only", hint="leave it out: systemd starts --program")
    if kind != "systemd" and program is not None:
        raise UsageError("--program is for systemd only", hint="leave it out: a container starts its own")
    program = program or INSTALLED
    if runs == "gateway":
        words = _gateway_words(more or "", kind)
    else:
        words = _words(more or "", "watch" if schedule is None else "once")
    pair = selected_pair(connection, screen, count=count)
    from sbpair.service.service_definition import ServiceDefinition, definition_text

    image_name = f"sbpair:{__version__}" if image is None else image
    options = {
        "--for": runs.removeprefix("syphon"),
        "--name": name,
        "--image": image,
        "--schedule": schedule,
        "--with": more,
    }
    origin = clean(written_command(("service", "print", kind), options))
    name = name or f"sbpair-{runs}"
    service = ServiceDefinition(kind, pair, name, image_name, program, schedule or "", words, origin, runs)
    text = definition_text(service)
    screen.show(Definition(kind, name, tuple(service.secrets), text), text.splitlines())
    if kind == "systemd":
        _warn_of_hidden(screen, program, service.environment)
    else:
        _advise(screen, service.environment, words if runs == "syphon" else ("--lease",))
    return 0


def alerts(
    *,
    language: Literal["bicep", "terraform"] = argument("LANGUAGE", "bicep or terraform"),
    connection: PairSelection,
    screen: Screen,
) -> int:
    """Print alerts of Azure Monitor on the backlog of the pair.

    One wakes a person when messages wait for 15 minutes, one when there are dead letters, whether or not a syphon runs.
    Both watch each backlog queue of the secondary. Nothing is contacted.

    Examples:
      sbpair service alerts bicep > alerts.bicep
      sbpair service alerts terraform --pair orders > alerts.tf

    See also: sbpair help service
    """
    pair = selected_pair(connection, screen)
    from sbpair.service.alert_rules import MAX_QUEUES, alerts_text

    text = alerts_text(language, pair, clean(written_command(("service", "alerts", language), {})))
    screen.show(Definition(language, f"{pair.primary.name}-backlog", (), text), text.splitlines())
    if pair.backlog_queues > MAX_QUEUES:
        screen.warn(f"a rule watches at most {MAX_QUEUES} queues, unless Azure's support lifts that limit")
    return 0


def _words(text: str, mode: str) -> tuple[str, ...]:
    """Split options of the syphon, and check them as the syphon does. Raises UsageError, or typer's own error."""
    own = f"--{mode}"
    words, params = _checked("syphon", text, [own], DEFINED)
    if params["all_pairs"]:
        raise UsageError("--with: a definition has one pair, not --all-pairs", hint="see sbpair help runbook")
    MoveTerms(**{name: params[name] for name in OPTION_GROUPS[MoveTerms]}).checked_mode()
    return words


def _gateway_words(text: str, kind: Kind) -> tuple[str, ...]:
    """Do the same for a gateway, which serves another user than its own."""
    words, params = _checked("gateway", text, [], GATEWAY_DEFINED)
    GatewayTerms(**{name: params[name] for name in OPTION_GROUPS[GatewayTerms]}).check()
    from sbpair.service.service_definition import APPLICATION_USER

    if params["allow_user"]:
        return words
    if kind == "kubernetes":
        return ("--allow-user", APPLICATION_USER, *words)
    raise UsageError("--with has no --allow-user", hint="add the application's user: --with '--allow-user UID'")


def _checked(
    command: str, text: str, own: list[str], defined: tuple[str, ...]
) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Split options of a command, and check them with its `own` ones. Returns the words and the values."""
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"--with: {str(error).lower()}", hint="quote a value inside the quotes, too") from None
    context = load(command).make_context(f"{PROGRAM} {command}", [*words, *own])
    given = {name_of(param) for param in given_params(context) if param.name in defined}
    if twice := [each for each in own if each in words] or [*(given - {*own})]:
        hint = "leave it out: --count and the options of the pair go before --with"
        raise UsageError(f"--with: {twice[0]} is already in the definition", hint=hint)
    return words, context.params


def _warn_of_hidden(screen: Screen, program: str, environment: dict[str, str]) -> None:
    """Warn of files that ProtectHome and PrivateTmp hide from a unit."""
    files = {name: value for name, value in environment.items() if name.endswith("_FILE")}
    for name, path in {"--program": program, **files}.items():
        if path.startswith(HIDDEN):
            screen.warn(f"{name}: the unit cannot see {path}, in a home or temporary directory: put it below /opt")


def _advise(screen: Screen, environment: dict[str, str], words: tuple[str, ...]) -> None:
    """Print what a container lacks that this machine has."""
    for name, value in environment.items():
        if name.endswith(CA_FILE):
            screen.warn(f"{name}: the container needs {value} at the same path")
    if not any(each.split("=")[0] == "--lease" for each in words):
        screen.say("without --with '--lease QUEUE', a mover on another machine is not kept away")


SUBCOMMANDS = {"print": print_service, "alerts": alerts}
