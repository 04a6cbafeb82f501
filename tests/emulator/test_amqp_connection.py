"""The AMQP frontend on real sockets, with a scripted peer."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from sbpair.amqp import codec, frames
from sbpair.amqp.link import CreditChanged, Delivery, LinkAttached, LinkDetached
from sbpair.amqp.message import Header, Properties, Sections, data_body, encode_map, section, value_body
from sbpair.amqp.performatives import Accepted, Error, Modified, Rejected, Released, SaslInit, Source, Target
from sbpair.amqp.sasl import SaslClient
from sbpair.amqp.types import Char, Decimal128, Described, Long, Map, Symbol, Timestamp, UByte, UInt, ULong
from sbpair.amqp_server.node_links import Reply
from sbpair.amqp_server.shared_access import AccessRight, AuthorizationRule
from sbpair.emulator.entities.description import QueueDescription
from sbpair.emulator.entities.queue import ROOT_RULE
from sbpair.emulator.frontends.amqp import management_operations
from sbpair.emulator.server import Emulator
from tests.emulator.peer import Peer, Stage, open_stage, plain, raw_connection
from tests.kit.sas import sign
from tests.kit.waiting import until

BROKEN_ANNOTATIONS = (
    b"\x00Sq\xc1\x02\x02\x40", b"\x00Sq\xc1\x03\x02\xa1\x09", b"\x00Sq\x45", b"\x00Sq\xc1\x04\x02\xa3\x01\xff",
    b"\x00Sq\xc1\x07\x02\xa3\x01k\xa1\x01\xff",
)  # fmt: skip
ODD_PROPERTIES = Map(
    [
        ("span", Described(Symbol("com.microsoft:timespan"), Long(600_000_000))),
        ("char", Char("x")),
        ("decimal", Decimal128(bytes(range(16)))),
        ("ubyte", UByte(1)),
        ("time", Timestamp(1)),
        ("symbol", Symbol("s")),
    ]
)


def odd_message() -> Sections:
    """Return a message that re-encoding would change: long forms, odd types, several body sections."""
    long_id = b"\x00\x80" + (0x73).to_bytes(8) + b"\xd0\x00\x00\x00\x0b\x00\x00\x00\x01\xb1\x00\x00\x00\x02id"
    return Sections(
        header=Header(durable=True, priority=7, ttl=60_000, first_acquirer=True, delivery_count=9).encode(),
        delivery_annotations=encode_map(0x71, Map([(Symbol("x-opt-hop"), "mine")])),
        message_annotations=encode_map(0x72, Map([(Symbol("x-opt-partition-key"), "k"), (Symbol("x-mine"), UInt(1))])),
        properties=long_id,
        application_properties=encode_map(0x74, ODD_PROPERTIES),
        body=data_body(b"one") + section(0x75, b"\xb0\x00\x00\x00\x03two"),
        footer=encode_map(0x78, Map([(Symbol("f"), ULong(2**63))])),
    )


async def test_untouched_sections_leave_byte_for_byte(peer: Peer) -> None:
    sent = odd_message()
    await peer.send(await peer.attach_sender("amqps://127.0.0.1:1/Orders"), sent.join())
    (delivery,) = await peer.take(await peer.attach_receiver("orders"), 1)
    got = Sections.split(delivery.payload)
    for name in ("properties", "application_properties", "body", "footer"):
        assert getattr(got, name) == getattr(sent, name), name
    header = got.read_header()
    assert (header.durable, header.priority, header.ttl) == (True, 7, 60_000)
    assert (header.first_acquirer, header.delivery_count) == (False, 0)
    annotations = got.read_message_annotations()
    assert (annotations["x-opt-partition-key"], annotations["x-mine"]) == ("k", 1)
    assert type(annotations["x-opt-sequence-number"]) is Long
    assert type(annotations["x-opt-locked-until"]) is Timestamp
    delivery_annotations = got.read_delivery_annotations()
    assert delivery_annotations["x-opt-lock-token"].bytes_le == delivery.tag
    assert (len(delivery_annotations), delivery_annotations["x-opt-hop"]) == (2, "mine")


async def test_a_dead_letter_is_spliced_not_reencoded(peer: Peer) -> None:
    sent = odd_message()
    reason = Map([(Symbol("DeadLetterReason"), "r"), (Symbol("DeadLetterErrorDescription"), "d" * 300)])
    (delivery,) = await peer.lock("orders", sent.join())
    await peer.settle(delivery, Rejected(Error("com.microsoft:dead-letter", "", reason)))
    (delivery,) = await peer.take(await peer.attach_receiver("orders/$DeadLetterQueue"), 1)
    got = Sections.split(delivery.payload)
    theirs = codec.encode(ODD_PROPERTIES)[3:]
    assert got.application_properties[12 : 12 + len(theirs)] == theirs
    properties = got.read_application_properties()
    assert (properties["DeadLetterReason"], properties["DeadLetterErrorDescription"]) == ("r", "d" * 300)
    assert (got.properties, got.body, got.footer) == (sent.properties, sent.body, sent.footer)
    assert "x-opt-deadletter-source" not in got.read_message_annotations()


async def test_a_dead_letter_that_was_forwarded_names_its_source(peer: Peer) -> None:
    """That is the only message that does, by the documentation of four official clients."""
    namespace = peer.stage.namespace
    namespace.create_queue("central")
    namespace.create_queue("failing", QueueDescription(forward_dead_lettered_messages_to="sb://contoso/central"))
    sent = odd_message()
    sent.message_annotations = encode_map(0x72, Map([(Symbol("x-opt-deadletter-source"), "forged")]))
    (delivery,) = await peer.lock("failing", sent.join())
    assert "x-opt-deadletter-source" not in Sections.split(delivery.payload).read_message_annotations()
    await peer.settle(delivery, Rejected(Error("com.microsoft:dead-letter", "", Map([]))))
    (delivery,) = await peer.take(await peer.attach_receiver("central"), 1)
    assert Sections.split(delivery.payload).read_message_annotations()["x-opt-deadletter-source"] == "failing"


async def test_a_resent_dead_letter_has_only_its_last_reason(peer: Peer) -> None:
    old = Map([("DeadLetterReason", "old"), ("kept", "yes")])
    payload = Sections(application_properties=encode_map(0x74, old), body=data_body(b"x")).join()
    reason = Map([(Symbol("DeadLetterReason"), "new")])
    (delivery,) = await peer.lock("orders", payload)
    await peer.settle(delivery, Rejected(Error("com.microsoft:dead-letter", "", reason)))
    (delivery,) = await peer.take(await peer.attach_receiver("orders/$deadletterqueue"), 1)
    properties = Sections.split(delivery.payload).read_application_properties()
    assert properties.pairs == (("kept", "yes"), ("DeadLetterReason", "new"))


@pytest.mark.parametrize(
    ("bad", "condition"),
    [
        (b"\xff\xff", "amqp:decode-error"),
        (b"\x00\x53\x75\xb0\xff\xff\xff\xff", "amqp:decode-error"),
        (section(0x73, codec.encode([UInt(1), "not bytes"])) + data_body(b""), "amqp:invalid-field"),
        (plain("y" * 300_000), "amqp:link:message-size-exceeded"),
        *((delivery_annotations + data_body(b""), "amqp:decode-error") for delivery_annotations in BROKEN_ANNOTATIONS),
    ],
)
async def test_one_invalid_message_of_a_read_costs_no_other(peer: Peer, bad: bytes, condition: str) -> None:
    good = [plain(str(number), message_id=str(number)) for number in range(6)]
    answers = await peer.send(await peer.attach_sender("orders"), *good[:3], bad, *good[3:])
    refused = [answer for answer in answers if isinstance(answer.state, Rejected)]
    assert [(len(answer.deliveries), answer.state.error.condition) for answer in refused] == [(1, condition)]
    got = await peer.take(await peer.attach_receiver("orders"), 6)
    assert [Sections.split(delivery.payload).read_properties().message_id for delivery in got] == list("012345")


async def test_a_queue_that_fills_up_within_a_read_accepts_what_fits(peer: Peer) -> None:
    one = plain("z" * 1_000)
    peer.stage.queue._max_bytes = 3 * len(one)
    answers = await peer.send(await peer.attach_sender("orders"), *[one] * 5)
    taken = sum(len(answer.deliveries) for answer in answers if isinstance(answer.state, Accepted))
    assert (taken, peer.stage.queue.counts().active) == (3, 3)
    full = [answer.state.error.condition for answer in answers if isinstance(answer.state, Rejected)]
    assert set(full) == {"amqp:resource-limit-exceeded"}


async def test_a_range_is_settled_at_once_and_confirmed(peer: Peer) -> None:
    queue = peer.stage.queue
    answers = await peer.send(await peer.attach_sender("orders"), *[plain(str(n)) for n in range(300)])
    assert len(answers) <= 3
    got = await peer.take(await peer.attach_receiver("orders"), 300)
    assert queue.messages.locked_count == 300
    answer = await peer.settle(got[0], last=got[-1])
    assert isinstance(answer.state, Accepted)
    assert answer.settled
    assert len(answer.deliveries) == 300
    assert queue.counts().total == 0


async def test_each_outcome_is_applied_and_confirmed(peer: Peer) -> None:
    await peer.send(await peer.attach_sender("orders"), plain())
    link = await peer.attach_receiver("orders")
    for outcome, count in ((Released(), 0), (Modified(delivery_failed=True), 1), (Modified(), 2)):
        (delivery,) = await peer.take(link, 1)
        answer = await peer.settle(delivery, outcome)
        assert (type(answer.state), answer.settled) == (type(outcome), True)
        (peeked,) = peer.stage.queue.messages.peek(0, 10)
        assert peeked.delivery_count == count


@pytest.mark.parametrize("how", ["suspend", "detach", "end", "close", "break"])
async def test_messages_stay_locked_after_their_link_has_ended(stage: Stage, how: str) -> None:
    """They return when the lock expires, as a failed delivery; a message released before returns at once."""
    links = stage.namespace.fault_points
    async with stage.connect() as other:
        await other.send(await other.attach_sender("orders"), plain("held"), plain("released"))
        waiting = await other.attach_receiver("orders")
        async with stage.connect() as peer:
            link = await peer.attach_receiver("orders")
            _, released = await peer.take(link, 2)
            await peer.settle(released, Released())
            if how == "break":
                peer.writer.transport.abort()
            elif how == "suspend":  # a detach that does not close
                detach = b"\x00\x53\x16\xc0\x05\x03\x52" + bytes([link.handle]) + b"\x42\x40"
                peer.connection.put(link.session.channel, detach)
                await peer.flush()
            else:
                {"detach": link.close, "end": link.session.end, "close": peer.connection.close}[how]()
                await peer.flush()
            await until(lambda: sum(each.has_link_to("orders") for each in links.connections) == 1)
            first = await other.take(waiting, 1)
            assert stage.queue.messages.locked_count == 2
            stage.emulator.advance(60_000)
            second = await other.take(waiting, 1)
    headers = [Sections.split(each.payload).read_header() for each in (*first, *second)]
    assert [header.delivery_count for header in headers] == [0, 1]


async def test_a_link_attached_again_replaces_the_first(peer: Peer) -> None:
    peer.stage.namespace.create_queue("sessions", QueueDescription(requires_session=True))
    session = await peer.begin()
    first = await peer.attach_receiver("orders", session=session)
    first.grant(1)
    elsewhere = await peer.attach_receiver("orders")
    second = await peer.attach_receiver("orders", session=session)
    stolen = await peer.wait(LinkDetached, of=first)
    assert stolen.error.condition == "amqp:link:stolen"
    await peer.send(await peer.attach_sender("orders", session=session), plain("a"), plain("b"))
    (taken,) = await peer.take(second, 1)
    await peer.settle(taken)
    assert len(await peer.take(elsewhere, 1)) == 1
    # The session of the first link is free for the second.
    wanted = Source("sessions", filter={"com.microsoft:session-filter": "s"})
    for _ in range(2):
        holder = session.receiver("holder")
        holder.open(source=wanted, target=Target("peer"))
        await peer.wait(LinkAttached, of=holder)
    assert not [event for event in peer.events if type(event) is LinkDetached and event.link is holder]


async def test_a_filter_that_has_no_effect_is_not_confirmed(peer: Peer) -> None:
    """AMQP 1.0, part 3.5.3: the sender's source names the filters in place, and the distribution mode if it has two."""
    selector = Described(ULong(0x468C00000004), "colour = 'red'")
    link = (await peer.begin()).receiver("filtered")
    source = Source("orders", filter=Map([(Symbol("jms-selector"), selector)]), distribution_mode="copy")
    link.open(source=source, target=Target("peer"))
    await peer.wait(LinkAttached, of=link)
    assert link.remote.source == Source("orders", distribution_mode="copy")


