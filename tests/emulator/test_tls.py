"""TLS and plain connections on one port, and trust by the CA file only."""

import json
import ssl
import stat
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientConnectorError, ClientSession
from azure.servicebus import ServiceBusClient, ServiceBusMessage, TransportType

from sbpair.amqp_client.client import connect
from sbpair.amqp_server import tls
from sbpair.errors import MachineLacks, StateRefused, Unavailable, Unreachable
from sbpair.model.connection_string import endpoint_from_connection_string
from sbpair.testing import Emulator, EmulatorOptions
from tests.emulator.peer import raw_connection
from tests.kit.async_tests import InLoop
from tests.kit.waiting import PATIENCE_SECONDS

MESSAGE = bytes.fromhex("005375a0026869")
LARGE = bytes.fromhex("005375b0000186a0") + bytes(100_000)


@pytest.fixture(scope="module")
def secure(another: Any) -> Iterator[Any]:
    """An emulator with TLS, in its own thread."""
    with another(options=EmulatorOptions(tls=True)) as secure:
        yield secure


@pytest.mark.parametrize("transport", TransportType)
def test_the_official_client_speaks_tls(secure: Any, transport: TransportType) -> None:
    queue, ready = secure.queue(), secure.emulator.ready
    with (
        ServiceBusClient.from_connection_string(
            ready.namespaces[0].tls_connection_string,
            connection_verify=ready.ca_file,
            # The client would use the port 5671.
            custom_endpoint_address=f"sb://{secure.namespace.authority}",
            retry_total=0,
            transport_type=transport,
        ) as client,
        client.get_queue_sender(queue.path) as sender,
        client.get_queue_receiver(queue.path) as receiver,
    ):
        sender.send_messages(ServiceBusMessage(b"x" * 200_000))
        (message,) = receiver.receive_messages(1, max_wait_time=10)
        assert sum(len(part) for part in message.body) == 200_000
        receiver.complete_message(message)


@asynccontextmanager
async def tls_emulator(ca_file: Path | None = None) -> AsyncIterator[Emulator]:
    async with Emulator([("contoso", 0)], options=EmulatorOptions(True, ca_file)) as emulator:
        emulator.namespaces["contoso"].create_queue("orders")
        yield emulator


@pytest.fixture
def emulator() -> InLoop:
    return InLoop(tls_emulator)


def tls_endpoint(emulator: Emulator, ca_file: str | None = None):
    ready = emulator.ready
    return endpoint_from_connection_string(
        ready.namespaces[0].tls_connection_string, name="contoso", ca_file=ca_file or ready.ca_file
    )


async def test_one_port_serves_tls_and_plain_amqp(emulator: Emulator) -> None:
    plain = endpoint_from_connection_string(emulator.ready.namespaces[0].connection_string)
    secure = tls_endpoint(emulator)
    assert (plain.port, plain.tls, secure.tls) == (secure.port, False, True)
    async with connect(plain) as first, connect(secure) as second:
        await (await first.sender("orders")).send(MESSAGE)
        await (await second.sender("orders")).send(LARGE)
        receiver = await second.receiver("orders")
        receiver.grant(2)
        sizes = [len(each.payload) for _ in range(2) for each in await receiver.take(1, seconds=PATIENCE_SECONDS)]
        assert sizes[1] > 100_000 > sizes[0]


async def test_another_authority_is_not_trusted(emulator: Emulator) -> None:
    async with Emulator([("fabrikam", 0)], options=EmulatorOptions(tls=True)) as other:
        with pytest.raises(Unreachable, match="not trusted"):
            async with connect(tls_endpoint(emulator, other.ready.ca_file)):
                pass


async def test_an_outage_begun_over_tls_is_answered(emulator: Emulator) -> None:
    url = f"https://{emulator.namespaces['contoso'].authority}/$control/faults"
    trust = ssl.create_default_context(cafile=emulator.ready.ca_file)
    async with ClientSession() as session, connect(tls_endpoint(emulator)) as wire:
        sender = await wire.sender("orders")
        asked = json.dumps({"kind": "namespace-down", "namespace": "contoso"})
        async with session.post(url, data=asked, ssl=trust) as answer:
            assert answer.status == 201
        with pytest.raises(Unavailable):
            await sender.send(MESSAGE)
        with pytest.raises(Unreachable):
            async with connect(tls_endpoint(emulator)):
                pass


