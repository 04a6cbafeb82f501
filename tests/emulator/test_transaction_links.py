"""Transactions over real sockets, with a scripted peer: control links, states, groups of links, and bad input."""

from dataclasses import replace
from typing import Any

import pytest

from sbpair.amqp.link import LinkAttached, LinkDetached
from sbpair.amqp.message import BATCH_FORMAT, VALUE, Sections, data_body, encode_map, section, value_body
from sbpair.amqp.performatives import (
    Accepted,
    Coordinator,
    Declare,
    Declared,
    Discharge,
    Error,
    Modified,
    Rejected,
    Released,
    Source,
    Target,
    TransactionalState,
    Transfer,
)
from sbpair.amqp.session import Disposed
from sbpair.amqp.types import Array, Described, Int, Long, Map, Symbol, Timestamp, ULong
from sbpair.emulator.entities.transaction import TIMEOUT_MS
from sbpair.emulator.frontends.amqp.link_owner import MAX_TRANSACTIONS
from sbpair.emulator.frontends.amqp.message_links import TRANSFER_DESTINATION
from sbpair.emulator.server import Emulator
from tests.emulator.peer import Peer, Stage, plain

UNKNOWN_ID = "amqp:transaction:unknown-id"
ROLLBACK = "amqp:transaction:rollback"
CHANGES = Map([(Symbol("note"), "x" * 50)])


def keyed(**keys: str) -> bytes:
    """Encode a message with annotations: `via` and `partition` keys."""
    annotations = Map([(Symbol(f"x-opt-{name.replace('_', '-')}-key"), value) for name, value in keys.items()])
    return Sections(message_annotations=encode_map(0x72, annotations), body=data_body(b"x")).join()


def in_transaction(txn_id: bytes, outcome: Any) -> TransactionalState:
    return TransactionalState(txn_id, outcome)


async def attach(peer: Peer, target: Any, *, session: Any = None, name: str = "link", **terms: Any) -> Any:
    """Attach a sender, whether it is refused or not."""
    link = (session or await peer.begin()).sender(name)
    link.open(source=Source("peer"), target=target, **terms)
    await peer.wait(LinkAttached, of=link)
    return link


# Declare and discharge


async def test_a_coordinator_needs_no_right(stage: Stage) -> None:
    async with stage.connect(signed_in=False) as peer:
        control = await peer.attach_coordinator()
        assert isinstance(control.remote.target, Coordinator)
        assert Symbol("amqp:local-transactions") in list(control.remote.target.capabilities)
        first, second = await peer.declare(control), await peer.declare(control)
        assert first != second
        assert 0 < len(first) <= 32


async def test_descriptors_may_be_symbols_and_fail_may_be_left_out(peer: Peer) -> None:
    control = await peer.attach_coordinator()
    declare = value_body(Described(Symbol("amqp:declare:list"), [None]))
    (answer,) = await peer.send(control, declare)
    assert isinstance(answer.state, Declared)
    discharge = value_body(Described(Symbol("amqp:discharge:list"), [answer.state.txn_id]))
    assert (await peer.send(control, discharge))[0].state == Accepted()


@pytest.mark.parametrize(
    ("payload", "condition"),
    [
        (b"", "amqp:decode-error"),
        (b"\xff", "amqp:decode-error"),
        (data_body(b"x"), "amqp:decode-error"),
        (value_body("declare"), "amqp:decode-error"),
        (section(VALUE, Accepted().encode()), "amqp:decode-error"),
        (section(VALUE, Declare("global").encode()), "amqp:not-implemented"),
        (value_body(Described(ULong(0x31), "x")), "amqp:decode-error"),
        (value_body(Described(ULong(0x31), [None, None])), "amqp:decode-error"),
        (value_body(Described(ULong(0x32), [])), "amqp:invalid-field"),
        (value_body(Described(ULong(0x32), [None, True])), "amqp:invalid-field"),
        (value_body(Described(ULong(0x32), ["text", True])), "amqp:invalid-field"),
        (value_body(Described(ULong(0x32), [b"id", "yes"])), "amqp:invalid-field"),
        (section(VALUE, Discharge(b"", False).encode()), UNKNOWN_ID),
        (section(VALUE, Discharge(b"no such id").encode()), UNKNOWN_ID),
        (section(VALUE, Discharge(b"no such id", True).encode()), UNKNOWN_ID),
        (section(VALUE, Discharge(b"x" * 5000).encode()), UNKNOWN_ID),
    ],
)
async def test_a_bad_control_message_is_rejected(peer: Peer, payload: bytes, condition: str) -> None:
    control = await peer.attach_coordinator()
    (answer,) = await peer.send(control, payload)
    assert isinstance(answer.state, Rejected)
    assert answer.state.error.condition == condition
    assert await peer.declare(control)


