"""Values of a command line before its command begins: converted, and checked as their declarations demand.

Typer converts each value, also a default, with a library that takes a tenth of a second to load: plain values are
converted here.
"""

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, get_args, get_origin

from sbpair.errors import UsageError, raise_all

MAX_DIGITS = 18
WRITTEN = "sbpair.written"
"""The key of a context's values as they were before they were parsed."""


class OptionRules(NamedTuple):
    """The demands of one option; see `options.common.option`."""

    at_least: int | None = None
    at_most: int | None = None
    needs: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    why: str = ""
    parse: Callable[[str], object] | None = None


def rules_of(declared: Any) -> OptionRules:
    """Return the rules of a declaration, or of the parameter that was made of one."""
    kind = getattr(declared, "type_descriptor", None)
    rules: OptionRules = getattr(kind.parameter_info if kind else declared, "rules", OptionRules())
    return rules


def name_of(param: Any) -> str:
    """Return `--max` of `--max -n`, and `ENTITY` of an argument `[ENTITY]`."""
    return str(param.metavar).strip("[]…") if param.param_type_name == "argument" else str(max(param.opts, key=len))


def needs_of(param: Any, known: Collection[str]) -> list[str]:
    """Return what an option needs of the `known` parameters: `--ramp or --canary`, or `--via arm`."""
    alternatives = (
        [each for each in needed.split(" or ") if each.partition(" ")[0] in known] for needed in rules_of(param).needs
    )
    return [" or ".join(each) for each in alternatives if each]


def given_params(context: Any) -> Iterator[Any]:
    """Yield the parameters that the command line has."""
    for param in context.command.params:
        source = context.get_parameter_source(param.name)
        if source is not None and source.name == "COMMANDLINE":
            yield param


def exclude(name: str, other: str, why: str = "") -> UsageError:
    return UsageError(f"{name} and {other} exclude each other", hint=why or "leave one of them out")


def goes_with(name: str, leader: str, why: str = "") -> UsageError:
    """Return the error for an option without the one that gives it a meaning."""
    return UsageError(f"{name} goes with {leader} only", hint=why or f"add {leader}, or leave {name} out")


def apply_rules(context: Any) -> None:
    """Check the values and combinations of a command line, and parse the values. Raises UsageError, of all of them."""
    known = {name_of(param): param for param in context.command.params}
    wrong: dict[frozenset[str], UsageError] = {}
    for options, error in _broken_rules(context, known):
        wrong.setdefault(options, error)
    context.meta[WRITTEN] = dict(context.params)
    for name, param in known.items():
        value, parse = context.params.get(param.name), rules_of(param).parse
        if parse is not None and value is not None:
            try:
                context.params[param.name] = (
                    [parse(each) for each in value] if isinstance(value, (list, tuple)) else parse(value)
                )
            except UsageError as error:
                wrong[frozenset((name,))] = error
    raise_all(wrong.values())


def _broken_rules(context: Any, known: Mapping[str, Any]) -> Iterator[tuple[frozenset[str], UsageError]]:
    """Yield the options of each broken rule, with the error."""
    given = {name_of(param): param for param in given_params(context)}

    def has(words: str) -> bool:
        name, _, value = words.partition(" ")
        return str(context.params[known[name].name]) == value if value else name in given

    for name, param in given.items():
        rules, value = rules_of(param), context.params[param.name]
        for other in rules.excludes:
            if other.partition(" ")[0] in known and has(other):
                yield frozenset((name, other)), exclude(name, other, rules.why)
        for needed in needs_of(param, known):
            if not any(map(has, needed.split(" or "))):
                yield frozenset((name, "without", needed)), goes_with(name, needed, rules.why)
        if not _is_within(value, rules):
            yield frozenset((name,)), _beyond(name, value, rules, param.default)


def _is_within(value: Any, rules: OptionRules) -> bool:
    low, high = rules.at_least, rules.at_most
    return (low is None or value >= low) and (high is None or value <= high)


def _beyond(name: str, value: Any, rules: OptionRules, default: object) -> UsageError:
    low, high = rules.at_least, rules.at_most
    bounds = f"at least {low}" if high is None else f"at most {high}" if low is None else f"from {low} to {high}"
    hint = f"the default is {default}" if isinstance(default, int) else f"choose another number, or leave {name} out"
    return UsageError(f"{name} is {value}, and must be {bounds}", hint=hint)


def seconds_of(
    option: str, text: str, *, at_least: float | None = None, at_most: float | None = None, unit: bool = False
) -> float:
    """Return the seconds of `90s`, `1m` or `PT1M`: more than 0 without `at_least`. Raises UsageError.

    A number alone is seconds, or refused where the `unit` must be said.
    """
    from sbpair.timespan import TICKS_PER_SECOND, ticks

    if unit and re.fullmatch(r"[\d.]+", text.strip()):
        raise UsageError(f"{option}: expected a duration with its unit, got {text!r}", hint="write 4h, 90m or 2d")
    try:
        seconds = ticks(text) / TICKS_PER_SECOND
    except UsageError as error:
        raise UsageError(f"{option}: {error.message}", hint=error.hint) from None
    hint = "write a duration, as in 30s"
    if at_least is None and not seconds:
        raise UsageError(f"{option} must be greater than 0", hint=hint)
    if seconds < (at_least or 0) or (at_most is not None and seconds > at_most):
        upper = "" if at_most is None else f" to {at_most:g} s"
        raise UsageError(f"{option} is {text}, and must be from {at_least or 0:g} s{upper}", hint=hint)
    return seconds


def convert_plainly(params: Iterable[Any]) -> None:
    """Let the parameters of a command convert plain values."""
    for param in params:
        param.get_runtime_param = PlainValues(param).itself


class PlainValues:
    """Converts an option's values in place of typer, which converts, or refuses, what is not plainly right."""

    def __init__(self, param: Any) -> None:
        self._kind = param.type_descriptor.annotation
        self._typer = param.get_runtime_param

    def itself(self) -> Self:
        return self

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the converted value. Typer calls it."""
        texts = value if isinstance(value, (list, tuple)) else [value]
        if "" in texts and param.default != "" and param.param_type_name == "option":
            # An unset variable of a shell gives it: it would mean another place.
            name = name_of(param)
            hint = f"write {name} {param.metavar}" + ("" if param.required else ", or leave it out")
            raise UsageError(f"{name} is empty", hint=hint)
        try:
            return self._list(value) if get_origin(self._kind) is list else self._one(self._kind, value)
        except _NotPlain:
            return self._typer().coerce(value, param=param, ctx=ctx)

    def _list(self, values: Any) -> Any:
        if values is None:
            return ()
        if not isinstance(values, (list, tuple)):
            raise _NotPlain
        return [self._one(get_args(self._kind)[0], each) for each in values]

    def _one(self, kind: Any, value: Any) -> Any:
        if value is None or (kind is str and isinstance(value, str)):
            return value
        if kind is int and _is_plain_number(str(value)):
            return int(value)
        if kind is Path and isinstance(value, (str, Path)) and not _is_unreadable(value):
            return Path(value)
        if get_origin(kind) is Literal and value in get_args(kind):
            return value
        if isinstance(kind, type) and issubclass(kind, Enum) and value in set(kind):
            return kind(value)
        raise _NotPlain


def _is_plain_number(text: str) -> bool:
    return text.isascii() and text.removeprefix("-").isdigit() and len(text) <= MAX_DIGITS


def _is_unreadable(path: str | Path) -> bool:
    return os.path.lexists(path) and not os.access(path, os.R_OK)


class _NotPlain(Exception):
    """Typer has to convert the value, or to refuse it."""
