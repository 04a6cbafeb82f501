"""Bad input: an error, a hint, the right exit code, no traceback, and nothing changed."""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.kit import command

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.kit.command import Here

KEYED = "SharedAccessKeyName=Root;SharedAccessKey=c2VjcmV0a2V5"
CLOUDS = (".servicebus.windows.net", ".servicebus.usgovcloudapi.net", ".servicebus.chinacloudapi.cn")
NOWHERE = "00000000-0000-0000-0000-000000000000"
SECONDARY = "SBPAIR_SECONDARY_CONNECTION_STRING"


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A bound port without a listener."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


def emulated(port: int) -> str:
    return f"Endpoint=sb://127.0.0.1:{port};{KEYED};UseDevelopmentEmulator=true"


def sbpair(home: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return command.run(
        *arguments, env=command.environment(None, "XDG_", **{"HOME": str(home), "NO_COLOR": "1", **environ})
    )


PAIR = {"SBPAIR_PRIMARY_NAMESPACE": "contoso.invalid", SECONDARY: f"Endpoint=sb://contoso-dr.invalid/;{KEYED}"}
LONG = "a" * 250

ONE_OF_THREE = "--once moves the messages that are there now; --watch keeps moving; --dry-run only previews"


def case(words: str | list[str], what: str, to_do: str, *, environ: dict[str, str] = PAIR, code: int = 2) -> Any:
    """Return a command line with its environment, and its error, hint and exit code."""
    return pytest.param(shlex.split(words) if isinstance(words, str) else words, environ, code, what, to_do)


CASES = [
    case(
        "replay package job --for fabric",
        "--for needs --archive",
        "name where the job keeps messages, such as abfss://container@account.dfs.core.windows.net/backlog",
    ),
    case(
        ["audit", "--primary", f"Endpoint=sb://contoso.servicebus.windows.net/;{KEYED}"],
        "an argument looks like a connection string, which every user of this machine can read",
        "export SBPAIR_PRIMARY_CONNECTION_STRING or SBPAIR_SECONDARY_CONNECTION_STRING, and change the key",
        environ={},
    ),
    case("provison", "No such command 'provison'. Did you mean 'provision'?", "see sbpair --help", environ={}),
    case(
        "audit",
        "pair 'default' has no primary namespace",
        "set SBPAIR_PRIMARY_CONNECTION_STRING, or [pairs.default.primary] in the configuration file",
        environ={},
    ),
    case(
        "audit",
        f"{SECONDARY}: the connection string is invalid: it has no SharedAccessKeyName=",
        "copy it whole from the portal: Endpoint=sb://<namespace>.servicebus.windows.net/;"
        "SharedAccessKeyName=<name>;SharedAccessKey=<key>",
        environ={**PAIR, SECONDARY: "Endpoint=sb://contoso-dr/;SharedAccessKey=c2VjcmV0a2V5"},
    ),
    case(
        "audit",
        f"{SECONDARY}: the connection string has an EntityPath: its key may be for one queue or topic only",
        "use one of the namespace's shared access policies; if the key is from there, remove EntityPath",
        environ={**PAIR, SECONDARY: f"Endpoint=sb://contoso-dr.invalid/;{KEYED};EntityPath=orders"},
    ),
    case(
        "config --path --init",
        "--path and --init exclude each other",
        "--init prints the path, too",
        environ={},
    ),
    case(
        "provision --via arm",
        "--via arm needs --subscription",
        "give it, or set AZURE_SUBSCRIPTION_ID",
        environ={**PAIR, "AZURE_SUBSCRIPTION_ID": ""},
    ),
    case(
        "provision --via arm",
        "--via arm needs --resource-group",
        "give it, or set AZURE_RESOURCE_GROUP",
        environ={**PAIR, "AZURE_SUBSCRIPTION_ID": NOWHERE, "AZURE_RESOURCE_GROUP": ""},
    ),
    case(
        "provision --via arm --resource-group a/b",
        "'a/b' is not the name of a resource group",
        "up to 90 letters, digits, '.', '-', '_' and parentheses: az group list --query [].name",
        environ={**PAIR, "AZURE_SUBSCRIPTION_ID": NOWHERE},
    ),
    case(
        "provision --via arm --subscription production --resource-group messaging",
        "'production' is not the id of a subscription",
        f"write it as {NOWHERE}: az account show --query id",
        environ={},
    ),
    case("prune --dry-run --yes", "--dry-run and --yes exclude each other", "--yes deletes, --dry-run only prints"),
    case(
        ["audit", "--via", "arm", "--subscription", NOWHERE],
        "--via arm needs --resource-group",
        "give it, or set AZURE_RESOURCE_GROUP",
    ),
    case(
        "partition queue contoso/x-servicebus-transfer/3 --size-gb 5 --side secondary",
        "contoso/x-servicebus-transfer/3 is the name of a backlog queue",
        "sbpair provision creates those",
    ),
    case(
        ["provision", "--subscription", NOWHERE],
        "--subscription is for Azure Resource Manager",
        "add --via arm, or leave it out",
    ),
    case(
        ["provision", "--via", "arm", "--subscription", NOWHERE, "--resource-group", "messaging"],
        "contoso-dr.invalid is in no known cloud of Azure",
        f"use --via arm for namespaces of {', '.join(CLOUDS)}",
    ),
    case(
        "provision --count 99999999999",
        "pair 'default': backlog_queues is 99999999999, and must be at most 10000",
        "the default is 10, as in the original library",
    ),
    case(
        "provision --count 0",
        "pair 'default': backlog_queues is 0, and must be at least 1",
        "the default is 10, as in the original library",
    ),
    case(
        "provision --count 5000",
        "5000 queues would be created, and 1000 is the most at once",
        "check the number of backlog queues: the original used 10",
        environ={**PAIR},
        code=4,
    ),
    case(
        "provision",
        f"the path {LONG[:40]}… has 274 characters; Service Bus allows 260",
        "shorten the name of the namespace",
        environ={**PAIR, "SBPAIR_PRIMARY_NAME": LONG},
    ),
    case(
        "provision",
        r"'con\x1b[31mtoso' is not a valid namespace name",
        "use the first label of its host name: contoso for contoso.servicebus.windows.net",
        environ={**PAIR, "SBPAIR_PRIMARY_NAME": "con\x1b[31mtoso"},
    ),
    case(
        "audit --primary contoso-dr.invalid",
        "pair 'default': the primary and the secondary are the same namespace",
        "a backlog in the primary would be unavailable together with it: choose another secondary",
    ),
    case(
        "audit --config /nowhere/config.toml",
        "--config: /nowhere/config.toml does not exist",
        "check the path",
        environ={},
    ),
    case(
        "audit",
        "SBPAIR_SECONDARY_ENDPOINT: expected host:port, got 'localhost'",
        "write 127.0.0.1:5672",
        environ={**PAIR, "SBPAIR_SECONDARY_ENDPOINT": "localhost"},
    ),
    case("syphon", "expected one of --once, --watch and --dry-run", ONE_OF_THREE),
    case("syphon --once --watch", "--once and --watch exclude each other", ONE_OF_THREE),
    case("syphon --once --dry-run", "--once and --dry-run exclude each other", ONE_OF_THREE),
    case("syphon --watch --dry-run", "--watch and --dry-run exclude each other", ONE_OF_THREE),
    case(
        "syphon --dry-run --rate fast",
        "--rate: expected a rate such as 500/s, got 'fast'",
        "500 or 500/s, 30/m, 100/h are messages a second, a minute, an hour",
    ),
    case(
        "syphon --dry-run --credits 101%",
        "--credits is 101%, but a Standard namespace has 1000 credits a second",
        "50% or 0.5 is a share of a Standard namespace, 500 is credits a second, none is no limit",
    ),
    case(
        "syphon --watch --lease leases --no-lease", "--lease and --no-lease exclude each other", "leave one of them out"
    ),
    case("syphon --dry-run --lease leases", "--lease goes with --once and --watch only", "a dry run needs no lock"),
    case(
        "syphon --once --lease contoso/X-ServiceBus-Transfer/0",
        "contoso/X-ServiceBus-Transfer/0 is a backlog queue and cannot carry a lease",
        "create it with sessions and a lock of 30 s or more: az servicebus queue create --enable-session true"
        " --lock-duration PT1M --name sbpair-lease",
    ),
    case(
        "syphon --once --lease ''",
        "'' is not a valid path of a queue or topic",
        "use segments of letters, digits, '.', '-' and '_', separated by one '/'",
    ),
    case(
        "syphon --once --lease sb://contoso-dr/leases",
        "'sb://contoso-dr/leases' is not a valid path of a queue or topic",
        "use segments of letters, digits, '.', '-' and '_', separated by one '/'",
    ),
    case("syphon --once --max-held 0", "--max-held is 0, and must be at least 1", "the default is 1000"),
    case("drill --messages -1", "--messages is -1, and must be at least 1", "leave it out for the default", environ={}),
    case(
        "emulator --namespace contoso",
        "--namespace 'contoso' is not NAME=PORT",
        "write --namespace contoso=5672",
        environ={},
    ),
    case(
        "emulator --host 192.0.2.1",
        "other machines can reach 192.0.2.1, and the emulator's key is public",
        "leave --host out, or pass --expose to let anyone read, write and delete",
        environ={},
    ),
]


@pytest.mark.parametrize(("arguments", "environ", "code", "what", "to_do"), CASES, ids=[None] * len(CASES))
def test_bad_input_ends_with_an_error_and_a_hint(
    here: Here, tmp_path: Path, arguments: list[str], environ: dict[str, str], code: int, what: str, to_do: str
) -> None:
    ended, out, err = here(*arguments, NO_COLOR="1", **environ)
    assert err.splitlines() == [f"error: {what}", f"hint: {to_do}"]
    assert (ended, out) == (code, "")
    assert "c2VjcmV0a2V5" not in err
    assert list(tmp_path.iterdir()) == []


def test_a_process_with_bad_input_does_the_same(tmp_path: Path) -> None:
    done = sbpair(tmp_path, "syphon", "--once", "--lease", "", **PAIR)
    assert [line.partition(": ")[0] for line in done.stderr.splitlines()] == ["error", "hint"]
    assert (done.returncode, done.stdout) == (2, "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["audit", "--outptu", "json"], "see sbpair audit --help"),
        (["audit", "--output", "xml"], "see sbpair audit --help"),
        (["provision", "--count", "ten"], "see sbpair provision --help"),
        (["audit", "what"], "see sbpair audit --help"),
        (["audit", "--pair"], "see sbpair audit --help"),
        (["partition", "queue", "orders", "--size-gb"], "see sbpair partition queue --help"),
        (["--pair", "orders"], "see sbpair --help; options go after the command, as in sbpair audit --output json"),
        (["syphon", "--dry-run", "--ttl", "half"], "see sbpair syphon --help"),
        (["syphon", "--once", "--order", "newest"], "see sbpair syphon --help"),
        (
            ["--output", "json", "audit"],
            "see sbpair --help; options go after the command, as in sbpair audit --output json",
        ),
    ],
)
def test_unknown_commands_and_options_end_with_an_error_and_a_hint(here: Here, arguments: list[str], hint: str) -> None:
    code, _, err = here(*arguments, NO_COLOR="1")
    first, second = err.splitlines()
    assert first.startswith("error: ")
    assert (second, code) == (f"hint: {hint}", 2)


