"""Printed commands, pasted into a shell: each does what it says, with the options that were given."""

import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sbpair.backlog import queue_path
from sbpair.cli.app import find_command
from sbpair.cli.next_command import MAX_REDRIVE, invocation, next_command, way_back, with_options
from sbpair.testing import EmulatorThread
from tests.kit.command import Here, untimed

pytestmark = pytest.mark.timeout_seconds(90)

CONFIG = """
[pairs.other]
[pairs.alpha]
backlog_queues = 2
[pairs.alpha.primary]
connection_string_env = "ALPHA_PRIMARY"
name = "contoso"
[pairs.alpha.secondary]
connection_string_env = "ALPHA_SECONDARY"
name = "contoso-dr"
"""
PAIR = "--config '{home}/my config.toml' --pair alpha"
PRINTED = re.compile(r"(?:with|run|:) (sbpair .*)$", re.MULTILINE)


class Shell:
    """Runs lines as a shell splits them, for a pair that only a configuration file elsewhere names."""

    def __init__(self, thread: EmulatorThread, home: Path, here: Here) -> None:
        self._here, self._home = here, home
        (home / "my config.toml").write_text(CONFIG)
        (home / "lines.txt").write_text("a\n" + 300_000 * "b" + "\nc\n")
        self.primary, self.secondary = thread.emulator.namespaces.values()
        thread.do(lambda: self.primary.create_queue("orders"))
        for index in range(4):
            thread.do(lambda index=index: self.secondary.create_queue(queue_path("contoso", index)))
        ends = zip(("PRIMARY", "SECONDARY"), thread.emulator.ready.namespaces, strict=True)
        self._environ = {f"ALPHA_{side}": each.connection_string for side, each in ends}

    def run(self, line: str) -> tuple[int, str]:
        code, _out, err = self._here(*shlex.split(line.format(home=self._home))[1:], **self._environ)
        return code, err

    def queues(self) -> int:
        return len(self.secondary.queues())

    def sent(self) -> int:
        return self.primary.queue("orders").counts().active


@pytest.fixture
def shell(tmp_path: Path, here: Here) -> Iterator[Shell]:
    with EmulatorThread() as thread:
        yield Shell(thread, tmp_path, here)


CASES: list[tuple[str, int, Callable[[Shell], int], tuple[int, int]]] = [
    (f"sbpair prune {PAIR}", 4, Shell.queues, (4, 2)),
    (f"sbpair prune -n 3 {PAIR} -o json", 4, Shell.queues, (4, 3)),
    (f"sbpair prune --dry-run {PAIR}", 0, Shell.queues, (4, 2)),
    (f"sbpair audit -n 6 --sample 0 {PAIR}", 3, Shell.queues, (4, 6)),
    (
        "sbpair drill --against alpha --config '{home}/my config.toml' -n 1 --failover-interval 0",
        4,
        Shell.queues,
        (4, 4),
    ),
]


@pytest.mark.parametrize(("line", "code", "count", "counts"), CASES, ids=[line[:24] for line, *_ in CASES])
def test_the_printed_command_does_what_it_says(
    line: str, code: int, count: Callable[[Shell], int], counts: tuple[int, int], shell: Shell
) -> None:
    got, err = shell.run(line)
    assert (got, count(shell)) == (code, counts[0]), err
    [printed] = PRINTED.findall(err)
    code, err = shell.run(f"{printed} -q")
    assert code == 0, err
    assert count(shell) == counts[1]


def test_a_send_continues_after_the_line_that_was_refused(shell: Shell, tmp_path: Path) -> None:
    lines = tmp_path / "lines.txt"
    code, err = shell.run(f"sbpair send orders {lines} --format lines --rate 100 {PAIR}")
    assert (code, shell.sent()) == (3, 1), err
    assert "error: line 2: " in err
    [printed] = PRINTED.findall(err)
    assert "--skip 1 --format lines --rate 100 --pair alpha" in printed
    lines.write_text("a\nb\nc\n")
    assert shell.run(printed)[0] == 0
    assert shell.sent() == 3


def test_a_hint_carries_the_options_too(shell: Shell) -> None:
    code, err = shell.run(f"sbpair runs show 26 --state /nowhere {PAIR}")
    assert code == 2
    [printed] = PRINTED.findall(err)
    code, err = shell.run(printed)
    assert (code, untimed(err)) == (0, "no runs yet: /nowhere has no state\n")


def test_a_rehearsal_of_one_command_proposes_the_other_one_for_good(shell: Shell) -> None:
    for path in [each.path for each in shell.secondary.queues()]:
        shell.secondary.delete_queue(path)
    code, err = shell.run(f"sbpair syphon --dry-run -n 3 {PAIR}")
    assert code == 2
    [printed] = PRINTED.findall(err)
    assert shell.run(printed)[0] == 0
    assert shell.queues() == 3


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
        ("prune -n 5 -v -o json", "prune", ["--yes"], "sbpair prune --yes --count 5"),
        ("prune -n 5 --primary contoso", "syphon", ["--once"], "sbpair syphon --once --count 5 --primary contoso"),
        ("send orders -- 'my file'", "send", ["orders", "my file"], "sbpair send orders 'my file'"),
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