async def test_a_settled_control_message_closes_the_link(peer: Peer) -> None:
    control = await peer.attach_coordinator()
    control.send(section(VALUE, Declare().encode()), b"1", settled=True)
    assert (await peer.wait(LinkDetached)).error.condition == "amqp:not-allowed"


async def test_nothing_is_received_from_a_coordinator(peer: Peer) -> None:
    link = (await peer.begin()).receiver("r")
    link.open(source=Source("orders"), target=Coordinator())
    await peer.wait(LinkAttached)
    assert (await peer.wait(LinkDetached)).error.condition == "amqp:not-allowed"


async def test_the_open_transactions_of_a_connection_are_bounded(peer: Peer) -> None:
    control = await peer.attach_coordinator()
    for _ in range(MAX_TRANSACTIONS):
        txn_id = await peer.declare(control)
    state = await peer.control(control, Declare())
    assert state.error.condition == "amqp:resource-limit-exceeded"
    await peer.discharge(control, txn_id)
    assert await peer.declare(control)


async def test_the_basic_tier_has_no_transactions() -> None:
    async with Emulator([("contoso", 0, "basic")]) as emulator, Stage(emulator).connect() as peer:
        link = await attach(peer, Coordinator())
        assert "Basic" in (await peer.wait(LinkDetached, of=link)).error.description


# Work in a transaction


@pytest.mark.parametrize(
    ("outcome", "confirmed", "counts"),
    [
        (Accepted(), Accepted(), (0, 0)),
        (Released(), Released(), (1, 0)),
        (Modified(True), Modified(True), (1, 0)),
        (Modified(True, True), Modified(True, True), (1, 0)),
        (Modified(True, False, CHANGES), Modified(True, False, CHANGES), (1, 0)),
        (Rejected(), Rejected(), (0, 1)),
        (
            Rejected(Error("com.microsoft:dead-letter", "", Map([(Symbol("DeadLetterReason"), "r")]))),
            Rejected(),
            (0, 1),
        ),
    ],
)
async def test_every_outcome_can_be_part_of_a_transaction(peer: Peer, outcome, confirmed, counts) -> None:
    queue = peer.stage.queue
    control, txn_id = await peer.begin_transaction()
    (delivery,) = await peer.lock("orders", plain())
    size = queue.size_bytes
    assert (await peer.settle_in(txn_id, delivery, outcome)).state == in_transaction(txn_id, confirmed)
    assert (len(queue.messages), len(queue.dead_letters), queue.messages.locked_count) == (1, 0, 1)
    assert queue.size_bytes == size
    await peer.discharge(control, txn_id)
    assert (await peer.wait(Disposed)).state == in_transaction(txn_id, confirmed)
    assert (queue.size_bytes > size) is (getattr(outcome, "message_annotations", None) is CHANGES)
    assert (len(queue.messages), len(queue.dead_letters), queue.messages.locked_count) == (*counts, 0)


