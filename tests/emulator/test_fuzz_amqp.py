"""Valid AMQP conversations, broken: frames, performatives and sections that are nearly right, through memory.

No error is swallowed, no conversation hangs or grows without bound, and a correct client is served afterwards.
`-m slow` runs more examples.
"""

import asyncio
import logging
import tracemalloc
import uuid
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sbpair.amqp import codec
from sbpair.amqp.connection import Connection
from sbpair.amqp.frames import AMQP_HEADER, frame
from sbpair.amqp.link import CreditChanged, Delivery
from sbpair.amqp.message import (
    APPLICATION_PROPERTIES,
    VALUE,
    Properties,
    Sections,
    data_body,
    encode_map,
    section,
    value_body,
)
from sbpair.amqp.performatives import (
    Accepted,
    Coordinator,
    Declare,
    Discharge,
    Modified,
    Rejected,
    Released,
    Source,
    Target,
    TransactionalState,
    Transfer,
)
from sbpair.amqp.session import Disposed
from sbpair.amqp.types import (
    Array,
    Byte,
    Char,
    Described,
    Float,
    Int,
    Long,
    Map,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)
from sbpair.amqp_server.server_connection import MAX_OUTPUT
from sbpair.emulator.clock import ManualClock
from sbpair.emulator.entities.description import QueueDescription
from sbpair.emulator.entities.namespace import Namespace
from sbpair.emulator.frontends.amqp import link_owner
from sbpair.emulator.frontends.amqp.amqp_connection import AmqpConnection
from sbpair.errors import ProtocolError
from tests.emulator.peer import ROOT_SIGN_IN

Draw = Any
QUEUE, SESSIONS, TOPIC = "orders", "sessions", "topic"
MAX_SECONDS = 60.0

OUTPUT_BOUND = 4 * MAX_OUTPUT
MEMORY_BOUND = 8_000_000
QUICK = settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=250)
LONG = settings(QUICK, max_examples=20_000)

INTERESTING = [
    None, True, False, Int(0), Int(-1), UByte(255), Byte(-128), UShort(65535), UInt(0), UInt(1), UInt(2**32 - 1),
    Int(2**31 - 1), Int(-(2**31)), Long(2**63 - 1), Long(-(2**63)), ULong(2**64 - 1), Timestamp(-(2**63)),
    Timestamp(2**63 - 1), Float(float("inf")), float("nan"), 1e308, "", "x" * 300, "\x00\ud7ff\U0010ffff", QUEUE,
    f"{QUEUE}/$management", f"{QUEUE}/$deadletterqueue", f"{TOPIC}/subscriptions/all", "/" * 50, Symbol(""),
    Symbol("com.microsoft:session-filter"), Symbol("x" * 300), b"", b"\xff" * 16, b"\x00Su\xa0\x01x", Char("x"), [],
    [[]], [None] * 200, Map(), Map([(None, None)]), Map([(Symbol("com.microsoft:session-filter"), None)]),
    Map([(b"operation", "com.microsoft:peek-message")]), Array([Long(0), Long(1)]), Array([], of=uuid.UUID),
    Described(Symbol("amqp:accepted:list"), []), Described(ULong(0x24), []), Described(ULong(0x26), []),
    Described(ULong(0x30), []), Described(ULong(0x31), []), Described(ULong(0x32), [b"0" * 32, False]),
    Described(ULong(0x34), [b"0" * 32, Described(ULong(0x24), [])]), Described(ULong(0x34), [b"no"]),
    Described(ULong(0x27), [True, True, Map()]), Described(ULong(0x25), [None]), Described(ULong(2**64 - 1), None),
]  # fmt: skip


