"""Commands that are printed for pasting: they repeat this invocation's options that decide what they do.

Options of output are not repeated, and neither are secrets. With --all-pairs, a command has the --pair that it is for.
"""

import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from enum import Enum
from pathlib import Path
from typing import Any

import typer

from sbpair import __version__
from sbpair.cli.options.rules import WRITTEN, given_params, name_of, needs_of, rules_of
from sbpair.errors import SbpairError, Unsafe

MAX_REDRIVE = 100_000
"""Dead letters up to which a redrive is advised: above, a replay is worth its set-up."""

_GIVEN_UP = ("allow_missing", "ttl", "order")
"""Options that would give the same messages up again."""

_NOT_AGAIN = (
    *_GIVEN_UP,
    *("once", "watch", "dry_run", "limit", "no_wait_for_locks", "ramp", "canary", "observe"),
    *("metrics_port", "metrics_address", "health_port"),
)
"""Options of a command that are not meant for the redrive after it."""

_invocation: ContextVar[Any] = ContextVar("invocation", default=None)
PAIR: ContextVar[str] = ContextVar("pair", default="")
"""The pair of --all-pairs that a task is about; "" without one."""

_PLACES = ("--archive", "--config", "--map", "--package", "--state")
"""Options with a file or directory that a later command needs, wherever it runs."""

_COMMAND = re.compile(r"\bsbpair ([a-z]+)(?: ([a-z]+))?\b(?! --help)")


@contextmanager
def invocation(context: Any) -> Iterator[None]:
    """Let `next_command` know the options of this invocation, and complete the commands in the hint of an error."""
    before = _invocation.set(context)
    try:
        yield
    except SbpairError as error:
        error.hint = with_options(error.hint)
        raise
    finally:
        _invocation.reset(before)


@contextmanager
def recalled(command: str) -> Iterator[tuple[str, ...]]:
    """Let `next_command` know the options of a recorded move, and of this invocation those that it lacks.

    Yields the recorded command with its arguments. Raises ValueError if it cannot be parsed.
    """
    now, [name, *words] = _invocation.get(), shlex.split(command)[1:]
    try:
        context = now.obj([name]).make_context(f"sbpair {name}", [*words, *_repeated([name], words, ())], obj=now.obj)
    except (typer.TyperException, SbpairError) as error:
        raise ValueError(f"{command}: {error}") from error
    before, params = _invocation.set(context), (param for param in context.command.params)
    values = [context.params[param.name] for param in params if param.param_type_name == "argument"]
    try:
        yield name, *filter(None, values)
    finally:
        _invocation.reset(before)


@contextmanager
def about_pair(name: str) -> Iterator[None]:
    """Let lines on stderr, logs and commands of this task name one of the pairs of --all-pairs."""
    before = PAIR.set(name)
    try:
        yield
    finally:
        PAIR.reset(before)


def next_command(path: str, *words: object, without: Collection[str] = ()) -> str:
    """Return `sbpair PATH WORDS` with the given options that PATH also has, quoted for a shell.

    An option in `words` replaces the given one. `without` has the names of parameters that are not repeated.
    """
    texts = [str(word) for word in words]
    return _joined(["sbpair", *path.split(), *texts, *_repeated(path.split(), texts, without)])


def way_back(dead_letters: int, *, rehearsal: bool = False) -> str:
    """Return the command that sends dead letters of all backlog queues: for very many of them, on Spark.

    A `rehearsal` shows where all of them would go.
    """
    if dead_letters > MAX_REDRIVE:
        where = ("plan", ()) if rehearsal else ("run", ("--archive", "DIR"))
        return next_command(f"replay {where[0]}", "--dead-letters", *where[1], without=_GIVEN_UP)
    if rehearsal:
        return next_command("redrive", "--backlog", "--dry-run", without={*_NOT_AGAIN, "where"})
    return next_command("redrive", "--backlog", without=_NOT_AGAIN)


def created_first(reasons: Iterable[str | None]) -> str:
    """Return what comes before a redrive of dead letters with these reasons; "" for nothing."""
    return "create the missing queues and topics first; " if "DestinationNotFound" in reasons else ""


def with_options(text: str) -> str:
    """Return a text with the given options in each command that it names."""
    return _COMMAND.sub(_completed, text)