async def test_a_connection_breaks_under_tls(emulator: Emulator) -> None:
    async with connect(tls_endpoint(emulator)) as wire:
        sender = await wire.sender("orders")
        await sender.ready()
        emulator.faults.reset("contoso", 1)
        await sender.send(MESSAGE)
        with pytest.raises(Unavailable):
            await sender.send(MESSAGE)


@pytest.mark.parametrize("garbage", [b"\x16\x03\x01\x00\x05hello", b"\x16\x03" + b"\xff" * 100_000])
async def test_invalid_tls_costs_its_own_connection(emulator: Emulator, garbage: bytes) -> None:
    async with raw_connection(emulator.namespaces["contoso"].authority) as (reader, writer):
        writer.write(garbage)
        with suppress(ConnectionError):
            await reader.read()
    async with connect(tls_endpoint(emulator)) as wire:
        await (await wire.sender("orders")).send(MESSAGE)


async def test_without_tls_a_handshake_ends_the_connection() -> None:
    async with Emulator([("contoso", 0)]) as emulator, ClientSession() as session:
        assert emulator.ready.ca_file is None
        assert set(emulator.ready.as_document()) == {"namespaces"}
        with pytest.raises(ClientConnectorError):
            await session.get(f"https://{emulator.namespaces['contoso'].authority}/$control/state")


async def test_the_temporary_ca_file_is_private_and_removed() -> None:
    async with tls_emulator() as emulator:
        path = Path(emulator.ready.ca_file)
        assert [each.name for each in path.parent.iterdir()] == ["ca.pem"]
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert b"PRIVATE" not in path.read_bytes()
    assert not path.parent.exists()


@pytest.mark.parametrize(
    ("options", "ca_file", "kept"),
    [
        ({"ca_file": "trust.pem"}, "trust.pem", "trust.pem.tls.pem"),
        ({"data": "e.db"}, "e.db.ca.pem", "e.db.tls.pem"),
        ({"data": "e.db", "ca_file": "trust.pem"}, "trust.pem", "e.db.tls.pem"),
    ],
)
async def test_clients_trust_a_restarted_emulator(
    options: dict[str, str],
    ca_file: str,
    kept: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The key of the server alone is kept, for this user: that of the authority could sign for its names again."""
    known = tmp_path / "known.pem"

    async def restarted(*names: str, knows: bool = True) -> bytes:
        """Connect to a new emulator, by the CA that is known, and return its CA."""
        own = EmulatorOptions(True, allow_hosts=names, **{key: tmp_path / each for key, each in options.items()})
        async with Emulator([("contoso", 0)], options=own) as emulator:
            assert emulator.ready.as_document()["ca_file"] == str(tmp_path / ca_file)
            async with connect(tls_endpoint(emulator, str(known) if knows else None)):
                return (tmp_path / ca_file).read_bytes()

    known.write_bytes(await restarted(knows=False))
    (tmp_path / ca_file).unlink()
    assert await restarted() == known.read_bytes()
    kept_file = tmp_path / kept
    assert (kept_file.read_bytes().count(b"BEGIN PRIVATE KEY"), stat.S_IMODE(kept_file.stat().st_mode)) == (1, 0o600)
    assert b"PRIVATE" not in known.read_bytes()
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
    # Another name, or the last third of a life, needs new ones.
    renewed = await restarted("emulator.internal", knows=False)
    monkeypatch.setattr(tls, "KEPT_LIFE", 3 * tls.KEPT_LIFE)
    assert len({known.read_bytes(), renewed, await restarted("emulator.internal", knows=False)}) == 3
    assert caplog.text.count("trust the new one") == 2
    kept_file.chmod(0o644)
    with pytest.raises(StateRefused, match="other users can use the key"):
        await restarted()


async def test_an_unwritable_ca_file_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(MachineLacks, match="nowhere"):
        async with tls_emulator(ca_file=tmp_path / "nowhere" / "ca.pem"):
            pass
