"""Facts about messages that the service is known for, over real sockets: annotations, sections, states and counts."""

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from sbpair.amqp import codec
from sbpair.amqp.link import Delivery
from sbpair.amqp.message import FOOTER, Header, Properties, Sections, data_body, encode_map
from sbpair.amqp.performatives import Error, Modified, Rejected
from sbpair.amqp.types import Array, Int, Long, Map, Short, Symbol, Timestamp, UInt, ULong, same
from sbpair.emulator.entities.description import QueueDescription
from tests.emulator.peer import Peer, Stage

MINUTE = 60_000
LOCK_TOKEN = Symbol("x-opt-lock-token")
ABANDONED = Modified(delivery_failed=True)
DEAD = Rejected(Error("com.microsoft:dead-letter", "", Map()))


def annotations(pairs: dict[str, Any], code: int = 0x71) -> bytes:
    return encode_map(code, Map([(Symbol(name), value) for name, value in pairs.items()]))


def scheduled(at_ms: int) -> bytes:
    return annotations({"x-opt-scheduled-enqueue-time": Timestamp(at_ms)}, 0x72) + data_body(b"later")


def sections(delivery: Delivery) -> Sections:
    return Sections.split(delivery.payload)


def state_and_count(delivery: Delivery) -> tuple[Any, Any]:
    found = sections(delivery)
    return found.read_message_annotations()["x-opt-message-state"], found.read_header().delivery_count


async def peek(peer: Peer, entity: str, **arguments: Any) -> list[Sections]:
    return [Sections.split(each["message"]) for each in (await peer.peek(entity, **arguments))["body"]["messages"]]


@pytest.mark.parametrize("place", ["first", "last"])
async def test_a_senders_delivery_annotations_are_kept(peer: Peer, place: str) -> None:
    mine = annotations({"mine": "a" * 300, "x-opt-lock-token": "forged", "number": Long(2**40)})
    payload = mine + data_body(b"x") if place == "first" else data_body(b"x") + mine
    await peer.send(await peer.attach_sender("orders"), payload)
    (peeked,) = await peek(peer, "orders")
    link = await peer.attach_receiver("orders")
    (delivery,) = await peer.take(link, 1)
    await peer.settle(delivery, DEAD)
    (dead,) = await peer.take(await peer.attach_receiver("orders/$deadletterqueue"), 1)
    kept = {"mine": "a" * 300, "number": 2**40}
    assert dict(peeked.read_delivery_annotations().pairs) == kept
    for each in (delivery, dead):
        found = dict(sections(each).read_delivery_annotations().pairs)
        assert isinstance(token := found.pop(LOCK_TOKEN), UUID)
        assert (found, token.bytes_le) == (kept, each.tag)


async def test_delivery_annotations_pass_topics_and_forwarding(peer: Peer) -> None:
    peer.stage.namespace.create_topic("t").create_subscription("s", QueueDescription(forward_to="orders"))
    await peer.send(await peer.attach_sender("t"), annotations({"mine": "yes"}) + data_body(b"x"))
    (delivery,) = await peer.take(await peer.attach_receiver("orders"), 1)
    assert sections(delivery).read_delivery_annotations()["mine"] == "yes"


async def test_only_a_true_flag_leaves_the_body_of_a_peek_out(peer: Peer) -> None:
    footer = encode_map(FOOTER, Map([(Symbol("f"), "end")]))
    payload = Properties(message_id="m", subject="kept").encode() + data_body(b"body") + footer
    await peer.send(await peer.attach_sender("orders"), payload)
    (without,) = await peek(peer, "orders", **{"omit-message-body": True})
    others = [await peek(peer, "orders", **{"omit-message-body": value}) for value in (False, None, "true", Int(1))]
    (delivery,) = await peer.take(await peer.attach_receiver("orders"), 1)
    assert (without.body, without.footer, without.read_properties().subject) == (b"", footer, "kept")
    assert {whole.body for (whole,) in others} == {sections(delivery).body} == {data_body(b"body")}


