"""The plugin of an installed wheel, in an environment of its own, beside the plugins that other projects use."""

import subprocess
from pathlib import Path

import pytest

from tests.kit.installed import install, outside

OTHERS = ("pytest", "pytest-xdist", "pytest-asyncio", "anyio", "trio")
SCOPE = ("-o", "asyncio_default_fixture_loop_scope=function")
TESTS = """
import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient as AsyncClient

pytestmark = pytest.mark.service_bus(queues=["orders"])

async def exchange(connection_string):
    async with AsyncClient.from_connection_string(connection_string) as client:
        async with client.get_queue_sender("orders") as sender:
            await sender.send_messages(ServiceBusMessage("one"))
        async with client.get_queue_receiver("orders") as receiver:
            [message] = await receiver.receive_messages(max_wait_time=5)
            await receiver.complete_message(message)

def test_sync(service_bus, service_bus_session):
    for each in (service_bus, service_bus_session):
        with ServiceBusClient.from_connection_string(each.connection_string) as client:
            with client.get_queue_sender("orders") as sender:
                sender.send_messages(ServiceBusMessage("one"))
        assert each.counts("orders").active == 1

@pytest.mark.asyncio
async def test_asyncio(service_bus, service_bus_pair):
    await exchange(service_bus.connection_string)
    await exchange(service_bus_pair.secondary.connection_string)
    assert service_bus.counts("orders").total == 0

@pytest.mark.anyio
async def test_anyio(service_bus, anyio_backend_name):
    if anyio_backend_name == "asyncio":
        await exchange(service_bus.connection_string)
    service_bus.advance(1000)
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(tmp_path_factory.mktemp("installed"), *OTHERS)


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["-n", "2"], ["--asyncio-mode", "auto"]], ids=["alone", "xdist", "auto"])
def test_an_installed_plugin_works_beside_others(python: Path, tmp_path: Path, options: list[str]) -> None:
    (tmp_path / "test_sample.py").write_text(TESTS)
    command = [str(python), "-W", "error", "-m", "pytest", "-q", "--strict-markers", *SCOPE, *options]
    done = subprocess.run(command, env=outside({}), cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "4 passed" in done.stdout, done.stdout + done.stderr
