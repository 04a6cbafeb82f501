"""Data files that are refused, by name and untouched; and an emulator whose file cannot be written any more."""

import hashlib
import os
import random
import socket
import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from aiohttp import ClientSession
from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.exceptions import ServiceBusError

from sbpair.amqp.message import Sections, data_body
from sbpair.amqp_client.client import connect
from sbpair.emulator.clock import ManualClock
from sbpair.emulator.entities.description import QueueDescription
from sbpair.emulator.entities.namespace import Namespace
from sbpair.emulator.entities.stored_message import StoredMessage
from sbpair.emulator.storage import data_file
from sbpair.emulator.storage.storage import COMMIT_SECONDS, MAX_CHANGES, Storage
from sbpair.errors import MachineLacks, SbpairError, StateRefused
from sbpair.model.connection_string import endpoint_from_connection_string
from sbpair.testing import Emulator, EmulatorOptions
from tests.benchmarks.emulator import message
from tests.emulator.storage_worlds import CONTOSO, World
from tests.kit.waiting import until


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "emulator.db"


@pytest.fixture
def filled(path: Path) -> Path:
    """Return a data file with a queue and 300 messages of 1 KB."""
    world = World.start(ManualClock(), path)
    queue = world.namespace.create_queue("orders", QueueDescription())
    send(world, queue_bytes=1_000, count=300)
    assert len(queue.messages) == 300
    world.close()
    return path


def send(world: World, *, queue_bytes: int, count: int) -> None:
    body = Sections(body=data_body(b"x" * queue_bytes)).join()
    for _ in range(count):
        world.namespace.queue("orders").send([StoredMessage(body, len(body))])


def digests(directory: Path) -> dict[str, str]:
    return {each.name: hashlib.sha256(each.read_bytes()).hexdigest() for each in sorted(directory.iterdir())}


def refusal(path: Path, requested: dict[str, tuple[int, str, int]] = CONTOSO) -> SbpairError:
    """Return the error of an emulator that starts with this file, which is not changed."""
    before = digests(path.parent)
    with pytest.raises((StateRefused, MachineLacks)) as raised:
        load(path, requested)
    assert digests(path.parent) == before
    assert str(path) in raised.value.message
    assert raised.value.hint
    return raised.value


def load(path: Path, requested: dict[str, tuple[int, str, int]] = CONTOSO) -> None:
    clock = ManualClock()
    storage = Storage(path, requested)
    try:
        storage.start({"contoso": Namespace("contoso", clock)}, [5672], clock, lambda *_: None)  # type: ignore[arg-type,return-value]
    finally:
        storage.close()


# Refused


