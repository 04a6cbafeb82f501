"""`sbpair gateway` as a process: what it prints and keeps, its ports, peers, signals and records."""

import asyncio
import json
import os
import signal
import socket
import ssl
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient, ServiceBusSender

from sbpair.backlog import queue_path
from sbpair.cli.commands.gateway import CLIENTS
from sbpair.gateway.local_key import connection_string
from sbpair.gateway.running_gateways import recorded, running_gateways
from sbpair.testing import Emulator
from tests.kit.command import CommandLines, Here, environment, finished, run_program, untimed
from tests.kit.json_schemas import parse_validated
from tests.kit.stranded import numbered, put
from tests.kit.terminal import PseudoTerminal
from tests.kit.users import OTHER, needs_root

CONFIG = """
[pairs.orders]
backlog_queues = 2
{lost}
[pairs.orders.primary]
connection_string_env = "FIRST"
name = "contoso"
[pairs.orders.secondary]
connection_string_env = "SECOND"
name = "contoso-dr"
"""


@dataclass
class World:
    """An emulated pair with the queue `orders`, and command lines for it, whose state is in `root`."""

    emulator: Emulator
    lines: CommandLines
    root: Path

    async def start(self, *words: str, **more: Any) -> "tuple[asyncio.subprocess.Process, dict[str, Any]]":
        """Start a gateway. Return its process, once it listens, and what its ready file holds."""
        ready = self.root / "ready.json"
        words = ("gateway", "--port", "0", "--ready-file", str(ready), "-o", "json", *words)
        process = await self.lines.start(*words, **more)
        assert process.stdout
        assert process.stderr
        line = (await process.stdout.readline()).decode()
        assert line, (await process.stderr.read()).decode()
        printed, found = parse_validated(line), json.loads(ready.read_text())
        assert printed == {"schema": "sbpair/gateway/1", **found, **masked(found)}
        return process, found

    def declare(self, lost: str = "") -> None:
        (self.root / "config.toml").write_text(CONFIG.format(lost=lost))


def masked(ready: dict[str, Any]) -> dict[str, str]:
    """Return the connection strings of a ready file without the key."""
    names = [name for name in ("connection_string", "tls_connection_string") if ready[name]]
    return {name: ready[name].replace(key_of(ready), "***") for name in names}


def key_of(ready: dict[str, Any]) -> str:
    return Path(ready["key_file"]).read_text()


@asynccontextmanager
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with Emulator() as emulator:
        for each in emulator.namespaces.values():
            each.create_queue("orders")
        for index in range(2):
            emulator.namespaces["contoso-dr"].create_queue(queue_path("contoso", index))
        first, second = (each.connection_string for each in emulator.ready.namespaces)
        environ = environment(
            None, FIRST=first, SECOND=second, SBPAIR_CONFIG=str(tmp_path / "config.toml"), XDG_STATE_HOME=str(tmp_path)
        )
        found = World(emulator, CommandLines(environ), tmp_path)
        found.declare()
        yield found


@asynccontextmanager
async def sending(ready: dict[str, Any]) -> AsyncIterator[ServiceBusSender]:
    """Open the official client's sender for `orders`, through the gateway."""
    client = ServiceBusClient.from_connection_string(ready["connection_string"])
    async with client, client.get_queue_sender("orders") as sender:
        yield sender


async def stopped(process: asyncio.subprocess.Process, number: int = signal.SIGTERM) -> tuple[str, str]:
    """Stop a gateway, and return what it wrote since it listened."""
    process.send_signal(number)
    code, out, err = await finished(process)
    assert code == 0, err
    return out, err


