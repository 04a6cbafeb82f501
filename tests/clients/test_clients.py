"""Clients of many makers against the emulator. A row of CLIENTS says what each can do; each behaviour is told once."""

import base64
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from sbpair.amqp.message import APPLICATION_PROPERTIES, MESSAGE_ANNOTATIONS, Properties, Sections, data_body, encode_map
from sbpair.amqp.types import Byte, Float, Int, Long, Short, Symbol, Timestamp, UByte, UInt, ULong, UShort
from sbpair.emulator.entities.queue import QueueEntity
from sbpair.emulator.entities.stored_message import DEFERRED, LOCKED, SCHEDULED, StoredMessage
from sbpair.testing import EmulatorOptions
from tests.clients.driver import CLIENTS, SETTLES, Client, Driver, driven
from tests.integration.node.install import NotHere
from tests.kit.running import NAMESPACE, PATIENCE_SECONDS, Running
from tests.kit.sas import sign
from tests.kit.stranded import put

pytestmark = pytest.mark.slow
LARGE = 180_000
OnPort = Callable[[int, EmulatorOptions], Running]
SOON_MS = 300_000


def able(ability: str) -> Any:
    """Parametrize with each client that has an ability."""
    clients = [client for client in CLIENTS if ability in client.does]
    return pytest.mark.parametrize("client", clients, ids=[each.name for each in clients])


SETTLEMENTS = [(client, how) for client in CLIENTS for how in SETTLES if how in client.does]


@pytest.fixture(scope="module")
def served() -> Iterator[Running]:
    with Running([(NAMESPACE, 0)], options=EmulatorOptions(tls=True)) as running:
        yield running


@pytest.fixture
def on_port() -> OnPort:
    """Return a function that runs what clients connect to on a port."""
    return lambda port, options: Running([(NAMESPACE, port)], options=options)


@contextmanager
def started_here(client: Client, running: Running, *, signs_in: bool = True) -> Iterator[Driver]:
    """Start a client, or skip the test where its packages cannot be had."""
    with ExitStack() as stack:
        try:
            driver = stack.enter_context(driven(client, running, signs_in=signs_in))
        except NotHere as error:
            pytest.skip(str(error))
        yield driver


@pytest.fixture
def started(client: Client, served: Running) -> Iterator[Driver]:
    with started_here(client, served) as driver:
        yield driver


def stored(running: Running, queue: QueueEntity) -> list[StoredMessage]:
    """Return the messages of a queue, in their order."""
    return running.do(lambda: queue.messages.peek(0, 100))


