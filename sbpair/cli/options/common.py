"""The options that commands share, written once: a command takes a whole group of them as one parameter.

After `@options`, `def command(*, connection: PairSelection, display: Display)` has every option of both groups.
"""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
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
    """The pair that a command works on."""

    pair: Annotated[
        str | None,
        typer.Option(
            "--pair",
            metavar="NAME",
            help="Pair in the configuration file [env: SBPAIR_PAIR]",
            rich_help_panel=CONNECTION,
            autocompletion=pairs,
        ),
    ] = None
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", metavar="FILE", help="Configuration file [env: SBPAIR_CONFIG]", rich_help_panel=CONNECTION
        ),
    ] = None
    primary: Annotated[
        str | None,
        typer.Option(
            "--primary",
            metavar="NAMESPACE",
            help="Primary namespace [env: SBPAIR_PRIMARY_NAMESPACE]",
            rich_help_panel=CONNECTION,
        ),
    ] = None
    secondary: Annotated[
        str | None,
        typer.Option(
            "--secondary",
            metavar="NAMESPACE",
            help="Secondary namespace [env: SBPAIR_SECONDARY_NAMESPACE]",
            rich_help_panel=CONNECTION,
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class Display:
    """The form of results on stdout and of logs on stderr."""

    output: Annotated[
        Output,
        typer.Option(
            "--output", "-o", metavar="FORMAT", help="Output format: table, json or jsonl", rich_help_panel=DISPLAY
        ),
    ] = Output.TABLE
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print only results, warnings and errors", rich_help_panel=DISPLAY)
    ] = False
    verbose: Annotated[
        int,
        typer.Option("--verbose", "-v", count=True, help="Print more; -vv for debug messages", rich_help_panel=DISPLAY),
    ] = 0
    log_format: Annotated[
        LogFormat,
        typer.Option(
            "--log-format", metavar="FORMAT", help="Log format on stderr: text or json", rich_help_panel=DISPLAY
        ),
    ] = LogFormat.TEXT
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error", rich_help_panel=DISPLAY)] = (
        False
    )


Count = Annotated[
    int | None, typer.Option("--count", "-n", metavar="N", help="Number of backlog queues [default: the file's, or 10]")
]


StateDirectory = Annotated[
    Path | None, typer.Option("--state", metavar="DIR", help="State directory [default: ~/.local/state/sbpair/PAIR]")
]


LeaseQueue = Annotated[
    str | None, typer.Option("--lease", metavar="QUEUE", help="Lock the pair across machines, with this session queue")
]


OutboxFile = Annotated[
    Path | None,
    typer.Option("--outbox", metavar="FILE", help="Store messages here while neither namespace accepts them"),
]


class Ttl(StrEnum):
    ORIGINAL = "original"
    REMAINING = "remaining"


# Limits of a move. `move.rate_limit` parses their texts.

Rate = Annotated[
    str | None, typer.Option("--rate", metavar="N[/s|/m|/h]", help="Send at most N messages a second, minute or hour")
]

Credits = Annotated[
    str | None,
    typer.Option(
        "--credits",
        metavar="SHARE",
        help="Share of a Standard namespace's 1000 credits a second, or a number, or none"
        " [default: 50%; Premium: none]",
    ),
]

TimeToLive = Annotated[
    Ttl,
    typer.Option(
        "--ttl", metavar="MODE", help="original restarts the time to live; remaining counts time in the backlog, too"
    ),
]


def options(function: Callable[..., int]) -> Callable[..., int]:
    """Return `function` with each parameter that is a group of options replaced by those options."""
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
    def default_of(field: Field[Any]) -> Any:
        return inspect.Parameter.empty if field.default is MISSING else field.default

    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            each.name, inspect.Parameter.KEYWORD_ONLY, default=default_of(each), annotation=hints[each.name]
        )
        for each in fields(group)
    ]
