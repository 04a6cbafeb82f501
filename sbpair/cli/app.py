"""The commands, and how a line of arguments becomes an exit code.

A command's module is imported when the command is asked for, and not before: `--help` loads none of them.
"""

import os
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any

import typer

from sbpair import __version__
from sbpair.cli.help import Command, CommandGroup
from sbpair.errors import UsageError

PROGRAM = "sbpair"
COMPLETION_VARIABLE = "_SBPAIR_COMPLETE"

# The first line of each command's help, here so that the list can be shown without importing one.
COMMANDS = {
    "provision": "Create the backlog queues that the secondary namespace lacks.",
    "audit": "Compare the backlog queues with what they should be, and count their messages.",
    "prune": "Remove the backlog queues that nobody asked for, where they are empty.",
    "syphon": "Bring what waits in the backlog queues back to the primary namespace.",
    "send": "Send lines to a queue or topic, or into the backlog while the primary is away.",
    "ping": "Ask whether queues and topics of the primary accept messages.",
    "status": "Show both sides of a pair at a glance: who answers, and what waits in the backlog.",
    "replay": "Bring a large backlog back on Spark: archive it, send it from there, and prove it.",
    "receive": "Receive messages of a queue or subscription and show them, which removes them.",
    "partition": "Create partitioned queues and topics, and list them.",
    "runs": "Show the runs that moved messages of a pair, and what they left in doubt.",
    "emulator": "Run namespaces on this machine, for trying things out and for tests.",
    "doctor": "Find out what keeps sbpair from working here, and what to do about it.",
    "config": "Show the configuration that is in force, and where each value came from.",
    "drill": "Rehearse the whole story on an emulator, and compare every message to the byte.",
}


class Commands(CommandGroup):
    """The root: one module of this package a command."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        """A stand-in that knows its summary, which is all that a list or a completion of names needs."""
        return Command(cmd_name, help=COMMANDS[cmd_name]) if cmd_name in COMMANDS else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        self.commands = dict.fromkeys(COMMANDS, Command(None))  # for the suggestion after a slip of the pen
        name, command, rest = super().resolve_command(ctx, args)
        return name, command and load(str(name)), rest


def load(name: str) -> Any:
    """The real command, or group of commands."""
    module = import_module(f"sbpair.cli.commands.{name}")
    if hasattr(module, "app"):
        return typer.main.get_command(module.app)
    single = typer.Typer(add_completion=False, rich_markup_mode=None)
    single.command(name, cls=Command)(module.command)
    return typer.main.get_command(single)


app = typer.Typer(cls=Commands, name=PROGRAM, add_completion=False, rich_markup_mode=None)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"{PROGRAM} {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Show the version")
    ] = False,
) -> None:
    """Azure Service Bus paired namespaces: backlog queues, the syphon, and an emulator to rehearse on.

    A pair comes from options, from SBPAIR_ variables or from the configuration file, in this order. A connection
    string is only taken from the environment: SBPAIR_PRIMARY_CONNECTION_STRING and SBPAIR_SECONDARY_CONNECTION_STRING.

    Exit codes: 0 done; 2 usage; 3 partial, or findings; 4 refused as unsafe; 5 access; 6 unreachable, throttled or
    timed out; 7 this machine lacks something; 130 interrupted; 1 a bug.
    """


def invoke(arguments: Sequence[str]) -> int:
    """Run one command line. Raises SbpairError, also for what typer does not understand."""
    command = typer.main.get_command(app)
    # PowerShell leaves the variable behind, with nothing in it.
    if os.environ.get(COMPLETION_VARIABLE):
        return _complete(command)
    try:
        with command.make_context(PROGRAM, list(arguments) or ["--help"]) as context:
            result = command.invoke(context)
    except typer.Exit as ended:
        return ended.exit_code
    except typer.TyperException as error:
        raise _usage(error, _path(arguments)) from error
    return result if isinstance(result, int) else 0


# Typer checks values with a library that speaks to programmers.
_PLAINER = (
    ("Value error, ", ""),
    ("Input should be a valid integer, unable to parse string as an integer", "it is not a whole number"),
)


def _path(arguments: Sequence[str]) -> str:
    """The command that is meant: not every error says so."""
    words = [word for word in arguments[:1] if word in COMMANDS]
    below = getattr(load(words[0]), "commands", {}) if words else {}
    return " ".join([PROGRAM, *words, *(word for word in arguments[1:2] if word in below)])


def _usage(error: typer.TyperException, path: str) -> UsageError:
    hint = f"see {path} --help"
    if path == PROGRAM and "No such option" in error.format_message():
        hint += "; options go after the command, as in sbpair audit --output json"
    message = error.format_message().rstrip(".")
    for said, meant in _PLAINER:
        message = message.replace(said, meant)
    return UsageError(message, hint=hint)


def _complete(command: Any) -> int:
    from typer.completion import completion_init  # type: ignore[attr-defined]

    completion_init()
    return int(command.main(prog_name=PROGRAM, standalone_mode=False) or 0)
