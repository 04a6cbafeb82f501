"""What the client for .NET writes, byte for byte, to the emulator, which answers as that client needs.

`dotnet/frames.txt` has one frame of each shape that Azure.Messaging.ServiceBus 7.21 was seen to write, and
`dotnet/values.txt` the application properties that it makes of each type, with a condition that is true for each.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pytest

from sbpair.amqp import performatives as amqp
from sbpair.amqp.frames import AMQP_FRAME, SASL_FRAME, FrameBuffer, frame
from sbpair.amqp.message import APPLICATION_PROPERTIES, Sections, encode_map
from sbpair.amqp.types import Map
from sbpair.emulator.clock import ManualClock
from sbpair.emulator.entities.description import QueueDescription
from sbpair.emulator.entities.stored_message import ACTIVE, DEFERRED, LOCKED, StoredMessage
from sbpair.emulator.server import Emulator
from sbpair.move.filter import FilteredMessage, MessageFilter
from sbpair.move.message.decode import Decoder
from tests.emulator.peer import Stage, plain, raw_connection
from tests.kit.async_tests import InLoop
from tests.kit.moves import world
from tests.kit.waiting import PATIENCE_SECONDS

C = TypeVar("C", bound=amqp.Composite)
FOLDER = Path(__file__).with_name("dotnet")
RECORDED_MS = 1_795_894_550_000
"""A time at which the recorded tokens and times to live are valid."""

QUEUE, WITH_SESSIONS, OTHER = "e-q-1-3936", "e-q-41-3936", "e-q-12-3936"
CBS_CHANNEL, CONTROL, LINKS = 0, 6, 7
BATCH = 0x80013700


class Recorded(NamedTuple):
    """A frame, and what it holds."""

    number: int
    data: bytes
    body: Any
    payload: bytes = b""


def _recorded() -> list[Recorded]:
    found = []
    for number, line in enumerate((FOLDER / "frames.txt").read_text().splitlines()):
        kind, text = line.split()
        data = bytes.fromhex(text)
        body, end = (None, 0) if kind == "protocol" else amqp.decode_composite(data, 4 * data[4])
        found.append(Recorded(number, data, body, data[end:] if end else b""))
    return found


FRAMES = _recorded()
SASL, OPEN, TO_CBS, TOKEN = FRAMES[:2], FRAMES[2:4], FRAMES[4:8], FRAMES[8]


def of(kind: type[amqp.Composite], **fields: Any) -> list[Recorded]:
    """Return the frames of a kind whose fields have these values."""
    same = (each for each in FRAMES if isinstance(each.body, kind))
    return [each for each in same if all(getattr(each.body, name) == value for name, value in fields.items())]


(BEGIN,), (CLOSE,) = of(amqp.Begin), of(amqp.Close)
ATTACHES = [each for each in of(amqp.Attach) if each not in TO_CBS]
SENDER, RECEIVER = ATTACHES[0], ATTACHES[1]
(COORDINATOR,) = (each for each in ATTACHES if isinstance(each.body.target, amqp.Coordinator))
TO_NODES = [each for each in of(amqp.Transfer, delivery_tag=b"") if each is not TOKEN]
DECLARE, ROLL_BACK, COMMIT = (each for each in of(amqp.Transfer) if len(each.body.delivery_tag) == 8)
MESSAGES = [each for each in of(amqp.Transfer) if len(each.body.delivery_tag) == 4]
OUTCOMES = of(amqp.Disposition, role=True)


def cases(frames: list[Recorded]) -> pytest.MarkDecorator:
    """Parametrize with frames; a test's name has the number of the frame's line."""
    return pytest.mark.parametrize("frame_", frames, ids=[str(each.number) for each in frames])


class DotNet:
    """The client's side of a connection. Channels and ids of transactions are those of this connection."""

    def __init__(self, emulator: Emulator, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.namespace = emulator.namespaces["contoso"]
        self.queue = self.namespace.queue(QUEUE)
        self._reader, self._writer = reader, writer
        self._buffer = FrameBuffer(1 << 20)
        self._found: list[tuple[int, Any, bytes]] = []
        self._ours: dict[int, int] = {}  # our channel of each of the emulator's

    def write(self, recorded: Recorded, channel: int = LINKS, *, txn_id: bytes = b"") -> None:
        data, of_transaction = recorded.data, getattr(recorded.body, "state", None)
        if recorded in (COMMIT, ROLL_BACK):
            of_transaction = amqp.decode_composite(recorded.payload[3:])[0]
        if isinstance(of_transaction, (amqp.TransactionalState, amqp.Discharge)):
            data = data.replace(of_transaction.txn_id or b"", txn_id)
        self._writer.write(data[:6] + channel.to_bytes(2) + data[8:])

    def put(self, body: amqp.Composite, channel: int = LINKS, payload: bytes = b"") -> None:
        self._writer.write(frame(body.encode() + payload, channel=channel))

    async def _read(self) -> None:
        data = await self._reader.read(1 << 20)
        assert data, "the connection has ended"
        self._buffer.feed(data)

    async def header(self, *frames: Recorded) -> None:
        for each in frames:
            self._writer.write(each.data)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while self._buffer.protocol_header() is None:
                await self._read()

    async def answer(self, kind: type[C], channel: int = LINKS, *, of_type: int = AMQP_FRAME) -> tuple[C, bytes]:
        """Remove and return the next frame of a kind on a channel."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                for at, body, payload in self._found:
                    if isinstance(body, kind) and at == channel:
                        self._found.remove((at, body, payload))
                        return body, payload
                refused = [body for _, body, _ in self._found if isinstance(body, (amqp.Detach, amqp.End, amqp.Close))]
                assert not refused, refused
                before = len(self._found)
                for at, data, start, end in self._buffer.frames(of_type):
                    body, after = amqp.decode_composite(data, start)
                    if isinstance(body, amqp.Begin):
                        self._ours[at] = body.remote_channel or 0
                    self._found.append((self._ours.get(at, 0), body, data[after:end]))
                if len(self._found) == before:
                    await self._read()

    async def open(self) -> None:
        await self.header(*SASL)
        await self.answer(amqp.SaslMechanisms, 0, of_type=SASL_FRAME)
        outcome, _ = await self.answer(amqp.SaslOutcome, 0, of_type=SASL_FRAME)
        assert outcome.code == 0
        await self.header(*OPEN)
        for each in TO_CBS:
            self.write(each, CBS_CHANNEL)
        self.write(TOKEN, CBS_CHANNEL)
        await self.accepted_token()

    async def put_token(self, entity: str) -> None:
        """Put the recorded token, which is one of the namespace, for another name."""
        request = Sections.split(TOKEN.payload)
        named = {**dict(request.read_application_properties().pairs), "name": f"amqp://127.0.0.1/{entity}"}
        request.application_properties = encode_map(APPLICATION_PROPERTIES, named)
        self.put(TOKEN.body, CBS_CHANNEL, request.join())
        await self.accepted_token()

    async def accepted_token(self) -> None:
        _, answer = await self.answer(amqp.Transfer, CBS_CHANNEL)
        assert Sections.split(answer).read_application_properties()["status-code"] == 202

    async def attach(self, recorded: Recorded, channel: int = LINKS, **changed: Any) -> amqp.Attach:
        """Attach a link as recorded, or with changed fields, in a session of its own."""
        self.write(BEGIN, channel)
        await self.answer(amqp.Begin, channel)
        if changed:
            self.put(replace(recorded.body, **changed), channel)
        else:
            self.write(recorded, channel)
        attached, _ = await self.answer(amqp.Attach, channel)
        return attached

    async def control(self, recorded: Recorded, *, txn_id: bytes = b"") -> Any:
        self.write(recorded, CONTROL, txn_id=txn_id)
        answer, _ = await self.answer(amqp.Disposition, CONTROL)
        assert (answer.first, answer.settled) == (recorded.body.delivery_id, True)
        return answer.state

    async def declare(self) -> bytes:
        await self.attach(COORDINATOR, CONTROL)
        declared = await self.control(DECLARE)
        assert isinstance(declared, amqp.Declared)
        return declared.txn_id or b""

    async def take(self, count: int) -> list[amqp.Transfer]:
        """Attach the recorded receiver and receive messages, which are sent to it."""
        self.queue.send([StoredMessage(Sections.split(plain(str(number))), 100) for number in range(count)])
        await self.attach(RECEIVER)
        self.put(amqp.Flow(0, 5000, 1, 5000, 0, 0, count))
        return [(await self.answer(amqp.Transfer))[0] for _ in range(count)]

    def stored(self) -> list[StoredMessage]:
        return self.queue.messages.peek(0, 100)


@asynccontextmanager
async def opened() -> AsyncIterator[DotNet]:
    async with Emulator([("contoso", 0)], clock=ManualClock(RECORDED_MS)) as emulator:
        namespace = emulator.namespaces["contoso"]
        for name in (QUEUE, OTHER):
            namespace.create_queue(name)
        sessions = namespace.create_queue(WITH_SESSIONS, QueueDescription(requires_session=True))
        sessions.send([StoredMessage(Sections.split(plain(group_id="S")), 100, session_id="S")])
        async with raw_connection(namespace.authority) as (reader, writer):
            client = DotNet(emulator, reader, writer)
            await client.open()
            yield client


@pytest.fixture
def dotnet() -> InLoop:
    return InLoop(opened)


@cases(ATTACHES)
async def test_a_link_is_attached_detached_and_its_session_ended(dotnet: DotNet, frame_: Recorded) -> None:
    asked: amqp.Attach = frame_.body
    for name in (WITH_SESSIONS, OTHER):
        await dotnet.put_token(name)
    attached = await dotnet.attach(frame_)
    assert (attached.name, attached.role) == (asked.name, not asked.role)
    assert isinstance(attached.source, amqp.Source)
    assert type(attached.target) is type(asked.target)
    if asked.source.filter:
        assert isinstance(attached.source.filter, Map)
        assert [value for _, value in attached.source.filter.pairs] == ["S"]
    detach, end = of(amqp.Detach, error=None)[0], of(amqp.End)[0]
    dotnet.write(detach)
    detached, _ = await dotnet.answer(amqp.Detach)
    assert (detached.closed, detached.error) == (True, None)
    dotnet.write(end)
    assert (await dotnet.answer(amqp.End))[0].error is None


@cases(MESSAGES)
async def test_a_message_is_accepted_and_stored_as_it_came(dotnet: DotNet, frame_: Recorded) -> None:
    sent: amqp.Transfer = frame_.body
    txn_id = await dotnet.declare() if sent.state else b""
    await dotnet.attach(SENDER, **({"handle": sent.handle} if sent.handle else {}))
    dotnet.write(frame_, txn_id=txn_id)
    answer, _ = await dotnet.answer(amqp.Disposition)
    assert (answer.role, answer.first, answer.settled) == (True, sent.delivery_id, True)
    assert answer.state == (amqp.TransactionalState(txn_id, amqp.Accepted()) if txn_id else amqp.Accepted())
    if txn_id:
        assert dotnet.stored() == []
        assert await dotnet.control(COMMIT, txn_id=txn_id) == amqp.Accepted()
    given = Sections.split(frame_.payload)
    wanted = [given]
    if sent.message_format == BATCH:
        wanted = [Sections.split(bytes(value)) for _, value in given.read_body()]
    found = [message.sections for message in dotnet.stored()]
    assert list(map(_content, found, wanted)) == list(map(_content, wanted, wanted))


def _content(message: Sections, sent: Sections) -> list[Any]:
    """Return what the client gave a message, which gets an id if it has none."""
    properties = message.read_properties()
    if not sent.read_properties().message_id:
        properties = replace(properties, message_id=None)
    return [message.application_properties, message.body, message.footer, properties, message.read_header()]


@cases(OUTCOMES)
async def test_a_settlement_is_confirmed_and_has_its_effect(dotnet: DotNet, frame_: Recorded) -> None:
    asked: amqp.Disposition = frame_.body
    outcome = asked.state.outcome if isinstance(asked.state, amqp.TransactionalState) else asked.state
    txn_id = await dotnet.declare() if outcome is not asked.state else b""
    first = 0 if asked.settled else asked.first or 0
    await dotnet.take(first + 1)
    if asked.settled:
        # Messages that come when the receiver closes, with the ids that they have.
        dotnet.put(replace(asked, first=first))
        dotnet.write(of(amqp.Detach, error=None)[0])
        await dotnet.answer(amqp.Detach)
    else:
        dotnet.write(frame_, txn_id=txn_id)
        answer, _ = await dotnet.answer(amqp.Disposition)
        confirmed = answer.state.outcome if txn_id else answer.state
        assert (answer.role, answer.first, type(confirmed)) == (False, first, type(outcome))
        assert not isinstance(confirmed, amqp.Rejected) or confirmed.error is None
    if txn_id:
        assert dotnet.stored()[first].state == LOCKED
        assert await dotnet.control(COMMIT, txn_id=txn_id) == amqp.Accepted()
    _check_effect(dotnet, outcome, first)


def _check_effect(dotnet: DotNet, outcome: Any, first: int) -> None:
    dead, left = dotnet.queue.dead_letters.peek(0, 10), dotnet.stored()[first:]
    if isinstance(outcome, amqp.Accepted):
        assert (dead, left) == ([], [])
        return
    (settled,) = dead or left
    is_modified, told, reasons = isinstance(outcome, amqp.Modified), Map(), None
    if isinstance(outcome, amqp.Rejected):
        told = outcome.error.info if outcome.error else told
        reasons = told.get("DeadLetterReason"), told.get("DeadLetterErrorDescription")
    elif is_modified:
        told = outcome.message_annotations or told
    assert settled.state == (DEFERRED if is_modified and outcome.undeliverable_here else ACTIVE)
    assert settled.delivery_count == is_modified
    assert (settled.dead_letter and settled.dead_letter[:2]) == reasons
    others = [pair for pair in told.pairs if not pair[0].startswith("DeadLetter")]
    assert [pair for pair in others if pair not in settled.sections.read_application_properties().pairs] == []


async def test_a_settlement_in_a_transaction_can_be_rolled_back(dotnet: DotNet) -> None:
    txn_id = await dotnet.declare()
    await dotnet.take(1)
    dotnet.write(next(each for each in OUTCOMES if isinstance(each.body.state, amqp.TransactionalState)), txn_id=txn_id)
    await dotnet.answer(amqp.Disposition)
    assert await dotnet.control(ROLL_BACK, txn_id=txn_id) == amqp.Accepted()
    assert len(dotnet.stored()) == 1


@cases(TO_NODES)
async def test_a_request_to_the_management_node_is_answered(dotnet: DotNet, frame_: Recorded) -> None:
    txn_id = await dotnet.declare() if frame_.body.state else b""
    reply_to = Sections.split(frame_.payload).read_properties().reply_to
    node = f"/{QUEUE}/$management"
    dotnet.queue.send([StoredMessage(Sections.split(plain()), 100)])
    sender, receiver = TO_CBS[1], TO_CBS[2]
    await dotnet.attach(sender, target=amqp.Target(node))
    dotnet.put(replace(receiver.body, source=amqp.Source(node), target=amqp.Target(reply_to)))
    await dotnet.answer(amqp.Attach)
    dotnet.write(TO_CBS[3])
    dotnet.write(frame_, txn_id=txn_id)
    _, payload = await dotnet.answer(amqp.Transfer)
    answer = Sections.split(payload)
    assert answer.read_application_properties()["statusCode"] == 200
    if txn_id:
        assert await dotnet.control(COMMIT, txn_id=txn_id) == amqp.Accepted()
        assert len(dotnet.stored()) == 2


async def test_a_drain_a_failed_link_and_a_close_are_answered(dotnet: DotNet) -> None:
    """The drain counts deliveries that were not sent on the link; the released one was sent by the client."""
    (drain,), (released,) = of(amqp.Flow, drain=True), of(amqp.Disposition, role=False)
    await dotnet.attach(RECEIVER, CONTROL, handle=drain.body.handle)
    dotnet.write(drain, CONTROL)
    flow, _ = await dotnet.answer(amqp.Flow, CONTROL)
    assert (flow.drain, flow.link_credit, flow.delivery_count) == (True, 0, 1)
    await dotnet.take(1)
    dotnet.write(released)
    dotnet.write(next(each for each in of(amqp.Detach) if each.body.error))
    assert (await dotnet.answer(amqp.Detach))[0].error is None
    dotnet.write(CLOSE, 0)
    assert (await dotnet.answer(amqp.Close, 0))[0].error is None
    assert [each.state for each in dotnet.stored()] == [LOCKED]


VALUES = [line.split(maxsplit=2) for line in (FOLDER / "values.txt").read_text().splitlines()]


def _with_all_values() -> Sections:
    """Return a message with each value as a property of its name, in the bytes of the client."""
    pairs = b"".join(b"\xa1" + bytes([len(name)]) + name.encode() + bytes.fromhex(text) for name, text, _ in VALUES)
    size = (4 + len(pairs)).to_bytes(4) + (2 * len(VALUES)).to_bytes(4)
    message = Sections.split(plain())
    message.application_properties = b"\x00\x53\x74\xd1" + size + pairs
    return message


async def test_each_value_passes_the_emulator_and_a_move_unchanged() -> None:
    sent = _with_all_values()
    async with world() as places:
        places.create("queue", "there", 1)
        async with Stage(places.emulator).connect() as peer:
            (answer,) = await peer.send(await peer.attach_sender("orders"), sent.join())
            assert answer.state == amqp.Accepted()
        await places.move("orders", "there", sides=(0, 1))
        (moved,) = places.namespaces[1].queue("there").messages.peek(0, 10)
        assert moved.sections.application_properties == sent.application_properties


@pytest.mark.parametrize("condition", [value[2] for value in VALUES], ids=[value[0] for value in VALUES])
def test_a_value_is_what_it_was_in_a_condition(condition: str) -> None:
    [decoded] = Decoder("q").decode([_with_all_values().join()])
    made = MessageFilter(condition, is_shown=True)
    assert made.matches(FilteredMessage(decoded.facts, decoded.content, 0)), made.first_failure
