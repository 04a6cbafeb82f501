"""`sbpair relay` in processes: signals, terminals, stdin, TLS through a proxy, and servers that answer garbage."""

import asyncio
import http.server
import re
import signal
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sbpair.relay import load_relay_pair
from sbpair.relay.aio import RelayListener
from sbpair.relay.control_messages import RelayAnswer
from sbpair.relay.handled_request import RelayRequest
from sbpair.testing import Emulator, EmulatorOptions, EmulatorThread
from tests.cli.relay_world import PATHS, RelayWorld
from tests.kit.command import STRICT, Here, environment, finished, run, start, untimed
from tests.kit.json_schemas import parse_validated
from tests.kit.proxy import PASSWORD, running_proxy
from tests.kit.terminal import PseudoTerminal
from tests.kit.waiting import PATIENCE_SECONDS


@pytest.fixture
def world(here: Here) -> Iterator[RelayWorld]:
    with EmulatorThread() as thread:
        yield RelayWorld(thread, here)


class Server(http.server.BaseHTTPRequestHandler):
    """Answers `ok`; /wait only after `released`."""

    begun, released = threading.Event(), threading.Event()
    wbufsize = -1  # an answer is sent at once: nothing is left to write to a client that has what it wants

    def do_GET(self) -> None:
        if self.path.endswith("/wait"):
            self.begun.set()
            self.released.wait()
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *_words: object) -> None:
        pass


class Garbage(socketserver.BaseRequestHandler):
    """Answers no HTTP."""

    def handle(self) -> None:
        self.request.recv(65_536)
        self.request.sendall(b"220 garbage \x00\xff\r\n\r\n")


