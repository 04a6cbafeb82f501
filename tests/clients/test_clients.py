"""Clients of many makers against the emulator. A row of CLIENTS says what each can do; each behaviour is told once."""

import base64
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from sbpair.amqp.message import (
    APPLICATION_PROPERTIES,
    DELIVERY_ANNOTATIONS,
    FOOTER,
    MESSAGE_ANNOTATIONS,
    Properties,
    Sections,
    data_body,
    encode_map,
)
from sbpair.amqp.types import Byte, Float, Int, Long, Short, Symbol, Timestamp, UByte, UInt, ULong, UShort
from sbpair.emulator.entities.queue import QueueEntity
from sbpair.emulator.entities.rules import SubscriptionRule
from sbpair.emulator.entities.stored_message import DEFERRED, LOCKED, SCHEDULED, StoredMessage, partition_id
from sbpair.emulator.entities.topic import TopicEntity
from sbpair.rules.filters import CorrelationRuleFilter
from sbpair.rules.values import from_amqp
from sbpair.testing import EmulatorOptions
from sbpair.timespan import TICKS_PER_SECOND
from tests.clients.driver import CLIENTS, SETTLES, Client, Driver, driven
from tests.integration.node.install import NotHere
from tests.kit.running import NAMESPACE, PATIENCE_SECONDS, Running
from tests.kit.sas import sign
from tests.kit.stranded import put

LARGE = 180_000
OnPort = Callable[[int, EmulatorOptions], Running]
SOON_MS = 300_000


def case(client: Client, shown: str, *values: str) -> Any:
    """Return the parameters of a test that shows abilities of a client."""
    marks = () if client.is_quick else pytest.mark.slow
    return pytest.param(client, *values, id=f"{client.name}: {shown}", marks=marks)


def able(ability: str) -> Any:
    """Parametrize with each client that has an ability."""
    return pytest.mark.parametrize("client", [case(each, ability) for each in CLIENTS if ability in each.does])


OVER = [
    case(client, f"{how} {over}", over, how)
    for client in CLIENTS
    for how in SETTLES
    if how in client.does
    for over in (client.transports if how == "accept" else client.transports[:1])
]


@pytest.fixture(scope="module")
def served() -> Iterator[Running]:
    with Running([(NAMESPACE, 0)], options=EmulatorOptions(tls=True)) as running:
        yield running


@pytest.fixture
def on_port() -> OnPort:
    """Return a function that runs what clients connect to on a port."""
    return lambda port, options: Running([(NAMESPACE, port)], options=options)


@contextmanager
def started_here(client: Client, running: Running, **options: Any) -> Iterator[Driver]:
    """Start a client, or skip the test where its packages cannot be had."""
    with ExitStack() as stack:
        try:
            driver = stack.enter_context(driven(client, running, **options))
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


def new_topic(running: Running) -> TopicEntity:
    return running.do(lambda: running.namespace.create_topic(f"topic-{uuid.uuid4().hex[:8]}"))


def states(running: Running, queue: QueueEntity) -> list[int]:
    return [message.state for message in stored(running, queue)]


def receive(driver: Driver, path: str, **options: Any) -> dict[str, Any]:
    received: dict[str, Any] = driver("receive", path=path, **options)
    return received


@pytest.mark.parametrize(("client", "over", "how"), OVER)
def test_a_settlement_has_its_effect(client: Client, over: str, how: str, served: Running) -> None:
    queue = served.queue()
    with started_here(client, served, transport=over) as driver:
        driver("send", to=queue.path, body="x")
        received = receive(driver, queue.path)
        assert (received["body"], received["count"]) == ("x", 0)
        assert states(served, queue) == [LOCKED]
        driver("settle", delivery=received["delivery"], how=how)
        if how in ("release", "modify"):
            again = receive(driver, queue.path)
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


@able("session-case")
def test_a_session_is_received_by_its_id_in_another_case(started: Driver, served: Running) -> None:
    queue = served.queue(requires_session=True)
    started("send", to=queue.path, body="x", session="Session")
    received = receive(started, queue.path, session="sESSION")
    assert (received["body"], received["session"].lower()) == ("x", "session")
    started("settle", delivery=received["delivery"], how="accept")
    wait_until(lambda: not stored(served, queue))