@pytest.mark.parametrize("settled", [0, 1, 2])
@pytest.mark.parametrize("address", ["orders", "orders/$deadletterqueue", "sessions"])
async def test_browsing_takes_copies_only(peer: Peer, settled: int, address: str) -> None:
    """A JMS QueueBrowser attaches with the distribution mode "copy", and settled deliveries."""
    sessions = peer.stage.namespace.create_queue("sessions", QueueDescription(requires_session=True))
    later = encode_map(0x72, Map([(Symbol("x-opt-scheduled-enqueue-time"), Timestamp(2**42))])) + data_body(b"later")
    locked = await peer.lock("orders", *(plain(str(number), group_id="s") for number in range(4)))
    await peer.settle(locked[0], Rejected())
    await peer.settle(locked[1], Modified(undeliverable_here=True))
    await peer.settle(locked[3], Released())
    await peer.send(await peer.attach_sender("orders"), later)
    await peer.send(await peer.attach_sender("sessions"), plain("s1", group_id="s"), plain("s2", group_id="t"))
    link = (await peer.begin()).receiver("browser")
    source = Source(address, distribution_mode="copy")
    link.open(source=source, target=Target("peer"), snd_settle_mode=settled)
    await peer.wait(LinkAttached, of=link)
    assert (link.remote.source, link.remote.snd_settle_mode) == (source, 1)
    texts = {"orders": ["2", "3"], "orders/$deadletterqueue": ["0"], "sessions": ["s1", "s2"]}[address]
    copies = await peer.take(link, len(texts))
    assert [Sections.split(each.payload).read_body()[0][1].decode() for each in copies] == texts
    assert all(each.settled for each in copies)
    link.grant(10)
    link.drain()
    await peer.flush()
    while link.credit:
        await peer.read()
    assert not [event for event in peer.events if isinstance(event, Delivery)]
    assert (peer.stage.queue.counts().total, peer.stage.queue.messages.locked_count, sessions.counts().total) == (
        5,
        1,
        2,
    )


