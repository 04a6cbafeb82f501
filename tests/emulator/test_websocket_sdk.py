"""AMQP over WebSocket with the official clients, plain and in TLS: a large message, and an outage."""

import gc
from collections.abc import Iterator
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, TransportType
from azure.servicebus.exceptions import ServiceBusError

from sbpair.testing import EmulatorOptions
from tests.kit.fixtures import Official

# The aio client passes this to aiohttp when it connects without TLS.
pytestmark = pytest.mark.filterwarnings("ignore:ssl=None is deprecated:DeprecationWarning")


@pytest.fixture(scope="module", params=["plain", "tls"])
def server(another: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    with another(options=EmulatorOptions(tls=request.param == "tls")) as server:
        yield server


@pytest.fixture(scope="module", params=["sync", "aio"])
def client(server: Any, request: pytest.FixtureRequest) -> Iterator[Official]:
    where = f"sb://{server.namespace.authority}"
    verify = server.emulator.ready.ca_file
    websocket = TransportType.AmqpOverWebsocket
    client = Official(
        request.param,
        transport_type=websocket,
        custom_endpoint_address=where,
        connection_verify=verify,
        socket_timeout=10,
    )
    yield client
    client.close()


@pytest.fixture(scope="module")
def address(server: Any) -> str:
    ready = server.ready[0]
    return ready.tls_connection_string or ready.connection_string


def test_a_message_arrives_whole_and_is_completed(client: Official, server: Any, address: str) -> None:
    queue = server.queue()
    body = bytes(range(256)) * 800
    with client.sender(address, queue.path) as sender, client.receiver(address, queue.path) as receiver:
        sender.send_messages(ServiceBusMessage(body, application_properties={"kept": 1}))
        (message,) = receiver.receive_messages(1, max_wait_time=10)
        assert b"".join(message.body) == body
        assert message.application_properties == {b"kept": 1}
        receiver.complete_message(message)
    assert server.do(queue.counts).total == 0


@pytest.fixture
def _collected() -> Iterator[None]:
    """Collect garbage at once, so that its warnings belong to this test."""
    yield
    gc.collect()


@pytest.mark.usefixtures("_collected")
# The aio client leaves its session open when it cannot connect.
@pytest.mark.filterwarnings("ignore:Unclosed client session:ResourceWarning")
def test_an_outage_reaches_the_client_and_ends(client: Official, server: Any, address: str) -> None:
    queue = server.queue()
    with client.sender(address, queue.path) as sender:
        sender.send_messages(ServiceBusMessage("before"))
        fault = server.do(lambda: server.emulator.faults.namespace_down("contoso"))
        with pytest.raises(ServiceBusError):
            sender.send_messages(ServiceBusMessage("during"))
        server.do(lambda: server.emulator.faults.end(fault))
        sender.send_messages(ServiceBusMessage("after"))
    assert server.do(queue.counts).active == 2
