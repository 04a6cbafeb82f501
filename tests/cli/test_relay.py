"""`sbpair relay` against an emulated relay: listen in a process, send and status here, and wrong inputs."""

from __future__ import annotations

import http.server
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from sbpair.emulator.relay.hybrid_connection import HybridConnectionDescription
from sbpair.relay import RelayAnswer, RelayListener, load_relay_pair
from sbpair.testing import EmulatorOptions, EmulatorThread
from tests.kit.command import STRICT, Here, environment, untimed
from tests.kit.json_schemas import parse_validated

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PATHS = {"contoso": "service-east", "contoso-dr": "service-west"}


class World:
    """The relay `default` of two emulated namespaces."""

    def __init__(self, thread: EmulatorThread, here: Here) -> None:
        self.emulator = thread.emulator
        self.environ = environment(None, NO_COLOR="1")
        for side, (name, path) in zip(("PRIMARY", "SECONDARY"), PATHS.items(), strict=True):
            namespace = self.emulator.namespaces[name]
            thread.do(lambda namespace=namespace, path=path: namespace.hybrid_connections.create(path))
            ready = next(each for each in self.emulator.ready.namespaces if each.name == name)
            self.environ[f"SBPAIR_RELAY_{side}_CONNECTION_STRING"] = f"{ready.connection_string};EntityPath={path}"
        self._here = here

    def run(self, *words: str, **changed: str) -> tuple[int, str, list[str]]:
        """Return the exit code, stdout and the lines of stderr."""
        code, out, err = self._here("relay", *words, **self.environ | changed)
        return code, out, untimed(err).splitlines()

    def listener(self, status: int = 200) -> RelayListener:
        def handle(request: Any) -> RelayAnswer:
            text = f"{request.method} {request.target} {len(request.read())}\n"
            return RelayAnswer(status, {"Content-Type": "text/plain"}, text.encode())

        return RelayListener(load_relay_pair(environ=self.environ), handle)


@pytest.fixture
def world(here: Here) -> Iterator[World]:
    with EmulatorThread() as thread:
        yield World(thread, here)


def test_send_prints_the_answer_its_status_and_its_side(world: World) -> None:
    with world.listener():
        code, out, err = world.run("send", "default", "/a?x=1", "--first", "secondary")
        assert (code, out, err) == (0, "GET /service-west/a?x=1 0\n", ["200 OK from the secondary"])
        code, out, _err = world.run("send", "default", "-o", "json", "--first", "primary")
        document = parse_validated(out)
    assert (code, document["side"], document["body"]) == (0, "primary", "GET /service-east 0\n")


def test_send_sends_a_file_with_headers(world: World, tmp_path: Path) -> None:
    body = tmp_path / "body"
    body.write_bytes(b"x" * 200_000)
    with world.listener():
        words = ("send", "default", "/up", "--first", "primary", "--data", f"@{body}", "-H", "X-A: 1")
        assert world.run(*words)[:2] == (0, "POST /service-east/up 200000\n")
        assert world.run(*words, "-X", "PUT")[1] == "PUT /service-east/up 200000\n"


def test_a_status_from_400_exits_3_with_the_body(world: World) -> None:
    with world.listener(404):
        code, out, err = world.run("send", "default", "--first", "primary")
    assert (code, out, err) == (3, "GET /service-east 0\n", ["404 Not Found from the primary"])


def test_both_sides_without_listeners_exit_6(world: World) -> None:
    code, out, err = world.run("send", "default", "--first", "primary")
    assert (code, out) == (6, "")
    assert [line.split(":")[0] for line in err] == ["warning", "warning", "error", "hint"]
    assert err[2].startswith("error: neither relay endpoint has answered")


def test_status_counts_the_listeners_of_each_side(world: World) -> None:
    code, out, _err = world.run("status")
    assert (code, out.count("no listeners")) == (6, 2)
    assert world.run("status", "--fail-on", "none")[0] == 0
    with world.listener():
        code, out, err = world.run("status", "-o", "json")
        document = parse_validated(out)
    assert (code, err, document["relay"]) == (0, [], "default")
    assert [(each["side"], each["path"], each["listeners"]) for each in document["sides"]] == [
        ("primary", "service-east", 1),
        ("secondary", "service-west", 1),
    ]


def test_status_of_a_wrong_key_or_path(world: World) -> None:
    variable = "SBPAIR_RELAY_PRIMARY_CONNECTION_STRING"
    given = world.environ[variable]
    code, out, err = world.run("status", **{variable: given.replace("service-east", "nowhere")})
    assert (code, "does not exist" in out, err[-1][:5]) == (2, True, "hint:")
    key = given.partition("SharedAccessKey=")[2].partition(";")[0]
    code, out, err = world.run("status", **{variable: given.replace(key, "d3Jvbmc=")})
    assert (code, "d3Jvbmc" in out + str(err)) == (5, False)