@pytest.mark.parametrize(("tier", "step"), [("basic", 25), ("standard", 1), ("premium", 50)])
async def test_a_strict_client_gets_the_largest_messages(tier: str, step: int) -> None:
    """The service's annotations push a message over its entity's limit: no limit of the link is for receivers."""
    async with Emulator([("contoso", 0, tier)]) as emulator:
        stage = Stage(emulator)
        limit = stage.queue.max_message_bytes
        async with stage.connect() as peer:
            out, link = await peer.attach_sender("orders"), await peer.attach_receiver("orders")
            link.max_message_size = link.remote.max_message_size or 0
            for size in range(limit - 300, limit + 1, step):
                payload = data_body(bytes(size - 8))
                assert len(payload) == size
                await peer.send(out, payload)
                (delivery,) = await peer.take(link, 1)
                await peer.settle(delivery)


async def test_draining_returns_the_credit(peer: Peer) -> None:
    await peer.send(await peer.attach_sender("orders"), plain())
    link = await peer.attach_receiver("orders")
    link.grant(10)
    link.drain()
    await peer.wait(Delivery)
    await peer.flush()
    while link.credit:
        await peer.read()


ANSWERS: dict[str, list[tuple[Any, ...]]] = {
    "transfer": [("disposition", True, 0)], "accept": [("disposition", False, 0)],
    "reject": [("disposition", False, 1)], "drain": [("flow",)], "credit": [], "attach": [("attach",), ("flow",)],
    "detach": [("detach",)], "begin": [("begin",)], "end": [("end",)], "close": [("close",)],
}  # fmt: skip
"""What the emulator answers to each frame; of dispositions, the role and the first delivery too."""

