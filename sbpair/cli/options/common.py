"""The options that commands share, written once: a command takes a whole group of them as one parameter.

`def command(*, connection: Connection, display: Display)` has, after `@options`, every option of both groups.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from sbpair.cli.completion import pairs

CONNECTION = "Pair"
DISPLAY = "Output"


class Output(StrEnum):
    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class PairSelection:
    """Which pair is meant."""

    pair: Annotated[
        str | None,
        typer.Option(
            "--pair",
            metavar="NAME",
            help="The pair of the configuration file [SBPAIR_PAIR]",
            rich_help_panel=CONNECTION,
            autocompletion=pairs,
        ),
    ] = None
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            metavar="FILE",
            help="The configuration file [SBPAIR_CONFIG; ~/.config/sbpair/config.toml]",
            rich_help_panel=CONNECTION,
        ),
    ] = None
    primary: Annotated[
        str | None,
        typer.Option(
            "--primary",
            metavar="NAMESPACE",
            help="The primary namespace, signing in as az login did [SBPAIR_PRIMARY_NAMESPACE, or"
            " SBPAIR_PRIMARY_CONNECTION_STRING for a key]",
            rich_help_panel=CONNECTION,
        ),
    ] = None
    secondary: Annotated[
        str | None,
        typer.Option(
            "--secondary",
            metavar="NAMESPACE",
            help="The secondary namespace, likewise",
            rich_help_panel=CONNECTION,
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class Display:
    """How results and everything else are shown."""

    output: Annotated[
        Output,
        typer.Option(
            "--output",
            "-o",
            metavar="table|json|jsonl",
            help="The form of the results on stdout",
            rich_help_panel=DISPLAY,
        ),
    ] = Output.TABLE
    quiet: Annotated[
        bool,
        typer.Option("--quiet", "-q", help="Say nothing but results, warnings and errors", rich_help_panel=DISPLAY),
    ] = False
    verbose: Annotated[
        int, typer.Option("--verbose", "-v", count=True, help="Say more; -vv for the most", rich_help_panel=DISPLAY)
    ] = 0
    log_format: Annotated[
        LogFormat,
        typer.Option(
            "--log-format", metavar="text|json", help="The form of all that goes to stderr", rich_help_panel=DISPLAY
        ),
    ] = LogFormat.TEXT
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error", rich_help_panel=DISPLAY)] = (
        False
    )


Count = Annotated[
    int | None,
    typer.Option(
        "--count",
        "-n",
        metavar="N",
        help="How many backlog queues the pair should have, with the indexes 0 to N-1 (10, or what the file says)",
    ),
]


StateDirectory = Annotated[
    Path | None,
    typer.Option(
        "--state",
        metavar="DIR",
        help="Where the journal, the runs and the lease are kept [~/.local/state/sbpair/PAIR]",
    ),
]


LeaseQueue = Annotated[
    str | None,
    typer.Option(
        "--lease",
        metavar="QUEUE",
        help="Keep movers of other machines off the pair too, by a session of this queue in the secondary namespace",
    ),
]


OutboxFile = Annotated[
    Path | None,
    typer.Option("--outbox", metavar="FILE", help="Where messages wait on this machine while neither side takes them"),
]


class Ttl(StrEnum):
    ORIGINAL = "original"
    REMAINING = "remaining"


# How fast, and on what terms, messages are moved. `move.pace` reads what these say.

Rate = Annotated[
    str | None,
    typer.Option("--rate", metavar="N[/s|/m|/h]", help="At most so many messages a second, a minute or an hour"),
]

Credits = Annotated[
    str | None,
    typer.Option(
        "--credits",
        metavar="SHARE|N",
        help="At most this share of a Standard namespace's 1000 credits a second, as 50% or 0.5, or so many; or none"
        " for no limit (50%; on Premium, none)",
    ),
]

TimeToLive = Annotated[
    Ttl,
    typer.Option(
        "--ttl",
        metavar="original|remaining",
        help="Whether a time to live starts anew in the primary, or the time in the backlog counts, and what is past"
        " its time is dead-lettered (original)",
    ),
]


def options(function: Callable[..., int]) -> Callable[..., int]:
    """`function` with each parameter that is a group of options replaced by those options."""
    hints = get_type_hints(function, include_extras=True)
    parameters, groups = [], {}
    for name, parameter in inspect.signature(function).parameters.items():
        if is_dataclass(hints[name]):
            groups[name] = hints[name]
            parameters += _parameters_of(hints[name])
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[name]))

    def command(**values: Any) -> int:
        for name, group in groups.items():
            values[name] = group(**{each.name: values.pop(each.name) for each in fields(group)})
        return function(**values)

    command.__doc__ = function.__doc__
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # typer reads it
    return command


def _parameters_of(group: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(each.name, inspect.Parameter.KEYWORD_ONLY, default=each.default, annotation=hints[each.name])
        for each in fields(group)
    ]