@pytest.mark.parametrize(("fail", "left"), [(False, 1), (True, 2)])
async def test_what_is_settled_at_once_takes_part_without_an_answer(peer: Peer, fail: bool, left: int) -> None:
    """A client that has settled, as one of JMS does, has no lock that it could use after a rollback."""
    control = await peer.attach_coordinator()
    first, second = await peer.lock("orders", plain(), plain())
    sender, txn_id = await peer.attach_sender("orders"), await peer.declare(control)
    state = in_transaction(txn_id, Accepted())
    first.link.session.dispose(first.id, second.id, state, receiver=True, settled=True)
    await peer.post_in(txn_id, sender, plain(), settled=True)
    await peer.peek("orders")
    assert (len(peer.stage.queue.messages), peer.stage.queue.messages.locked_count) == (2, 2)
    assert await peer.discharge(control, txn_id, fail=fail) == Accepted()
    assert (len(peer.stage.queue.messages), peer.stage.queue.messages.locked_count) == (left, 0)


async def test_a_failure_without_an_answer_fails_the_commit(peer: Peer) -> None:
    control, txn_id, sender = await peer.begin_sending("orders")
    await peer.send_in(txn_id, sender, plain())
    await peer.post_in(txn_id, sender, b"\xff", settled=True)
    assert (await peer.discharge(control, txn_id)).error.condition == ROLLBACK
    await peer.send(sender, plain())
    (delivery,) = await peer.take(await peer.attach_receiver("orders"), 1)
    peer.stage.queue.messages.complete(delivery.tag)
    txn_id = await peer.declare(control)
    state = in_transaction(txn_id, Accepted())
    delivery.link.session.dispose(delivery.id, delivery.id, state, receiver=True, settled=True)
    assert (await peer.discharge(control, txn_id)).error.condition == ROLLBACK
    assert len(peer.stage.queue.messages) == 0


async def test_a_batch_and_a_message_of_many_frames(peer: Peer) -> None:
    control, txn_id, sender = await peer.begin_sending("orders")
    batch = data_body(plain("1")) + data_body(plain("2"))
    await peer.send_in(txn_id, sender, batch, message_format=BATCH_FORMAT)
    await peer.post_in(txn_id, sender, plain("3" * 1000)[:500], more=True)
    rest = Transfer(sender.handle).encode() + plain("3" * 1000)[500:]
    peer.connection.put(sender.session.channel, rest)
    assert (await peer.wait(Disposed)).state == in_transaction(txn_id, Accepted())
    assert len(peer.stage.queue.messages) == 0
    await peer.discharge(control, txn_id)
    assert len(peer.stage.queue.messages) == 3


async def test_plain_messages_of_the_same_read_come_first(peer: Peer) -> None:
    control, txn_id, sender = await peer.begin_sending("orders")
    await peer.post_in(txn_id, sender, plain("second"))
    await peer.wait(Disposed)
    sender.send(plain("first"), b"1")
    control.send(section(VALUE, Discharge(txn_id).encode()), b"2")
    sender.send(plain("third"), b"3")
    for _ in range(3):
        await peer.wait(Disposed)
    got = await peer.take(await peer.attach_receiver("orders"), 3)
    bodies = [Sections.split(each.payload).body for each in got]
    assert bodies == [data_body(text) for text in (b"first", b"second", b"third")]


async def test_a_run_of_messages_is_in_its_transaction_as_a_whole(peer: Peer) -> None:
    """Frames that are encoded alike are read at once, unless they have a state."""
    control, txn_id, sender = await peer.begin_sending("orders")
    await peer.send(sender, plain())
    state = in_transaction(txn_id, Accepted())
    for _ in range(20):
        await peer.queue_in(txn_id, sender, plain())
    for _ in range(20):
        assert (await peer.wait(Disposed)).state == state
    assert len(peer.stage.queue.messages) == 1
    await peer.discharge(control, txn_id, fail=True)
    assert len(peer.stage.queue.messages) == 1