ENDED = {"detach": {"accept", "reject", "drain", "credit", "detach"}, "end": {*ANSWERS} - {"begin", "close"}}
"""What has no effect after such a frame."""


@pytest.mark.parametrize("first", [name for name in ANSWERS if name != "close"])
async def test_frames_of_one_write_are_answered_in_their_order(stage: Stage, first: str) -> None:
    for second in sorted({*ANSWERS} - ENDED.get(first, set()) - {first}):
        stage.queue.messages.clear()
        async with stage.connect() as peer:
            session = await peer.begin()
            out = await peer.attach_sender("orders", session=session)
            source = await peer.attach_receiver("orders", session=session)
            async with stage.connect() as other:
                await other.send(await other.attach_sender("orders"), plain(), plain())
            await peer.take(source, 2)
            source.grant(10)
            await peer.wait(CreditChanged, of=out)
            act: dict[str, Callable[[], Any]] = {
                "transfer": lambda out=out: out.send(plain(), b"t"),
                "accept": lambda session=session: session.dispose(0, 0, Accepted(), receiver=True, settled=False),
                "reject": lambda session=session: session.dispose(1, 1, Rejected(), receiver=True, settled=False),
                "drain": source.drain,
                "credit": lambda source=source: source.grant(5),
                "attach": lambda session=session: session.sender("new").open(
                    source=Source("peer"), target=Target("orders")
                ),
                "detach": source.close,
                "begin": peer.connection.begin,
                "end": session.end,
                "close": peer.connection.close,
            }
            act[first]()
            act[second]()
            peer.connection.close()
            answered = [answer for answer in await peer.read_frames() if answer[0] != "transfer"]
            expected = [*ANSWERS[first], *ANSWERS[second], *(ANSWERS["close"] if second != "close" else [])]
            assert answered == expected, (first, second)