def written_command(words: Iterable[str], options: Mapping[str, object]) -> str:
    """Return a command line and its version, for a file. Without the options of the pair, it is the same everywhere."""
    texts = ["sbpair", *words]
    for name, value in options.items():
        if value not in (None, False, ""):
            texts += [name] if value is True else [name, str(value)]
    return f"{shlex.join(texts)} (version {__version__})"


def not_confirmed(action: str, command: str) -> Unsafe:
    """Return the error for an action that needs a confirmation which was not given."""
    return Unsafe(f"not confirmed: nothing was {action}", hint=f"confirm with {command}")


def _completed(match: re.Match[str]) -> str:
    name, below = match[1], match[2]
    path = [name, below] if below and _find([name, below]) else [name]
    # An option that the command has already, with a value of its own, is not added.
    options = _joined(_repeated(path, match.string[match.end() :].partition(";")[0].split(), ("dry_run",)))
    if not options or options in match.string:
        return match[0]
    return match[0].replace(" ".join(path), " ".join([*path, options]), 1)


def _repeated(path: list[str], words: Collection[str], without: Collection[str]) -> Iterator[str]:
    context, target = _invocation.get(), _find(path)
    if target is None:
        return
    written = context.meta.get(WRITTEN, context.params)
    given = {param.name: written[param.name] for param in given_params(context) if _decides(param)}
    if PAIR.get() and given.pop("all_pairs", False):
        given["pair"] = PAIR.get()
    if given.get("against", "default") != "default":
        given["pair"] = given["against"]
    if context.command.name == "run":  # a run keeps its choice of messages
        without = {*without, "destination", "where"}
    if ("replay" in path) != ("replay" in context.command_path.split()):  # filters of another language
        without = {*without, "where"}
    if path[-1] != context.command.name:  # a confirmation and a rehearsal are for one command
        without = {*without, "yes", "dry_run"}
    if path == ["doctor"]:  # it tests the pair, and its own --queue and --timeout are other ones
        without = {*without, "queue", "destination", "timeout"}
    repeated = [
        param
        for param in target.params
        if param.name in given and param.name not in without and not _is_excluded(param, target.params, {*words})
    ]
    others, others_known = {*words, *map(name_of, repeated)}, {*map(name_of, target.params)}
    for param in repeated:
        if all(others & {*needed.split()} for needed in needs_of(param, others_known)):
            yield from _words(param, given[param.name])


def _is_excluded(param: Any, params: Collection[Any], words: set[str]) -> bool:
    """Return whether these words have an option, or one that it excludes or that excludes it."""
    excluded = {*param.opts, *rules_of(param).excludes}
    return bool(words & excluded) or any(
        words & {*each.opts} and {*param.opts} & {*rules_of(each).excludes} for each in params
    )


def _find(path: list[str]) -> Any:
    """Return a command by the function that the root gave to all contexts; None if there is none."""
    context = _invocation.get()
    return context.obj(path) if context else None


def _decides(param: Any) -> bool:
    """Return whether it is an option that decides what a command does: those of output have their own section."""
    return param.param_type_name == "option" and getattr(param, "rich_help_panel", None) != "Output"


def _joined(words: Iterable[str]) -> str:
    return " ".join(map(_quoted, words))


def _quoted(word: str) -> str:
    """Write a word for a shell: in double quotes if it has single ones, as filters do, and nothing else is special."""
    return f'"{word}"' if "'" in word and not {*word} & {*'"$`\\!'} else shlex.quote(word)


def _words(param: Any, value: Any) -> Iterator[str]:
    name = max(param.opts, key=len)
    for each in value if isinstance(value, (list, tuple)) else [value]:
        if each is True:
            yield name
        elif each is not None and each is not False:
            text = without_password(str(each.value if isinstance(each, Enum) else each))
            if name in _PLACES and not ("://" in text or text == "-" or (name == "--map" and "=" in text)):
                text = str(Path(text).absolute())
            yield from [f"{name}={text}"] if text.startswith("-") else [name, text]


def without_password(text: str) -> str:
    """Return a URL without its password, and any other text as it is."""
    from urllib.parse import urlsplit

    password = urlsplit(text).password if "://" in text else None
    return text.replace(f":{password}@", ":***@") if password else text
