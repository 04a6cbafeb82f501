"""The vendor's relay clients for JavaScript, hyco-ws and hyco-https, unmodified, against the emulator and each other.

Their checks are in node/relay/checks.mjs. pair.mjs
listens for sbpair's client, and sends to its listener.
"""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sbpair.relay import RelayAnswer, RelayClient, RelayEndpoint, RelayListener, RelayPair
from sbpair.testing import EmulatorOptions
from tests.integration.node import checks, install
from tests.kit.running import Running

HERE = Path(__file__).parent / "node" / "relay"
SCRIPT = HERE / "checks.mjs"


@pytest.fixture(scope="module")
def relay_modules() -> Path:
    try:
        return install.modules(HERE / "package.json")
    except install.NotHere as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module", params=["ws", "wss"])
def outcomes(node: str, relay_modules: Path, request: pytest.FixtureRequest) -> dict[str, str | None]:
    with Running([("contoso", 0)], options=EmulatorOptions(tls=True)) as running:
        for path in ("sockets", "requests"):
            running.do(lambda path=path: running.namespace.hybrid_connections.create(path))
        base = f"{request.param}://{running.namespace.authority}"
        return checks.run(node, SCRIPT, checks.environment(relay_modules, running.emulator.ready.ca_file, BASE=base))


@pytest.mark.parametrize("check", checks.names(SCRIPT))
def test_the_relay_clients_for_javascript_find_a_relay(outcomes: dict[str, str | None], check: str) -> None:
    assert outcomes[check] is None, outcomes[check]


class BothSides:
    """Two namespaces with the endpoints of pair.mjs, and what it needs to reach them."""

    def __init__(self, running: Running, node: str, modules: Path) -> None:
        self.running = running
        self.command = [node, str(HERE / "pair.mjs")]
        bases = " ".join(f"wss://{each.authority}" for each in (running.namespace, running.other))
        self.environment = checks.environment(modules, running.emulator.ready.ca_file, BASES=bases)

    def pair(self, path: str) -> RelayPair:
        ca_file = self.running.emulator.ready.ca_file
        return RelayPair(
            *(
                RelayEndpoint.from_connection_string(each.tls_connection_string, path, ca_file=ca_file)
                for each in self.running.ready
            )
        )


@pytest.fixture
def both_sides(node: str, relay_modules: Path) -> Iterator[BothSides]:
    with Running(options=EmulatorOptions(tls=True)) as running:
        for namespace in (running.namespace, running.other):
            for path in ("sockets", "requests"):
                running.do(lambda path=path, found=namespace: found.hybrid_connections.create(path))
        yield BothSides(running, node, relay_modules)


def test_the_relay_client_finds_listeners_for_javascript_on_both_sides(both_sides: BothSides) -> None:
    with subprocess.Popen(
        [*both_sides.command, "listen"],
        env=both_sides.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as listener:
        try:
            assert listener.stdout is not None
            assert json.loads(listener.stdout.readline()) == "listening"
            with RelayClient(both_sides.pair("requests"), first="primary") as client:
                echoes(client, "primary")
                both_sides.running.do(lambda: both_sides.running.emulator.faults.relay_no_listeners("contoso"))
                echoes(client, "secondary")
                assert client.active == "secondary"
            with (
                RelayClient(both_sides.pair("sockets"), first="secondary") as client,
                client.connect("/x?y=1") as socket,
            ):
                for message in ("Grüße", b"\0" * 300_000):
                    socket.send(message)
                    assert socket.receive() == message
        finally:
            listener.communicate(timeout=checks.RUN_SECONDS)


def echoes(client: RelayClient, side: str) -> None:
    for body in (b"", b"small", b"l" * 200_000):
        with client.request("PUT", "/a%20b?x=1&&y", body=body) as response:
            assert (response.status, response.side) == (201, side)
            assert response.headers["X-Request"] == "PUT /requests/a%20b?x=1&&y"
            assert response.read() == b"echo " + body


def test_senders_for_javascript_reach_the_relay_listener_on_both_sides(both_sides: BothSides) -> None:
    def handle(request: Any) -> RelayAnswer:
        return RelayAnswer(200, {"X-Side": request.side}, request.read())

    def serve(offer: Any) -> None:
        assert offer.target == "/sockets/path?q=1"
        with offer.accept() as socket:
            for message in socket:
                socket.send(message)

    with (
        RelayListener(both_sides.pair("requests"), handle),
        RelayListener(both_sides.pair("sockets"), on_websocket=serve),
    ):
        ran = subprocess.run(
            [*both_sides.command, "send"],
            env=both_sides.environment,
            capture_output=True,
            text=True,
            timeout=checks.RUN_SECONDS,
            check=False,
        )
    assert (ran.returncode, ran.stderr) == (0, "")
    found = [json.loads(line) for line in ran.stdout.splitlines()]
    assert found == [
        each for side in ("primary", "secondary") for each in (True, True, [200, side, True], [200, side, True])
    ]