async def test_messages_sent_with_the_attach_are_taken(stage: Stage) -> None:
    async with stage.connect() as peer:
        link = (await peer.begin()).sender("eager")
        link.open(source=Source("peer"), target=Target("orders"))
        link.credit = 3
        answers = await peer.send(link, plain("a"), plain("b"), plain("c"))
        assert all(isinstance(answer.state, Accepted) for answer in answers)
        assert stage.queue.counts().active == 3


async def test_messages_for_a_slow_reader_stay_in_the_queue(stage: Stage) -> None:
    queue = stage.queue
    async with stage.connect() as sender, stage.connect() as peer:
        out = await sender.attach_sender("orders")
        for _ in range(10):
            await sender.send(out, *[plain("x" * 100_000)] * 20)
        link = await peer.attach_receiver("orders")
        peer.writer.transport.pause_reading()
        link.grant(1_000)
        peer.connection.put(link.session.channel, b"")  # an empty frame
        peer.writer.write(peer.connection.take())
        await sender.send(out, plain("after the frontend had its turn"))
        held = queue.messages.locked_count
        assert 0 < held < 150
        peer.writer.transport.resume_reading()
        for _ in range(201):
            await peer.wait(Delivery)


async def test_no_message_leaves_beyond_the_session_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sbpair.amqp.session.WINDOW", 10)

    async with open_stage() as stage:
        queue = stage.queue
        async with stage.connect() as peer:
            out = await peer.attach_sender("orders")
            for number in range(10):
                await peer.send(out, plain(str(number)), plain(str(number)))
            link = await peer.attach_receiver("orders")
            link.grant(1_000)
            for number in range(20):
                await peer.wait(Delivery)
                assert queue.messages.locked_count <= number + 11