def test_listen_passes_requests_on_until_a_signal(world: World) -> None:
    class Server(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"ok")

        def log_message(self, *_words: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        words = ("relay", "listen", "default", "--to", f"http://127.0.0.1:{server.server_port}/base", "-o", "jsonl")
        with subprocess.Popen(
            [sys.executable, *STRICT, "-m", "sbpair", *words],
            env=world.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stderr is not None
            assert process.stdout is not None
            up = sorted(untimed(process.stderr.readline()) for _ in range(2))
            assert up == ["service-east: listening on the primary\n", "service-west: listening on the secondary\n"]
            for side in ("primary", "secondary"):
                assert world.run("send", "default", "/x?secret=1", "--first", side)[:2] == (0, "ok")
            lines = [process.stdout.readline() for _ in range(2)]
            process.send_signal(signal.SIGTERM)
            _out, err = process.communicate(timeout=30)
        server.shutdown()
    served = [parse_validated(line) for line in lines]
    assert [(each["side"], each["path"], each["status"]) for each in served] == [
        ("primary", "/x", 200),
        ("secondary", "/x", 200),
    ]
    assert process.returncode == 0
    assert "stopped: 2 requests, 1 by the primary, 1 by the secondary" in err


def test_provision_creates_what_is_missing_and_reports_drift(here: Here) -> None:
    with EmulatorThread(options=EmulatorOptions(identity=True)) as thread:
        world = World(thread, here)
        identity = thread.emulator.ready.identity
        assert identity is not None
        names = {f"SBPAIR_RELAY_{side}_NAME": name for side, name in zip(("PRIMARY", "SECONDARY"), PATHS, strict=True)}
        group = {"AZURE_SUBSCRIPTION_ID": "00000000-0000-0000-0000-000000000000", "AZURE_RESOURCE_GROUP": "any"}
        variable = "SBPAIR_RELAY_SECONDARY_CONNECTION_STRING"
        world.environ |= identity.environment | names | group
        world.environ[variable] = world.environ[variable].replace("service-west", "new/one")
        hybrid = thread.emulator.namespaces["contoso-dr"].hybrid_connections
        outcomes = []
        for words in (["--dry-run"], [], ["--strict"]):
            code, out, _err = world.run("provision", "default", "-o", "json", *words)
            outcomes.append((code, [each["outcome"] for each in parse_validated(out)["sides"]]))
        assert outcomes == [(0, ["existing", "would_create"]), (0, ["existing", "created"]), (0, ["existing"] * 2)]
        assert thread.do(lambda: hybrid.find("new/one")) is not None
        thread.do(lambda: hybrid.create("open", HybridConnectionDescription(requires_client_authorization=False)))
        world.environ[variable] = world.environ[variable].replace("new/one", "open")
        code, out, _err = world.run("provision", "default", "--strict")
        assert (code, "requiresClientAuthorization is False, expected True" in out) == (3, True)


WRONG = {
    "send": "Missing argument",
    "send nowhere": "relay 'nowhere' does not exist",
    "send default x": "invalid suffix",
    "send default /../other": "invalid suffix",
    "send default /%2e%2e/other": "invalid suffix",
    "send default /?sb-hc-action=listen": "invalid suffix",
    "send default /#x": "invalid suffix",
    "send default -X CONNECT": "the method of a relay request is not valid",
    "send default -X G?T": "the method of a relay request is not valid",
    "send default -H nothing": "--header is not NAME: VALUE",
    "send default -H :x": "--header is not NAME: VALUE",
    "send default -H Host:x": "the header Host cannot be given",
    "send default -H Content-Length:1": "the header Content-Length cannot be given",
    "send default -H ServiceBusAuthorization:x": "the header ServiceBusAuthorization cannot be given",
    "send default --data text": "--data is neither @FILE nor -",
    "send default --data @": "--data is neither @FILE nor -",
    "send default --data @/nowhere/file": "cannot be read",
    "send default --data @/": "is a directory",
    "send default --reissue never": "'never'",
    "send default --first third": "'third'",
    "send default --timeout soon": "--timeout",
    "send default --timeout 0s": "--timeout must be greater than 0",
    "listen default": "Missing option '--to'",
    "listen default --to localhost:8080": "--to is neither",
    "listen default --to ftp://localhost": "--to is neither",
    "listen default --to http://user@localhost": "--to has a user or a password",
    "listen default --to http://localhost/?x": "--to has a query",
    "listen default --to http://localhost:99999": "--to is not an address",
    "listen default --to http://localhost --max-requests 0": "--max-requests is 0",
    "listen default --to http://localhost --grace 0s": "--grace must be greater than 0",
    "listen nowhere --to http://localhost": "relay 'nowhere' does not exist",
    "status nowhere": "relay 'nowhere' does not exist",
    "status --timeout 0s": "--timeout is 0s",
    "status --interval 5s": "--interval goes with --watch only",
    "status --watch --fail-on any": "--fail-on and --watch exclude each other",
    "status --fail-on primary": "'primary'",
    "status --config /nowhere.toml": "/nowhere.toml does not exist",
    "provision default": "relay provision needs --subscription",
    "provision": "Missing argument",
    "nothing": "No such command",
}


@pytest.mark.parametrize("words", WRONG)
def test_wrong_inputs_are_refused_with_a_hint(words: str, here: Here, tmp_path: Path) -> None:
    keyed = "SharedAccessKeyName=Root;SharedAccessKey=c2VjcmV0a2V5;UseDevelopmentEmulator=true"
    environ = environment(None, HOME=str(tmp_path), NO_COLOR="1")
    for side, port in (("PRIMARY", 1), ("SECONDARY", 2)):
        environ[f"SBPAIR_RELAY_{side}_CONNECTION_STRING"] = f"Endpoint=sb://127.0.0.1:{port};{keyed};EntityPath=hyco"
    code, out, err = here("relay", *words.split(), **environ)
    assert (code, out) == (2, ""), err
    assert WRONG[words] in err
    assert "hint: " in err
    assert "c2VjcmV0a2V5" not in err
    assert "Traceback" not in err