@pytest.fixture(autouse=True)
def repeated_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give every transaction the same id, so that a recorded conversation is valid again."""
    monkeypatch.setattr(link_owner, "new_id", lambda: TXN_ID)


class Memory(asyncio.Transport):
    """The transport of a connection whose other end is the test."""

    def __init__(self, connection: asyncio.Protocol) -> None:
        super().__init__()
        self.connection = connection
        self.output = bytearray()
        self.total = 0
        self.closing = False
        connection.connection_made(self)

    def hear(self, data: bytes) -> None:
        if not self.closing:
            self.connection.data_received(data)

    def take(self) -> bytes:
        output, self.output = bytes(self.output), bytearray()
        return output

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.output += data
        self.total += len(data)

    def close(self) -> None:
        if not self.closing:
            self.closing = True
            asyncio.get_running_loop().call_soon(self.connection.connection_lost, None)

    abort = close

    def is_closing(self) -> bool:
        return self.closing

    def get_extra_info(self, name: str, default: Any = None) -> Any:  # noqa: ARG002  # no information is needed
        return default

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing: all output is taken at once."""

    def pause_reading(self) -> None:
        """Do nothing: the test decides what is read."""

    def resume_reading(self) -> None:
        """Do nothing: the test decides what is read."""


async def settled() -> None:
    """Run all callbacks that are due."""
    for _ in range(5):
        await asyncio.sleep(0)


class Client:
    """A correct client. `sent` holds the pieces that it sent."""

    def __init__(self, namespace: Namespace) -> None:
        self.connection = Connection(ROOT_SIGN_IN, container_id="good", hostname="h")
        self.transport = Memory(AmqpConnection(namespace))
        self.sent: list[bytes] = []
        self.events: list[Any] = []

    async def talk(self) -> None:
        """Exchange bytes until neither side has output."""
        while True:
            if out := self.connection.take():
                self.sent.append(out)
                self.transport.hear(out)
            await settled()
            answer = self.transport.take()
            if not out and not answer:
                return
            self.events += self.connection.receive(answer, 0.0)

    async def links(self, *addresses: str) -> list[Any]:
        """Attach a sender for `>address`, a receiver for `<address`, each in its own session."""
        made = []
        await self.talk()
        for address in addresses:
            session = self.connection.begin()
            await self.talk()
            is_sender, name = address[0] == ">", address[1:]
            link = (session.sender if is_sender else session.receiver)(address)
            filters = (
                Map([(Symbol("com.microsoft:session-filter"), "s")]) if name == SESSIONS and not is_sender else None
            )
            source = Source("good") if is_sender else Source(name, filter=filters)
            link.open(source=source, target=Target(name) if is_sender else Target("good"))
            await self.talk()
            made.append(link)
        return made

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    async def is_served(self) -> None:
        """Send a message and receive it."""
        sender, receiver = await self.links(">good", "<good")
        assert self.of(CreditChanged)
        sender.send(data_body(b"good"), b"t")
        await self.talk()
        assert isinstance(self.of(Disposed)[-1].state, Accepted)
        receiver.grant(1)
        await self.talk()
        (delivery,) = self.of(Delivery)
        assert delivery.payload.endswith(b"good")
        self.transport.close()
        await settled()


def furnished() -> Namespace:
    namespace = Namespace("contoso", ManualClock(), call_soon=asyncio.get_running_loop().call_soon)
    namespace.create_queue(QUEUE)
    namespace.create_queue("good")
    namespace.create_queue(SESSIONS, QueueDescription(requires_session=True))
    namespace.create_topic(TOPIC).create_subscription("all")
    return namespace


# Breaking values


def broken(draw: Draw, value: Any) -> Any:
    """Return the value with one change, at the top or deep inside."""
    inside = children(value)
    if not inside or draw(st.integers(0, 3)) == 0:
        return draw(st.sampled_from(INTERESTING))
    number = draw(st.integers(0, len(inside) - 1))
    how = draw(st.sampled_from(["in", "in", "in", "drop", "twice", "deeper"]))
    changed = {
        "in": lambda: [broken(draw, inside[number])],
        "drop": list,
        "twice": lambda: [inside[number]] * 2,
        "deeper": lambda: [nested(inside[number], draw(st.integers(1, 80)))],
    }[how]()
    return with_children(value, [*inside[:number], *changed, *inside[number + 1 :]])


