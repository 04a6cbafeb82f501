"""The commands, and the way from a line of arguments to an exit code.

A command's module is imported when the command is run: `sbpair --help` loads none of them.
"""

import inspect
import os
import re
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Annotated, Any, get_type_hints

import typer

from sbpair import __version__
from sbpair.cli.help import OPTIONS, Command, CommandGroup, Row
from sbpair.errors import SbpairError, UsageError, nearest_hint

PROGRAM = "sbpair"
COMPLETION_VARIABLE = "_SBPAIR_COMPLETE"

# The first line of each command's help, here so that the list can be shown without an import.
GROUPS = {
    "Set up": {
        "discover": "Find old pairs: backlog queues in all namespaces that you can read.",
        "provision": "Create the missing backlog queues in the secondary namespace.",
        "partition": "Create and list partitioned queues and topics.",
        "prune": "Delete empty backlog queues beyond --count.",
        "config": "Show the effective configuration and the source of each value.",
        "doctor": "Find problems with the configuration, this machine and access.",
    },
    "Move": {
        "syphon": "Move stranded messages from the backlog queues back to the primary.",
        "move": "Move messages from any queue or subscription to any queue or topic.",
        "redrive": "Move the dead letters of an entity back to where they came from.",
        "remove": "Remove messages of any queue or subscription; a file keeps them.",
        "replay": "Move a large backlog with Spark: archive, send and prove it.",
        "service": "Print definitions of services that start a syphon, and of alerts.",
        "runs": "Show and report earlier runs; pause, resume and cancel running ones.",
    },
    "Send and receive": {
        "gateway": "Fail over for applications in any language, through a local port.",
        "send": "Send lines to a queue or topic, failing over to the backlog.",
        "receive": "Show messages, or with --remove print and remove them.",
        "peek": "Show messages of any queue or subscription, and leave them there.",
        "relay": "Serve and call a service behind two endpoints of Azure Relay.",
        "ping": "Check whether queues and topics of the primary accept messages.",
    },
    "Look": {
        "status": "Show the health of both namespaces and the size of the backlog.",
        "entities": "List the queues and topics of both namespaces with their counts.",
        "audit": "Compare backlog queues with the expected ones; count messages.",
        "sessions": "List the sessions of a queue or subscription; show or clear the state of one.",
        "deadletters": "Show dead letters and their reasons.",
        "page": "Show both namespaces and the runs in a browser.",
    },
    "Plan": {
        "cost": "Estimate the cost of an outage, and when the backlog is full.",
        "export": "Write backlog queues, and entities of a file, as Bicep or Terraform.",
    },
    "Rehearse": {
        "drill": "Rehearse an outage end to end on a local emulator.",
        "emulator": "Run Service Bus namespaces on this machine.",
    },
    "Help": {
        "help": "Show the help of a command, or a document such as the runbook.",
        "schema": "Print the JSON Schema of an output document or event line.",
        "man": "Print the manual page of a command, in roff.",
        "completions": "Print the script that completes commands and names in a shell.",
        "version": "Print the versions of sbpair, Python and required packages.",
    },
}
COMMANDS = {name: summary for commands in GROUPS.values() for name, summary in commands.items()}


MODULES = {
    **dict.fromkeys(("syphon", "move", "redrive"), "moving"),
    **dict.fromkeys(("provision", "audit", "prune"), "management"),
    "ping": "status",
    **dict.fromkeys(("help", "schema", "man", "completions", "version"), "documents"),
}
"""The modules of commands that share one: each has a function such as `move_command`."""


