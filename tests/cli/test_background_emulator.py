"""`sbpair emulator --detach` and `--stop`: real processes, and shells that evaluate what they print."""

import json
import shlex
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit import command
from tests.kit.command import Here, run_program

PORTS = "--namespace contoso=0 --namespace contoso-dr=0"
PYTHON = shlex.join([sys.executable, *command.STRICT, "-m", "sbpair"])


@pytest.fixture
def environ(tmp_path: Path) -> Iterator[dict[str, str]]:
    found = command.environment(None, NO_COLOR="1", XDG_CONFIG_HOME=f"{tmp_path}/c", XDG_STATE_HOME=f"{tmp_path}/s")
    yield found
    command.run("emulator", "--stop", env=found)


def in_shell(script: str, environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return run_program("sh", "-c", f'sbpair() {{ {PYTHON} "$@"; }}\n{script}', env=environ)


def test_one_line_makes_the_file_of_init_work_with_an_emulator(environ: dict[str, str]) -> None:
    done = in_shell(
        f'sbpair config --init && eval "$(sbpair emulator --detach {PORTS})" && sbpair provision && sbpair audit',
        environ,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("contoso/x-servicebus-transfer/9") == 2


def test_an_emulator_starts_in_the_background_without_a_stdin(environ: dict[str, str]) -> None:
    done = in_shell(f'eval "$(sbpair emulator --detach {PORTS} <&-)" && sbpair emulator --stop <&-', environ)
    assert (done.returncode, done.stderr.splitlines()[-1].endswith("stopped")) == (0, True)


def test_a_second_one_prints_the_first_and_stop_ends_it(environ: dict[str, str], tmp_path: Path) -> None:
    first = command.run("emulator", "--detach", *PORTS.split(), "-o", "json", env=environ)
    second = command.run("emulator", "--detach", "-o", "json", env=environ)
    other = command.run("emulator", "--detach", "--identity", env=environ)
    assert (other.returncode, other.stdout) == (2, "false\n")
    assert f"another emulator runs in the background, started with {PORTS}\n" in other.stderr
    assert "--stop" in other.stderr
    document = json.loads(first.stdout)
    assert json.loads(second.stdout) == document
    assert "already runs" in second.stderr
    folder = tmp_path / "s" / "sbpair" / ".emulator"
    assert document["background"]["log"] == str(folder / "log")
    assert (folder / "process").read_text() == str(document["background"]["process"])
    assert {each.stat().st_mode & 0o077 for each in folder.iterdir()} == {0}
    stopped, again = (command.run("emulator", "--stop", env=environ) for _ in range(2))
    assert (stopped.returncode, again.returncode) == (0, 0)
    assert command.untimed(stopped.stderr + again.stderr) == "stopped\nno emulator runs in the background\n"
    host, _, port = document["namespaces"][0]["endpoint"].removeprefix("sb://").partition(":")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)))
    assert not (folder / "ready.json").exists()


def test_an_identity_and_a_relay_are_exported_in_the_background_too(environ: dict[str, str]) -> None:
    done = in_shell(f'eval "$(sbpair emulator --detach --identity --relay web {PORTS})" && env', environ)
    names = [line.partition("=")[0] for line in done.stdout.splitlines()]
    assert {"IDENTITY_ENDPOINT", "AZURE_SUBSCRIPTION_ID", "SBPAIR_RELAY_PRIMARY_CONNECTION_STRING"} <= {*names}


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ("--namespace contoso=0,gold", "expected basic, standard or premium, got 'gold'"),
        (f"{PORTS} --data /dev/null/file", "/dev/null/file"),
        ("--zzz", "No such option: --zzz"),
    ],
)
def test_an_emulator_that_does_not_start_fails_the_eval(options: str, error: str, environ: dict[str, str]) -> None:
    done = in_shell(f'eval "$(sbpair emulator --detach {options})"', environ)
    assert done.returncode == 1
    assert f"error: {error}" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_directory_that_cannot_be_used_is_told_with_its_variable(environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "s").touch()
    for option in ("--detach", "--stop"):
        assert "XDG_STATE_HOME" in command.run("emulator", option, env=environ).stderr
    (tmp_path / "s").unlink()


@pytest.mark.parametrize(
    ("shell", "first", "failure"),
    [
        ("fish", "set -gx SBPAIR_PRIMARY_NAME 'contoso';", "false"),
        ("pwsh", "$env:SBPAIR_PRIMARY_NAME = 'contoso'", "throw 'sbpair has failed'"),
    ],
)
def test_other_shells_get_their_own_lines(shell: str, first: str, failure: str, environ: dict[str, str]) -> None:
    words = ("emulator", "--detach", "--shell", shell)
    assert command.run(*words, "--zzz", env=environ).stdout == f"{failure}\n"
    done = command.run(*words, *PORTS.split(), env=environ)
    assert (done.returncode, done.stdout.splitlines()[0], len(done.stdout.splitlines())) == (0, first, 4)


def test_the_file_of_init_loads_without_any_variable(here: Here, tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    assert here("config", "--init", "--config", str(file))[0] == 0
    assert [*tomllib.loads(file.read_text())["pairs"]] == ["orders"]
    code, out, _ = here("config", "--config", str(file))
    assert (code, "contoso-dr.servicebus.windows.net" in out) == (0, True)
