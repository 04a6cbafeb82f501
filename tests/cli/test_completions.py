"""Completions in installed shells, and the answers for every shell."""

import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sbpair.cli.app import COMMANDS, invoke
from sbpair.config import load_pair
from sbpair.runs.control import RunControl, Wanted, request
from sbpair.runs.database import RunDatabase
from sbpair.runs.run_log import RunEntry
from tests.kit import command
from tests.kit.terminal import PseudoTerminal

ROOT = Path(__file__).parents[2]
COMPLETIONS = ROOT / "completions"
QUEUES = [f"contoso/x-servicebus-transfer/{index}" for index in range(3)]
CONFIG = """
[pairs.orders]
backlog_queues = 3
[pairs.orders.primary]
namespace = "contoso"
[pairs.orders.secondary]
namespace = "contoso-dr"
[pairs.orders-eu]
[relays.service.primary]
namespace = "contoso-relay"
[relays.other.primary]
namespace = "contoso-relay"
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    file = tmp_path / ".config" / "sbpair" / "config.toml"
    file.parent.mkdir(parents=True)
    file.write_text(CONFIG)
    program = tmp_path / "bin" / "sbpair"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m sbpair "$@"\n')
    program.chmod(0o755)
    return tmp_path


def environment(home: Path, **more: str) -> dict[str, str]:
    path = f"{home / 'bin'}:{os.environ['PATH']}"
    return command.environment(None, "XDG_", HOME=str(home), PATH=path, PYTHONPATH=str(ROOT), **more)


@pytest.fixture
def completed(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., list[str]]:
    """Return a function that completes a line in this process."""

    def answer(line: str, shell: str = "bash", **more: str) -> list[str]:
        words = line.split(" ")
        asked = {"COMP_WORDS": "\n".join(words), "COMP_CWORD": str(len(words) - 1)}
        for name, value in environment(home, **asked, _SBPAIR_COMPLETE=f"complete_{shell}", **more).items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
        with pytest.raises(SystemExit):
            invoke([])
        out, err = capsys.readouterr()
        assert err == ""
        return out.split()

    return answer


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("sbpair pro", ["provision"]),
        ("sbpair syphon --wa", ["--watch"]),
        ("sbpair audit --pair ", ["orders", "orders-eu"]),
        ("sbpair syphon --once --pair orders-", ["orders-eu"]),
        ("sbpair doctor --pair orders --queue ", QUEUES),
        ("sbpair doctor --pair orders --queue contoso/x-servicebus-transfer/2", QUEUES[2:]),
        (
            "sbpair doctor --primary fabrikam --pair orders --queue fab",
            [q.replace("contoso", "fabrikam") for q in QUEUES],
        ),
        ("sbpair audit --output ", ["table", "json", "jsonl", "tsv"]),
        ("sbpair audit --via ", ["atom", "arm"]),
        ("sbpair audit --fail-on d", ["drift", "dead-letters", "destinations", "duplicates"]),
        (
            "sbpair audit --fail-on drift,dead-letters,d",
            [f"drift,dead-letters,{each}" for each in ("destinations", "duplicates")],
        ),
        ("sbpair audit --fail-on n", ["no-mover", "none"]),
        ("sbpair status --fail-on d", ["dead-letters"]),
        ("sbpair status --fail-on dead-letters,", ["dead-letters,messages", "dead-letters,no-mover"]),
        ("sbpair audit --fail-on missing,n", ["missing,no-mover"]),
        ("sbpair runs ", ["list", "show", "find", "report", "pause", "resume", "cancel"]),
        ("sbpair audit --output = js", ["json", "jsonl"]),
        ("sbpair audit --output =", ["table", "json", "jsonl", "tsv"]),
        ("sbpair syphon --once --pair = orders-", ["orders-eu"]),
        ("sbpair replay plan --pair orders --queue contoso/x-servicebus-transfer/2", QUEUES[2:]),
        ("sbpair replay status --archive ARCHIVE 26", ["261122-101501-r2", "261122-101500-r1"]),
        ("sbpair replay status --archive s3://bucket/a ", []),
        ("sbpair replay status ", []),
        ("sbpair runs show --pair orders --state STATE ", ["261122-101503-r4", "261122-101502-r3", "261122-101500-r1"]),
        ("sbpair runs show --pair orders --state /nowhere ", []),
        ("sbpair runs show --pair none ", []),
        ("sbpair runs pause --pair orders --state STATE ", ["261122-101502-r3"]),
        ("sbpair runs resume --pair orders --state STATE ", ["261122-101503-r4"]),
        ("sbpair runs cancel --pair orders --state STATE ", ["261122-101503-r4", "261122-101502-r3"]),
        ("sbpair deadletters ", ["list", "show"]),
        ("sbpair relay ", ["listen", "send", "status", "provision"]),
        ("sbpair relay listen ", ["other", "service"]),
        ("sbpair relay send se", ["service"]),
        ("sbpair relay send service --reissue ", ["safe", "always"]),
        ("sbpair relay status --config NOWHERE ", []),
        ("sbpair drill --rel", ["--relay"]),
        ("sbpair peek --pair orders contoso/x-servicebus-transfer/2", QUEUES[2:]),
    ],
)
def test_names_and_values_are_completed(
    completed: Callable[..., list[str]], line: str, answer: list[str], tmp_path: Path
) -> None:
    for run in ("261122-101500-r1", "261122-101501-r2"):
        (tmp_path / "ARCHIVE" / run).mkdir(parents=True)
        (tmp_path / "ARCHIVE" / run / "run.json").touch()
    with RunDatabase(
        tmp_path / "STATE",
        load_pair(config=tmp_path / ".config" / "sbpair" / "config.toml", name="orders", environ={}).ends,
    ) as state:
        clock = itertools.count(1)
        ended, running, paused = (
            RunEntry(state, "syphon --once", run_id=f"261122-10150{run}", clock_ms=lambda: next(clock))
            for run in ("0-r1", "2-r3", "3-r4")
        )
        ended.close()
        request(state, paused.id, Wanted.PAUSED, 0.0)
        RunControl(state, paused.id).confirm(Wanted.PAUSED)
        for word in ("ARCHIVE", "STATE"):
            line = line.replace(word, str(tmp_path / word))
        assert completed(line) == answer
        running.close()
        paused.close()


@pytest.mark.parametrize(
    ("shell", "asked", "shown"),
    [
        (
            "fish",
            {"_TYPER_COMPLETE_FISH_ACTION": "get-args"},
            "--credits\tShare of Standard's 1000/s",
        ),
        ("zsh", {}, r"""Standard'\''s 1000/s"""),
        ("powershell", {}, "--credits:::Share of Standard's 1000/s"),
    ],
)
def test_descriptions_are_whole(
    completed: Callable[..., list[str]], shell: str, asked: dict[str, str], shown: str
) -> None:
    word = {"_TYPER_COMPLETE_WORD_TO_COMPLETE": "--cred"}
    answer = " ".join(completed("x", shell, _TYPER_COMPLETE_ARGS="sbpair syphon --cred", **word, **asked))
    assert " ".join(shown.split()) in answer
    assert "[default: 50%; Premium: none]" in answer.replace(r"\\:", ":")


def test_the_summary_of_a_command_is_whole(completed: Callable[..., list[str]]) -> None:
    answer = completed("x", "fish", _TYPER_COMPLETE_ARGS="sbpair syph", _TYPER_COMPLETE_FISH_ACTION="get-args")
    assert " ".join(answer) == f"syphon {COMMANDS['syphon']}"


@pytest.mark.parametrize(
    ("line", "config"),
    [
        ("sbpair audit --pair zzz", CONFIG),
        ("sbpair audit --pair ", "[pairs.orders"),
        ("sbpair audit --pair ", "pairs = 1"),
        ("sbpair audit --pair ", "\xe9"),
        ("sbpair audit --config /nowhere --pair ", CONFIG),
        ("sbpair audit --config / --pair ", CONFIG),
        ("sbpair doctor --queue ", CONFIG),
        ("sbpair doctor --pair orders-eu --queue ", CONFIG),
        ("sbpair doctor --pair none --queue ", CONFIG),
        ("sbpair doctor --pair orders --queue ", CONFIG.replace("= 3", "= 0")),
        ("sbpair doctor --pair orders --queue ", CONFIG.replace('"contoso"', '"con toso"')),
        ("sbpair doctor --pair orders --queue else/", CONFIG),
    ],
)
def test_bad_configuration_or_unknown_pairs_complete_to_nothing(
    completed: Callable[..., list[str]], home: Path, line: str, config: str
) -> None:
    (home / ".config" / "sbpair" / "config.toml").write_text(config, encoding="latin-1")
    assert completed(line) == []


def test_a_directory_that_bash_would_execute_is_not_completed(
    completed: Callable[..., list[str]], tmp_path: Path
) -> None:
    for name in ("$(touch caught)", "`touch caught`", "a;b", "261122-101501-7k2m"):
        (tmp_path / "archive" / name).mkdir(parents=True)
        (tmp_path / "archive" / name / "run.json").touch()
    assert completed(f"sbpair replay status --archive {tmp_path}/archive ") == ["261122-101501-7k2m"]


def test_no_secret_of_the_environment_is_completed(completed: Callable[..., list[str]]) -> None:
    secret = "Endpoint=sb://contoso.servicebus.windows.net/;SharedAccessKeyName=Root;SharedAccessKey=c2VjcmV0"
    assert completed("sbpair audit --primary ", SBPAIR_PRIMARY_CONNECTION_STRING=secret) == []


def test_a_variable_that_a_shell_leaves_behind_empty_asks_for_nothing(home: Path) -> None:
    done = command.run_program(home / "bin" / "sbpair", "--version", env=environment(home, _SBPAIR_COMPLETE=""))
    assert done.stdout.startswith("sbpair ")


@pytest.mark.parametrize(
    ("shell", "asked", "answer"),
    [
        ("fish", {"_TYPER_COMPLETE_FISH_ACTION": "get-args"}, ["--output=json", "--output=jsonl"]),
        ("zsh", {}, ["_arguments", "'*:", ':(("--output=json"', '"--output=jsonl"))\'']),
        (
            "powershell",
            {"_TYPER_COMPLETE_WORD_TO_COMPLETE": "--output=js"},
            ["--output=json:::", "--output=jsonl:::"],
        ),
    ],
)
def test_a_value_behind_an_equals_sign_has_the_option(
    completed: Callable[..., list[str]], shell: str, asked: dict[str, str], answer: list[str]
) -> None:
    assert completed("x", shell, _TYPER_COMPLETE_ARGS="sbpair audit --output=js", **asked) == answer


@pytest.mark.parametrize(
    ("line", "word", "answer"),
    [("sbpair audit --pair", "", ["orders", "orders-eu"]), ("sbpair audit --pair orders-", "orders-", ["orders-eu"])],
)
def test_powershell_gets_the_completions_that_its_script_requests(
    completed: Callable[..., list[str]], line: str, word: str, answer: list[str]
) -> None:
    script = (COMPLETIONS / "sbpair.ps1").read_text()
    asked = {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_WORD_TO_COMPLETE": word}
    assert all(f"$Env:{name} =" in script for name in asked)
    assert [each.split(":::")[0] for each in completed(line, "powershell", **asked)] == answer


def shell(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"no {name} on this machine")
    return found


def test_bash_completes(home: Path) -> None:
    script = f"""
