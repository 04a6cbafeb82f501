"""The vendor emulator's contract: two ports, the health check, its connection strings and its configuration file."""

import json
import shutil
import socket
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from aiohttp import ClientSession

from sbpair.emulator.server import RequestedNamespace
from sbpair.testing import Emulator
from tests.emulator.peer import raw_connection
from tests.kit.async_tests import InLoop
from tests.kit.command import environment, finished, run, run_program, start, untimed
from tests.kit.sas import sign

ROOT = Path(__file__).parents[2]
CONFIG = {
    "UserConfig": {
        "Namespaces": [
            {
                "Name": "sbemulatorns",
                "Queues": [{"Name": "queue.1"}],
                "Topics": [{"Name": "topic.1", "Subscriptions": [{"Name": "subscription.1"}]}],
            }
        ],
        "Logging": {"Type": "File"},
    }
}
AMQP = b"AMQP\x03\x01\x00\x00"
HEALTHY = '{"status":"healthy","message":"Service is healthy."}'
UNHEALTHY = '{"status":"unhealthy","message":"Service not available. Please try after some time."}'
ANY = ("--namespace", "sbemulatorns=0", "--http-port", "0")


@pytest.fixture
def emulator() -> InLoop:
    def two_ports() -> Emulator:
        return Emulator([RequestedNamespace("sbemulatorns", 0, http_port=0)])

    return InLoop(two_ports)


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "Config.json"
    path.write_text(json.dumps(CONFIG))
    return str(path)


def address(connection_string: str) -> str:
    return connection_string.partition("sb://")[2].partition(";")[0]


def addresses(emulator: Emulator) -> list[str]:
    [ready] = emulator.ready.namespaces
    return [address(ready.connection_string), address(ready.http_connection_string)]


async def get(url: str, method: str = "GET", **headers: str) -> tuple[int, str]:
    async with ClientSession(headers=headers) as session, session.request(method, url) as answer:
        return answer.status, await answer.text()


# Two ports


async def test_both_ports_serve_both_protocols_and_share_an_outage(emulator: Emulator) -> None:
    amqp, http = addresses(emulator)
    assert amqp != http
    async with raw_connection(amqp) as first, raw_connection(http) as second:
        for each, (reader, writer) in ((amqp, first), (http, second)):
            assert (await get(f"http://{each}/health"))[0] == 200
            writer.write(AMQP)
            assert await reader.readexactly(8) == AMQP
        with emulator.faults.during("namespace-down", "sbemulatorns"):
            for reader, _ in (first, second):
                with suppress(ConnectionError):
                    await reader.read()  # to the end


async def test_the_first_port_may_be_named_as_the_second_one_too(unused_port: int) -> None:
    async with Emulator([RequestedNamespace("contoso", unused_port, http_port=unused_port)]) as emulator:
        [ready] = emulator.ready.namespaces
        assert (ready.endpoint, ready.http_connection_string) == (f"sb://127.0.0.1:{unused_port}", "")


@pytest.fixture
def unused_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


# Health


async def test_health_follows_the_namespace(emulator: Emulator) -> None:
    for each in addresses(emulator):
        url = f"http://{each}/health"
        assert await get(url) == (200, HEALTHY)
        assert await get(f"{url}/?at=all") == (200, HEALTHY)
        assert await get(url, "HEAD") == (200, "")
        with emulator.faults.during("namespace-down", "sbemulatorns"):
            assert await get(url) == (503, UNHEALTHY)
        assert await get(url) == (200, HEALTHY)