async def test_a_reason_of_any_type_is_kept(peer: Peer) -> None:
    info = Map([(Symbol("DeadLetterReason"), Int(7)), (Symbol("DeadLetterErrorDescription"), Timestamp(8))])
    (delivery,) = await peer.lock("orders", data_body(b"x"))
    await peer.settle(delivery, Rejected(Error("com.microsoft:dead-letter", "", info)))
    (dead,) = await peer.take(await peer.attach_receiver("orders/$deadletterqueue"), 1)
    found = sections(dead).read_application_properties()
    assert [same(found[str(name)], value) for name, value in info.pairs] == [True, True]


async def test_a_peeked_deferred_message_shows_its_lock(peer: Peer) -> None:
    (delivery,) = await peer.lock("orders", data_body(b"x"))
    await peer.settle(delivery, Modified(undeliverable_here=True))
    (peeked,) = await peek(peer, "orders")
    assert "x-opt-locked-until" not in peeked.read_message_annotations()
    number = peeked.read_message_annotations()["x-opt-sequence-number"]
    body = Map([("sequence-numbers", Array([number])), ("receiver-settle-mode", UInt(1))])
    await peer.ask("orders/$management", "com.microsoft:receive-by-sequence-number", body)
    (peeked,) = await peek(peer, "orders")
    [stored] = peer.stage.queue.messages.peek(0, 1)
    assert peeked.read_message_annotations()["x-opt-locked-until"] == stored.locked_until_ms


async def test_a_footer_before_the_body_is_accepted(peer: Peer) -> None:
    footer = encode_map(FOOTER, Map([(Symbol("f"), "end")]))
    sender = await peer.attach_sender("orders")
    await peer.send(sender, Properties(message_id="m").encode() + footer + data_body(b"x"))
    (answer,) = await peer.send(sender, footer + footer + data_body(b"x"))
    (delivery,) = await peer.take(await peer.attach_receiver("orders"), 1)
    assert isinstance(answer.state, Rejected)
    assert (sections(delivery).body, sections(delivery).footer) == (data_body(b"x"), footer)


@pytest.mark.parametrize("code", [FOOTER, 0x71, 0x72])
@pytest.mark.parametrize("size", [1, 300])
async def test_string_keys_of_annotations_and_footers_become_symbols(peer: Peer, code: int, size: int) -> None:
    """AMQP 1.0, part 3.2.10; Java's clients fail at strings. Values keep their bytes."""
    sent = [("k" * size, "text"), ("\xe9", Long(1)), (Symbol("own"), Map([("inner", Long(1))])), (ULong(7), b"x")]
    await peer.send(await peer.attach_sender("orders"), encode_map(code, Map(sent)) + data_body(b"x"))
    (delivery,) = await peer.take(await peer.attach_receiver("orders"), 1)
    found = sections(delivery)
    raw = {FOOTER: found.footer, 0x71: found.delivery_annotations, 0x72: found.message_annotations}[code]
    kept = [(key, value) for key, value in codec.decode_all(raw).value.pairs if not str(key).startswith("x-opt-")]
    assert [(type(key), key, value) for key, value in kept] == [
        (Symbol if key == "k" * size else type(key), key, value) for key, value in sent
    ]


async def test_first_acquirer_is_false_and_never_null(peer: Peer) -> None:
    payloads = [data_body(b"1"), Header(durable=True).encode() + data_body(b"2")]
    payloads.append(Header(first_acquirer=True, priority=3).encode() + data_body(b"3"))
    await peer.send(await peer.attach_sender("orders"), *payloads)
    peeked = [each.read_header() for each in await peek(peer, "orders")]
    received = await peer.take(await peer.attach_receiver("orders"), 3)
    headers = [*peeked, *(sections(each).read_header() for each in received)]
    assert [header.first_acquirer for header in headers] == [False] * 6
    assert [(header.durable, header.priority) for header in headers] == 2 * [(None, None), (True, None), (None, 3)]


