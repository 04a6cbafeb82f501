"""Printed commands: they parse, and have given options. `sessions/printed.txt` pastes them into a shell."""

import ast
import re
import shlex
from collections.abc import Callable, Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from sbpair.cli.app import COMMANDS, find_command
from sbpair.cli.next_command import MAX_REDRIVE, invocation, next_command, way_back, with_options
from tests.kit.printed import WORD, commands_in


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
        (0, "redrive --backlog --count 5 --where x --rate 9 --state s --no-lease --max-skipped 7"),
        (1, "replay run --dead-letters --archive DIR --count 5 --rate 9 --state s --no-lease --no-wait-for-locks"),
    ],
)
def test_very_many_dead_letters_are_sent_on_spark(more: int, printed: str) -> None:
    again = "--rate 9 --no-lease --state s --where x --max-skipped 7"
    once = "--once --ttl remaining --order none --canary 3 --observe 1s --no-wait-for-locks --allow-missing"
    found = printed_by(f"syphon -n 5 {once} {again}", way_back, MAX_REDRIVE + more)
    assert found == f"sbpair {printed}".replace("--state s", f"--state {Path.cwd()}/s")


@pytest.mark.parametrize(
    ("line", "path", "words", "printed"),
    [
        ("prune -n 5 --primary contoso", "syphon", ["--once"], "sbpair syphon --once --count 5 --primary contoso"),
        ("drill --against eu -n 2", "doctor", [], "sbpair doctor --pair eu"),
        ("drill --against default", "doctor", [], "sbpair doctor"),
        (
            "replay run --archive 'a b' --conf a=1 --conf b=2 --where x --no-lease --state s --mode direct",
            "replay resume",
            ["r1"],
            "sbpair replay resume r1 --archive 'a b' --state s --no-lease --conf a=1 --conf b=2",
        ),
        ("replay stop r1 --archive s3://me:hush@b/c", "replay resume", ["r1"], "sbpair replay resume r1 --archive X"),
        ("replay resume r1 --archive a --all", "replay resume", ["r1"], "sbpair replay resume r1 --archive a --all"),
        ("syphon --watch --to secondary", "syphon", ["--once"], "sbpair syphon --once --to secondary"),
        (
            "replay run --archive a --max-discard 5 --allow-missing",
            "replay resume",
            ["r1", "--allow-discard", "--skip-missing"],
            "sbpair replay resume r1 --allow-discard --skip-missing --archive a",
        ),
    ],
)
def test_options_that_decide_what_a_command_does_are_repeated(
    line: str, path: str, words: list[str], printed: str
) -> None:
    expected = printed.replace("--archive X", "--archive 's3://me:***@b/c'")
    assert printed_by(line, next_command, path, *words).replace(f"{Path.cwd()}/", "") == expected


def test_files_that_a_later_command_needs_are_absolute() -> None:
    line = "syphon --once --state s --config c.toml --map names --map a=b"
    here = Path.cwd()
    expected = f"sbpair syphon --watch --state {here}/s --map {here}/names --map a=b --config {here}/c.toml"
    assert printed_by(line, next_command, "syphon", "--watch") == expected


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


ROOT = Path(__file__).parents[2]


def problem_of(line: str, *, is_completed: bool) -> str:
    """Return why the real parser refuses a command, "" if it does not; one still to be `completed` lacks --archive."""
    try:
        words = shlex.split(line)
        path = words[: 2 if hasattr(find_command(words[:1]), "commands") else 1]
        if find_command(path) is None:
            return f"there is no {' '.join(path)}"
        name = " ".join(["sbpair", *path])
        with find_command(path).make_context(name, words[len(path) :], obj=find_command):
            return ""
    except Exception as error:  # noqa: BLE001  the parser's own classes are not public
        lacks = getattr(getattr(error, "param", None), "name", "")
        if type(error).__name__ == "Exit" or (lacks == "archive" and not is_completed):
            return ""
        return str(getattr(error, "message", "") or error or f"it lacks {lacks}")


def texts_of(module: Path) -> Iterator[str]:
    """Yield the texts of a module, without docstrings; a value in one of them is 1."""
    tree = ast.parse(module.read_text())
    skipped = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            skipped |= {id(each) for each in node.values}
            yield "".join(str(each.value) if isinstance(each, ast.Constant) else "1" for each in node.values)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            yield node.value


def refused(commands: Iterator[str], *, is_completed: bool = True) -> dict[str, str]:
    problems = {each: problem_of(each, is_completed=is_completed) for each in commands}
    assert problems
    return {each: problem for each, problem in problems.items() if problem}


def test_each_command_in_a_text_of_the_program_parses(capsys: pytest.CaptureFixture[str]) -> None:
    modules = (each for each in (ROOT / "sbpair").rglob("*.py") if "schemas" not in each.parts)
    texts = (text for module in modules for text in texts_of(module))
    assert refused((each for text in texts for each in commands_in(text)), is_completed=False) == {}
    assert "No such" not in capsys.readouterr().err


def test_each_command_that_a_session_has_printed_parses() -> None:
    files = (ROOT / "tests/cli/sessions").glob("*.txt")
    lines = (line for file in files for line in file.read_text().splitlines() if line.startswith("! "))
    assert (
        refused(each for line in lines for each in commands_in(re.sub(r"'[^']*; sbpair move; [^']*'", "x", line))) == {}
    )


def written_in(text: str) -> Iterator[str]:
    """Yield the commands of a document: those in shell blocks, and in a sentence those with options."""
    for block in re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            call = re.search(r"\bsbpair ([a-z].*)", "" if line.startswith("#") or "{{" in line else line.split(" #")[0])
            if call and call[1].split()[0] in COMMANDS:
                words = WORD.findall(call[1].removesuffix(')"'))
                yield " ".join(takewhile(lambda word: word not in ("|", ">", "&", "&&"), words))
    for call in re.findall(r"`sbpair ([a-z][^`\n]* -[^`\n]*)`", text):
        yield call.partition(" | ")[0]


def test_each_command_in_a_document_parses() -> None:
    files = [ROOT / "README.md", *(ROOT / "sbpair").rglob("*.md"), *(ROOT / ".github").rglob("*.md")]
    commands = (re.sub(r"\bN\b", "1", each) for file in files for each in written_in(file.read_text()))
    # A sentence may name an option without its value.
    assert {
        each: problem
        for each, problem in refused(commands, is_completed=False).items()
        if not problem.endswith("requires an argument.")
    } == {}