def noise_within(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(5_000)
        file.write(random.Random(1).randbytes(20_000))


def change(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(statement)


FOREIGN = " is not a data file of the emulator"
BROKEN, ALTERED = " is broken: ", " is not as it was written"
DAMAGED: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut": (lambda path: os.truncate(path, path.stat().st_size * 2 // 3), BROKEN),
    "cut within a page": (lambda path: os.truncate(path, path.stat().st_size - 1_000), BROKEN),
    "only a header": (lambda path: os.truncate(path, 100), BROKEN),
    "noise within": (noise_within, BROKEN),
    "noise": (lambda path: path.write_bytes(random.Random(1).randbytes(50_000)), FOREIGN),
    "text": (lambda path: path.write_text("entities = []\n" * 100), FOREIGN),
}
CHANGED = {
    "PRAGMA application_id = 1": FOREIGN,
    "PRAGMA application_id = 0": FOREIGN,
    f"PRAGMA user_version = {data_file.VERSION + 1}": " was written by a newer version of sbpair",
    "PRAGMA user_version = 1": " was written by an earlier version of sbpair",
    "DROP TABLE contents": f"{BROKEN}no such table: contents",
    "UPDATE contents SET content = x'00' WHERE id = 7": f"{BROKEN}row 7{ALTERED}",
    "UPDATE contents SET content = 'x' WHERE id = 7": f"{BROKEN}row 7{ALTERED}",
    "UPDATE contents SET fields = '{}' WHERE id = 7": f"{BROKEN}row 7{ALTERED}",
    "UPDATE contents SET key = 900 WHERE id = 7": f"{BROKEN}row 7{ALTERED}",
    "UPDATE contents SET part = 'dead_letters' WHERE id = 7": f"{BROKEN}row 7{ALTERED}",
    "DELETE FROM entities WHERE id = 'contoso/orders'": f"{BROKEN}row 1{ALTERED}",
    "UPDATE entities SET id = 'x/orders' WHERE id LIKE '%/%'": f"{BROKEN}entity x/orders{ALTERED}",
    "UPDATE entities SET id = id || ' ' WHERE id LIKE '%/%'": f"{BROKEN}entity contoso/orders{ALTERED}",
    "UPDATE entities SET document = '{' WHERE id LIKE '%/%'": f"{BROKEN}entity contoso/orders{ALTERED}",
    "UPDATE entities SET document = replace(document, 'Queue', 'X')": f"{BROKEN}entity contoso/orders{ALTERED}",
    "UPDATE entities SET state = replace(state, 'dead', 'red')": f"{BROKEN}entity contoso/orders{ALTERED}",
    "UPDATE entities SET document = replace(document, 'port', 'door')": f"{BROKEN}namespace contoso{ALTERED}",
    "UPDATE entities SET document = replace(document, 'keys', 'doors')": f"{BROKEN}entity contoso{ALTERED}",
    "UPDATE entities SET at_ms = 'late'": f"{BROKEN}time late{ALTERED}",
}


@pytest.mark.parametrize(
    ("damage", "text"),
    [*DAMAGED.values(), *((partial(change, statement=each), text) for each, text in CHANGED.items())],
    ids=[*DAMAGED, *CHANGED],
)
def test_a_file_with_wrong_content_is_refused_by_name_and_kept(
    filled: Path, damage: Callable[[Path], object], text: str
) -> None:
    damage(filled)
    error = refusal(filled)
    assert isinstance(error, StateRefused)
    assert error.message.startswith(f"{filled}{text}")


@pytest.mark.parametrize(
    "requested",
    [
        {"fabrikam": (5672, "standard", 1)},
        {"contoso": (5672, "premium", 1)},
        {"contoso": (5672, "premium", 2)},
        {**CONTOSO, "contoso-dr": (5673, "standard", 1)},
    ],
)
def test_a_file_of_other_namespaces_is_refused_with_what_to_start(filled: Path, requested) -> None:
    error = refusal(filled, requested)
    assert "holds contoso=5672,standard, not " in error.message
    assert error.hint is not None
    assert "--namespace contoso=5672,standard" in error.hint


def test_a_refused_file_of_a_killed_emulator_keeps_its_messages(filled: Path) -> None:
    world = World.start(ManualClock(), filled)
    send(world, queue_bytes=100, count=5)
    killed = world.kill()
    with pytest.raises(StateRefused):
        Storage(killed, {"fabrikam": (5672, "standard", 1)})
    again = World.start(ManualClock(), killed)
    assert len(again.namespace.queue("orders").messages) == 305
    again.close()


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (Path.mkdir, "is not a regular file"),
        (os.mkfifo, "is not a regular file"),
        (lambda path: path.symlink_to("/dev/null"), "is not a regular file"),
        (lambda path: path.symlink_to(path), "cannot be opened: Too many levels of symbolic links"),
        (lambda path: path.parent.rmdir(), "cannot be opened: No such file or directory"),
    ],
)
def test_what_is_not_a_file_is_refused_by_name(tmp_path: Path, make: Callable[[Path], object], text: str) -> None:
    path = tmp_path / "folder" / "emulator.db"
    path.parent.mkdir()
    make(path)
    with pytest.raises(MachineLacks, match=text) as raised:
        Storage(path, CONTOSO)
    assert str(path) in raised.value.message


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everything")
def test_a_file_that_may_not_be_written_is_refused(filled: Path) -> None:
    filled.chmod(0o400)
    assert "readonly database" in refusal(filled).message


async def test_a_file_of_a_running_emulator_is_refused(path: Path) -> None:
    async with Emulator([("contoso", 0)], options=EmulatorOptions(data=path)) as first:
        first.namespaces["contoso"].create_queue("orders")
        with pytest.raises(MachineLacks, match="is in use by another process"):
            async with Emulator([("contoso", 0)], options=EmulatorOptions(data=path)):
                pass
        assert first.namespaces["contoso"].find_queue("orders")
    async with Emulator([("contoso", 0)], options=EmulatorOptions(data=path)) as again:
        assert again.namespaces["contoso"].find_queue("orders")


async def test_a_namespace_is_deleted_with_its_port_and_its_part_of_the_file(path: Path) -> None:
    options = EmulatorOptions(data=path)
    async with Emulator(options=options) as emulator:
        for namespace in emulator.namespaces.values():
            namespace.create_queue("orders")
            namespace.create_topic("news").create_subscription("all")
            namespace.hybrid_connections.create("relay")
        gone, kept = (endpoint_from_connection_string(each.connection_string) for each in emulator.ready.namespaces)
        async with connect(gone), connect(kept) as client:
            await emulator.delete_namespace("contoso")
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((gone.host, gone.port))
            await (await client.sender("orders")).send(Sections(body=data_body(b"x")).join())
    async with Emulator(options=options) as again:
        first, second = again.namespaces.values()
        assert (first.all_entities(), first.hybrid_connections.all()) == ([], [])
        assert len(second.queue("orders").messages) == 1
        assert second.find_topic("news")
        assert second.hybrid_connections


