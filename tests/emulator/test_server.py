"""Ports, protocol detection, outages and the control API, over real sockets."""

import asyncio
import json
import socket
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientConnectionError, ClientSession

from sbpair.amqp.message import Sections
from sbpair.cli.page.emulator_page import page_of
from sbpair.cli.page.page_server import PageServer
from sbpair.emulator import server
from sbpair.emulator.bearer_tokens import ARM_AUDIENCES
from sbpair.emulator.entities.description import QueueDescription
from sbpair.emulator.entities.namespace import Namespace
from sbpair.emulator.entities.stored_message import StoredMessage
from sbpair.emulator.server import EmulatorOptions, Ready
from sbpair.errors import MachineLacks, NameInvalid, PortInUse, UsageError
from sbpair.operating_system import listen
from sbpair.testing import Emulator
from sbpair.timespan import TICKS_PER_MS
from tests.emulator.consumers import CreditConsumer
from tests.emulator.peer import Echo, eof, raw_connection
from tests.kit.async_tests import InLoop
from tests.kit.sas import sign
from tests.kit.waiting import until


def port_of(emulator: Emulator, name: str = "contoso") -> int:
    return int(emulator.namespaces[name].authority.rpartition(":")[2])


def connected(emulator: Emulator, name: str = "contoso") -> Any:
    return raw_connection(emulator.namespaces[name].authority)