def nested(value: Any, depth: int) -> Any:
    for _ in range(depth):
        value = [value]
    return value


def children(value: Any) -> list[Any]:
    if isinstance(value, Described):
        return [value.descriptor, value.value]
    if isinstance(value, Map):
        return [each for pair in value.pairs for each in pair]
    return list(value) if isinstance(value, list) else []


def with_children(value: Any, inside: list[Any]) -> Any:
    if isinstance(value, Described):
        return Described(*inside) if len(inside) == 2 else inside
    if isinstance(value, Map):
        return Map(list(zip(inside[::2], inside[1::2], strict=False)))
    return inside


def values_of(data: bytes) -> list[Any]:
    """Return the values of a frame: its performative and the sections of its payload."""
    values, position = [], 0
    while position < len(data):
        value, position = codec.decode(data, position)
        values.append(value)
    return values


def broken_bytes(draw: Draw, data: bytes) -> bytes:
    position = draw(st.integers(0, len(data)))
    rest = data[position:]
    return draw(
        st.sampled_from(
            [
                data[:position],
                data[:position] + rest[1:],
                data[:position] + b"\xff\xff\xff\xff" + rest[4:],
                data[:position] + b"\x00" + rest[1:],
                data[:position] + rest + rest,
                data[:position] + bytes([draw(st.integers(0, 255))]) + rest[1:],
            ]
        )
    )


# Valid conversations


def request(operation: str, **arguments: Any) -> bytes:
    return Sections(
        properties=Properties(message_id=f"{operation}-1", reply_to="good").encode(),
        application_properties=encode_map(APPLICATION_PROPERTIES, Map([("operation", f"com.microsoft:{operation}")])),
        body=value_body(Map([(name.replace("_", "-"), value) for name, value in arguments.items()])),
    ).join()


def message(number: int, **annotations: Any) -> bytes:
    named = {"x-opt-partition-key": "s"} | annotations
    return Sections(
        message_annotations=encode_map(0x72, Map([(Symbol(name), value) for name, value in named.items()])),
        properties=Properties(message_id=f"m{number}", group_id="s").encode(),
        application_properties=encode_map(APPLICATION_PROPERTIES, Map([("n", Int(number)), ("text", "t")])),
        body=data_body(b"x" * 50),
    ).join()


async def sends_and_settles(client: Client, address: str, source: str) -> None:
    sender, receiver = await client.links(f">{address}", f"<{source}")
    for number in range(6):
        sender.send(message(number), b"%d" % number)
    batch = b"".join(data_body(message(number)) for number in range(10, 13))
    sender.send(batch, b"batch", message_format=0x80013700)
    await client.talk()
    receiver.grant(6)
    await client.talk()
    outcomes: list[Any] = [Accepted(), Released(), Modified(True), Modified(True, True), Rejected(), None]
    for delivery, outcome in zip(client.of(Delivery), outcomes, strict=False):
        receiver.session.dispose(delivery.id, delivery.id, outcome, receiver=True, settled=outcome is None)
        await client.talk()
    receiver.drain() if hasattr(receiver, "drain") else receiver.grant(1)
    await client.talk()
    for link in (sender, receiver):
        link.close()
    await client.talk()
    client.connection.close()
    await client.talk()


async def asks(client: Client, address: str, *requests: bytes) -> None:
    node = f"{address}/$management"
    sender, asking, answers = await client.links(f">{address.partition('/')[0]}", f">{node}", f"<{node}")
    sender.send(message(1), b"1")
    if address == SESSIONS:
        await client.links(f"<{SESSIONS}")
    answers.grant(50)
    for number, each in enumerate(requests):
        asking.send(each, b"r%d" % number)
        await client.talk()


