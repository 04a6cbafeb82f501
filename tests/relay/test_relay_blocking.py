"""The listener and the client for programs that block, against an emulator in a thread."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from sbpair.errors import BothFailed, RelayRejected, UsageError
from sbpair.relay import RelayAnswer, RelayClient, RelayEndpoint, RelayListener, RelayPair
from tests.kit.running import NAMESPACE, OTHER, Running


@pytest.fixture
def pair() -> Iterator[RelayPair]:
    with Running() as running:
        endpoints = []
        for namespace, path in ((running.namespace, "east"), (running.other, "west")):
            running.do(lambda each=namespace, name=path: each.hybrid_connections.create(name))
        for name, path in ((NAMESPACE, "east"), (OTHER, "west")):
            text = running.emulator.namespaces[name].connection_string
            endpoints.append(RelayEndpoint.from_connection_string(text, path))
        yield RelayPair(*endpoints)


def handle(request: Any) -> RelayAnswer:
    """Answer with the body, in parts if it was sent to /parts."""
    body = request.read()
    if request.target.endswith("/parts"):
        return RelayAnswer(200, {}, iter([body[:5], body[5:]]))  # type: ignore[arg-type]
    return RelayAnswer(201, {"X-Side": request.side}, body)


def serve(offer: Any) -> None:
    if offer.target.endswith("/no"):
        offer.reject(418, "No")
        return
    with offer.accept() as socket:
        for message in socket:
            socket.send(message)


def test_requests_and_sockets_pass_between_threads(pair: RelayPair) -> None:
    with RelayListener(pair, handle, on_websocket=serve) as listener, RelayClient(pair, first="secondary") as client:
        assert listener.up_sides == ("primary", "secondary")
        with client.request("POST", "/x", body=b"hello") as response:
            assert (response.status, response.side, response.read()) == (201, "secondary", b"hello")
        with client.request("POST", "/parts", body=iter([b"hello ", b"world" * 20_000])) as response:
            assert b"".join(response) == b"hello " + b"world" * 20_000
        with client.connect() as socket:
            socket.send("text")
            socket.send(b"bytes")
            assert (socket.receive(), socket.receive()) == ("text", b"bytes")
        with pytest.raises(RelayRejected):
            client.connect("/no")
        client.swap_roles()
        assert client.active == "primary"
    with pytest.raises(UsageError):
        client.request("GET")
    listener.close()


def test_many_threads_share_a_client(pair: RelayPair) -> None:
    wrong: list[object] = []
    with RelayListener(pair, handle), RelayClient(pair) as client:

        def ask(number: int) -> None:
            body = str(number).encode() * 1000
            if client.request("PUT", body=body).read() != body:
                wrong.append(number)

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(20)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    assert wrong == []


def test_errors_reach_the_calling_thread(pair: RelayPair) -> None:
    with RelayClient(pair) as client:
        with pytest.raises(BothFailed):
            client.request("GET")
        with pytest.raises(UsageError):
            client.request("GET", body="text")  # type: ignore[arg-type]
