"""The options that commands share, written once: a command takes a whole group of them as one parameter.

`def command(*, connection: PairSelection, screen: Screen)` has every option of the pair, and those of `Display`.
"""

from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar, dataclass_transform

import typer

from sbpair.cli.completion import pairs

Group = TypeVar("Group")

OPTION_GROUPS: dict[type, dict[str, Any]] = {}
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
    OPTION_GROUPS[group] = declared
    return group


class Output(StrEnum):
    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


_VARIABLES = "NAMESPACE, _CONNECTION_STRING, _NAME, _ENDPOINT, _CA_FILE, _TRANSPORT, _PROXY"
_connection = partial(option, panel="Pair")
_display = partial(option, panel="Output")


@option_group
class PairSelection:
    """The pair that a command works on."""

    pair: str | None = _connection("--pair NAME", "Pair in the configuration file [env: SBPAIR_PAIR]", complete=pairs)
    config: Path | None = _connection("--config FILE", "Configuration file [env: SBPAIR_CONFIG]")
    primary: str | None = _connection("--primary NAMESPACE", f"Primary namespace [env: SBPAIR_PRIMARY_{_VARIABLES}]")
    secondary: str | None = _connection(
        "--secondary NAMESPACE", "Secondary namespace [env: SBPAIR_SECONDARY_…, the same]"
    )
    transport: Literal["tcp", "websocket"] | None = _connection(
        "--transport NAME", "AMQP over tcp, or websocket on port 443 [default: tcp]"
    )


@option_group
class Display:
    """The form of results on stdout and of logs on stderr."""

    output: Output = _display("--output -o FORMAT", "Output format: table, json or jsonl", default=Output.TABLE)
    quiet: bool = _display("--quiet -q", "Print only results, warnings and errors", default=False)
    verbose: int = _display("--verbose -v", "Print more; -vv for debug messages", default=0, count=True)
    log_format: LogFormat = _display("--log-format FORMAT", "Logs on stderr: text or json", default=LogFormat.TEXT)
    debug: bool = _display("--debug", "Show the traceback of an error", default=False)


CONFIG = _connection("--config FILE", "Configuration file [env: SBPAIR_CONFIG]")
NAMESPACE = _connection("--namespace NAME", "Namespace of no pair: name in the file, or host")
COUNT = option("--count -n N", "Number of backlog queues [default: the file's, or 10]")
STATE = option("--state DIR", "State directory [default: ~/.local/state/sbpair/PAIR]")