async def exchanges(client: Client) -> None:
    """Exchange a message for others in one transaction, and roll back another."""
    (seed,) = await client.links(f">{QUEUE}")
    seed.send(message(1), b"1")
    await client.talk()
    session = client.connection.begin()
    control = session.sender("control")
    control.open(source=Source("good"), target=Coordinator(Array([Symbol("amqp:local-transactions")])))
    receiver = session.receiver("receiver")
    receiver.open(source=Source(QUEUE), target=Target("good"))
    sender = session.sender("sender")
    properties = {Symbol("com.microsoft:transfer-destination-address"): TOPIC}
    sender.open(source=Source("good"), target=Target(QUEUE), properties=properties)
    node = session.sender("node")
    node.open(source=Source("good"), target=Target(f"{QUEUE}/$management"))
    await client.talk()
    receiver.grant(1)
    await client.talk()
    (delivery,) = client.of(Delivery)
    for fails in (True, False):
        control.send(section(VALUE, Declare().encode()), b"declare")
        await client.talk()
        in_transaction = TransactionalState(TXN_ID)
        for number, link in enumerate([sender, seed, node]):
            delivery_id = link.session.next_delivery_id()
            head = Transfer(link.handle, delivery_id, b"%d" % number, 0, False, state=in_transaction)
            body = message(2) if link is not node else request("schedule-message", messages=[scheduled(1)])
            link.session.put_transfer(link, head.encode(), body, last=True)
        state = TransactionalState(TXN_ID, Accepted())
        receiver.session.dispose(delivery.id, delivery.id, state, receiver=True, settled=False)
        control.send(section(VALUE, Discharge(TXN_ID, fails).encode()), b"discharge")
        await client.talk()
    assert isinstance(client.of(Disposed)[-1].state, Accepted)
    client.connection.close()
    await client.talk()


def scheduled(number: int) -> Map:
    later = {"x-opt-scheduled-enqueue-time": Timestamp(2**42)}
    return Map([("message-id", "m"), ("message", message(number, **later))])


TXN_ID = b"0" * 32
TOKEN = uuid.UUID(int=1)
ONE = Array([Long(1)])
SESSION = {"session_id": "s"}
SQL_RULE = Map(
    [("sql-filter", Map([("expression", "a = 1")])), ("sql-rule-action", Map([("expression", "SET b = 2")]))]
)
CORRELATION_RULE = Map([("correlation-filter", Map([("correlation-id", "x"), ("properties", Map([("n", Int(1))]))]))])
CONVERSATIONS: dict[str, Callable[[Client], Any]] = {
    "a queue": lambda client: sends_and_settles(client, QUEUE, QUEUE),
    "a topic": lambda client: sends_and_settles(client, TOPIC, f"{TOPIC}/subscriptions/all"),
    "sessions": lambda client: sends_and_settles(client, SESSIONS, SESSIONS),
    "transactions": exchanges,
    "requests": lambda client: asks(
        client,
        QUEUE,
        request("peek-message", from_sequence_number=Long(0), message_count=Int(5)),
        request("schedule-message", messages=[scheduled(1), scheduled(2)]),
        request("cancel-scheduled-message", sequence_numbers=Array([Long(2)])),
        request("renew-lock", lock_tokens=Array([TOKEN])),
        request("update-disposition", disposition_status="completed", lock_tokens=Array([TOKEN])),
        request("receive-by-sequence-number", sequence_numbers=ONE, receiver_settle_mode=UInt(1)),
        request("batch-delete-messages", message_count=Int(3), enqueued_time_utc=Timestamp(2**42)),
    ),
    "requests of sessions": lambda client: asks(
        client,
        SESSIONS,
        request("get-message-sessions", last_updated_time=Timestamp(2**42), skip=Int(0), top=Int(10)),
        request("set-session-state", **SESSION, session_state=b"state"),
        request("get-session-state", **SESSION),
        request("renew-session-lock", **SESSION),
        request("peek-message", **SESSION, from_sequence_number=Long(0), message_count=Int(5)),
    ),
    "requests of rules": lambda client: asks(
        client,
        f"{TOPIC}/subscriptions/all",
        request("add-rule", rule_name="r", rule_description=SQL_RULE),
        request("add-rule", rule_name="c", rule_description=CORRELATION_RULE),
        request("enumerate-rules", top=Int(10), skip=Int(0)),
        request("remove-rule", rule_name="r"),
    ),
}