async def test_a_client_sends_and_receives_and_a_signal_stops_it(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        process, ready = await w.start()
        async with sending(ready) as sender:
            await sender.send_messages(ServiceBusMessage("hello"))
        client = ServiceBusClient.from_connection_string(ready["connection_string"])
        async with client, client.get_queue_receiver("orders", max_wait_time=5) as receiver:
            [message] = await receiver.receive_messages()
            assert str(message) == "hello"
            await receiver.complete_message(message)
        assert stat.S_IMODE((tmp_path / "ready.json").stat().st_mode) == 0o600
        out, err = await stopped(process)
        assert (out, untimed(err).splitlines()[-1]) == ("", "stopped")
        assert {each.name for each in tmp_path.iterdir()} == {"config.toml", "sbpair"}
        assert running_gateways(w.lines.environ) == ()


async def test_no_secret_is_printed_and_the_shell_reads_the_key(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        process = await w.lines.start("gateway", "--port", "0", "--tls", "-vv", "--debug")
        assert process.stdout
        lines = [(await process.stdout.readline()).decode() for _ in range(7)]
        key = next((tmp_path / "sbpair" / "orders").glob("*.key")).read_text()
        words = ("sh", "-c", f'{lines[-1]}echo "$SERVICEBUS_CONNECTION_STRING"')
        done = await asyncio.to_thread(run_program, *words)
        port = lines[1].partition("127.0.0.1:")[2].partition(" ")[0]
        assert done.stdout.strip() == connection_string(f"localhost:{port}", key, ";UseDevelopmentEmulator=true")
        assert [name for name, version in CLIENTS.items() if f"{name} {version}" not in lines[3]] == []
        assert "administration clients keep using 127.0.0.1:" in lines[4]
        _, err = await stopped(process)
        written = "".join(lines) + err + "".join(each.read_text() for each in tmp_path.rglob("*.json"))
        assert [secret for secret in (key, "SAS_KEY_VALUE") if secret in written] == []


async def test_the_key_is_shown_on_a_terminal_alone(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        code, _, err = await w.lines.run("gateway", "--show-key")
        assert (code, err.splitlines()[0]) == (2, "error: --show-key prints to a terminal only")
        with PseudoTerminal(columns=1_000) as terminal:
            streams = {"stdout": terminal.theirs, "stderr": terminal.theirs}
            process = await w.lines.start("gateway", "--port", "0", "--show-key", **streams)
            terminal.hand_over()
            shown = await terminal.shown("ready;")
            assert next((tmp_path / "sbpair" / "orders").glob("*.key")).read_text() in shown
            process.terminate()
            await process.wait()


async def test_a_port_that_is_taken_is_named_and_its_gateway_too(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        process, ready = await w.start()
        code, out, err = await w.lines.run("gateway", "--port", str(ready["port"]))
        assert (code, out) == (7, "")
        assert f"--port: port {ready['port']} on 127.0.0.1 is in use" in err
        assert f"hint: process {process.pid} is the gateway of pair orders" in err
        assert (tmp_path / "ready.json").exists()
        await stopped(process)
        with socket.create_server(("127.0.0.1", 0)) as other:
            code, _, err = await w.lines.run("gateway", "--port", str(other.getsockname()[1]))
        assert (code, "or choose another port; 0 is any free one" in err) == (7, True)


async def test_the_key_and_the_ca_stay_after_a_restart(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        process, first = await w.start("--tls")
        context = ssl.create_default_context(cafile=first["ca_file"])
        host, _, port = first["tls_endpoint"].removeprefix("sb://").partition(":")
        _, writer = await asyncio.open_connection(host, int(port), ssl=context)
        writer.close()
        await stopped(process)
        process, again = await w.start("--tls")
        assert key_of(again) in again["tls_connection_string"]
        assert [again[name] for name in ("key_file", "ca_file")] == [first[name] for name in ("key_file", "ca_file")]
        _, writer = await asyncio.open_connection(host, again["port"], ssl=context)
        await stopped(process)
        writer.close()


@needs_root
@pytest.mark.parametrize("allowed", [False, True])
async def test_a_program_of_another_user_is_served_if_it_is_allowed(tmp_path: Path, allowed: bool) -> None:
    program = (
        "import os, socket, sys; os.setuid(int(sys.argv[1])); s = socket.socket();"
        " s.connect(('127.0.0.1', int(sys.argv[2]))); s.send(b'AMQP\\3\\1\\0\\0'); print(s.recv(8))"
    )
    async with world(tmp_path) as w:
        process, ready = await w.start(*(("--allow-user", str(OTHER)) if allowed else ()))
        words = [sys.executable, "-c", program, str(OTHER), str(ready["port"])]
        other = await asyncio.create_subprocess_exec(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        out, _ = await other.communicate()
        assert (b"AMQP" in out) is allowed
        await stopped(process)


async def test_sighup_rereads_whether_the_primary_is_lost(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        process, ready = await w.start("--log-format", "json")
        assert process.stderr

        async def hung_up() -> str:
            assert process.stderr
            process.send_signal(signal.SIGHUP)
            return str(json.loads(await process.stderr.readline())["message"])

        assert await hung_up() == "reread: the primary is not lost"
        w.declare("wrong")
        assert (await hung_up()).startswith("the configuration is not reread: ")
        w.declare('lost = "primary"')
        assert "declared lost" in await hung_up()
        async with sending(ready) as sender:
            await sender.send_messages(ServiceBusMessage("hello"))
        queues = [each.queue("orders") for each in w.emulator.namespaces.values()]
        assert [each.counts().active for each in queues] == [0, 1]
        await stopped(process)


async def test_probes_and_metrics_have_the_figures_of_a_gateway(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        process, ready = await w.start("--health-port", "0", "--metrics-port", "0", "--log-format", "json")
        assert process.stderr
        lines = [parse_validated((await process.stderr.readline()).decode()) for _ in range(2)]
        assert {(each["event"], each["url"]) for each in lines} == {
            ("health-served", ready["health"]),
            ("metrics-served", ready["metrics"]),
        }
        async with sending(ready) as sender:
            await sender.send_messages(ServiceBusMessage("hello"))
            health, metrics = await asyncio.gather(*(got(ready[name]) for name in ("health", "metrics")))
        assert health.endswith("\r\n\r\nlistening\n")
        assert 'sbpair_gateway_entities{state="healthy"} 1.0' in metrics
        assert "sbpair_gateway_connections 1.0" in metrics
        await stopped(process)


async def test_a_gateway_moves_the_backlog_too_if_it_is_told_to(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        put(w.emulator.namespaces["contoso-dr"].queue(queue_path("contoso", 1)), numbered(1, "orders"))
        process, ready = await w.start("--syphon")
        client = ServiceBusClient.from_connection_string(ready["connection_string"])
        async with client, client.get_queue_receiver("orders") as receiver:
            (message,) = await receiver.receive_messages(max_wait_time=60)
            await receiver.complete_message(message)
        await stopped(process)
        assert w.emulator.namespaces["contoso-dr"].queue(queue_path("contoso", 1)).counts().active == 0


async def got(url: str) -> str:
    host, _, path = url.removeprefix("http://").partition("/")
    reader, writer = await asyncio.open_connection(*host.split(":"))
    writer.write(f"GET /{path} HTTP/1.1\r\nHost: here\r\n\r\n".encode())
    answer = (await reader.read()).decode()
    writer.close()
    return answer


async def test_changes_of_entities_are_event_lines(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        process, ready = await w.start("--log-format", "json")
        assert process.stderr
        w.emulator.namespaces["contoso"].take_down()
        async with sending(ready) as sender:
            await sender.send_messages(ServiceBusMessage("hello", message_id="one"))
        events = []
        while not events or events[-1]["event"] != "entity-changed":
            events.append(parse_validated((await process.stderr.readline()).decode()))
        assert (events[-1]["entity"], events[-1]["level"]) == ("orders", "warning")
        await stopped(process)


async def test_status_shows_gateways_and_forgets_killed_ones(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        process, ready = await w.start()
        _, out, _ = await w.lines.run("status", "-o", "json")
        [shown] = parse_validated(out)["gateways"]
        assert (shown["pair"], shown["port"], shown["process"]) == ("orders", ready["port"], process.pid)
        assert shown["key_file"] == ready["key_file"]
        _, table, _ = await w.lines.run("status")
        assert f"orders, port {ready['port']}" in table
        assert key_of(ready) not in out + table
        process.kill()
        await process.wait()
        _, out, _ = await w.lines.run("status", "-o", "json")
        assert json.loads(out)["gateways"] == []
        assert [*(tmp_path / "sbpair" / ".gateways").iterdir()] == []


def test_a_record_is_private_and_an_unreadable_one_is_left_out(tmp_path: Path) -> None:
    environ = {"XDG_STATE_HOME": str(tmp_path)}
    with recorded("orders", 5672, Path("/key"), environ):
        [path] = (tmp_path / "sbpair" / ".gateways").iterdir()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        [found] = running_gateways(environ)
        assert (found.pair, found.port, found.process, found.key_file) == ("orders", 5672, os.getpid(), "/key")
        path.write_text('{"pair": "orders"}')
        assert running_gateways(environ) == ()
    assert running_gateways(environ) == ()


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--allow-user", "-1"], "--allow-user is -1, and must be at least 0"),
        (["--health-port", "8081", "--metrics-port", "8081"], "--health-port and --metrics-port are both 8081"),
        (["--tls-cert", "/nowhere", "--tls-key", "/nowhere"], "--tls-cert: /nowhere cannot be read"),
        (["--allow-host", "http://x"], "expected a host name such as host.docker.internal, got 'http://x'"),
    ],
)
def test_wrong_settings_are_refused_before_it_listens(here: Here, tmp_path: Path, words: list[str], error: str) -> None:
    keys = {f"SBPAIR_{side}_NAMESPACE": name for side, name in (("PRIMARY", "contoso"), ("SECONDARY", "contoso-dr"))}
    code, out, err = here("gateway", "--port", "0", *words, XDG_STATE_HOME=str(tmp_path), **keys)
    assert (code, out, err.splitlines()[0]) == (2, "", f"error: {error}")