async def test_an_operation_that_is_refused_is_not_part_of_the_transaction(peer: Peer) -> None:
    other = peer.stage.namespace.create_queue("other")
    sender, elsewhere = await peer.attach_sender("orders"), await peer.attach_sender("other")
    await peer.send(elsewhere, plain())
    (delivery,) = await peer.take(await peer.attach_receiver("other"), 1)
    control, txn_id = await peer.begin_transaction()
    await peer.send_in(txn_id, sender, plain())
    state = await peer.send_in(txn_id, elsewhere, plain())
    error = state.outcome.error
    assert (state.txn_id, error.condition, "span multiple" in error.description) == (txn_id, "amqp:not-allowed", True)
    answer = await peer.settle_in(txn_id, delivery)
    error = answer.state.outcome.error
    assert (answer.state.txn_id, error.condition, answer.settled) == (txn_id, "amqp:not-allowed", True)
    assert await peer.discharge(control, txn_id) == Accepted()
    assert (len(peer.stage.queue.messages), len(other.messages), other.messages.locked_count) == (1, 1, 1)


async def test_a_state_that_is_no_outcome_settles_nothing(peer: Peer) -> None:
    control, txn_id = await peer.begin_transaction()
    (delivery,) = await peer.lock("orders", plain())
    session = delivery.link.session
    for outcome in (None, Declared(b"x"), "text"):
        session.dispose(delivery.id, delivery.id, TransactionalState(txn_id, outcome), receiver=True, settled=False)
    assert await peer.discharge(control, txn_id) == Accepted()
    assert peer.stage.queue.messages.locked_count == 1


async def test_another_state_of_a_transfer_is_ignored(peer: Peer) -> None:
    sender = await peer.attach_sender("orders")
    session = sender.session
    head = Transfer(sender.handle, session.next_delivery_id(), b"t", 0, False, state=Accepted()).encode()
    session.put_transfer(sender, head, plain(), last=True)
    await peer.send(sender, plain())
    assert len(peer.stage.queue.messages) == 2


# Unknown, ended and timed out


@pytest.mark.parametrize("txn_id", [b"", b"no such id", b"\xff" * 300])
async def test_an_unknown_id_closes_the_link(peer: Peer, txn_id: bytes) -> None:
    sender, receiver = await peer.attach_sender("orders"), await peer.attach_receiver("orders")
    await peer.send(sender, plain())
    (delivery,) = await peer.take(receiver, 1)
    await peer.post_in(txn_id, sender, plain())
    error = (await peer.wait(LinkDetached, of=sender)).error
    assert error.condition == UNKNOWN_ID
    assert error.description == "Transaction hasn't been declared yet, or has already been discharged"
    state = TransactionalState(txn_id, Accepted())
    receiver.session.dispose(delivery.id, delivery.id, state, receiver=True, settled=False)
    assert (await peer.wait(LinkDetached, of=receiver)).error.condition == UNKNOWN_ID
    assert (len(peer.stage.queue.messages), peer.stage.queue.messages.locked_count) == (1, 1)


async def test_ids_are_known_on_their_own_connection_only(stage: Stage) -> None:
    async with stage.connect() as peer, stage.connect() as other:
        txn_id = await peer.declare(await peer.attach_coordinator())
        sender = await other.attach_sender("orders")
        await other.post_in(txn_id, sender, plain())
        assert (await other.wait(LinkDetached, of=sender)).error.condition == UNKNOWN_ID
        state = await other.discharge(await other.attach_coordinator(), txn_id)
        assert state.error.condition == UNKNOWN_ID


async def test_a_transaction_whose_time_is_over(peer: Peer) -> None:
    control, txn_id, sender = await peer.begin_sending("orders")
    await peer.send_in(txn_id, sender, plain())
    peer.stage.emulator.advance(TIMEOUT_MS)
    state = (await peer.send_in(txn_id, sender, plain())).outcome
    assert state.error.condition == "amqp:not-allowed"
    assert f"No active Transaction was found for ID '{txn_id.decode()}'" in state.error.description
    state = await peer.discharge(control, txn_id)
    assert (state.error.condition, state.error.description) == (UNKNOWN_ID, "Transaction is not declared")
    assert len(peer.stage.queue.messages) == 0