def wait_until(holds: Callable[[], object]) -> None:
    """Wait for the effect of what a client does not wait for itself."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < deadline


def states(running: Running, queue: QueueEntity) -> list[int]:
    return [message.state for message in stored(running, queue)]


def receive(driver: Driver, path: str, **options: Any) -> dict[str, Any]:
    received: dict[str, Any] = driver("receive", path=path, **options)
    return received


@pytest.mark.parametrize(("client", "how"), SETTLEMENTS, ids=[f"{client.name}-{how}" for client, how in SETTLEMENTS])
def test_a_settlement_has_its_effect(started: Driver, how: str, served: Running) -> None:
    queue = served.queue()
    started("send", to=queue.path, body="x")
    received = receive(started, queue.path)
    assert (received["body"], received["count"]) == ("x", 0)
    assert states(served, queue) == [LOCKED]
    started("settle", delivery=received["delivery"], how=how)
    if how in ("release", "modify"):
        again = receive(started, queue.path)
        assert (again["body"], again["count"]) == ("x", how == "modify")
    else:
        wait_until(lambda: states(served, queue) == {"defer": [DEFERRED]}.get(how, []))
    dead = served.do(lambda: [message.dead_letter for message in queue.dead_letters.peek(0, 9)])
    assert [each and each.reason for each in dead] == (["told"] if how == "reject" else [])


@able("dead-letters")
def test_dead_letters_are_received(started: Driver, served: Running) -> None:
    queue = served.queue()
    started("send", to=queue.path, body="x")
    (message,) = served.do(lambda: queue.messages.receive(1))
    served.do(lambda: queue.messages.dead_letter(message.lock_token, "reason", "text"))
    received = receive(started, f"{queue.path}/$DeadLetterQueue")
    assert (received["body"], received["properties"]) == ("x", 2)
    started("settle", delivery=received["delivery"], how="accept")
    wait_until(lambda: not served.do(lambda: len(queue.dead_letters)))


@able("sessions")
def test_a_session_is_received_by_its_id_and_the_next_one_without(started: Driver, served: Running) -> None:
    queue = served.queue(requires_session=True)
    for session in ("a", "b"):
        started("send", to=queue.path, body=session, session=session)
    for wanted, found in (("b", "b"), (None, "a")):
        received = receive(started, queue.path, session=wanted)
        assert (received["body"], received["session"]) == (found, found)
        started("settle", delivery=received["delivery"], how="accept")
    wait_until(lambda: not stored(served, queue))


@able("schedule")
def test_a_scheduled_message_waits_for_its_time(started: Driver, served: Running) -> None:
    queue = served.queue()
    at = served.do(served.emulator.clock.now_ms) + SOON_MS
    started("send", to=queue.path, body="x", at=at)
    (message,) = stored(served, queue)
    assert message.state == SCHEDULED
    # A client may know delays only.
    assert at <= (message.scheduled_at_ms or 0) < at + 5_000
    served.advance(SOON_MS / 1000 + 5)
    assert receive(started, queue.path)["body"] == "x"


@able("accept")
def test_a_message_of_many_frames_arrives_whole(started: Driver, served: Running) -> None:
    queue = served.queue()
    body = "".join(map(str, range(LARGE)))[:LARGE]
    started("send", to=queue.path, body=body)
    assert receive(started, queue.path)["body"] == body


@able("raw")
def test_a_message_with_values_of_every_type_is_read(started: Driver, served: Running) -> None:
    queue = served.queue()
    properties = {
        "text": "t",
        "int": Int(-5),
        "long": Long(2**40),
        "ubyte": UByte(255),
        "ushort": UShort(9),
        "uint": UInt(0),
        "ulong": ULong(2**63),
        "byte": Byte(-1),
        "short": Short(-300),
        "bytes": b"\x00",
        "truth": True,
        "none": None,
        "uuid": uuid.UUID(int=7),
        "time": Timestamp(-1),
        "float": Float(1.5),
        "double": 0.1,
    }
    payload = Sections(
        properties=Properties(message_id=uuid.UUID(int=7), user_id=b"\xff", creation_time=1).encode(),
        application_properties=encode_map(APPLICATION_PROPERTIES, properties),
        body=data_body(b"x"),
    )
    served.do(lambda: put(queue, payload.join()))
    received = receive(started, queue.path)
    assert (received["body"], received["properties"]) == ("x", len(properties))
    started("settle", delivery=received["delivery"], how="accept")
    wait_until(lambda: not stored(served, queue))


@able("requests")
def test_requests_to_the_management_node_are_answered(started: Driver, served: Running) -> None:
    queue = served.queue()

    def request(operation: str, **body: Any) -> tuple[int, list[str]]:
        properties = {"operation": f"com.microsoft:{operation}"}
        answer = started("request", node=f"{queue.path}/$management", properties=properties, body=body)
        return answer["status"], answer["keys"]

    at = Timestamp(served.do(served.emulator.clock.now_ms) + SOON_MS)
    annotations = encode_map(MESSAGE_ANNOTATIONS, {Symbol("x-opt-scheduled-enqueue-time"): at})
    later = Sections(message_annotations=annotations, body=data_body(b"later")).join()
    message = {"message-id": {"text": "m"}, "message": {"binary": base64.b64encode(later).decode()}}
    assert request("schedule-message", messages={"maps": [message]}) == (200, ["sequence-numbers"])
    (scheduled,) = stored(served, queue)
    assert scheduled.state == SCHEDULED
    numbers = {"sequence-numbers": {"longs": [scheduled.sequence_number]}}
    assert request("cancel-scheduled-message", **numbers) == (200, [])
    assert request("cancel-scheduled-message", **numbers)[0] == 404
    started("send", to=queue.path, body="x")
    peeked = request("peek-message", **{"from-sequence-number": {"long": 0}, "message-count": {"int": 9}})
    assert peeked == (200, ["messages"])
    receive(started, queue.path)
    (locked,) = stored(served, queue)
    until_ms = locked.locked_until_ms
    served.advance(20)
    tokens = {"lock-tokens": {"uuids": [str(locked.lock_uuid)]}}
    assert request("renew-lock", **tokens) == (200, ["expirations"])
    assert locked.locked_until_ms >= until_ms + 20_000
    assert request("update-disposition", **{"disposition-status": {"text": "completed"}}, **tokens)[0] == 200
    assert stored(served, queue) == []


@able("token")
def test_a_token_opens_links_after_an_anonymous_sign_in(served: Running, client: Client) -> None:
    queue = served.queue()
    audience = f"sb://{served.authority}/{queue.path}"
    expiry = served.do(served.emulator.clock.now_ms) // 1000 + 600
    told = {"operation": "put-token", "type": "servicebus.windows.net:sastoken", "name": audience}
    with started_here(client, served, signs_in=False) as driver:
        token = {"text": sign(served.rule, audience, expiry)}
        assert driver("request", node="$cbs", properties=told, body={"text": "not a token"})["status"] == 401
        assert driver("request", node="$cbs", properties=told, body=token)["status"] in (200, 202)
        driver("send", to=queue.path, body="x")
        assert receive(driver, queue.path)["body"] == "x"


@able("transactions")
def test_a_transaction_exchanges_a_message_for_another_or_does_nothing(started: Driver, served: Running) -> None:
    for commits, late, ended, left in (
        (False, 0, "aborted", "in"),
        (True, 0, "committed", "out"),
        (True, 60, "refused", "in"),
    ):
        queue = served.queue()
        started("send", to=queue.path, body="in")
        received = receive(started, queue.path)
        started("begin-exchange", delivery=received["delivery"], to=queue.path, body="out")
        served.advance(late)
        assert started("end-exchange", commits=commits) == ended
        assert receive(started, queue.path)["body"] == left


@able("reconnect")
def test_a_client_goes_on_after_a_restart(client: Client, on_port: OnPort, tmp_path: Path) -> None:
    options = EmulatorOptions(tls=True, ca_file=tmp_path / "ca.pem", data=tmp_path / "data")
    with ExitStack() as stack:
        with on_port(0, options) as running:
            port = int(running.authority.split(":")[1])
            running.do(lambda: running.namespace.create_queue("orders"))
            driver = stack.enter_context(started_here(client, running))
            driver("send", to="orders", body="before")
        with on_port(port, options) as running:
            driver("send", to="orders", body="after")
            for body in ("before", "after"):
                received = receive(driver, "orders")
                assert received["body"] == body
                driver("settle", delivery=received["delivery"], how="accept")
            wait_until(lambda: not stored(running, running.namespace.queue("orders")))