@cache
def recorded(name: str) -> list[bytes]:
    """Return the pieces that a client sends: its handshake, then frame by frame."""

    async def record() -> list[bytes]:
        client = Client(furnished())
        await CONVERSATIONS[name](client)
        client.transport.close()
        await settled()
        return client.sent

    sent = b"".join(asyncio.run(record()))
    start = sent.rindex(AMQP_HEADER) + len(AMQP_HEADER)
    return [sent[:start], *frames_of(sent[start:])]


def frames_of(sent: bytes) -> list[bytes]:
    frames = []
    while sent:
        size = int.from_bytes(sent[:4])
        frames.append(sent[:size])
        sent = sent[size:]
    return frames


# Breaking them


def broken_frame(draw: Draw, data: bytes) -> bytes:
    try:
        values = values_of(data[8:])
    except ProtocolError:  # the part of a message's payload that ends a frame
        return broken_bytes(draw, data)
    if not values or draw(st.integers(0, 4)) == 0:
        return broken_bytes(draw, data)
    number = draw(st.integers(0, len(values) - 1))
    values[number] = broken(draw, values[number])
    try:
        body = b"".join(codec.encode(value) for value in values)
    except (TypeError, ValueError, ProtocolError):  # cannot be encoded, such as an array of two types
        return broken_bytes(draw, data)
    return frame(body, channel=draw(st.sampled_from([int.from_bytes(data[6:8])] * 5 + [0, 9, 65535])))


@st.composite
def broken_conversations(draw: Draw) -> tuple[str, list[bytes]]:
    name = draw(st.sampled_from(sorted(CONVERSATIONS)))
    sent = list(recorded(name))
    for _ in range(draw(st.integers(1, 4))):
        number = draw(st.integers(1, len(sent) - 1))
        other = draw(st.integers(1, len(sent) - 1))
        how = draw(st.sampled_from(["break", "break", "break", "break", "drop", "twice", "swap"]))
        if how == "break":
            sent[number] = broken_frame(draw, sent[number])
        elif how == "drop":
            sent[number] = b""
        elif how == "twice":
            sent.insert(other, sent[number])
        else:
            sent[number], sent[other] = sent[other], sent[number]
    return name, sent


def survive(
    caplog: pytest.LogCaptureFixture,
    sent: list[bytes],
    serve: Callable[[Namespace], asyncio.Protocol] = AmqpConnection,
) -> None:
    """Run a broken conversation with time and output limits and without errors, then a correct one."""
    caplog.clear()
    unheard: list[dict[str, Any]] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))
        async with asyncio.timeout(MAX_SECONDS):
            namespace = furnished()
            attacked = Memory(serve(namespace))
            for piece in sent:
                attacked.hear(piece)
                await settled()
            assert attacked.total < OUTPUT_BOUND
            attacked.close()
            await settled()
            await Client(namespace).is_served()

    asyncio.run(main())
    assert not unheard
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_the_unbroken_inputs_are_valid(name: str, caplog: pytest.LogCaptureFixture) -> None:
    assert len(recorded(name)) > 10
    survive(caplog, recorded(name))


@pytest.mark.parametrize("effort", [QUICK, pytest.param(LONG, marks=pytest.mark.slow)])
def test_broken_conversations_harm_no_other_client(caplog: pytest.LogCaptureFixture, effort: settings) -> None:
    @effort
    @given(broken_conversations())
    def attack(conversation: tuple[str, list[bytes]]) -> None:
        survive(caplog, conversation[1])

    attack()


@settings(QUICK, max_examples=60)
@given(broken_conversations())
def test_broken_conversations_take_little_memory(
    caplog: pytest.LogCaptureFixture, conversation: tuple[str, list[bytes]]
) -> None:
    tracemalloc.start()
    try:
        survive(caplog, conversation[1])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MEMORY_BOUND