# Rights


async def test_a_wrong_key_is_refused_at_the_link(stage: Stage) -> None:
    stage.namespace.keys = (AuthorizationRule("RootManageSharedAccessKey", "other", "another"),)
    async with stage.connect() as peer:
        error = await peer.refusal_of(peer.attach_receiver("orders"))
        assert error.condition == "amqp:unauthorized-access"
    async with raw_connection(stage.authority) as (reader, writer):
        writer.write(frames.SASL_HEADER + frames.frame(SaslInit("PLAIN", b"\0x\0y").encode(), kind=frames.SASL_FRAME))
        await reader.readuntil(b"Welcome!")


async def test_the_key_of_an_entity_signs_in_for_it_alone(stage: Stage) -> None:
    rule = AuthorizationRule("reader", "a2V5", "b3RoZXI=", frozenset({AccessRight.LISTEN}))
    other = stage.namespace.create_queue("other")
    other.update(replace(other.description, authorization_rules=(rule,)))
    async with stage.connect(sasl=SaslClient("PLAIN", b"\0reader\0a2V5")) as peer:
        assert (await peer.attach_receiver("other")).is_open
        assert (await peer.peek("other"))["statusCode"] == 204
        for attaching in (peer.attach_sender("other"), peer.attach_receiver("orders")):
            assert (await peer.refusal_of(attaching)).condition == "amqp:unauthorized-access"


@pytest.mark.parametrize("address", ["orders", "nowhere"])
async def test_without_a_token_every_link_is_refused(stage: Stage, address: str) -> None:
    async with stage.connect(signed_in=False) as peer:
        error = await peer.refusal_of(peer.attach_receiver(address))
        assert error.condition == "amqp:unauthorized-access"