@pytest.fixture(autouse=True)
def parrots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answer AMQP by an echo: these tests are about ports."""
    monkeypatch.setattr("sbpair.emulator.namespace_port.AmqpConnection", lambda *_: Echo())


def parrot_emulator(*names: str) -> Emulator:
    return Emulator([(name, 0) for name in names or ("contoso",)])


@pytest.fixture
def emulator() -> InLoop:
    return InLoop(parrot_emulator)


def control(emulator: Emulator) -> str:
    return f"http://127.0.0.1:{port_of(emulator)}/$control"


async def call(emulator: Emulator, method: str, path: str, document: object = None) -> tuple[int, dict]:
    data = document if isinstance(document, bytes | None) else json.dumps(document).encode()
    url = f"{control(emulator)}/{path}"
    async with ClientSession() as session, session.request(method, url, data=data) as answer:
        return answer.status, await answer.json()


async def namespace_info(emulator: Emulator) -> int:
    namespace = emulator.namespaces["contoso"]
    token = sign(namespace.keys[0], f"https://{namespace.authority}", emulator.clock.now_ms() // 1000 + 60)
    url = f"http://{namespace.authority}/$namespaceinfo?api-version=2021-05"
    async with ClientSession(headers={"Authorization": token}) as session, session.get(url) as answer:
        return answer.status


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
@pytest.mark.parametrize(("host", "answers"), [("127.0.0.1", True), ("127.0.0.2", False)])
async def test_the_same_port_of_ipv6s_localhost_is_served_too(host: str, answers: bool) -> None:
    async with Emulator([("contoso", 0)], host=host) as emulator, ClientSession() as session:
        port = emulator.namespaces["contoso"].authority.rpartition(":")[2]
        try:
            async with session.get(f"http://[::1]:{port}/health") as answer:
                assert (answer.status, answers) == (200, True)
        except ClientConnectionError:
            assert not answers
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as taken:
        async with Emulator([("contoso", taken.getsockname()[1])]) as emulator:
            assert emulator.namespaces["contoso"].authority == f"127.0.0.1:{taken.getsockname()[1]}"


async def test_the_page_is_made_for_the_first_browser_alone() -> None:
    made: list[PageServer] = []

    def make(emulator: Emulator) -> PageServer:
        made.append(page_of(emulator, may_act=False))
        return made[0]

    async with Emulator(page=make) as emulator, ClientSession() as browser:
        assert (await namespace_info(emulator), (await call(emulator, "GET", "state"))[0], made) == (200, 200, [])
        for _ in range(2):
            async with browser.get(f"http://127.0.0.1:{port_of(emulator)}/$page/") as answer:
                assert (answer.status, len(made)) == (200, 1)


@pytest.mark.parametrize(
    ("first", "rest", "answer"),
    [
        (b"AMQP\x00", b"", b"AMQP\x00"),
        (b"GET /$control/state HTTP/1.1\r\nHost: localhost\r\n\r\n", b"", b"HTTP/1.1 200"),
        # It begins like the path of a WebSocket.
        (b"GET /$service", b"bus/web?api-version=2021-05 HTTP/1.1\r\nHost: localhost\r\n\r\n", b"HTTP/1.1 401"),
        (b"GET HTTPS://localhost/$service", b"bus/web HTTP/1.1\r\nHost: localhost\r\n\r\n", b"HTTP/1.1 401"),
        (b"GET http://localhost/$servicebus/websocket", b" HTTP/1.1\r\nHost: localhost\r\n\r\n", b"HTTP/1.1 426"),
        (b"GET http://localhost", b"/$control/state HTTP/1.1\r\nHost: localhost\r\n\r\n", b"HTTP/1.1 200"),
    ],
)
async def test_first_bytes_may_come_one_by_one(emulator: Emulator, first: bytes, rest: bytes, answer: bytes) -> None:
    async with connected(emulator) as (reader, writer):
        for piece in (*(bytes([byte]) for byte in first), rest):
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        assert await reader.readexactly(len(answer)) == answer


async def test_a_target_in_the_absolute_form_is_its_path() -> None:
    """RFC 9112, 3.2.2: clients of Atom and of Resource Manager may send it, as they do to a proxy."""
    async with Emulator([("contoso", 0)], options=EmulatorOptions(identity=True)) as emulator:
        namespace = emulator.namespaces["contoso"]
        signed = sign(namespace.keys[0], f"https://{namespace.authority}", emulator.clock.now_ms() // 1000 + 60)
        bearer = f"Bearer {emulator.bearers.issue(ARM_AUDIENCES[1], emulator.clock.now_ms())[0]}"
        for path, token in (
            ("/$namespaceinfo?api-version=2021-05", signed),
            ("/subscriptions?api-version=2022-12-01", bearer),
        ):
            for origin in ("", f"http://{namespace.authority}", "https://localhost"):
                async with connected(emulator) as (reader, writer):
                    head = f"GET {origin}{path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: {token}\r\n\r\n"
                    writer.write(head.encode())
                    assert await reader.readexactly(12) == b"HTTP/1.1 200", (origin, path)


@pytest.mark.parametrize("garbage", [b"\x00", b"\x16\x03\x01\x02\x00", b"AMQQ", b"GETX", b"A" * 100_000])
async def test_unknown_first_bytes_end_the_connection(emulator: Emulator, garbage) -> None:
    async with connected(emulator) as (reader, writer):
        writer.write(garbage)
        assert await eof(reader)
    assert await namespace_info(emulator) == 200


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET nothing\x00\x01\r\n\r\n",
        b"POST\x01\x02\xff\xfe\r\n\r\n",
        b"GET / HTTP/1.1\r\nAuthorization : SharedAccessSignature sig=secret\r\n\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: x\r\n\r\n",
        b"PUT /secret" + b"x" * 20_000,
    ],
)
async def test_invalid_http_is_logged_in_one_line(request_bytes, caplog) -> None:
    with caplog.at_level("DEBUG", "sbpair"), caplog.at_level("DEBUG", "aiohttp"):
        async with Emulator([("contoso", 0)]) as emulator, connected(emulator) as (reader, writer):
            writer.write(request_bytes)
            assert (await reader.read()).startswith(b"HTTP/1.0 400")
    assert [record.levelname for record in caplog.records if record.name != "asyncio"] == ["INFO"]
    assert "secret" not in caplog.text


async def test_a_port_in_use_is_reported_and_no_port_opens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        first, second = free.getsockname()[1], taken.getsockname()[1]
        free.close()
        with pytest.raises(PortInUse, match=str(second)) as refused:
            async with Emulator([("contoso", first), ("contoso-dr", second)]):
                pass
        assert refused.value.hint
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", first)


async def test_a_port_can_be_reused_at_once() -> None:
    port = 0
    for _ in range(3):
        async with Emulator([("contoso", port)]) as emulator:
            port = port_of(emulator)
            async with connected(emulator) as (reader, writer):
                writer.write(b"AMQP")
                await reader.readexactly(4)


async def test_stopping_ends_every_connection() -> None:
    async with AsyncExitStack() as stack:
        async with Emulator([("contoso", 0)]) as emulator:
            silent, _ = await stack.enter_async_context(connected(emulator))
            amqp, writer = await stack.enter_async_context(connected(emulator))
            writer.write(b"AMQP")
            await amqp.readexactly(4)
            http, writer = await stack.enter_async_context(connected(emulator))
            writer.write(b"GET /$control/state HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await http.readuntil(b"]}]}")
        assert [await eof(each) for each in (silent, amqp, http)] == [True, True, True]


@pytest.mark.parametrize(
    ("namespaces", "error"),
    [
        ([], UsageError),
        ([("con toso", 0)], NameInvalid),
        ([("c" * 51, 0)], NameInvalid),
        ([("contoso", 65536)], UsageError),
        ([("contoso", 0), ("Contoso", 0)], UsageError),
    ],
)
def test_invalid_names_and_ports_are_refused(namespaces, error) -> None:
    with pytest.raises(error):
        Emulator(namespaces)


def test_a_host_of_another_machine_cannot_be_bound() -> None:
    with pytest.raises(UsageError, match=r"192\.0\.2\.1"):
        listen("192.0.2.1", 0)


SPACES = [f"space-{number}" for number in range(24)]


@pytest.mark.parametrize("starts", [10, pytest.param(200, marks=[pytest.mark.slow, pytest.mark.timeout_seconds(600)])])
async def test_a_client_that_waits_for_the_start_gets_all_or_nothing(starts: int) -> None:
    def create(namespace: Namespace) -> None:
        namespace.create_queue("orders")

    for _ in range(starts):
        sockets = [listen("127.0.0.1", 0) for _ in SPACES]
        ports = [each.getsockname()[1] for each in sockets]
        for each in sockets:
            each.close()
        state = b"GET /$control/state HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
        atom = state.replace(b"$control/state", b"$namespaceinfo?api-version=2021-05")
        async with asyncio.TaskGroup() as group:
            states = [group.create_task(patient(port, state)) for port in (ports[0], ports[-1])]
            refused = group.create_task(patient(ports[0], atom))
            header = group.create_task(patient(ports[-1], b"AMQP\x03\x01\x00\x00", 8))
            # The clients are refused at first.
            await asyncio.sleep(0)
            async with Emulator(list(zip(SPACES, ports, strict=True)), create_entities=create):
                assert await header == b"AMQP\x03\x01\x00\x00"
                # Without a token.
                assert (await refused).startswith(b"HTTP/1.1 401 ")
                for each in states:
                    found = json.loads((await each).partition(b"\r\n\r\n")[2])["namespaces"]
                    assert [(one["name"], len(one["queues"])) for one in found] == [(name, 1) for name in SPACES]


async def patient(port: int, request: bytes, size: int = -1) -> bytes:
    """Connect as soon as the port is open, send a request, and return the answer, or `size` bytes of it."""
    while True:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            break
        except ConnectionRefusedError:
            await asyncio.sleep(0)
    try:
        writer.write(request)
        return await (reader.read() if size < 0 else reader.readexactly(size))
    finally:
        writer.transport.abort()


async def test_the_ready_file_exists_while_all_ports_accept(tmp_path: Path) -> None:
    path = tmp_path / "ready.json"
    path.write_text("left by an earlier run")
    ready: asyncio.Future[Ready] = asyncio.get_running_loop().create_future()
    wanted = [("contoso", 0), ("contoso-dr", 0)]
    task = asyncio.create_task(server.serve(wanted, ready_file=path, on_ready=ready.set_result), name="emulator")
    seen, written = await ready, path.read_text()
    described = json.loads(written)["namespaces"]
    for each in described:
        _, writer = await asyncio.open_connection("127.0.0.1", int(each["endpoint"].rpartition(":")[2]))
        writer.close()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert written == json.dumps(seen.as_document()) + "\n"
    assert list(tmp_path.iterdir()) == []
    assert [each["name"] for each in described] == ["contoso", "contoso-dr"]
    assert described[0]["connection_string"] == (
        f"Endpoint={described[0]['endpoint']};SharedAccessKeyName=RootManageSharedAccessKey;"
        "SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true"
    )


async def test_an_unwritable_ready_file_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(MachineLacks, match="nowhere"):
        await server.serve([("contoso", 0)], ready_file=tmp_path / "nowhere" / "ready.json")


async def test_an_outage_breaks_connections_but_not_the_control_api() -> None:
    async with parrot_emulator("contoso", "contoso-dr") as emulator:
        async with connected(emulator) as (reader, writer), connected(emulator, "contoso-dr") as (other, other_writer):
            for each in (writer, other_writer):
                each.write(b"AMQP")
            await reader.readexactly(4)
            await other.readexactly(4)
            status, answer = await call(emulator, "POST", "faults", {"kind": "namespace-down", "namespace": "contoso"})
            assert status == 201
            assert await eof(reader)
            other_writer.write(b"still here")
            assert await other.readexactly(10) == b"still here"
        async with connected(emulator) as (reader, writer):
            writer.write(b"AMQP")
            assert await eof(reader)
        with pytest.raises(ClientConnectionError):
            await namespace_info(emulator)
        _, state = await call(emulator, "GET", "state")
        assert state["faults"] == {answer["id"]: {"kind": "namespace-down", "namespace": "contoso"}}
        assert [each["down"] for each in state["namespaces"]] == [True, False]
        assert (await call(emulator, "DELETE", f"faults/{answer['id']}"))[0] == 200
        assert await namespace_info(emulator) == 200
        assert (await call(emulator, "DELETE", f"faults/{answer['id']}"))[0] == 404


async def test_advancing_the_clock_runs_due_timers(emulator: Emulator) -> None:
    queue = emulator.namespaces["contoso"].create_queue("orders")
    queue.send([StoredMessage(Sections(), 10)])
    queue.messages.receive(1)
    before = emulator.clock.now_ms()
    _, answer = await call(emulator, "POST", "clock", {"advance_ms": 60_000})
    assert answer["now_ms"] >= before + 60_000
    _, state = await call(emulator, "GET", "state")
    zeros = dict.fromkeys(("locked", "scheduled", "dead_letter", "transfer", "transfer_dead_letter"), 0)
    expected = {"path": "orders", "active": 1, **zeros, "size_bytes": 10, "oldest_ms": queue.messages.oldest_ms()}
    assert state["namespaces"][0]["queues"] == [expected]


@pytest.mark.parametrize(
    ("path", "document", "where"),
    [
        ("faults", b"{", "body"),
        ("faults", b"[" * 50_000, "body"),
        ("faults", b" " * 70_000, "body"),
        ("faults", [], "body"),
        ("faults", {"namespace": "contoso"}, "kind"),
        ("faults", {"kind": "namespace-down"}, "namespace"),
        ("faults", {"kind": "meteor", "namespace": "contoso"}, "kind"),
        ("faults", {"kind": "namespace-down", "namespace": "fabrikam"}, "namespace"),
        ("faults", {"kind": "namespace-down", "namespace": 1}, "namespace"),
        ("faults", {"kind": "namespace-down", "namespace": "contoso", "colour": "red"}, "colour"),
        ("faults", {"kind": "namespace-down", "namespace": "contoso", "ms": "1"}, "ms"),
        ("clock", {"advance_ms": -1}, "advance_ms"),
        ("clock", {"advance_ms": True}, "advance_ms"),
        ("clock", {"advance": 1}, "body"),
    ],
)
async def test_the_answer_to_a_bad_control_request_names_the_field(emulator: Emulator, path, document, where) -> None:
    status, answer = await call(emulator, "POST", path, document)
    assert (status, answer["error"]["where"]) == (400, where)
    assert not emulator.namespaces["contoso"].is_down


async def test_a_web_page_cannot_use_the_control_api(emulator: Emulator) -> None:
    """A page may send such a request to any address, without asking: a POST of plain text."""
    headers = {"Origin": "http://page.example", "Content-Type": "text/plain"}
    async with ClientSession(headers=headers) as session:
        for path in ("clock", "faults"):
            async with session.post(f"{control(emulator)}/{path}", data=b'{"advance_ms": 60000}') as answer:
                assert (answer.status, "Origin" in (await answer.json())["error"]["message"]) == (403, True)


NAMES = ("localhost", "LOCALHOST:5672", "127.0.0.1", "127.0.0.2:1", "[::1]:5672", "a.localhost")
OWN = ("contoso.servicebus.windows.net", "contoso.servicebus.windows.net.:5671")
REACHABLE = ("10.0.0.7:5300", "[fd00::7]", "servicebus:5300")
STRANGE = (
    "",
    "page.example",
    "localhost.page.example:5672",
    "page.example:127.0.0.1",
    "[::1",
    "127.0.0.1.page.example",
)


@pytest.mark.parametrize(
    ("host", "accepted", "refused"),
    [("127.0.0.1", (*NAMES, *OWN), (*REACHABLE, *STRANGE)), ("0.0.0.0", (*NAMES, *OWN, *REACHABLE), STRANGE)],  # noqa: S104
)
async def test_the_control_api_is_used_by_the_emulators_names_alone(host, accepted, refused) -> None:
    """A page of a host name that is made to lead to this machine sends no Origin with a GET, and its own name."""
    statuses = {}
    async with Emulator([("contoso", 0)], host=host) as emulator, ClientSession() as session:
        for name in (*accepted, *refused):
            async with session.get(f"{control(emulator)}/state", headers={"Host": name}) as answer:
                statuses[name] = answer.status
    assert statuses == dict.fromkeys(accepted, 200) | dict.fromkeys(refused, 403)


async def test_a_bug_of_the_control_api_is_logged_without_values(monkeypatch, caplog) -> None:
    kept = "SharedAccessKey=secret"

    def failing() -> dict:
        raise RuntimeError(kept)

    async with Emulator([("contoso", 0)]) as emulator, ClientSession() as session:
        monkeypatch.setattr(emulator.faults, "active", failing)
        url = f"http://{emulator.namespaces['contoso'].authority}/$control/state"
        async with session.get(url) as answer:
            assert answer.status == 500
        monkeypatch.undo()
        async with session.get(url) as answer:
            assert answer.status == 200
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert kept not in caplog.text


async def test_an_unknown_path_of_the_control_api_is_not_found(emulator: Emulator) -> None:
    assert (await call(emulator, "GET", "nothing"))[0] == 404


async def test_the_timer_expires_locks_by_itself(emulator: Emulator) -> None:
    description = QueueDescription(lock_duration=20 * TICKS_PER_MS)
    queue = emulator.namespaces["contoso"].create_queue("orders", description)
    queue.send([StoredMessage(Sections(), 10)])
    queue.messages.receive(1)
    waiting = CreditConsumer(queue.messages, credit=1)
    waiting.wake()
    await until(lambda: waiting.got)
    assert queue.messages.peek(0, 1)[0].delivery_count == 1