async def test_a_request_with_a_token_is_for_a_queue_named_health(emulator: Emulator) -> None:
    namespace = emulator.namespaces["sbemulatorns"]
    namespace.create_queue("health")
    token = sign(namespace.keys[0], f"https://{namespace.authority}", emulator.clock.now_ms() // 1000 + 60)
    status, body = await get(f"http://{namespace.authority}/health?api-version=2021-05", Authorization=token)
    assert (status, "<QueueDescription" in body) == (200, True)


@pytest.mark.parametrize("method", ["PUT", "DELETE", "POST"])
async def test_health_cannot_be_changed(emulator: Emulator, method: str) -> None:
    status, _ = await get(f"http://{addresses(emulator)[0]}/health", method)
    assert status in (401, 405)


# The official clients


def isolated(*words: str) -> list[str]:
    """Return a command that runs where every port is free."""
    return ["unshare", "--map-root-user", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh", *words]


@pytest.fixture(scope="module")
def isolation() -> None:
    if shutil.which("unshare") is None or run_program(*isolated("true")).returncode:
        pytest.skip("this machine offers no network of their own to processes")


@pytest.mark.usefixtures("isolation")
def test_programs_for_the_vendors_emulator_run_unchanged(config: str, node: str, modules: Path) -> None:
    program = Path(__file__).with_name("vendor_program.py")
    beside = [node, str(ROOT / "tests/integration/node/vendor.mjs")]
    env = environment(None, PYTHONPATH=str(ROOT), BESIDE=json.dumps(beside), MODULES=f"{modules}/")
    command = (sys.executable, "-m", "sbpair", "emulator", "--config-file", config)
    done = run_program(*isolated(sys.executable, str(program), *command), env=env)
    of_python = ["True", f"200 {HEALTHY}", "['queue.1']", "True", "hello", "hello"]
    of_node = ["from-node", "hello from Node", "0"]
    assert done.stdout.splitlines() == [*of_python, *of_node, "0"], done.stderr


# The command


async def test_the_command_prints_the_vendors_line_when_ready(config: str, tmp_path: Path) -> None:
    ready = tmp_path / "ready.json"
    words = ("emulator", "--config-file", config, *ANY, "--ready-file", str(ready))
    process = await start(*words, env=environment(None))
    assert process.stderr is not None
    line = await process.stderr.readline()
    assert line.decode().endswith("Z Emulator Service is Successfully Up!\n")
    [found] = json.loads(ready.read_text())["namespaces"]
    assert await get(f"http://{address(found['http_connection_string'])}/health") == (200, HEALTHY)
    process.terminate()
    code, out, _ = await finished(process)
    assert code == 0
    assert f"# sbemulatorns, administration: {found['http_connection_string']}" in out.splitlines()
    assert "export SBPAIR_PRIMARY_NAME=sbemulatorns" in out


def test_the_command_prints_every_fault_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "Config.json"
    path.write_text(
        '{"UserConfig": {"Namespaces": [{"Name": "a-b", "Queues": [{"Name": "q", "Properties": {"x": 1}}, 5]}]}}'
    )
    done = run("emulator", "--config-file", str(path), *ANY[2:], env=environment(None))
    lines = done.stderr.splitlines()
    where = "error: Config.json: UserConfig.Namespaces[0].Queues"
    assert lines[0].startswith(f"{where}[0].Properties.x: unknown property; expected one of LockDuration")
    assert lines[1:] == [
        f"{where}[1]: expected an object, got a whole number",
        "error: --config-file has 2 faults",
        "hint: correct the file; no namespace was started",
    ]
    assert (done.returncode, done.stdout) == (2, "")


def test_a_tier_without_what_the_file_has_is_refused(config: str) -> None:
    done = run("emulator", "--config-file", config, "--namespace", "sbemulatorns=0,basic", env=environment(None))
    assert untimed(done.stderr).splitlines() == [
        (
            "error: Config.json: UserConfig.Namespaces[0].Topics[0].Name: Cannot operate on type Topic because the "
            "namespace 'sbemulatorns' is using 'Basic' tier."
        ),
        "hint: correct the file; no namespace was started",
    ]
    assert (done.returncode, done.stdout) == (2, "")


def test_a_taken_http_port_is_named_with_the_remedy(config: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        words = ("--config-file", config, "--namespace", "sbemulatorns=0", "--http-port", port)
        done = run("emulator", *words, env=environment(None))
    assert done.stderr.splitlines() == [
        f"error: port {port} on 127.0.0.1 is in use",
        "hint: stop what uses it, or take any free ports: --namespace sbemulatorns=0 --http-port 0",
    ]
    assert done.returncode == 7


async def test_a_second_port_needs_no_configuration_file() -> None:
    words = ("emulator", "--namespace", "contoso=0", "--http-port", "0", "-o", "json")
    process = await start(*words, env=environment(None))
    assert process.stdout is not None
    [found] = json.loads(await process.stdout.readline())["namespaces"]
    assert await get(f"http://{address(found['http_connection_string'])}/health") == (200, HEALTHY)
    process.terminate()
    code, _, err = await finished(process)
    assert (code, "Emulator Service" in err) == (0, False)