class Commands(CommandGroup):
    """The root, which loads the module of a command that runs."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def listed(self, ctx: Any) -> dict[str, list[Row]]:  # noqa: ARG002
        return {title: list(commands.items()) for title, commands in GROUPS.items()}

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        """Return a stand-in with the summary, which a list or a completion needs."""
        return Command(cmd_name, help=COMMANDS[cmd_name]) if cmd_name in COMMANDS else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        self.commands = dict.fromkeys(COMMANDS, Command(None))  # for suggestions after a typing error
        name, command, rest = super().resolve_command(ctx, args)
        return name, command and load(str(name)), rest


def load(name: str) -> Any:
    """Return the real command, or group of commands."""
    module = import_module(f"sbpair.cli.commands.{MODULES.get(name, name)}")
    loaded = typer.Typer(cls=CommandGroup, add_completion=False, rich_markup_mode=None)
    functions = getattr(module, "SUBCOMMANDS", None)
    if functions:
        loaded.callback()(module.group)
    for each, function in (functions or {name: getattr(module, f"{name}_command", None) or module.command}).items():
        usage = getattr(module, "USAGE", {}).get(each, OPTIONS)
        loaded.command(each, cls=Command, options_metavar=usage)(_with_options(function))
    return typer.main.get_command(loaded)


def _with_options(function: Callable[..., int]) -> Callable[..., int]:
    """Return `function` with options in place of each parameter that is a group of them, or the screen.

    Typer gets the text of an option that has a parser.
    """
    from sbpair.cli.options.common import OPTION_GROUPS, Display
    from sbpair.cli.options.rules import rules_of
    from sbpair.cli.render.screen import Screen

    hints, parameters, groups = get_type_hints(function), [], {}
    for name, parameter in inspect.signature(function).parameters.items():
        kind = Display if hints[name] is Screen else hints[name]
        if kind in OPTION_GROUPS:
            groups[name], kinds = kind, get_type_hints(kind)
            parameters += [
                parameter.replace(name=each, default=default, annotation=kinds[each])
                for each, default in OPTION_GROUPS[kind].items()
            ]
        else:
            parameters.append(parameter.replace(annotation=kind))
    for at, each in enumerate(parameters):
        if rules_of(each.default).parse is not None:
            texts = list[str] | None if "list[" in str(each.annotation) else str | None
            parameters[at] = each.replace(annotation=texts)

    def command(**values: Any) -> int:
        for name, kind in groups.items():
            given = kind(**{each: values.pop(each) for each in OPTION_GROUPS[kind]})
            values[name] = Screen(given) if isinstance(given, Display) else given
        return function(**values)

    command.__doc__ = function.__doc__
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # typer reads it
    return command


def find_command(path: Sequence[str]) -> Any:
    """Return the command of a path such as `replay run`; None if it does not exist."""
    command = load(path[0]) if path and path[0] in COMMANDS else None
    for word in path[1:]:
        command = getattr(command, "commands", {}).get(word)
    return command


app = typer.Typer(cls=Commands, name=PROGRAM, add_completion=False, rich_markup_mode=None)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"{PROGRAM} {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            is_eager=True,
            callback=_print_version,
            help="Show the version; -o json adds the commit and more",
        ),
    ] = False,
) -> None:
    """Recover stranded messages of Azure Service Bus paired namespaces, send during outages, and rehearse them.
    Start with: sbpair drill

    Options win over SBPAIR_ variables, and these over the configuration file. Connection strings come only from the
    environment: SBPAIR_PRIMARY_CONNECTION_STRING and SBPAIR_SECONDARY_CONNECTION_STRING.

    Exit codes: 0 done; 1 a bug; 2 usage; 3 partial, or findings; 4 refused as unsafe; 5 access denied; 6 unreachable,
    throttled or timed out; 7 this machine lacks something; 130 interrupted
    """


def invoke(arguments: Sequence[str]) -> int:
    """Run one command line. Raises SbpairError, also for usage that typer refuses."""
    command = typer.main.get_command(app)
    # PowerShell leaves the variable behind, empty.
    if os.environ.get(COMPLETION_VARIABLE):
        return _complete(command)
    if arguments[:1] == ["--version"] and arguments[1:2] and arguments[1].startswith("-"):
        arguments = ["version", *arguments[1:]]
    try:
        with command.make_context(PROGRAM, list(arguments) or ["--help"], obj=find_command) as context:
            result = command.invoke(context)
    except typer.Exit as exit_:
        return exit_.exit_code
    except typer.TyperException as error:
        raise _usage(error, _path(arguments)) from error
    return result if isinstance(result, int) else 0


# Typer checks values with a library whose messages are for programmers.
_REWORDED = (
    ("Value error, ", ""),
    ("Input should be a valid integer, unable to parse string as an integer", "expected a whole number"),
)


def _path(arguments: Sequence[str]) -> str:
    """Return the path of the command, which not every error names."""
    known = next((length for length in (2, 1) if find_command(arguments[:length])), 0)
    return " ".join([PROGRAM, *arguments[:known]])


def _usage(error: typer.TyperException, path: str) -> UsageError:
    found: Any = find_command(path.split()[1:]) or typer.main.get_command(app)
    hint = f"see {path} --help"
    if error.format_message().startswith("Missing command"):
        hint = f"choose {', '.join(found.list_commands(None))}; {hint}"
    if path == PROGRAM and "No such option" in error.format_message():
        hint += "; options go after the command, as in sbpair audit --output json"
    if extra := re.match(r"Got unexpected extra argument\(?s?\)? \((\S+)\)", error.format_message()):
        known = {max(each.opts, key=len) for each in found.params}
        meant = [f"{each} {extra[1]}" for each in ("--queue", "--max") if each in known and extra[1].isdecimal()]
        meant += [f"{PROGRAM} {extra[1]}"] if extra[1] in COMMANDS else []
        hint = f"did you mean {' or '.join(meant)}? {hint}" if meant else hint
    if choice := re.search(r"'([^']*)' is not one of (.+)", error.format_message()):
        near = nearest_hint(choice[1].lower(), re.findall(r"'([^']+)'", choice[2]), "")
        hint = f"{near} {hint}".lstrip()
    message = error.format_message().rstrip(".")
    for old, new in _REWORDED:
        message = message.replace(old, new)
    wrong = UsageError(message, hint=hint)
    wrong.excerpt = (f"  usage: {found.usage(found.context_class(found, info_name=path))}",)
    return wrong


def _complete(command: Any) -> int:
    from sbpair.cli.completion import register_shells

    register_shells()
    try:
        return int(command.main(prog_name=PROGRAM, standalone_mode=False) or 0)
    except SbpairError:
        raise SystemExit from None  # the command reports it when it runs