@contextmanager
def serving(kind: type[socketserver.BaseRequestHandler]) -> Iterator[str]:
    """Run a server; yield its address."""
    server_class = http.server.ThreadingHTTPServer if kind is Server else socketserver.ThreadingTCPServer
    with server_class(("127.0.0.1", 0), kind) as server:
        server.daemon_threads = True
        server.block_on_close = False
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@contextmanager
def process(world: RelayWorld, *words: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    command = [sys.executable, *STRICT, "-m", "sbpair", "relay", *words]
    with subprocess.Popen(command, env=world.environ, text=True, **streams) as started:
        try:
            yield started
        finally:
            started.kill()


def line(stream: Any) -> str:
    return untimed(stream.readline())


@contextmanager
def listening(
    world: RelayWorld, kind: type[socketserver.BaseRequestHandler], *words: str, base: str = ""
) -> Iterator[subprocess.Popen[str]]:
    """Listen on both sides, in front of a server."""
    with serving(kind) as address, process(world, "listen", "default", "--to", f"http://{address}{base}", *words) as up:
        said = sorted(line(up.stderr) for _ in range(2))
        assert said == ["service-east: listening on the primary\n", "service-west: listening on the secondary\n"]
        yield up


def test_listen_passes_requests_on_until_a_signal(world: RelayWorld) -> None:
    with listening(world, Server, "-o", "jsonl", base="/base") as up:
        for side in ("primary", "secondary"):
            assert world.run("send", "default", "/x?secret=1", "--first", side)[:2] == (0, "ok")
        assert up.stdout is not None
        lines = [up.stdout.readline() for _ in range(2)]
        up.send_signal(signal.SIGTERM)
        _out, err = up.communicate(timeout=PATIENCE_SECONDS)
    served = [parse_validated(each) for each in lines]
    assert [(each["side"], each["path"], each["status"]) for each in served] == [
        ("primary", "/x", 200),
        ("secondary", "/x", 200),
    ]
    assert up.returncode == 0
    assert "stopped: 2 requests, 1 by the primary, 1 by the secondary" in err


def test_the_second_signal_stops_listen_and_names_the_lost_answer(world: RelayWorld) -> None:
    Server.begun.clear()
    Server.released.clear()
    with listening(world, Server) as up:
        words = ("send", "default", "/wait", "--first", "primary", "--timeout", "20s")
        with process(world, *words) as sending:
            assert Server.begun.wait(PATIENCE_SECONDS)
            up.send_signal(signal.SIGINT)
            assert line(up.stderr) == "stopping: 1 request to finish; Ctrl-C again stops at once\n"
            assert up.poll() is None
            up.send_signal(signal.SIGINT)
            out, err = up.communicate(timeout=PATIENCE_SECONDS)
            sending.kill()
        Server.released.set()
    assert up.returncode == 3
    assert " primary GET /wait 0 " in out
    assert out.endswith(": the listener was closed\n")
    assert "the answer to request" in err
    assert "stopped: 1 request, 1 by the primary, 0 by the secondary; 1 answer lost" in err


def test_listen_stops_when_the_reader_of_its_output_has_gone(world: RelayWorld) -> None:
    with listening(world, Server) as up:
        assert up.stdout is not None
        up.stdout.close()
        assert world.run("send", "default", "/x", "--first", "primary")[:2] == (0, "ok")
        assert up.wait(PATIENCE_SECONDS) == 141


def test_a_server_that_answers_garbage_is_502_to_the_sender(world: RelayWorld) -> None:
    with listening(world, Garbage) as up:
        code, out, err = world.run("send", "default", "/x", "--first", "primary")
        assert (code, out, err) == (3, "Bad Gateway\n", ["502 Bad Gateway from the primary"])
        assert up.stdout is not None
        assert "primary GET /x 502" in up.stdout.readline()


def test_a_namespace_that_answers_garbage_is_unavailable(world: RelayWorld) -> None:
    with serving(Garbage) as address:
        variable = "SBPAIR_RELAY_PRIMARY_CONNECTION_STRING"
        given = world.environ[variable]
        wrong = {variable: f"Endpoint=sb://{address};{given.partition(';')[2]}"}
        code, _out, err = world.run("send", "default", "-X", "POST", "--first", "primary", **wrong)
        assert (code, "the answer is not HTTP" in err[0]) == (3, True), err
        code, out, _err = world.run("status", "-o", "json", **wrong)
        sides = parse_validated(out)["sides"]
    assert (code, sides[0]["listeners"], sides[1]["listeners"]) == (6, None, 0)
    assert "the answer is not HTTP" in sides[0]["reason"]


def test_the_body_comes_from_stdin(world: RelayWorld) -> None:
    with world.listener():
        sent = run("relay", "send", "default", "/up", "--data", "-", env=world.environ, input="x" * 100_000)
    assert (sent.returncode, sent.stdout.partition(" ")[2].partition("/up")[2]) == (0, " 100000\n")


@pytest.mark.parametrize(("typed", "size"), [(b"hello\n\x04", 6), (b"\x04", 0), (None, 0)])
def test_the_body_can_be_typed_at_a_terminal(world: RelayWorld, typed: bytes | None, size: int) -> None:
    words = ("send", "default", "--data", "-")
    with (
        world.listener(),
        PseudoTerminal() as terminal,
        process(world, *words, stdin=terminal.theirs, start_new_session=True) as sending,
    ):
        assert line(sending.stderr) == "type the body; Ctrl-D on a line of its own ends it\n"
        if typed is None:
            sending.send_signal(signal.SIGINT)
        else:
            terminal.write(typed)
        out, _err = sending.communicate(timeout=PATIENCE_SECONDS)
    if typed is None:
        assert (sending.returncode, out) == (130, "")
    else:
        assert (sending.returncode, out.rpartition(" ")[2]) == (0, f"{size}\n")


def test_status_is_watched_while_a_side_goes_away(world: RelayWorld) -> None:
    with process(world, "status", "--watch", "--interval", "100ms", "-o", "jsonl") as watching:
        assert watching.stdout is not None

        def next_counts() -> list[int | None]:
            return [each["listeners"] for each in parse_validated(watching.stdout.readline())["sides"]]  # type: ignore[union-attr]

        assert next_counts() == [0, 0]
        with world.listener():
            until_counts(next_counts, [1, 1])
            with world.during("namespace-down", "contoso"):
                until_counts(next_counts, [None, 1])
        watching.send_signal(signal.SIGINT)
        _out, err = watching.communicate(timeout=PATIENCE_SECONDS)
    assert (watching.returncode, err) == (0, "")


def until_counts(next_counts: Any, wanted: list[int | None]) -> None:
    for _ in range(200):
        if next_counts() == wanted:
            return
    raise AssertionError(f"never {wanted}")


def test_the_table_of_listen_fits_its_terminal_in_a_failover(world: RelayWorld) -> None:
    world.environ["TERM"] = "xterm"
    with (
        serving(Server) as address,
        PseudoTerminal() as terminal,
        process(world, "listen", "default", "--to", f"http://{address}", stdout=terminal.theirs) as up,
    ):
        terminal.hand_over()
        terminal.read_until("secondary  up        0       0")
        assert world.run("send", "default", f"/{'long/' * 40}", "--first", "primary")[0] == 0
        terminal.read_until("primary    up        0       1")
        with world.during("namespace-down", "contoso"):
            text = terminal.read_until("primary    down      0       1  ")
            assert world.run("send", "default", "/x", "--first", "primary")[:2] == (0, "ok")
            text += terminal.read_until("secondary  GET     /x")
        up.send_signal(signal.SIGINT)
        text += terminal.read_until("stopped")
        up.wait(PATIENCE_SECONDS)
    assert up.returncode == 0
    assert "the server at" in text
    lines = re.sub(r"\x1b\[[0-9?]*[A-Za-z]", "", text).splitlines()
    assert max(map(len, lines)) <= 80, lines


async def test_all_of_it_goes_through_a_proxy_with_tls(tmp_path: Path) -> None:
    """The hosts are known to the proxy alone."""

    async def handle(request: RelayRequest) -> RelayAnswer:
        return RelayAnswer(200, {}, f"{request.target} {len(await request.read())}".encode())

    async with (
        running_proxy(login=True) as proxy,
        Emulator([("contoso", 0), ("contoso-dr", 0)], options=EmulatorOptions(tls=True)) as emulator,
    ):
        env = environment(None, "HTTP", "http", "NO_", "no_", "ALL_", "all_", HOME=str(tmp_path))
        for side, each in zip(("PRIMARY", "SECONDARY"), emulator.ready.namespaces, strict=True):
            emulator.namespaces[each.name].hybrid_connections.create(PATHS[each.name])
            host, rest = f"{each.name}.servicebus.windows.net", each.tls_connection_string.partition(";")[2]
            proxy.routes[f"{host}:443"] = int(each.endpoint.rpartition(":")[2].strip("/"))
            env[f"SBPAIR_RELAY_{side}_CONNECTION_STRING"] = (
                f"Endpoint=sb://{host}/;{rest};EntityPath={PATHS[each.name]}"
            )
            env[f"SBPAIR_RELAY_{side}_PROXY"] = proxy.url
            env[f"SBPAIR_RELAY_{side}_CA_FILE"] = str(emulator.ready.ca_file)
        async with RelayListener(load_relay_pair(environ=env), handle) as listener:
            assert listener.up_sides == ("primary", "secondary")
            large = tmp_path / "large"
            large.write_bytes(b"x" * 100_000)
            words = ("relay", "send", "default", "/x", "--first", "secondary", "--data", f"@{large}")
            asked = [
                asyncio.create_task(finished(await start(*given, env=changed)))
                for given, changed in (
                    (words, env),
                    (("relay", "status"), env),
                    (words, {key: value for key, value in env.items() if not key.endswith("_CA_FILE")}),
                )
            ]
            sent, status, untrusted = [await each for each in asked]
    assert (sent[0], sent[1]) == (0, "/service-west/x 100000")
    assert status[0] == 0, status
    assert untrusted[0] == 6
    assert "certificate" in untrusted[2]
    assert set(proxy.targets) == {"contoso.servicebus.windows.net:443", "contoso-dr.servicebus.windows.net:443"}
    assert PASSWORD not in "".join(text for each in (sent, status, untrusted) for text in each[1:])