@able("session-state")
def test_the_state_of_a_session_that_is_set_to_nothing_is_null(started: Driver, served: Running) -> None:
    queue = served.queue(requires_session=True)
    started("send", to=queue.path, body="x", session="s")
    delivery = receive(started, queue.path, session="s")["delivery"]
    assert started("get-state", delivery=delivery) is None
    for state in ("known", None):
        started("set-state", delivery=delivery, state=state)
        assert started("get-state", delivery=delivery) == state


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


@able("large")
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


@able("string-keys")
def test_annotations_and_a_footer_with_string_keys_are_read(started: Driver, served: Running) -> None:
    queue = served.queue()
    payload = Sections(
        delivery_annotations=encode_map(DELIVERY_ANNOTATIONS, {"to": "t"}),
        message_annotations=encode_map(MESSAGE_ANNOTATIONS, {"of": "m"}),
        body=data_body(b"x"),
        footer=encode_map(FOOTER, {"end": "f"}),
    )
    served.do(lambda: put(queue, payload.join()))
    received = receive(started, queue.path)
    assert received["body"] == "x"
    started("settle", delivery=received["delivery"], how="accept")
    wait_until(lambda: not stored(served, queue))


@able("nearly-full")
def test_a_message_as_large_as_it_may_be_is_received(started: Driver, served: Running) -> None:
    queue = served.queue()
    for size in (queue.max_message_bytes - 300, queue.max_message_bytes - 100, queue.max_message_bytes):
        body = "x" * (2 * size - len(data_body(bytes(size))))
        payload = data_body(body.encode())
        assert len(payload) == size
        served.do(partial(put, queue, payload))
        received = receive(started, queue.path)
        assert received["body"] == body
        started("settle", delivery=received["delivery"], how="accept")
    wait_until(lambda: not stored(served, queue))


@able("default-ttl")
def test_the_time_to_live_of_the_entity_is_on_the_message(started: Driver, served: Running) -> None:
    queue = served.queue(default_message_time_to_live=90 * TICKS_PER_SECOND)
    started("send", to=queue.path, body="x")
    assert receive(started, queue.path)["ttl"] == 90_000


@able("partition-annotations")
def test_the_partition_is_on_the_message(started: Driver, served: Running) -> None:
    queue = served.queue(enable_partitioning=True)
    started("send", to=queue.path, body="x")
    (message,) = stored(served, queue)
    assert receive(started, queue.path)["partition"] == partition_id(message.sequence_number) > 0


@able("browse")
def test_browsed_messages_stay(started: Driver, served: Running) -> None:
    queue = served.queue()
    for body in ("a", "b", "c"):
        started("send", to=queue.path, body=body)
    assert started("browse", path=queue.path, count=3) == ["a", "b", "c"]
    assert len(stored(served, queue)) == 3
    assert receive(started, queue.path)["body"] == "a"


@able("settle-then-close")
def test_a_settlement_before_a_close_has_its_effect(started: Driver, served: Running) -> None:
    queue = served.queue()
    started("send", to=queue.path, body="x")
    received = receive(started, queue.path)
    began = time.monotonic()
    started("settle-then-close", delivery=received["delivery"])
    assert time.monotonic() - began < PATIENCE_SECONDS
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