@pytest.mark.parametrize("end", ["link", "session"])
async def test_the_end_of_the_control_link_rolls_back(peer: Peer, end: str) -> None:
    queue = peer.stage.queue
    control, txn_id, sender = await peer.begin_sending("orders")
    (delivery,) = await peer.lock("orders", plain())
    await peer.send_in(txn_id, sender, plain("lost"))
    await peer.settle_in(txn_id, delivery)
    (control.close if end == "link" else control.session.end)()
    await peer.post_in(txn_id, sender, plain())
    assert (await peer.wait(LinkDetached, of=sender)).error.condition == UNKNOWN_ID
    assert (len(queue.messages), queue.messages.locked_count) == (1, 1)


@pytest.mark.parametrize("down", ["orders", "other", "the namespace"])
async def test_an_outage_of_its_entity_or_of_the_namespace_rolls_back(peer: Peer, down: str) -> None:
    peer.stage.namespace.create_queue("other")
    control, txn_id, sender = await peer.begin_sending("orders")
    await peer.send_in(txn_id, sender, plain())
    faults = peer.stage.emulator.faults
    if down == "the namespace":
        faults.end(faults.namespace_down("contoso"))
        await peer.wait_closed()
    else:
        faults.end(faults.entity_down("contoso", down))
        state = await peer.discharge(control, txn_id)
        if down == "orders":
            assert (state.error.condition, "not available" in state.error.description) == (ROLLBACK, True)
    assert len(peer.stage.queue.messages) == (1 if down == "other" else 0)


async def test_a_throttled_send_is_not_part_of_the_transaction(peer: Peer) -> None:
    control, txn_id, sender = await peer.begin_sending("orders")
    with peer.stage.emulator.faults.during("throttle", "contoso", count=1):
        assert (await peer.send_in(txn_id, sender, plain())).outcome.error.condition == "com.microsoft:server-busy"
        await peer.send_in(txn_id, sender, plain())
    await peer.discharge(control, txn_id)
    assert len(peer.stage.queue.messages) == 1


async def test_an_answer_in_a_transaction_can_be_swallowed(peer: Peer) -> None:
    control, txn_id, sender = await peer.begin_sending("orders")
    with peer.stage.emulator.faults.during("swallow-acks", "contoso", count=1):
        await peer.post_in(txn_id, sender, plain("unanswered"))
        assert await peer.discharge(control, txn_id) == Accepted()
    assert len(peer.stage.queue.messages) == 1


# Through other entities


async def test_a_transfer_link_sends_by_way_of_an_entity(peer: Peer) -> None:
    destination = peer.stage.namespace.create_queue("destination")
    control = await peer.attach_coordinator()
    (delivery,) = await peer.lock("orders", plain("in"))
    properties = {Symbol(TRANSFER_DESTINATION): "amqps://127.0.0.1:1/Destination"}
    link = await attach(peer, Target("orders"), properties=properties)
    assert link.remote.properties[TRANSFER_DESTINATION] == "amqps://127.0.0.1:1/Destination"
    txn_id = await peer.declare(control)
    await peer.settle_in(txn_id, delivery)
    assert await peer.send_in(txn_id, link, plain("out")) == in_transaction(txn_id, Accepted())
    assert len(destination.messages) == 0
    assert await peer.discharge(control, txn_id) == Accepted()
    await peer.send(link, plain("in no transaction"))
    got = await peer.take(await peer.attach_receiver("destination"), 2)
    assert [Sections.split(each.payload).body for each in got] == [data_body(b"out"), data_body(b"in no transaction")]
    assert len(peer.stage.queue.messages) == 0


@pytest.mark.parametrize("destination", ["nowhere", ""])
async def test_a_transfer_needs_its_destination(peer: Peer, destination: str) -> None:
    link = await attach(peer, Target("orders"), properties={Symbol(TRANSFER_DESTINATION): destination})
    error = (await peer.wait(LinkDetached, of=link)).error
    assert (error.condition, f"'sb://127.0.0.1/{destination}'" in error.description) == ("amqp:not-found", True)