@pytest.mark.parametrize("asking", [["--log-format", "json"], ["--log-format=json"]])
@pytest.mark.parametrize("slip", [["--count", "ten"], ["--frob"], ["--count", "0"]])
def test_an_error_is_a_line_of_json_where_all_else_is(here: Here, slip: list[str], asking: list[str]) -> None:
    code, _, err = here("provision", *asking, *slip, NO_COLOR="1", **PAIR)
    printed = json.loads(err)
    assert (printed["level"], printed["logger"], printed["exit_code"], code) == ("error", "sbpair", 2, 2)
    assert printed["message"]
    assert printed["hint"]
    assert set(printed) == {"time", "level", "logger", "message", "hint", "exit_code"}


def test_a_namespace_behind_a_closed_port_is_unreachable(tmp_path: Path, closed_port: int) -> None:
    done = sbpair(
        tmp_path, "audit", **{**PAIR, SECONDARY: emulated(closed_port), "SBPAIR_SECONDARY_NAME": "contoso-dr"}
    )
    *_retries, what, to_do = done.stderr.splitlines()
    where = f"contoso-dr cannot be reached at 127.0.0.1:{closed_port}"
    assert what == f"error: cannot list the queues: {where}: connection refused"
    assert to_do == "hint: check the address, the network and the firewall; sbpair doctor tests each step"
    assert (done.returncode, done.stdout) == (6, "")