@able("management-before-claim")
def test_links_to_management_may_come_before_their_token(served: Running, client: Client) -> None:
    queue = served.queue()
    node = f"{queue.path}/$management"
    audience = f"sb://{served.authority}/{queue.path}"
    told = {"operation": "put-token", "type": "servicebus.windows.net:sastoken", "name": audience}
    asked = {"operation": "com.microsoft:peek-message"}
    body = {"from-sequence-number": {"long": 0}, "message-count": {"int": 9}}
    token = {"text": sign(served.rule, audience, served.do(served.emulator.clock.now_ms) // 1000 + 600)}
    with started_here(client, served, signs_in=False) as driver:
        assert driver("request", node=node, properties=asked, body=body)["status"] == 401
        assert driver("request", node="$cbs", properties=told, body=token)["status"] in (200, 202)
        assert driver("request", node=node, properties=asked, body=body)["status"] == 204


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
        served.advance(60)  # a client may keep the lock of what it settled in a transaction
        assert receive(started, queue.path)["body"] == left


@able("settle-in-transaction")
def test_a_settlement_holds_if_its_transaction_commits(started: Driver, served: Running) -> None:
    for how, commits in product(("accept", "reject"), (False, True)):
        queue = served.queue()
        started("send", to=queue.path, body="x")
        received = receive(started, queue.path)
        started("begin-exchange", delivery=received["delivery"], how=how)
        assert states(served, queue) == [LOCKED]
        assert started("end-exchange", commits=commits) == ("committed" if commits else "aborted")
        assert bool(stored(served, queue)) is not commits
        assert served.do(partial(len, queue.dead_letters)) == (commits and how == "reject")


@able("via-subscription")
def test_a_message_is_exchanged_via_a_subscription(started: Driver, served: Running) -> None:
    queue, topic = served.queue(), new_topic(served)
    path = served.do(lambda: topic.create_subscription("s")).path
    served.do(lambda: put(topic, data_body(b"in")))
    # From here on, transactions span the entities of the client, by way of the first.
    started("span-entities")
    for commits in (False, True):
        received = receive(started, path)
        assert received["body"] == "in"
        started("begin-exchange", delivery=received["delivery"], to=queue.path, body="out")
        started("end-exchange", commits=commits)
        assert len(stored(served, queue)) == commits
        served.advance(60)


@able("rollback-redelivers")
def test_a_message_comes_again_after_a_rollback(started: Driver, served: Running) -> None:
    queue = served.queue()
    started("send", to=queue.path, body="x")
    for commits in (False, True):
        received = receive(started, queue.path)
        assert received["body"] == "x"
        started("begin-exchange", delivery=received["delivery"], how="accept")
        started("end-exchange", commits=commits)
    wait_until(lambda: not stored(served, queue))


@able("administration")
def test_entities_are_administrated(started: Driver, served: Running) -> None:
    topic = new_topic(served)
    name = f"{topic.path}-queue"
    started("create-queue", name=name)
    assert name in started("list-queues")
    assert started("has-subscription", topic=topic.path, name="missing") is False
    served.do(lambda: topic.create_subscription("there"))
    assert started("has-subscription", topic=topic.path, name="there") is True
    started("delete-queue", name=name)
    assert name not in served.do(lambda: [queue.path for queue in served.namespace.queues()])


@able("rules")
def test_the_properties_of_a_rule_keep_their_types(started: Driver, served: Running) -> None:
    topic = new_topic(served)
    subscription = served.do(lambda: topic.create_subscription("s"))
    values = {"int": Int(5), "double": 0.5, "boolean": True, "string": "5"}
    typed = tuple((name, from_amqp(value)) for name, value in values.items())
    rule = SubscriptionRule("typed", CorrelationRuleFilter(properties=typed))
    served.do(lambda: subscription.add_rule(rule))
    assert started("rule", topic=topic.path, subscription="s", name="typed") == {name: name for name in values}


@able("reconnect")
def test_a_client_goes_on_after_a_restart(client: Client, on_port: OnPort, tmp_path: Path) -> None:
    options = EmulatorOptions(tls=True, ca_file=tmp_path / "ca.pem", data=tmp_path / "data")
    over = "tls" if "tls" in client.does else None
    with ExitStack() as stack:
        with on_port(0, options) as running:
            port = int(running.authority.split(":")[1])
            running.do(lambda: running.namespace.create_queue("orders"))
            driver = stack.enter_context(started_here(client, running, transport=over))
            driver("send", to="orders", body="before")
        with on_port(port, options) as running:
            driver("send", to="orders", body="after")
            for body in ("before", "after"):
                received = receive(driver, "orders")
                assert received["body"] == body
                driver("settle", delivery=received["delivery"], how="accept")
            wait_until(lambda: not stored(running, running.namespace.queue("orders")))