async def test_a_transfer_link_closes_with_its_destination(peer: Peer) -> None:
    peer.stage.namespace.create_queue("destination")
    link = await attach(peer, Target("orders"), properties={Symbol(TRANSFER_DESTINATION): "destination"})
    peer.stage.namespace.delete_queue("destination")
    assert (await peer.wait(LinkDetached, of=link)).error.condition == "amqp:not-found"


async def test_a_group_sends_by_way_of_its_first_entity(stage: Stage) -> None:
    """With the control link first, all links of a session can take part in one transaction."""
    queues = [stage.namespace.create_queue(name) for name in ("b", "c")]
    async with stage.connect() as outside, stage.connect() as peer:
        await outside.send(await outside.attach_sender("orders"), plain("in"))
        session = await peer.begin()
        control = await peer.attach_coordinator(session=session)
        (delivery,) = await peer.take(await peer.attach_receiver("orders", session=session), 1)
        senders = [await peer.attach_sender(queue.path, session=session) for queue in queues]
        for fail in (True, False):
            txn_id = await peer.declare(control)
            await peer.settle_in(txn_id, delivery)
            for sender in senders:
                await peer.send_in(txn_id, sender, plain("out"))
            await peer.discharge(control, txn_id, fail=fail)
            assert [len(queue.messages) for queue in [stage.queue, *queues]] == ([1, 0, 0] if fail else [0, 1, 1])


async def test_a_group_receives_from_its_first_entity_only(peer: Peer) -> None:
    peer.stage.namespace.create_queue("other")
    topic = peer.stage.namespace.create_topic("topic")
    topic.create_subscription("a")
    topic.create_subscription("b")
    session = await peer.begin()
    await peer.attach_coordinator(session=session)
    await peer.attach_sender("orders", session=session)
    await peer.attach_receiver("orders", session=session)
    error = await peer.refusal_of(peer.attach_receiver("other", session=session))
    assert error.condition == "amqp:not-allowed"
    assert "Local transactions cannot span multiple top-level entities such as queue or topic." in error.description
    await peer.attach_receiver("orders/$deadletterqueue", session=session)
    await peer.attach_receiver("other")
    session = await peer.begin()
    await peer.attach_coordinator(session=session)
    error = await peer.refusal_of(peer.attach_receiver("nowhere", session=session))
    for address in ("topic/subscriptions/a", "topic/subscriptions/b"):
        await peer.attach_receiver(address, session=session)
    await peer.attach_sender("topic", session=session)


async def test_a_session_with_links_before_its_control_link_is_no_group(peer: Peer) -> None:
    peer.stage.namespace.create_queue("other")
    session = await peer.begin()
    sender = await peer.attach_sender("orders", session=session)
    control = await peer.attach_coordinator(session=session)
    other = await peer.attach_sender("other", session=session)
    await peer.attach_receiver("other", session=session)
    txn_id = await peer.declare(control)
    await peer.send_in(txn_id, sender, plain())
    assert (await peer.send_in(txn_id, other, plain())).outcome.error.condition == "amqp:not-allowed"


async def test_partition_keys_in_a_transaction(peer: Peer) -> None:
    peer.stage.namespace.create_queue("p", replace(peer.stage.queue.description, enable_partitioning=True))
    control = await peer.attach_coordinator()
    sender = await peer.attach_sender("p")
    through = await attach(peer, Target("p"), properties={Symbol(TRANSFER_DESTINATION): "orders"})
    txn_id = await peer.declare(control)
    both = Sections.split(plain(group_id="s"))
    both.message_annotations = Sections.split(keyed(partition="k")).message_annotations
    for refused in (plain(), both.join()):
        assert (await peer.send_in(txn_id, sender, refused)).outcome.error.condition == "amqp:not-allowed"
    for link, accepted in (
        (sender, keyed(partition="k")),
        (sender, plain(group_id="k")),
        (sender, keyed(via_partition="k")),
        (through, keyed(via_partition="k", partition="x")),
        (through, keyed(partition="k")),
    ):
        assert await peer.send_in(txn_id, link, accepted) == in_transaction(txn_id, Accepted())
    for link, refused in ((sender, keyed(partition="x")), (through, plain()), (through, keyed(via_partition="x"))):
        assert (await peer.send_in(txn_id, link, refused)).outcome.error.condition == "amqp:not-allowed"
    assert await peer.discharge(control, txn_id) == Accepted()
    assert len(peer.stage.queue.messages) == 2


