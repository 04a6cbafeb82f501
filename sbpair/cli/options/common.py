"""Declarations of options, and the groups of options that commands share: a command takes a group as one parameter.

`def command(*, connection: PairSelection, screen: Screen)` has every option of the pair, and those of `Display`. A
declaration has the bounds of the value, its parser, and which other options it needs or excludes: `options.rules`
checks them before the command begins.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar, dataclass_transform

import typer

from sbpair.cli.completion import pairs
from sbpair.cli.options.rules import OptionRules, seconds_of
from sbpair.cli.render.query import Query
from sbpair.errors import UsageError

Group = TypeVar("Group")

MAX_DIGITS = 9

OPTION_GROUPS: dict[type, dict[str, Any]] = {}
"""The options of each group by field."""


def option(
    declaration: str,
    text: str,
    *,
    default: Any = None,
    panel: str | None = None,
    complete: Any = None,
    at_least: int | None = None,
    at_most: int | None = None,
    needs: str | tuple[str, ...] = (),
    excludes: str | tuple[str, ...] = (),
    why: str = "",
    parse: Callable[[str], object] | None = None,
    **more: Any,
) -> Any:
    """Return an option declared as in its help, such as `--count -n N`. The default `...` makes it required.

    `needs` names options that must be given too, such as `--ramp or --canary`, or `--via arm` with its value;
    `excludes` those that must not. `why` is the hint of a refusal. `parse` makes the value of the text, and raises
    UsageError.
    """
    words = declaration.split()
    names = [word for word in words if word.startswith("-")]
    metavar = words[-1] if len(words) > len(names) else None
    declared = typer.Option(
        default, *names, metavar=metavar, help=text, rich_help_panel=panel, autocompletion=complete, **more
    )
    needed, excluded = ((each,) if isinstance(each, str) else each for each in (needs, excludes))
    declared.rules = OptionRules(at_least, at_most, needed, excluded, why, parse)
    return declared


def duration(
    declaration: str,
    text: str,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    unit: bool = False,
    **more: Any,
) -> Any:
    """Return an option whose text is a duration, and whose value is its seconds: as `seconds_of` takes them."""
    parse = partial(seconds_of, declaration.split(maxsplit=1)[0], at_least=at_least, at_most=at_most, unit=unit)
    return option(declaration, text, parse=parse, **more)


flag = partial(option, default=False)


def peek_option(default: int) -> Any:
    """Return the option of how many messages of each queue are peeked, whose value for `all` is PEEK_ALL."""
    text = "Messages to peek in each queue, or all; 0 for none"
    return option("--peek N", text, default=str(default), parse=_peeked)


def max_messages(text: str) -> int:
    """Return the value of --max N, which is PEEK_ALL for `all`. Raises UsageError."""
    number = int(text) if text.isascii() and text.isdecimal() and len(text) < MAX_DIGITS else 0
    if text != "all" and not number:
        hint = "all takes every message that is there"
        raise UsageError(f"--max: expected a number from 1, or all, got {text[:40]!r}", hint=hint)
    return PEEK_ALL if text == "all" else number


def run_limit(limit: int | None) -> int | None:
    """Return --max as a run takes it: None for all."""
    return None if limit == PEEK_ALL else limit


def kept_path(text: str) -> Path:
    """Return the value of --keep, which is a file. Raises UsageError."""
    if text == "-":
        hint = "name a file; with -o jsonl, receive --remove prints each line on stdout, too"
        raise UsageError("--keep - is no file: what is removed must be on the disk first", hint=hint)
    return Path(text)


def _peeked(text: str) -> int:
    number = int(text) if text.isascii() and text.isdecimal() and len(text) < MAX_DIGITS else PEEK_LIMIT + 1
    if text != "all" and number > PEEK_LIMIT:
        hint = "all counts exactly, and takes longer"
        raise UsageError(f"--peek: expected a number from 0 to {PEEK_LIMIT}, or all, got {text[:40]!r}", hint=hint)
    return PEEK_ALL if text == "all" else number


def argument(metavar: str, text: str, *, default: Any = ..., complete: Any = None) -> Any:
    return typer.Argument(default, metavar=metavar, help=text, autocompletion=complete)


@dataclass_transform(frozen_default=True)
def option_group(cls: type[Group]) -> type[Group]:
    """Make a frozen dataclass of a class whose attributes are options. Its fields have the defaults of these.

    Those of a group that it inherits come after its own.
    """
    declared = {name: getattr(cls, name) for name in cls.__annotations__}
    for name, each in declared.items():
        setattr(cls, name, each.default)
    group = dataclass(frozen=True, slots=True)(cls)
    OPTION_GROUPS[group] = declared | OPTION_GROUPS.get(cls.__mro__[1], {})
    return group


class Output(StrEnum):
    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"
    TSV = "tsv"


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


_connection = partial(option, panel="Pair")
_display = partial(option, panel="Output")


@option_group
class PairSelection:
    """The pair that a command works on."""

    pair: str | None = _connection("--pair NAME", "Pair in the configuration file [env: SBPAIR_PAIR]", complete=pairs)
    config: Path | None = _connection("--config FILE", "Configuration file [env: SBPAIR_CONFIG]")
    primary: str | None = _connection("--primary NAMESPACE", "Primary namespace [env: SBPAIR_PRIMARY_NAMESPACE, …]")
    secondary: str | None = _connection(
        "--secondary NAMESPACE", "Secondary namespace [env: SBPAIR_SECONDARY_…, the same]"
    )
    transport: Literal["tcp", "websocket"] | None = _connection(
        "--transport NAME", "AMQP over tcp, or websocket on port 443 [default: tcp]"
    )


STATE = option("--state DIR", "State directory [default: ~/.local/state/sbpair/PAIR]")


@option_group
class NamespaceSelection(PairSelection):
    """The pair, or the namespace of no pair, that a command works on."""

    namespace: str | None = _connection("--namespace NAME", "Namespace of no pair: name in the file, or host")


@option_group
class RunSelection(NamespaceSelection):
    """The pair, or the namespace, whose recorded runs a command reads."""

    state: Path | None = STATE


@option_group
class Display:
    """The form of results on stdout and of logs on stderr."""

    output: Output = _display("--output -o FORMAT", "table, json, jsonl or bare tsv", default=Output.TABLE)
    query: Query | None = _display("--query EXPR", "JMESPath of the JSON; implies -o json", parse=Query)
    deadline: float | None = duration(
        "--deadline DURATION", "Stop in order after that, with exit code 6", panel="Output"
    )
    quiet: bool = _display("--quiet -q", "Print only results, warnings and errors", default=False)
    verbose: int = _display(
        "--verbose -v", "Print more; -vv: debug messages; --debug: tracebacks", default=0, count=True
    )
    log_format: LogFormat = _display("--log-format FORMAT", "Logs on stderr: text or json", default=LogFormat.TEXT)
    debug: bool = _display("--debug", "Show the traceback of an error", default=False, hidden=True)


MAX_PEEK = 1_000
"""So many messages of each queue are peeked by default."""

PEEK_LIMIT, PEEK_ALL = 1_000_000, sys.maxsize
"""The largest number of --peek, and `all` as a number."""

CONFIG = _connection("--config FILE", "Configuration file [env: SBPAIR_CONFIG]")
COUNT = option("--count -n N", "Number of backlog queues [default: the file's, or 10]")
TIMEOUT = duration("--timeout DURATION", "Time limit of each answer", default="10s", at_least=1, at_most=600)
WATCH = flag("--watch", "Read it again and again, until Ctrl-C")
INTERVAL = duration("--interval DURATION", "Time between two readings", default="5s", at_most=86_400, needs="--watch")