source {COMPLETIONS}/sbpair.bash
complete -p sbpair >/dev/null || exit 1
COMP_WORDS=(sbpair doctor --pair orders --queue contoso/x); COMP_CWORD=5
_sbpair_completion sbpair
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    done = command.run_program(shell("bash"), "--norc", "-c", script, env=environment(home))
    assert done.stdout.split() == QUEUES


@pytest.mark.parametrize(
    ("words", "answer"),
    [("doctor --pair orders --queue ", QUEUES), ("audit --output=js", ["--output=json", "--output=jsonl"])],
)
def test_fish_completes(home: Path, words: str, answer: list[str]) -> None:
    script = f'source {COMPLETIONS}/sbpair.fish; complete -C "sbpair {words}"'
    done = command.run_program(shell("fish"), "--no-config", "-c", script, env=environment(home))
    assert done.stdout.split() == answer


def test_zsh_completes_the_first_time_that_it_is_asked(home: Path) -> None:
    with PseudoTerminal() as terminal:
        inside = dict.fromkeys(("stdin", "stdout", "stderr"), terminal.theirs)
        environ = environment(home, TERM="xterm")
        zsh = subprocess.Popen([shell("zsh"), "-f", "-i"], env=environ, start_new_session=True, **inside)
        terminal.hand_over()
        setup = f"fpath=({COMPLETIONS} $fpath); autoload -Uz compinit; compinit -u -D; echo re''ady\n"
        typed = {setup: "ready\r\n", "sbpair audit --pair orders-\t": "orders-eu"}
        try:
            for line, shown in {**typed, "\x15sbpair audit --output=ta\t": "--output=table"}.items():
                terminal.write(line.encode())
                terminal.read_until(shown)
        finally:
            zsh.kill()
            zsh.wait()


