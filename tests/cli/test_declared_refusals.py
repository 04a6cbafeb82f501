"""Refusals that follow from declarations: `declared.txt` has what these demand, and every command obeys them.

`refused.txt` has the refusals of which a declaration says nothing. `python tests/cli/test_golden.py` writes both again.
"""

import shlex
from collections.abc import Iterator
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest

from sbpair.cli.app import find_command
from sbpair.cli.man_page import page_paths
from sbpair.cli.options.rules import name_of, needs_of, rules_of, seconds_of
from tests.kit.command import Here

DECLARED = Path(__file__).parent / "declared.txt"
DURATION = "expected a duration such as 90s, got 'soon'\nhint: write 90s, 1m, 1h30m or PT1M"
Refusal = tuple[list[str], str]
"""The words after those of the command, and the error and hint that they get."""


def refusals(path: tuple[str, ...], tried: set[str]) -> Iterator[Refusal]:
    """Yield the refusals of a command, or of a group of commands. Values `tried` with another command are left out."""
    command = find_command(path)
    line = shlex.join(["sbpair", *path])
    usage = command.usage(command.context_class(command, info_name=line))
    see = f"\n  usage: {usage}\nhint: see {line} --help"
    yield ["--zzz"], f"No such option: --zzz{see}"
    if hasattr(command, "commands"):
        choose = f"hint: choose {', '.join(command.commands)};"
        yield [], f"Missing command{see}".replace("hint:", choose)
        yield ["nope"], f"No such command 'nope'{see}"
        return
    params = command.params
    arguments = [param for param in params if param.param_type_name == "argument"]
    required = [param for param in params if param.required]
    needed = [word for param in required for word in _given(param, "1")]
    for param in required:
        others = [word for other in required if other is not param for word in _given(other, "1")]
        if param not in arguments[:-1]:  # another argument would take its place
            kind, shown = "option", " / ".join(param.opts)
            if param in arguments:
                kind, shown = "argument", param.metavar
            among = f". Choose from:  {',  '.join(_choices(param))}" if _choices(param) else ""
            yield others, f"Missing {kind} '{shown}'{among}{see}"
    optional = [word for param in arguments if param not in required for word in _given(param, "1")]
    if all(param.nargs == 1 for param in arguments):
        yield [*needed, *optional, "more"], f"Got unexpected extra argument(s) (more)\n  usage: {usage}"
    for param in params:
        for words, error in wrong_values(param) if param not in arguments else ():
            if f"{words} {error}" not in tried:
                yield [*needed, *words], error if "\nhint: " in error else error + see
            tried.add(f"{words} {error}")
    known = {name_of(param): param for param in params}
    for name, param in known.items():
        yield from (([*needed, *words], error) for words, error in broken_rules(name, param, known, needed))


def wrong_values(param: Any) -> Iterator[Refusal]:
    """Yield values of an option that its type refuses. The usual hint is left out."""
    name = name_of(param)
    if param.is_flag:
        yield [f"{name}=no"], f"Option '{name}' does not take a value"
    if param.is_flag or param.count:
        return
    yield [name], f"Option '{name}' requires an argument"
    if param.default != "":
        leave = "" if param.required else ", or leave it out"
        yield [f"{name}="], f"{name} is empty\nhint: write {name} {param.metavar}{leave}"
    shown = f"Invalid value for {' / '.join(repr(each) for each in param.opts)}"
    if _kind(param) is int:
        yield [name, "many"], f"{shown}: expected a whole number"
    elif _choices(param):
        yield [name, "zzz"], f"{shown}: 'zzz' is not one of {', '.join(map(repr, _choices(param)))}"