async def test_a_management_node_checks_each_request_not_the_attach(stage: Stage) -> None:
    """Clients of Java attach before they have put their token."""
    stage.namespace.create_queue("other")
    rule = stage.namespace.keys[0]
    async with stage.connect(signed_in=False) as peer:
        for entity in ("orders", "nowhere"):
            await peer.attach_node(f"{entity}/$management")
            assert (await peer.peek(entity))["statusCode"] == 401
        for name, statuses in {"other": (401, 401), "orders": (200, 401), "": (200, 404)}.items():
            token = sign(rule, f"sb://127.0.0.1/{name}", stage.emulator.clock.now_ms() // 1000 + 60)
            await peer.ask("$cbs", "put-token", token, name=f"sb://127.0.0.1/{name}")
            found = tuple([(await peer.peek(entity))["statusCode"] for entity in ("orders", "nowhere")])
            assert found == tuple(204 if status == 200 else status for status in statuses), name


async def test_a_missing_entity_is_not_found_by_the_callers_name(peer: Peer) -> None:
    peer.stage.namespace.create_topic("topic")
    for address in ("Nowhere", "nowhere/$management", "orders/$deadletterqueue/further", "Topic/Subscriptions/Name"):
        for prefix in ("", "amqps://some.host/"):
            error = await peer.refusal_of(peer.attach_receiver(prefix + address))
            assert error.condition == "amqp:not-found"
            assert error.description.startswith(f"The messaging entity 'sb://127.0.0.1/{address}' could not be found.")
    error = await peer.refusal_of(peer.attach_sender("orders/$deadletterqueue"))
    assert error.condition == "amqp:not-allowed"


# The management node


async def test_an_unknown_operation_is_not_implemented(peer: Peer) -> None:
    answer = await peer.ask("orders/$management", "com.microsoft:make-coffee", Map())
    assert (answer["statusCode"], answer["errorCondition"]) == (501, "amqp:not-implemented")
    answer = await peer.ask("orders/$management", "com.microsoft:peek-message", "no map")
    assert (answer["statusCode"], answer["errorCondition"]) == (400, "com.microsoft:argument-error")


KEPT = "SharedAccessKey=secret"


def at_fault(_call: Any) -> Reply:
    raise RuntimeError(KEPT)


@pytest.mark.parametrize("made", [at_fault, lambda *_: Reply(body=Map([("count", 1)])), lambda *_: None])
async def test_a_bug_fails_its_request_only(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, made: Any
) -> None:
    monkeypatch.setitem(
        management_operations.OPERATIONS,
        "com.microsoft:fail",
        management_operations.Operation(AccessRight.LISTEN, made),
    )

    async with open_stage() as stage, stage.connect() as peer:
        answer = await peer.ask("orders/$management", "com.microsoft:fail", Map())
        assert (answer["statusCode"], answer["errorCondition"]) == (500, "amqp:internal-error")
        assert "unable to process" in answer["statusDescription"]
        assert (await peer.peek("orders"))["statusCode"] == 204
        await peer.send(await peer.attach_sender("orders"), plain())
    (logged,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert "com.microsoft:fail" in logged
    assert KEPT not in caplog.text


async def test_a_connection_has_one_pair_of_links_to_cbs(stage: Stage) -> None:
    name = "sb://h/orders"
    async with stage.connect(signed_in=False) as peer:
        token = sign(ROOT_RULE, name, 1 << 40)
        assert (await peer.ask("$cbs", "put-token", token, name=name))["status-code"] == 202
        for attach in (peer.attach_sender, peer.attach_receiver):
            error = await peer.refusal_of(attach("$CBS"))
            assert error.condition == "amqp:not-allowed"
            assert error.description == "A link to connection 'peer' $cbs node has already been opened."
        for link in peer.pairs["$cbs"]:
            link.close()
        assert (await peer.ask("$cbs", "put-token", token, name=name))["status-code"] == 202
    async with stage.connect(signed_in=False) as other:
        assert (await other.ask("$cbs", "put-token", token, name=name))["status-code"] == 202


async def test_a_bug_in_checking_a_token_is_answered(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_stage() as stage, stage.connect(signed_in=False) as peer:
        monkeypatch.setattr(stage.namespace, "keys", None)
        asked = peer.ask("$cbs", "put-token", sign(ROOT_RULE, "sb://h/orders", 1 << 40), name="sb://h/orders")
        assert (await asked)["status-code"] == 500
        monkeypatch.undo()
        asked = peer.ask("$cbs", "put-token", sign(ROOT_RULE, "sb://h/orders", 1 << 40), name="sb://h/orders")
        assert (await asked)["status-code"] == 202
    assert "put-token" in caplog.text
    assert "SharedAccessSignature" not in caplog.text


async def test_replies_go_to_the_requested_address(peer: Peer) -> None:
    """Two pairs of links to one node on one connection have their own reply addresses."""
    session = await peer.begin()
    requests = await peer.attach_sender("orders/$management", session=session)
    replies = []
    for name in ("first", "second"):
        link = session.receiver(name)
        link.open(source=Source("orders/$management"), target=Target(name))
        link.grant(5) if link.is_open else None
        replies.append(link)
    await peer.flush()
    while not all(link.is_open for link in replies):
        await peer.read()
    for link in replies:
        link.grant(5)
    for name, link in (("second", replies[1]), ("first", replies[0])):
        request = Sections(properties=Properties(message_id=ULong(7), reply_to=name).encode(), body=value_body(Map()))
        await peer.send(requests, request.join())
        reply = Sections.split((await peer.wait(Delivery, of=link)).payload)
        assert type(reply.read_properties().correlation_id) is ULong


async def test_a_request_that_is_no_message_is_rejected(peer: Peer) -> None:
    (answer,) = await peer.send(await peer.attach_sender("orders/$management"), b"\xff")
    assert isinstance(answer.state, Rejected)
