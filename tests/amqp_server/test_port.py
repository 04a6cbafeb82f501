"""A port of a server without namespaces: which connections it takes, and how it ends."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from sbpair.amqp_server.admission import AcceptedSocket, Admission
from sbpair.amqp_server.host_names import HostNames
from sbpair.amqp_server.port import Port
from sbpair.errors import UsageError
from sbpair.operating_system import listen
from tests.emulator.peer import Echo, eof, raw_connection

HEADER = b"AMQP\x00\x01\x00\x00"
WRONG_NAMES = [
    *("", ".", "http://host.docker.internal", "host.docker.internal:5672", "*.example", "*", "a b", "a..b"),
    *("-a.example", "a/b", "user@host", "5672", "10.0.0", "127.0.0.300", "[::1]", "é.example", "a" * 254),
]


@asynccontextmanager
async def opened(make_amqp: Any = lambda _: Echo(), **options: Any) -> AsyncIterator[tuple[Port, str]]:
    listening = listen("127.0.0.1", 0)
    port = Port("test", listening, make_amqp, HostNames("127.0.0.1", ()), Admission(), **options)
    await port.start()
    try:
        yield port, f"127.0.0.1:{listening.getsockname()[1]}"
    finally:
        await port.stop()


@pytest.mark.parametrize(
    ("begun", "options"),
    [
        (HEADER, {"make_amqp": lambda _: None}),
        (b"GET /$servicebus/websocket HTTP/1.1\r\n", {"make_amqp": lambda _: None}),
        (b"GET /health HTTP/1.1\r\n\r\n", {}),
        (b"\x16\x03\x01\x00", {}),
        (HEADER, {"admit": lambda _: False}),
    ],
)
async def test_a_refused_connection_ends_without_an_answer(begun: bytes, options: dict[str, Any]) -> None:
    async with opened(**options) as (_, authority), raw_connection(authority) as (reader, writer):
        writer.write(begun)
        assert await eof(reader)


async def test_a_peer_is_admitted_by_its_socket() -> None:
    asked: list[Any] = []

    def admit(connection: AcceptedSocket) -> bool:
        asked.append(connection.getpeername())
        return len(asked) == 1

    async with opened(admit=admit) as (_, authority), raw_connection(authority) as (reader, writer):
        writer.write(HEADER)
        assert await reader.readexactly(len(HEADER)) == HEADER
        async with raw_connection(authority) as (other, _):
            assert await eof(other)
        assert asked[0] == writer.get_extra_info("sockname")


async def test_connections_outlive_the_end_of_accepting_only() -> None:
    async with opened() as (port, authority), raw_connection(authority) as (reader, writer):
        writer.write(HEADER)
        assert await reader.readexactly(len(HEADER)) == HEADER
        await port.stop_accepting()
        with pytest.raises(ConnectionRefusedError):
            async with raw_connection(authority):
                pass
        writer.write(HEADER)
        assert await reader.readexactly(len(HEADER)) == HEADER
        await port.stop()
        assert await eof(reader)


@pytest.mark.parametrize("name", WRONG_NAMES)
def test_a_wrong_allowed_host_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="expected a host name") as refused:
        HostNames("127.0.0.1", ["contoso"], [name])
    assert refused.value.hint
