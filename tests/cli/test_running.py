"""The emulator command in a process of its own: output, signals, and commands on it."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from azure.identity import ClientSecretCredential

from tests.kit import command
from tests.kit.terminal import PseudoTerminal
from tests.kit.waiting import PATIENCE_SECONDS

EMULATOR = ["emulator", "--namespace", "contoso=0", "--namespace", "contoso-dr=0"]


def environment(**more: str) -> dict[str, str]:
    return command.environment(None, NO_COLOR="1", XDG_CONFIG_HOME="/nowhere", **more)


@contextmanager
def emulator(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Yield a running emulator and its first line, printed once every port accepts."""
    words = [sys.executable, *command.STRICT, "-m", "sbpair", *EMULATOR, *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, env=environment(), stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout
        try:
            yield process, process.stdout.readline()
        finally:
            process.kill()


def finished(*arguments: str, **environ: str) -> tuple[int, str]:
    done = command.run(*arguments, env=environment(**environ))
    return done.returncode, done.stdout


def exports(process: subprocess.Popen[str], count: int = 4) -> dict[str, str]:
    """Return the exported variables that the emulator prints."""
    assert process.stdout
    found: dict[str, str] = {}
    while len(found) < count:
        line = process.stdout.readline()
        assert line
        if line.startswith("export "):
            name, _equals, value = line.strip().removeprefix("export ").partition("=")
            found[name] = value.strip("'")
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_the_emulator_cleanly(number: signal.Signals) -> None:
    with emulator() as (process, _first):
        process.send_signal(number)
        _output, said = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0
    assert command.untimed(said).splitlines()[-1] == "stopped"
    assert "Traceback" not in said


def test_the_emulator_prints_on_one_line_what_the_ready_file_holds(tmp_path: Path) -> None:
    ready = tmp_path / "ready.json"
    with emulator("--output", "json", "--ready-file", str(ready)) as (_process, line):
        printed = json.loads(line)
        assert printed.pop("schema") == "sbpair/emulator/1"
        assert printed == json.loads(ready.read_text())
        assert [each["name"] for each in printed["namespaces"]] == ["contoso", "contoso-dr"]


def test_what_the_emulator_prints_makes_the_other_commands_use_it() -> None:
    with emulator() as (process, _first):
        environ = exports(process)
        code, output = finished("provision", "--count", "2", "--output", "json", **environ)
        document = json.loads(output)
        assert (code, document["schema"], document["dry_run"]) == (0, "sbpair/provision/1", False)
        assert [each["index"] for each in document["created"]] == [0, 1]

        code, output = finished("syphon", "--once", "--count", "1", "--output", "json", **environ)
        receipt = json.loads(output)
        assert (code, receipt["schema"], receipt["received"], receipt["balanced"]) == (0, "sbpair/syphon/1", 0, True)


def test_the_emulators_exports_with_an_identity_allow_via_arm() -> None:
    with emulator("--identity") as (process, _first):
        environ = exports(process, 8)
        code, output = finished("provision", "--via", "arm", "--count", "2", "--output", "json", **environ)
        assert (code, [each["index"] for each in json.loads(output)["created"]]) == (0, [0, 1])
        code, output = finished("provision", "--count", "2", "--output", "json", **environ)
        assert (code, len(json.loads(output)["existing"])) == (0, 2)


def test_the_emulator_names_the_clients_of_its_authority() -> None:
    with emulator("--identity", "--tls", "--tenants", "--token-life", "20s", "-o", "json") as (_, line):
        document = json.loads(line)
        first, second = document["namespaces"]
        assert first["tenant_id"] != second["tenant_id"]
        options = {"authority": document["authority"], "disable_instance_discovery": True}
        with ClientSecretCredential(
            *(first[name] for name in ("tenant_id", "client_id", "client_secret")),
            connection_verify=document["ca_file"],
            **options,
        ) as credential:
            token = credential.get_token("https://servicebus.azure.net/.default")
        assert token.expires_on - time.time() <= 21
    with emulator("--identity", "--tls") as (process, line):
        assert process.stdout
        lines = [line, *(process.stdout.readline() for _ in range(3))]
        printed = next(each for each in lines if each.startswith("# contoso, identity: AZURE_TENANT_ID="))
        assert "AZURE_CLIENT_SECRET=" in printed
        assert "AZURE_AUTHORITY_HOST=https://127.0.0.1:" in printed


async def test_a_drill_on_a_dumb_terminal_prints_lines() -> None:
    words = ("drill", "--messages", "10", "--count", "1", "--failover-interval", "0")
    with PseudoTerminal() as terminal:
        process = await command.start(*words, env=environment(TERM="dumb"), python=(), stderr=terminal.theirs)
        terminal.hand_over()
        out = (await process.communicate())[0].decode()
        seen = terminal.read()
    assert process.returncode == 0
    assert out.splitlines()[0] == "MESSAGES    STRANDED  LIVE"
    assert "\x1b" not in seen + out
    assert "  starting an emulator\r\n" in seen
    assert "  reading all messages back, and comparing each byte for byte\r\n" in seen


def test_hybrid_connections_are_listed_with_their_connection_strings() -> None:
    relay = ("--relay", "contoso=orders", "--relay", "both", "-o", "json")
    with emulator(*relay) as (_, line):
        first, second = json.loads(line)["namespaces"]
    assert [each.rpartition(";")[2] for each in first["hybrid_connections"]] == ["EntityPath=both", "EntityPath=orders"]
    assert [each.rpartition(";")[2] for each in second["hybrid_connections"]] == ["EntityPath=both"]
    with emulator("-o", "json") as (_, line):
        assert "hybrid_connections" not in line


def test_the_relay_commands_use_what_the_emulator_prints() -> None:
    with emulator("--relay", "service") as (process, _first):
        environ = exports(process, 6)
        code, out = finished("relay", "status", "-o", "json", **environ)
    # It has no listeners, which is a finding.
    assert (code, [each["listeners"] for each in json.loads(out)["sides"]]) == (6, [0, 0])