async def test_an_empty_session_id_does_not_conflict_with_a_partition_key(peer: Peer) -> None:
    peer.stage.namespace.create_queue("parts", replace(QueueDescription(), enable_partitioning=True))
    key = annotations({"x-opt-partition-key": "k"}, 0x72)
    sender = await peer.attach_sender("parts")
    for session, accepted in (("", True), ("k", True), ("other", False)):
        (answer,) = await peer.send(
            sender, key + Properties(message_id="m", group_id=session).encode() + data_body(b"")
        )
        assert (type(answer.state).__name__ == "Accepted") is accepted, session
    received = await peer.take(await peer.attach_receiver("parts"), 2)
    assert {sections(each).read_properties().group_id for each in received} == {"", "k"}
    found = [sections(each).read_message_annotations() for each in received] + [
        each.read_message_annotations() for each in await peek(peer, "parts")
    ]
    ids = {each["x-opt-partition-id"] for each in found}
    assert ids == {each["x-opt-sequence-number"] >> 48 for each in found}
    assert [*map(type, ids)] == [Short], "one partition, from 1 on"


async def test_a_scheduled_message_keeps_its_state_when_it_is_due(peer: Peer) -> None:
    peer.stage.namespace.create_topic("t").create_subscription("s")
    now = peer.stage.emulator.clock.now_ms()
    for entity in ("orders", "t"):
        payloads = [scheduled(now + MINUTE), scheduled(now - MINUTE), data_body(b"now")]
        await peer.send(await peer.attach_sender(entity), *payloads)
    waiting = await peek(peer, "orders")
    peer.stage.emulator.advance(MINUTE)
    for entity in ("orders", "t/subscriptions/s"):
        received = await peer.take(await peer.attach_receiver(entity), 3)
        assert sorted(state_and_count(each) for each in received) == [(0, 0), (0, 0), (2, 0)]
        (due,) = [each for each in received if state_and_count(each) == (2, 0)]
        await peer.settle(due, ABANDONED)
        (again,) = await peer.take(due.link, 1)
        assert state_and_count(again) == (2, 1)
        await peer.settle(again, DEAD)
        (dead,) = await peer.take(await peer.attach_receiver(f"{entity}/$deadletterqueue"), 1)
        assert state_and_count(dead) == (0, 1)
    states = [each.read_message_annotations()["x-opt-message-state"] for each in waiting]
    assert sorted(states) == [0, 0, 2]


async def test_a_locked_message_is_settled_by_its_token_after_the_connection(stage: Stage) -> None:
    async with stage.connect() as peer:
        await peer.send(await peer.attach_sender("orders"), *(data_body(bytes([each])) for each in range(5)))
        held = await peer.take(await peer.attach_receiver("orders"), 5)
        peer.connection.close()
        await peer.flush()
        await peer.wait_closed()
    tokens = [UUID(bytes_le=delivery.tag) for delivery in held]
    stage.emulator.advance(MINUTE - 5_000)
    async with stage.connect() as peer:
        node = "orders/$management"
        reply = await peer.ask(node, "com.microsoft:renew-lock", Map([("lock-tokens", tokens)]))
        assert len(reply["body"]["expirations"]) == 5
        stage.emulator.advance(MINUTE - 5_000)
        for token, status in zip(tokens, ("completed", "abandoned", "defered", "suspended"), strict=False):
            body = Map([("disposition-status", status), ("lock-tokens", [token])])
            reply = await peer.ask(node, "com.microsoft:update-disposition", body)
            assert reply["statusCode"] == 200
        stage.emulator.advance(5_000)
        for operation in ("renew-lock", "update-disposition"):
            body = Map([("disposition-status", "completed"), ("lock-tokens", [tokens[4]])])
            reply = await peer.ask(node, f"com.microsoft:{operation}", body)
            assert (reply["statusCode"], reply["errorCondition"]) == (410, "com.microsoft:message-lock-lost")
        received = await peer.take(await peer.attach_receiver("orders"), 2)
    assert [state_and_count(each) for each in received] == [(0, 1), (0, 1)]
    counts = stage.queue.counts()
    assert (counts.active, counts.dead_letter) == (3, 1)
