"""The options that commands share, written once: a command takes a whole group of them as one parameter.

After `@options`, `def command(*, connection: PairSelection, display: Display)` has every option of both groups.
"""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from sbpair.cli.completion import pairs


def option(declaration: str, text: str, *, panel: str | None = None, complete: Any = None, **more: Any) -> Any:
    """Return an option declared as in its help, such as `--count -n N`."""
    words = declaration.split()
    names = [word for word in words if word.startswith("-")]
    metavar = words[-1] if len(words) > len(names) else None
    return typer.Option(*names, metavar=metavar, help=text, rich_help_panel=panel, autocompletion=complete, **more)


def argument(metavar: str, text: str, *, complete: Any = None) -> Any:
    return typer.Argument(metavar=metavar, help=text, autocompletion=complete)


_connection = partial(option, panel="Pair")
_display = partial(option, panel="Output")


_VARIABLES = "NAMESPACE, _CONNECTION_STRING, _NAME, _ENDPOINT"


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
        str | None, _connection("--pair NAME", "Pair in the configuration file [env: SBPAIR_PAIR]", complete=pairs)
    ] = None
    config: Annotated[Path | None, _connection("--config FILE", "Configuration file [env: SBPAIR_CONFIG]")] = None
    primary: Annotated[
        str | None, _connection("--primary NAMESPACE", f"Primary namespace [env: SBPAIR_PRIMARY_{_VARIABLES}]")
    ] = None
    secondary: Annotated[
        str | None, _connection("--secondary NAMESPACE", f"Secondary namespace [env: SBPAIR_SECONDARY_{_VARIABLES}]")
    ] = None


@dataclass(frozen=True, slots=True)
class Display:
    """The form of results on stdout and of logs on stderr."""

    output: Annotated[Output, _display("--output -o FORMAT", "Output format: table, json or jsonl")] = Output.TABLE
    quiet: Annotated[bool, _display("--quiet -q", "Print only results, warnings and errors")] = False
    verbose: Annotated[int, _display("--verbose -v", "Print more; -vv for debug messages", count=True)] = 0
    log_format: Annotated[LogFormat, _display("--log-format FORMAT", "Log format on stderr: text or json")] = (
        LogFormat.TEXT
    )
    debug: Annotated[bool, _display("--debug", "Show the traceback of an error")] = False


Count = Annotated[int | None, option("--count -n N", "Number of backlog queues [default: the file's, or 10]")]


StateDirectory = Annotated[Path | None, option("--state DIR", "State directory [default: ~/.local/state/sbpair/PAIR]")]


OutboxFile = Annotated[Path | None, option("--outbox FILE", "Store messages here while neither namespace accepts them")]


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