@pytest.mark.parametrize(
    ("shell", "variables", "file"),
    [
        ("bash", {}, ".local/share/bash-completion/completions/sbpair"),
        ("zsh", {}, ".local/share/zsh/site-functions/_sbpair"),
        ("fish", {}, ".config/fish/completions/sbpair.fish"),
        ("bash", {"XDG_DATA_HOME": "data"}, "data/bash-completion/completions/sbpair"),
    ],
)
def test_completions_are_stored_where_the_shell_looks(
    shell: str, variables: dict[str, str], file: str, home: Path
) -> None:
    before = {*home.rglob("*")}
    environ = environment(home, SHELL=f"/usr/bin/{shell}", **{key: f"{home}/{each}" for key, each in variables.items()})
    for _ in range(2):
        done = command.run("completions", "--install", env=environ)
        assert (done.returncode, done.stdout) == (0, f"{home / file}\n")
    script = command.run("completions", shell, env=environ).stdout
    assert [each for each in {*home.rglob("*")} - before if each.is_file()] == [home / file]
    assert (home / file).read_text().rstrip("\n") == script.rstrip("\n")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--install", "powershell"], "powershell has no directory of completions"),
        (["--install"], "there are no completions for 'csh'"),
    ],
)
def test_a_shell_without_a_place_for_completions_is_refused(words: list[str], error: str, home: Path) -> None:
    done = command.run("completions", *words, env=environment(home, SHELL="/bin/csh"))
    assert (done.returncode, done.stderr.splitlines()[0]) == (2, f"error: {error}")