def test_an_empty_file_is_a_new_one(path: Path) -> None:
    path.touch()
    load(path)
    assert path.stat().st_size


def test_only_the_user_can_read_the_file_and_nothing_is_beside_it(filled: Path) -> None:
    assert filled.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in filled.parent.iterdir()] == [filled.name]


# A full disk


def database(emulator: Emulator) -> sqlite3.Connection:
    assert emulator._storage is not None
    return emulator._storage._db


def limit_pages(emulator: Emulator, more: int) -> None:
    """Leave room for so many more pages in the file."""
    [[pages]] = database(emulator).execute("PRAGMA page_count")
    database(emulator).execute(f"PRAGMA max_page_count = {pages + more}")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the client's lost connection
async def test_without_room_nothing_is_acknowledged_until_there_is(path: Path, caplog) -> None:
    options = EmulatorOptions(data=path, durable=True)
    async with Emulator([("contoso", 0)], options=options) as emulator, ClientSession() as http:
        namespace = emulator.namespaces["contoso"]
        namespace.create_queue("orders")
        async with ServiceBusClient.from_connection_string(namespace.connection_string, retry_total=0) as client:
            async with client.get_queue_sender("orders") as sender:
                await sender.send_messages(ServiceBusMessage("stored"))
                async with client.get_queue_sender("orders"):
                    limit_pages(emulator, 0)
                    broken = set(namespace.fault_points.connections)
                    with pytest.raises(ServiceBusError):
                        await sender.send_messages(ServiceBusMessage("x" * 200_000))
                    # Another connection may wait for what the same commit would have stored.
                    await until(lambda: not broken & namespace.fault_points.connections)
            assert len(broken) == 2
            async with client.get_queue_sender("orders") as sender:
                with pytest.raises(ServiceBusError, match="data file cannot be written"):
                    await sender.send_messages(ServiceBusMessage("refused"))
            url = f"http://{namespace.authority}/$control/clock"
            async with http.post(url, json={"advance_ms": 1}) as answer:
                assert answer.status == 503
                assert "data file cannot be written" in await answer.text()
            assert "cannot be written: database or disk is full" in caplog.text
            limit_pages(emulator, 1_000)
            await until(lambda: "can be written again" in caplog.text)
            async with client.get_queue_sender("orders") as sender:
                await sender.send_messages(ServiceBusMessage("stored too"))
            mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
            async with client.get_queue_receiver("orders", receive_mode=mode) as receiver:
                texts = [str(each)[:10] for each in await receiver.receive_messages(5, max_wait_time=5)]
    # The first one that met the full disk was neither refused nor acknowledged.
    assert [text for text in texts if text != "x" * 10] == ["stored", "stored too"]
    async with Emulator([("contoso", 0)], options=options) as emulator:
        assert emulator.namespaces["contoso"].queue("orders").counts().total == 3 - len(texts)


async def fill_and_stop(path: Path) -> None:
    async with Emulator([("contoso", 0)], options=EmulatorOptions(data=path)) as emulator:
        limit_pages(emulator, 0)
        for number in range(100):
            emulator.namespaces["contoso"].create_queue(f"queue-{number}")


async def test_an_emulator_that_cannot_store_at_its_end_says_so(path: Path) -> None:
    with pytest.raises(MachineLacks, match=r"emulator\.db cannot be used: database or disk is full"):
        await fill_and_stop(path)


# When it is written


def test_many_changes_are_written_at_once(path: Path) -> None:
    world = World.start(ManualClock(), path)
    world.namespace.create_queue("orders")
    send(world, queue_bytes=10, count=MAX_CHANGES - 1)
    before = list(world.delays)
    send(world, queue_bytes=10, count=1)
    assert (before, world.delays) == ([COMMIT_SECONDS], [COMMIT_SECONDS, 0])
    world.close()


async def test_a_durable_send_is_stored_when_it_is_acknowledged(path: Path) -> None:
    async with Emulator([("contoso", 0)], options=EmulatorOptions(data=path, durable=True)) as emulator:
        namespace = emulator.namespaces["contoso"]
        namespace.create_queue("orders")
        async with connect(endpoint_from_connection_string(namespace.connection_string)) as client:
            sender = await client.sender("orders")
            for count in range(1, 4):
                await sender.send(message(count), message_format=0)
                [[stored]] = database(emulator).execute("SELECT count(*) FROM contents")
                assert stored == count
            sender.close()