def test_without_tls_no_hint_is_about_https(here: Here, closed_port: int) -> None:
    sides = {"SBPAIR_PRIMARY_CONNECTION_STRING": emulated(closed_port), SECONDARY: emulated(1)}
    code, _, err = here("status", **sides, SBPAIR_PRIMARY_NAME="contoso", SBPAIR_SECONDARY_NAME="contoso-dr")
    hints = {line for line in err.splitlines() if line.startswith("hint: ")}
    assert hints == {"hint: check the address, the network and the firewall; sbpair doctor tests each step"}
    assert code == 6


def test_a_port_in_use_is_a_lack_of_this_machine(tmp_path: Path, taken_port: int) -> None:
    ready = tmp_path / "ready.json"
    done = sbpair(tmp_path, "emulator", "--namespace", f"contoso={taken_port}", "--ready-file", str(ready))
    assert done.stderr.splitlines() == [
        f"error: port {taken_port} on 127.0.0.1 is in use",
        "hint: stop what uses it, or take any free ports: --namespace contoso=0",
    ]
    assert (done.returncode, done.stdout, ready.exists()) == (7, "", False)


@pytest.mark.parametrize("words", [("syphon", "--once"), ("runs", "list"), ("runs", "show", "26")])
def test_a_state_that_is_a_file_is_a_lack_of_this_machine(tmp_path: Path, words: tuple[str, ...]) -> None:
    state = tmp_path / "file"
    state.touch()
    done = sbpair(tmp_path, *words, "--state", str(state), **PAIR)
    assert done.stderr.splitlines() == [
        f"error: {state} cannot be used for state: it is not a directory",
        "hint: pass --state DIR for a writable directory",
    ]
    assert (done.returncode, done.stdout) == (7, "")


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
        [sys.executable, "-m", "sbpair", "--help"], stdout=writing, stderr=subprocess.PIPE, timeout=60, check=False
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
    ("words", "code", "result"), [("status", 6, "the backlog is unknown"), ("audit --bogus", 2, "")]
)
def test_a_closed_stderr_changes_neither_result_nor_exit_code(words: str, code: int, result: str) -> None:
    names = {"SBPAIR_PRIMARY_NAME": "contoso", "SBPAIR_SECONDARY_NAME": "contoso-dr"}
    env = {**os.environ, **names, "SBPAIR_PRIMARY_CONNECTION_STRING": emulated(1), SECONDARY: emulated(2)}
    done = command.run_program("sh", "-c", f"{sys.executable} -m sbpair {words} 2>&-", env=env)
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (code, [result] if result else [])


@pytest.mark.parametrize(
    ("relay", "text"),
    [
        ("other=hyco", "--relay names no namespace 'other'"),
        ("a b", "--relay: 'a b' contains"),
        ("", "--relay"),
        ("contoso=", "--relay"),
        ("contoso=a/$x", "--relay"),
    ],
)
def test_a_wrong_hybrid_connection_is_refused(tmp_path: Path, relay: str, text: str) -> None:
    done = sbpair(tmp_path, "emulator", "--namespace", "contoso=0", "--relay", relay)
    assert done.returncode == 2
    assert text in done.stderr
