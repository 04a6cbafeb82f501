"""AMQP over WebSocket with the official clients: messages, sessions and management requests, plain and in TLS."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusMessage, TransportType
from azure.servicebus.exceptions import ServiceBusConnectionError, ServiceBusError

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


@pytest.mark.parametrize("size", [5, 200_000])
def test_a_message_arrives_whole_and_is_completed(client: Official, server: Any, address: str, size: int) -> None:
    queue = server.queue()
    body = bytes(range(256)) * (size // 256 + 1)
    with client.sender(address, queue.path) as sender, client.receiver(address, queue.path) as receiver:
        sender.send_messages(ServiceBusMessage(body, application_properties={"kept": 1}))
        (message,) = receiver.receive_messages(1, max_wait_time=10)
        assert b"".join(message.body) == body
        assert message.application_properties == {b"kept": 1}
        receiver.complete_message(message)
    assert server.do(queue.counts).total == 0


def test_a_thousand_messages_arrive_in_order(client: Official, server: Any, address: str) -> None:
    queue = server.queue()
    with (
        client.sender(address, queue.path) as sender,
        client.receiver(address, queue.path, prefetch_count=500, receive_mode="receiveanddelete") as receiver,
    ):
        for start in range(0, 1_000, 250):
            sender.send_messages([ServiceBusMessage(f"{number}") for number in range(start, start + 250)])
        received: list[str] = []
        while len(received) < 1_000:
            messages = receiver.receive_messages(1_000, max_wait_time=10)
            assert messages
            received += [b"".join(message.body).decode() for message in messages]
    assert received == [str(number) for number in range(1_000)]


def test_a_session_is_lent_with_its_state(client: Official, server: Any, address: str) -> None:
    queue = server.queue(requires_session=True)
    with client.sender(address, queue.path) as sender:
        sender.send_messages([ServiceBusMessage(f"{number}", session_id="one") for number in range(3)])
    with client.receiver(address, queue.path, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=10) as receiver:
        receiver.session.set_state("half done")
        assert receiver.session.get_state() == b"half done"
        assert receiver.session.renew_lock() > datetime.now(UTC)
        messages = receiver.receive_messages(3, max_wait_time=10)
        assert [b"".join(message.body) for message in messages] == [b"0", b"1", b"2"][: len(messages)]
        for message in messages:
            receiver.complete_message(message)
    assert server.do(queue.counts).total == 3 - len(messages)


def test_management_requests_are_answered(client: Official, server: Any, address: str) -> None:
    queue = server.queue()
    with client.sender(address, queue.path) as sender, client.receiver(address, queue.path) as receiver:
        at = datetime.now(UTC) + timedelta(days=1)
        numbers = sender.schedule_messages([ServiceBusMessage("kept"), ServiceBusMessage("cancelled")], at)
        sender.cancel_scheduled_messages(numbers[1])
        (peeked,) = receiver.peek_messages(5)
        assert peeked.sequence_number == numbers[0]
        sender.send_messages(ServiceBusMessage("now"))
        (message,) = receiver.receive_messages(1, max_wait_time=10)
        assert receiver.renew_message_lock(message) > datetime.now(UTC)
        receiver.defer_message(message)
        (deferred,) = receiver.receive_deferred_messages(message.sequence_number)
        receiver.complete_message(deferred)


def test_a_wrong_key_is_refused(client: Official, server: Any, address: str) -> None:
    queue = server.queue()
    wrong = address.replace("SharedAccessKey=", "SharedAccessKey=x")
    # With a custom endpoint, the client reports every refused token as a problem of the connection.
    with pytest.raises(ServiceBusConnectionError) as caught, client.sender(wrong, queue.path):
        pass
    assert "Status code: 401" in str(caught.value.inner_exception)


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