def broken_rules(name: str, param: Any, known: dict[str, Any], needed: list[str]) -> Iterator[Refusal]:
    """Yield combinations and values that the rules of a declaration refuse."""
    rules = rules_of(param)
    for other in (each for each in rules.excludes if each in known):
        words = _given(param, "1") * (name not in needed) + _given(known[other], "1")
        yield words, f"{name} and {other} exclude each other\nhint: {rules.why or 'leave one of them out'}"
    leading: list[str] = []
    for leader in needs_of(param, known):
        if name not in needed:
            hint = rules.why or f"add {leader}, or leave {name} out"
            yield [*leading, *_given(param, "1")], f"{name} goes with {leader} only\nhint: {hint}"
        first, _, value = leader.split(" or ")[0].partition(" ")
        leading += _given(known[first], value or "1")
    for value, bounds in _beyond(rules.at_least, rules.at_most):
        other = f"choose another number, or leave {name} out"
        hint = f"the default is {param.default}" if isinstance(param.default, int) else other
        yield [*leading, f"{name}={value}"], f"{name} is {value}, and must be {bounds}\nhint: {hint}"
    if isinstance(rules.parse, partial) and rules.parse.func is seconds_of:
        yield [*leading, name, "soon"], f"{name}: {DURATION}"
        least, most = (rules.parse.keywords[each] for each in ("at_least", "at_most"))
        upper = "" if most is None else f" to {most:g} s"
        outside = f", and must be from {least or 0:g} s{upper}\nhint: write a duration, as in 30s"
        if least is None:
            yield [*leading, name, "0s"], f"{name} must be greater than 0\nhint: write a duration, as in 30s"
        elif least:
            yield [*leading, name, "0"], f"{name} is 0{outside}"
        if most is not None:
            yield [*leading, name, f"{most + 1:.0f}s"], f"{name} is {most + 1:.0f}s{outside}"


def _beyond(low: int | None, high: int | None) -> Iterator[tuple[int, str]]:
    """Yield a number beyond each bound, with the bounds in words."""
    words = f"at least {low}" if high is None else f"from {low} to {high}" if low is not None else f"at most {high}"
    yield from ((bound + step, words) for bound, step in ((low, -1), (high, 1)) if bound is not None)


def _kind(param: Any) -> Any:
    """Return the type of a value."""
    found = param.type_descriptor.annotation
    return get_args(found)[0] if get_origin(found) is list else found


def _choices(param: Any) -> list[str]:
    kind = _kind(param)
    return [each.value for each in kind] if isinstance(kind, type) and issubclass(kind, Enum) else [*get_args(kind)]


def _given(param: Any, value: str) -> list[str]:
    """Return the words that give a parameter a value that typer accepts."""
    value = [*map(str, _choices(param)), value][0]
    if param.param_type_name == "argument":
        return [value]
    return [name_of(param)] if param.is_flag else [f"{name_of(param)}={value}"]


PATHS = [path for path in page_paths() if path]
TRIED: set[str] = set()
REFUSALS = [(path, list(refusals(path, TRIED))) for path in PATHS]


def demands(param: Any, known: dict[str, Any]) -> str:
    """Return what a declaration demands of an option, in words, or an empty text."""
    rules, found = rules_of(param), []
    if _choices(param):
        found.append(", ".join(_choices(param)))
    found += [words for _, words in _beyond(rules.at_least, rules.at_most)][:1]
    if isinstance(rules.parse, partial) and rules.parse.func is seconds_of:
        least, most = (rules.parse.keywords[each] for each in ("at_least", "at_most"))
        lower = "above 0 s" if least is None else f"from {least:g} s"
        found.append(lower + ("" if most is None else f" to {most:g} s"))
    found += [f"with {each}" for each in needs_of(param, known)]
    found += [f"without {each}" for each in rules.excludes if each.partition(" ")[0] in known]
    return "; ".join(found) + f" ({rules.why})" * bool(rules.why)


def all_demands() -> str:
    """Return a line for each option and its demands, with the commands that have it."""
    having: dict[tuple[str, str], list[str]] = {}
    commands = {path: find_command(path) for path in PATHS if not hasattr(find_command(path), "commands")}
    for path, command in commands.items():
        params = {name_of(param): param for param in command.params}
        for name, param in params.items():
            if demanded := demands(param, params):
                having.setdefault((name, demanded), []).append(" ".join(path))
    rows = ((name, "all" if len(of) == len(commands) else ", ".join(of), words) for (name, words), of in having.items())
    return "".join(f"{' | '.join(row)}\n" for row in sorted(rows))


def regenerate() -> None:
    """Write what declarations demand now."""
    DECLARED.write_text(all_demands())


def test_declarations_demand_what_was_last_agreed() -> None:
    assert all_demands() == DECLARED.read_text(), "if it should change: python tests/cli/test_golden.py"


@pytest.mark.parametrize(("path", "refused"), REFUSALS, ids=[" ".join(path) for path in PATHS])
def test_a_command_refuses_what_its_declarations_exclude(
    path: tuple[str, ...], refused: list[Refusal], here: Here
) -> None:
    for words, error in refused:
        code, out, err = here(*path, *words, NO_COLOR="1")
        assert (code, out) == (2, "false\n" if "--detach" in words else ""), shlex.join(["sbpair", *path, *words])
        # The words may be wrong in another way, too.
        assert f"error: {error}\n" in err, shlex.join(["sbpair", *path, *words])
