"""The options that commands share, written once: a command takes a whole group of them as one parameter.

With `def command(*, connection: PairSelection, screen: Screen)`, `options(command)` has every option of the pair, and
those of `Display`.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, dataclass_transform, get_type_hints

import typer

from sbpair.cli.completion import pairs

Group = TypeVar("Group")

_GROUPS: dict[type, dict[str, Any]] = {}
"""The options of each group by field."""


def option(
    declaration: str, text: str, *, default: Any = None, panel: str | None = None, complete: Any = None, **more: Any
) -> Any:
    """Return an option declared as in its help, such as `--count -n N`. The default `...` makes it required."""
    words = declaration.split()
    names = [word for word in words if word.startswith("-")]
    metavar = words[-1] if len(words) > len(names) else None
    return typer.Option(
        default, *names, metavar=metavar, help=text, rich_help_panel=panel, autocompletion=complete, **more
    )


flag = partial(option, default=False)


def argument(metavar: str, text: str, *, default: Any = ..., complete: Any = None) -> Any:
    return typer.Argument(default, metavar=metavar, help=text, autocompletion=complete)


@dataclass_transform(frozen_default=True)
def option_group(cls: type[Group]) -> type[Group]:
    """Make a frozen dataclass of a class whose attributes are options. Its fields have the defaults of these."""
    declared = {name: getattr(cls, name) for name in cls.__annotations__}
    for name, each in declared.items():
        setattr(cls, name, each.default)
    group = dataclass(frozen=True, slots=True)(cls)
    _GROUPS[group] = declared
    return group


def options(function: Callable[..., int]) -> Callable[..., int]:
    """Return `function` with options in place of each parameter that is a group of them, or the screen."""
    from sbpair.cli.render.screen import Screen

    hints, parameters, groups = get_type_hints(function), [], {}
    for name, parameter in inspect.signature(function).parameters.items():
        kind = Display if hints[name] is Screen else hints[name]
        if kind in _GROUPS:
            groups[name], kinds = kind, get_type_hints(kind)
            parameters += [
                parameter.replace(name=each, default=default, annotation=kinds[each])
                for each, default in _GROUPS[kind].items()
            ]
        else:
            parameters.append(parameter.replace(annotation=kind))

    def command(**values: Any) -> int:
        for name, kind in groups.items():
            given = kind(**{each: values.pop(each) for each in _GROUPS[kind]})
            values[name] = Screen(given) if isinstance(given, Display) else given
        return function(**values)

    command.__doc__ = function.__doc__
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # typer reads it
    return command


class Output(StrEnum):
    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


_VARIABLES = "NAMESPACE, _CONNECTION_STRING, _NAME, _ENDPOINT"
_connection = partial(option, panel="Pair")
_display = partial(option, panel="Output")


@option_group
class PairSelection:
    """The pair that a command works on."""

    pair: str | None = _connection("--pair NAME", "Pair in the configuration file [env: SBPAIR_PAIR]", complete=pairs)
    config: Path | None = _connection("--config FILE", "Configuration file [env: SBPAIR_CONFIG]")
    primary: str | None = _connection("--primary NAMESPACE", f"Primary namespace [env: SBPAIR_PRIMARY_{_VARIABLES}]")
    secondary: str | None = _connection(
        "--secondary NAMESPACE", f"Secondary namespace [env: SBPAIR_SECONDARY_{_VARIABLES}]"
    )


@option_group
class Display:
    """The form of results on stdout and of logs on stderr."""

    output: Output = _display("--output -o FORMAT", "Output format: table, json or jsonl", default=Output.TABLE)
    quiet: bool = _display("--quiet -q", "Print only results, warnings and errors", default=False)
    verbose: int = _display("--verbose -v", "Print more; -vv for debug messages", default=0, count=True)
    log_format: LogFormat = _display(
        "--log-format FORMAT", "Log format on stderr: text or json", default=LogFormat.TEXT
    )
    debug: bool = _display("--debug", "Show the traceback of an error", default=False)


COUNT = option("--count -n N", "Number of backlog queues [default: the file's, or 10]")
STATE = option("--state DIR", "State directory [default: ~/.local/state/sbpair/PAIR]")
