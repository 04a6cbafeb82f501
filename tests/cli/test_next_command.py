"""Printed commands: with which of the given options. `sessions/printed.txt` pastes them into a shell."""

import shlex
from collections.abc import Callable
from typing import Any

import pytest

from sbpair.cli.app import find_command
from sbpair.cli.next_command import MAX_REDRIVE, invocation, next_command, way_back, with_options


def printed_by(line: str, act: Callable[..., str], *arguments: Any, **options: Any) -> str:
    """Return a command as it is printed during the command of a line."""
    words = shlex.split(line)
    path = words[:2] if words[0] in ("replay", "partition") else words[:1]
    command = find_command(path)
    name = " ".join(["sbpair", *path])
    with command.make_context(name, words[len(path) :], obj=find_command) as context, invocation(context):
        return act(*arguments, **options)


@pytest.mark.parametrize(
    ("more", "printed"),
    [
        (0, "redrive --backlog --count 5 --rate 9 --state s --no-lease --where x --max-skipped 7"),
        (1, "replay run --dead-letters --archive DIR --count 5 --rate 9 --state s --no-lease --no-wait-for-locks"),
    ],
)
def test_very_many_dead_letters_are_sent_on_spark(more: int, printed: str) -> None:
    again = "--rate 9 --no-lease --state s --where x --max-skipped 7"
    once = "--once --ttl remaining --order none --canary 3 --observe 1s --no-wait-for-locks --allow-missing"
    assert printed_by(f"syphon -n 5 {once} {again}", way_back, MAX_REDRIVE + more) == f"sbpair {printed}"


@pytest.mark.parametrize(
    ("line", "path", "words", "printed"),
    [
        ("prune -n 5 --primary contoso", "syphon", ["--once"], "sbpair syphon --once --count 5 --primary contoso"),
        ("drill --against eu -n 2", "doctor", [], "sbpair doctor --pair eu"),
        ("drill --against default", "doctor", [], "sbpair doctor"),
        (
            "replay run --archive 'a b' --conf a=1 --conf fs.secret=x --where x --no-lease --state s --mode direct",
            "replay resume",
            ["r1"],
            "sbpair replay resume r1 --archive 'a b' --state s --no-lease --conf a=1 --conf 'fs.secret=***'",
        ),
        ("replay stop r1 --archive s3://me:hush@b/c", "replay resume", ["r1"], "sbpair replay resume r1 --archive X"),
        ("replay resume r1 --archive a --all", "replay resume", ["r1"], "sbpair replay resume r1 --archive a --all"),
    ],
)
def test_options_that_decide_what_a_command_does_are_repeated(
    line: str, path: str, words: list[str], printed: str
) -> None:
    expected = printed.replace("--archive X", "--archive 's3://me:***@b/c'")
    assert printed_by(line, next_command, path, *words) == expected


def test_a_text_gets_the_options_in_each_command_that_it_names_once() -> None:
    line = "audit -n 5 --pair eu"
    text = "run sbpair doctor or sbpair replay plan; see sbpair provision --help, sbpair help runbook and sbpair's page"
    done = printed_by(line, with_options, text)
    assert done == text.replace("sbpair doctor", "sbpair doctor --pair eu").replace(
        "replay plan", "replay plan --count 5 --pair eu"
    )
    named = f"confirm with {printed_by(line, next_command, 'prune', '--yes')}"
    assert printed_by(line, with_options, named) == named


def test_outside_a_command_nothing_is_repeated() -> None:
    assert next_command("replay resume", "r1") == "sbpair replay resume r1"
