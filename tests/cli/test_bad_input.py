"""Bad input: an error, a hint, the right exit code, no traceback, and nothing changed."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from sbpair.model import retries
from sbpair.model.retries import Backoff
from tests.cli.test_refusals import emulated
from tests.kit import command
from tests.kit.command import Here
from tests.kit.proxy import closed_port
from tests.kit.waiting import PATIENCE_SECONDS

KEYED = "SharedAccessKeyName=Root;SharedAccessKey=c2VjcmV0a2V5"
SECONDARY = "SBPAIR_SECONDARY_CONNECTION_STRING"


def sbpair(home: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return command.run(
        *arguments, env=command.environment(None, "XDG_", **{"HOME": str(home), "NO_COLOR": "1", **environ})
    )


PAIR = {"SBPAIR_PRIMARY_NAMESPACE": "contoso.invalid", SECONDARY: f"Endpoint=sb://contoso-dr.invalid/;{KEYED}"}


def test_a_process_with_bad_input_writes_an_error_and_a_hint(tmp_path: Path) -> None:
    done = sbpair(tmp_path, "syphon", "--once", "--lease", "", **PAIR)
    assert [line.partition(": ")[0] for line in done.stderr.splitlines()] == ["error", "hint"]
    assert (done.returncode, done.stdout) == (2, "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("asking", [["--log-format", "json"], ["--log-format=json"]])
@pytest.mark.parametrize("slip", [["--count", "ten"], ["--frob"], ["--count", "0"]])
def test_an_error_is_a_line_of_json_where_all_else_is(here: Here, slip: list[str], asking: list[str]) -> None:
    code, _, err = here("provision", *asking, *slip, NO_COLOR="1", **PAIR)
    printed = json.loads(err)
    assert (printed["level"], printed["logger"], printed["exit_code"], code) == ("error", "sbpair", 2, 2)
    assert printed["message"]
    assert printed["hint"]
    assert set(printed) == {"time", "level", "logger", "message", "hint", "exit_code"}


def test_a_namespace_behind_a_closed_port_is_unreachable(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "REQUEST_BACKOFF", Backoff(0.01, retries.MAX_WAIT_SECONDS))
    with closed_port() as port:
        sides = {**PAIR, SECONDARY: emulated(port), "SBPAIR_SECONDARY_NAME": "contoso-dr"}
        code, out, err = here("audit", **sides)
    *_retries, what, to_do = err.splitlines()
    where = f"contoso-dr cannot be reached at 127.0.0.1:{port}"
    assert what == f"error: cannot list the queues: {where}: connection refused"
    assert to_do == "hint: check the address, the network and the firewall; test each step with sbpair doctor"
    assert (code, out) == (6, "")


def test_without_tls_no_hint_is_about_https(here: Here) -> None:
    sides = {"SBPAIR_PRIMARY_CONNECTION_STRING": emulated(2), SECONDARY: emulated(1)}
    code, _, err = here("status", **sides, SBPAIR_PRIMARY_NAME="contoso", SBPAIR_SECONDARY_NAME="contoso-dr")
    hints = {line for line in err.splitlines() if line.startswith("hint: ")}
    assert hints == {"hint: check the address, the network and the firewall; test each step with sbpair doctor"}
    assert code == 6


def test_a_port_in_use_is_a_lack_of_this_machine(tmp_path: Path) -> None:
    ready = tmp_path / "ready.json"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = sbpair(tmp_path, "emulator", "--namespace", f"contoso={port}", "--ready-file", str(ready))
    assert done.stderr.splitlines() == [
        f"error: port {port} on 127.0.0.1 is in use",
        "hint: stop what uses it, or take any free ports: --namespace contoso=0",
    ]
    assert (done.returncode, done.stdout, ready.exists()) == (7, "", False)


def test_debug_shows_the_traceback_and_the_two_lines_all_the_same(tmp_path: Path) -> None:
    done = sbpair(tmp_path, "audit", "--debug")
    assert done.stderr.startswith("Traceback")
    assert done.stderr.splitlines()[-2].startswith("error: ")


BROKEN = """
import sys
from sbpair import __main__
from sbpair.cli import app
def broken(arguments):
    raise ZeroDivisionError("a secret may be in here")
app.invoke = broken
sys.exit(__main__.run(sys.argv[1:]))
"""


def test_a_bug_is_one_line_that_asks_for_debug_and_exits_1() -> None:
    done = command.run_program(sys.executable, "-c", BROKEN)
    assert done.stderr.splitlines() == [
        "error: unexpected ZeroDivisionError",
        "hint: this is a bug: run it again with --debug, and report what it shows",
    ]
    assert done.returncode == 1


def test_a_reader_that_goes_away_is_no_reason_to_complain() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "sbpair", "--help"],
        stdout=writing,
        stderr=subprocess.PIPE,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize(
    ("redirection", "what"),
    [
        (">/dev/full", "the results cannot be written: No space left on device"),
        (">&-", "stdout is closed: the results cannot be written"),
    ],
)
def test_results_that_cannot_be_written_are_a_lack_of_this_machine(redirection: str, what: str) -> None:
    line = f"{sys.executable} -m sbpair emulator --namespace contoso=0 --output json {redirection}"
    done = command.run_program("sh", "-c", line)
    first, second = done.stderr.splitlines()
    assert (done.returncode, first) == (7, f"error: {what}")
    assert second.startswith("hint: ")


@pytest.mark.parametrize(
    ("words", "code", "result"),
    [
        ("status", 6, "how many messages are stranded is unknown; primary down; secondary down"),
        ("audit --bogus", 2, ""),
    ],
)
def test_a_closed_stderr_changes_neither_result_nor_exit_code(words: str, code: int, result: str) -> None:
    names = {"SBPAIR_PRIMARY_NAME": "contoso", "SBPAIR_SECONDARY_NAME": "contoso-dr"}
    env = {**os.environ, **names, "SBPAIR_PRIMARY_CONNECTION_STRING": emulated(1), SECONDARY: emulated(2)}
    done = command.run_program("sh", "-c", f"{sys.executable} -m sbpair {words} 2>&-", env=env)
    assert (done.returncode, done.stdout.splitlines()[:1]) == (code, [result] if result else [])


def test_a_wrong_namespace_is_named_beside_several_pairs(here: Here, tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("[pairs.a]\n[pairs.b]\n[namespaces.archive]\nnamespace = 'contoso'\n")
    for words in (["archve:orders"], ["orders", "--namespace", "archve"]):
        assert "did you mean archive?" in here("peek", *words, "--config", str(file))[2]