# Requests


NODE = "orders/$management"


def to_schedule(stage: Stage) -> Map:
    at = stage.namespace.clock.now_ms() + 60_000
    annotations = encode_map(0x72, Map([(Symbol("x-opt-scheduled-enqueue-time"), Timestamp(at))]))
    message = Sections(message_annotations=annotations, body=data_body(b"later")).join()
    return Map([("messages", [Map([("message-id", "m"), ("message", message)])])])


async def test_requests_take_part_in_a_transaction(peer: Peer) -> None:
    queue = peer.stage.queue
    queue.update(replace(queue.description))
    control = await peer.attach_coordinator()
    (delivery,) = await peer.lock("orders", plain())
    (held,) = queue.messages.peek(0, 1)
    disposition = Map([("disposition-status", "completed"), ("lock-tokens", Array([held.lock_uuid]))])
    for fail in (True, False):
        txn_id = await peer.declare(control)
        reply = await peer.ask(NODE, "com.microsoft:schedule-message", to_schedule(peer.stage), txn_id=txn_id)
        (number,) = reply["body"]["sequence-numbers"]
        assert number == (2 if fail else 3)
        assert (await peer.ask(NODE, "com.microsoft:update-disposition", disposition, txn_id=txn_id))[
            "statusCode"
        ] == 200
        refused = await peer.ask(NODE, "com.microsoft:update-disposition", disposition, txn_id=txn_id)
        assert refused["errorCondition"] == "com.microsoft:message-lock-lost"
        assert queue.counts().scheduled == 0
        assert queue.messages.locked_count == 1
        assert await peer.discharge(control, txn_id, fail=fail) == Accepted()
    assert (queue.counts().scheduled, queue.counts().active) == (1, 0)
    txn_id = await peer.declare(control)
    numbers = Map([("sequence-numbers", Array([Long(3)]))])
    await peer.ask(NODE, "com.microsoft:cancel-scheduled-message", numbers, txn_id=txn_id)
    peek = Map([("from-sequence-number", Long(0)), ("message-count", Int(5))])
    assert (await peer.ask(NODE, "com.microsoft:peek-message", peek, txn_id=txn_id))["statusCode"] == 200
    assert await peer.discharge(control, txn_id) == Accepted()
    assert queue.counts().scheduled == 0
    assert delivery.tag


async def test_a_session_and_its_state_in_a_transaction(peer: Peer) -> None:
    queue = peer.stage.namespace.create_queue("s", replace(peer.stage.queue.description, requires_session=True))
    control = await peer.attach_coordinator()
    await peer.send(await peer.attach_sender("s"), plain(group_id="a"))
    (delivery,) = await peer.take(await peer.attach_receiver("s", of="a"), 1)
    for fail in (True, False):
        txn_id = await peer.declare(control)
        await peer.settle_in(txn_id, delivery)
        state = Map([("session-id", "a"), ("session-state", b"new")])
        assert (await peer.ask("s/$management", "com.microsoft:set-session-state", state, txn_id=txn_id))[
            "statusCode"
        ] == 200
        await peer.discharge(control, txn_id, fail=fail)
        reply = await peer.ask("s/$management", "com.microsoft:get-session-state", Map([("session-id", "a")]))
        assert reply["body"]["session-state"] == (None if fail else b"new")
    assert len(queue.messages) == 0


async def test_a_request_in_an_unknown_transaction_closes_its_link(peer: Peer) -> None:
    requests = await peer.attach_sender(NODE)
    await peer.post_in(b"unknown", requests, plain())
    assert (await peer.wait(LinkDetached, of=requests)).error.condition == UNKNOWN_ID
