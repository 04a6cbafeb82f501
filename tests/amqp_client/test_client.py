"""The wire client against the emulator, and against peers that do what no good peer does. Real sockets throughout."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from sbpair import errors
from sbpair.amqp import session
from sbpair.amqp.connection import Connection, ConnectionClosed
from sbpair.amqp.link import (
    CreditChanged,
    Delivery,
    Link,
    LinkAttaching,
    LinkDetached,
    ReceivingLink,
    SendingLink,
    terminus_address,
)
from sbpair.amqp.message import APPLICATION_PROPERTIES, Properties, Sections, data_body, encode_map, value_body
from sbpair.amqp.performatives import Accepted, Error, Received, Rejected, Released
from sbpair.amqp.sasl import SaslServer
from sbpair.amqp.session import Disposed
from sbpair.amqp.types import Described, Int, Symbol
from sbpair.amqp_client import client, stream
from sbpair.amqp_client.client import AmqpClient, connect, lock_token
from sbpair.amqp_client.raw_links import ABANDONED, ACCEPTED, RELEASED, RawReceiver, dead_letter
from sbpair.emulator.access.sas import AccessRight, AuthorizationRule
from sbpair.model.connection_string import endpoint_from_connection_string
from sbpair.model.pair import Endpoint, Identity, SasKey, SasToken
from sbpair.model.signature import sign
from sbpair.move.raw_source import RawSource
from sbpair.testing import Emulator, EmulatorOptions
from tests.kit.waiting import until

QUEUE = "orders"
TEST_SECONDS = 10.0


@asynccontextmanager
async def emulated(**options: Any) -> AsyncIterator[tuple[Emulator, Endpoint]]:
    async with Emulator([("contoso", 0)], options=EmulatorOptions(**options)) as emulator:
        emulator.namespaces["contoso"].create_queue(QUEUE)
        yield emulator, endpoint_of(emulator)


def endpoint_of(emulator: Emulator) -> Endpoint:
    return endpoint_from_connection_string(emulator.namespaces["contoso"].connection_string, name="contoso")


def message(number: int = 0, size: int = 10) -> bytes:
    return Sections(
        properties=Properties(message_id=f"m{number}").encode(),
        application_properties=encode_map(APPLICATION_PROPERTIES, {"number": Int(number)}),
        body=data_body(bytes([number % 256]) * size),
    ).join()


def ids(deliveries: list[Delivery]) -> list[str]:
    return [Sections.split(each.payload).read_properties().message_id for each in deliveries]


async def take(receiver: Any, count: int) -> list[Delivery]:
    taken: list[Delivery] = []
    while len(taken) < count:
        taken += await receiver.take(count - len(taken), seconds=TEST_SECONDS)
    return taken


async def receive_one(wire: AmqpClient) -> tuple[RawReceiver, list[Delivery]]:
    """Send a message, and take it under lock."""
    await (await wire.sender(QUEUE)).send(message())
    receiver = await wire.receiver(QUEUE)
    receiver.grant(1)
    return receiver, await take(receiver, 1)


# A peer that does what a test tells it.


class Peer(asyncio.Protocol):
    """A server whose every answer can be replaced: `script` is told each event first, and answers True to keep it."""

    def __init__(self, script: Act, terms: dict[str, Any]) -> None:
        self.script = script
        self.tokens: list[str] = []
        self.said: list[Any] = []
        self.heard = asyncio.Event()
        self.transport: Any = None
        self.connection = Connection(SaslServer(), container_id="peer", now=asyncio.get_running_loop().time(), **terms)

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        for event in self.connection.receive(data, asyncio.get_running_loop().time()):
            self.said.append(event)
            if not self.script(self, event):
                self.usual(event)
        self.heard.set()
        self.flush()

    def flush(self) -> None:
        self.transport.write(self.connection.take())

    def usual(self, event: Any) -> None:
        if isinstance(event, LinkAttaching):
            event.link.accept()
            if isinstance(event.link, ReceivingLink):
                event.link.grant(100)
        elif isinstance(event, Delivery):
            accept(event)
            if terminus_address(event.link.remote.target) == "$cbs":
                self.reply(event)
        elif isinstance(event, ConnectionClosed):
            self.flush()
            self.transport.close()

    def reply(self, request: Delivery, status: int = 202) -> None:
        asked = Sections.split(request.payload)
        name = asked.read_application_properties().get("name")
        self.tokens.append(name)
        answer = Sections(
            properties=Properties(correlation_id=asked.read_properties().message_id).encode(),
            application_properties=encode_map(APPLICATION_PROPERTIES, {"status-code": Int(status)}),
            body=value_body(None),
        )
        self.links("$cbs", SendingLink)[0].send(answer.join(), b"reply", settled=True)

    async def granted(self, credit: int) -> SendingLink:
        """Wait for this credit on the link that sends from the queue."""
        await until(lambda: [link.credit for link in self.links(QUEUE, SendingLink)] == [credit])
        return cast("SendingLink", self.links(QUEUE, SendingLink)[0])

    def links(self, address: str, kind: type[Link]) -> list[Any]:
        return [
            link
            for session in self.connection.sessions
            for link in session.links
            if isinstance(link, kind)
            and terminus_address(link.remote.source if kind is SendingLink else link.remote.target) == address
        ]


def accept(delivery: Delivery) -> None:
    delivery.link.session.dispose(delivery.id, delivery.id, Accepted(), receiver=True, settled=True)


Act = Callable[[Peer, Any], object]


def instead(kind: type[Any], act: Act = lambda _peer, _event: None, address: str | None = None) -> Act:
    """Return a script that acts in place of the usual answer to such events, of links to an address if one is given."""

    def script(peer: Peer, event: Any) -> bool:
        ours = isinstance(event, kind)
        if ours and address is not None:
            ours = terminus_address(event.link.remote.target) == address
        if ours:
            act(peer, event)
        return ours

    return script


def on_message(act: Act = lambda _peer, _event: None) -> Act:
    """Return a script that acts in place of an answer to messages for the queue."""
    return instead(Delivery, act, QUEUE)


def replying(*statuses: int) -> Act:
    """Answer each request with the next status."""
    remaining = list(statuses)

    def act(peer: Peer, event: Any) -> None:
        accept(event)
        peer.reply(event, remaining.pop(0))

    return instead(Delivery, act)


@asynccontextmanager
async def scripted(
    script: Act = lambda _peer, _event: None,
    **terms: Any,
) -> AsyncIterator[tuple[list[Peer], Endpoint]]:
    peers: list[Peer] = []

    def make() -> Peer:
        peers.append(Peer(script, terms))
        return peers[-1]

    server = await asyncio.get_running_loop().create_server(make, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield peers, Endpoint("contoso", f"127.0.0.1:{port}", "127.0.0.1", port, False, SasKey("k", "key"))
    finally:
        for peer in peers:
            if peer.transport is not None:
                peer.transport.abort()
        server.close()
        await server.wait_closed()


# Connecting


async def test_a_message_goes_out_and_comes_back_to_the_byte() -> None:
    async with emulated() as (_, endpoint), connect(endpoint) as wire:
        sender, receiver = await wire.sender(QUEUE), await wire.receiver(QUEUE)
        sent = message(7, size=200_000)
        await sender.send(sent)
        receiver.grant(1)
        (delivery,) = await take(receiver, 1)
        before, after = Sections.split(sent), Sections.split(delivery.payload)
        assert after.body == before.body
        assert after.properties == before.properties
        assert after.application_properties == before.application_properties
        await receiver.settle([delivery], ACCEPTED)


async def test_a_sender_is_not_ready_while_the_peers_window_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "WINDOW", 2)
    async with emulated() as (_, endpoint), connect(endpoint) as wire:
        sender = await wire.sender(QUEUE)
        large = sender.send_nowait(message(1, size=200_000))
        assert sender.credit == 0
        await sender.ready()
        assert sender.credit > 0
        await large.outcome(10)


async def test_senders_beyond_the_handles_of_a_session_get_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "HANDLE_MAX", 1)
    async with emulated() as (emulator, endpoint), connect(endpoint) as wire:
        for number, sender in enumerate([await wire.sender(QUEUE) for _ in range(5)]):
            await sender.send(message(number))
        assert len(emulator.namespaces["contoso"].queue(QUEUE).messages) == 5


async def test_a_wrong_key_is_an_authentication_error_without_the_key() -> None:
    async with emulated() as (_, endpoint):
        wrong = replace(endpoint, credential=SasKey("RootManageSharedAccessKey", "wr0ng-s3cret"))
        with pytest.raises(errors.NotAuthenticated) as caught:
            async with connect(wrong) as wire:
                await wire.sender(QUEUE)
        assert "wr0ng" not in f"{caught.value!r}{caught.value.hint}"
        assert caught.value.exit_code == 5


async def test_a_ready_made_signature_serves_until_it_expires() -> None:
    async with emulated() as (_, endpoint):
        assert isinstance(endpoint.credential, SasKey)
        old, good = (
            SasToken(sign(f"sb://{endpoint.authority}/{QUEUE}", endpoint.credential, expiry))
            for expiry in (1_000_000_000, 4_000_000_000)
        )
        async with connect(replace(endpoint, credential=old)) as wire:
            with pytest.raises(errors.NotAuthenticated):
                await wire.receiver(QUEUE)
        async with connect(replace(endpoint, credential=good)) as wire:
            await (await wire.sender(QUEUE)).send(message())


async def test_an_identity_needs_a_token_provider() -> None:
    async with scripted() as (_, endpoint), connect(replace(endpoint, credential=Identity())) as wire:
        with pytest.raises(errors.UsageError, match="token provider"):
            await wire.sender(QUEUE)


async def test_a_key_without_the_claim_is_refused_and_the_connection_stays_open() -> None:
    async with emulated() as (emulator, endpoint):
        namespace = emulator.namespaces["contoso"]
        namespace.keys = (*namespace.keys, AuthorizationRule("listen", "key", "key2", frozenset({AccessRight.LISTEN})))
        async with connect(replace(endpoint, credential=SasKey("listen", "key"))) as wire:
            with pytest.raises(errors.NotAuthorized):
                await wire.sender(QUEUE)
            assert wire.error is None
            await wire.receiver(QUEUE)


async def test_a_missing_entity_is_refused_and_the_connection_stays_open() -> None:
    async with emulated() as (_, endpoint), connect(endpoint) as wire:
        for attempt, entity in ((wire.sender, "nowhere"), (wire.receiver, "nowhere/$deadletterqueue")):
            with pytest.raises(errors.EntityMissing, match=f"^nowhere does not exist in {endpoint.name}$"):
                await attempt(entity)
        await (await wire.sender(QUEUE)).send(message())


async def test_a_closed_port_is_unreachable() -> None:
    async with emulated() as (emulator, endpoint):
        del emulator
    with pytest.raises(errors.Unreachable) as caught:
        async with connect(endpoint):
            pass
    assert caught.value.message == f"contoso cannot be reached at 127.0.0.1:{endpoint.port}: connection refused"
    assert caught.value.hint.endswith("sbpair doctor tests each step")


async def test_a_name_that_is_no_host_is_unreachable() -> None:
    bad = Endpoint("x", "x" * 70 + ".invalid", "x" * 70 + ".invalid", 5671, False, SasKey("k", "key"))
    with pytest.raises(errors.Unreachable, match=r"x cannot be reached at .*\.invalid:5671: name not known"):
        await stream.open_stream(bad, "c")


@asynccontextmanager
async def speaking(words: bytes, *, hang_up: bool = False) -> AsyncIterator[Endpoint]:
    """A peer that says these bytes and nothing more."""

    class Speaker(asyncio.Protocol):
        def connection_made(self, transport: Any) -> None:
            speakers.append(transport)
            transport.write(words)
            if hang_up:
                transport.close()

    speakers: list[Any] = []
    server = await asyncio.get_running_loop().create_server(Speaker, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield Endpoint("contoso", f"127.0.0.1:{port}", "127.0.0.1", port, False, SasKey("k", "key"))
    finally:
        for transport in speakers:
            transport.abort()
        server.close()
        await server.wait_closed()


async def test_opening_a_stream_to_a_silent_peer_times_out() -> None:
    async with speaking(b"") as endpoint:
        with pytest.raises(errors.Silent, match=r"no answer within 0\.05 s"):
            await stream.open_stream(endpoint, "c", seconds=0.05)


@pytest.mark.parametrize(
    "words",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"AMQP\x00\x00\x09\x01",
        b"AMQP\x03\x01\x00\x00\xff\xff\xff\xff\x02\x01\x00\x00",
        pytest.param(b"", id="hangs up at once"),
    ],
)
async def test_a_peer_that_speaks_something_else_is_unreachable(words: bytes) -> None:
    async with speaking(words, hang_up=not words) as endpoint:
        with pytest.raises(errors.Unreachable) as caught:
            await stream.open_stream(endpoint, "c")
        assert "check the address" in caught.value.hint


async def test_tls_serves_only_where_the_certificate_is_trusted() -> None:
    async with emulated(tls=True) as (emulator, _):
        text = str(emulator.ready.namespaces[0].tls_connection_string)
        async with connect(endpoint_from_connection_string(text, ca_file=emulator.ready.ca_file)) as wire:
            await (await wire.sender(QUEUE)).send(message(1, size=150_000))
        with pytest.raises(errors.Unreachable, match="its certificate is not trusted"):
            async with connect(endpoint_from_connection_string(text)):
                pass


async def test_a_ca_file_that_cannot_be_read_is_a_usage_error(tmp_path: Path) -> None:
    endpoint = Endpoint("c", "localhost", "localhost", 1, True, SasKey("k", "key"), str(tmp_path / "missing.pem"))
    with pytest.raises(errors.UsageError, match="CA file"):
        async with connect(endpoint):
            pass


# Receiving and settling


@pytest.mark.parametrize(
    ("outcome", "active", "dead", "count"),
    [(ACCEPTED, 0, 0, None), (RELEASED, 1, 0, 0), (ABANDONED, 1, 0, 1), (dead_letter("why", "because"), 0, 1, None)],
)
async def test_each_outcome_does_what_it_says(outcome: Any, active: int, dead: int, count: int | None) -> None:
    async with emulated() as (emulator, endpoint), connect(endpoint) as wire:
        queue = emulator.namespaces["contoso"].queue(QUEUE)
        receiver, deliveries = await receive_one(wire)
        await receiver.settle(deliveries, outcome)
        assert (queue.counts().active, queue.counts().dead_letter) == (active, dead)
        assert queue.messages.locked_count == 0
        if count is not None:
            receiver.grant(1)
            (again,) = await take(receiver, 1)
            assert (Sections.split(again.payload).read_header().delivery_count or 0) == count
        letters = await wire.peek(f"{QUEUE}/$deadletterqueue", 0, 1)
        assert len(letters) == dead
        for letter in letters:
            properties = Sections.split(letter).read_application_properties()
            assert properties["DeadLetterReason"] == "why"
            assert properties["DeadLetterErrorDescription"] == "because"


async def test_a_settlement_after_the_lock_has_run_out_is_a_lost_lock() -> None:
    async with emulated() as (emulator, endpoint), connect(endpoint) as wire:
        receiver, deliveries = await receive_one(wire)
        emulator.advance(61_000)
        with pytest.raises(errors.MessageLockLost):
            await receiver.settle(deliveries, ACCEPTED)


async def test_a_renewed_lock_outlives_its_first_minute() -> None:
    async with emulated() as (emulator, endpoint), connect(endpoint) as wire:
        receiver, deliveries = await receive_one(wire)
        emulator.advance(50_000)
        (until_ms,) = await wire.renew_locks(QUEUE, [lock_token(deliveries[0].tag)])
        assert until_ms >= emulator.clock.now_ms() + 59_000
        emulator.advance(50_000)
        await receiver.settle(deliveries, ACCEPTED)
        with pytest.raises(errors.MessageLockLost):
            await wire.renew_locks(QUEUE, [uuid.uuid4()])


async def test_peeking_shows_messages_and_locks_none() -> None:
    async with emulated() as (emulator, endpoint), connect(endpoint) as wire:
        assert await wire.peek(QUEUE, 0, 10) == []
        sender = await wire.sender(QUEUE)
        for number in range(3):
            await sender.send(message(number))
        found = [Sections.split(each).read_properties().message_id for each in await wire.peek(QUEUE, 2, 10)]
        assert found == ["m1", "m2"]
        assert emulator.namespaces["contoso"].queue(QUEUE).messages.locked_count == 0


async def test_requests_may_overlap() -> None:
    async with emulated() as (_, endpoint), connect(endpoint) as wire:
        sender = await wire.sender(QUEUE)
        for number in range(30):
            await sender.send(message(number))
        found = await asyncio.gather(*(wire.peek(QUEUE, number + 1, 1) for number in range(30)))
        assert [Sections.split(each).read_properties().message_id for (each,) in found] == [f"m{n}" for n in range(30)]


async def test_no_more_is_taken_in_than_was_granted() -> None:
    async with emulated() as (emulator, endpoint), connect(endpoint) as wire:
        queue = emulator.namespaces["contoso"].queue(QUEUE)
        sender, receiver = await wire.sender(QUEUE), await wire.receiver(QUEUE)
        for number in range(20):
            await sender.send(message(number))
        assert queue.messages.locked_count == 0
        receiver.grant(5)
        await until(lambda: receiver.credit == 0)
        assert len(await receiver.take(3, seconds=1)) == 3
        receiver.grant(5)
        await wire.peek(QUEUE, 0, 1)  # whatever was asked for before is answered
        await until(lambda: receiver.credit == 0)
        assert queue.messages.locked_count == 8
        assert len(await receiver.take(100, seconds=1)) == 5


async def test_stopping_a_source_also_releases_a_message_still_in_flight() -> None:
    released: list[int] = []

    def script(_peer: Peer, event: Any) -> bool:
        if isinstance(event, CreditChanged) and terminus_address(event.link.remote.source) == QUEUE:
            if event.link.credit:
                event.link.send(message(1), b"1")
            elif not released:
                event.link.session.put_flow()  # a word on the session's window, and not yet the answer
        elif isinstance(event, Disposed):
            [delivery] = event.deliveries
            released.append(delivery.id)
            if len(released) == 1:
                delivery.link.credit = 1  # it had left when the credit was taken away
                delivery.link.send(message(2), b"2")
            event.session.dispose(delivery.id, delivery.id, event.state, receiver=False, settled=True)
        return False

    async with scripted(script) as (_, endpoint), connect(endpoint) as wire:
        source = await RawSource.open(wire, QUEUE)
        source.grant(1)
        await until(lambda: len(source._receiver._arrived) == 1)
        await source.stop()
        assert await source.receive(2, seconds=0) == []
        assert len(released) == 2


async def test_stopping_a_receiver_returns_the_messages_not_yet_taken() -> None:
    async with emulated() as (emulator, endpoint), connect(endpoint) as wire:
        queue = emulator.namespaces["contoso"].queue(QUEUE)
        sender, receiver = await wire.sender(QUEUE), await wire.receiver(QUEUE)
        for number in range(5):
            await sender.send(message(number))
        receiver.grant(100)
        (first,) = await receiver.take(1, seconds=1)
        left = await receiver.stop()
        assert queue.messages.locked_count == 1 + len(left)
        await receiver.settle(left, RELEASED)
        await sender.send(message(6))
        await receiver.settle([first], ACCEPTED)
        assert (queue.messages.locked_count, queue.counts().active) == (0, 5)


async def test_an_interrupted_take_answers_at_once_and_the_next_one_waits_again() -> None:
    async with emulated() as (_, endpoint), connect(endpoint) as wire:
        sender, receiver = await wire.sender(QUEUE), await wire.receiver(QUEUE)
        receiver.grant(1)
        taking = asyncio.create_task(receiver.take(1, seconds=TEST_SECONDS))
        await asyncio.sleep(0)
        receiver.interrupt()
        assert await taking == []
        assert await receiver.take(1, seconds=0.01) == []
        await sender.send(message(1))
        assert ids(await receiver.take(1, seconds=TEST_SECONDS)) == ["m1"]


async def test_messages_of_a_closed_receiver_stay_locked() -> None:
    async with emulated() as (emulator, endpoint), connect(endpoint) as wire:
        queue = emulator.namespaces["contoso"].queue(QUEUE)
        receiver, deliveries = await receive_one(wire)
        receiver.close()
        with pytest.raises(errors.Unreachable):
            await receiver.settle(deliveries, ACCEPTED)
        await wire.renew_locks(QUEUE, [lock_token(each.tag) for each in deliveries])
        assert queue.messages.locked_count == 1


# Peers that misbehave


def detaching(condition: str, text: str) -> Act:
    return lambda _peer, event: event.link.close(Error(condition, text))


@pytest.mark.parametrize(
    ("act", "kind", "text", "is_lost"),
    [
        (lambda peer, _: peer.transport.abort(), errors.InDoubt, "no answer came", True),
        (lambda peer, _: peer.transport.write(b"\0\0\0\x08\1\0\0\0" * 3), errors.InDoubt, "no answer came", True),
        (
            lambda _, event: event.link.session.end(Error("amqp:internal-error", "moved")),
            *(errors.InDoubt, "moved", False),
        ),
        (detaching("amqp:link:detach-forced", "IdleTimerExpired"), errors.InDoubt, "IdleTimerExpired", False),
        (detaching("amqp:link:message-size-exceeded", "too big"), errors.ServiceRefused, "too big", False),
    ],
    ids=["hangs up", "violates the protocol", "ends the session", "detaches the link", "refuses by a detach"],
)
async def test_a_loss_during_a_send_fails_no_more_than_is_lost(
    act: Act, kind: type[Exception], text: str, is_lost: bool
) -> None:
    async with scripted(on_message(act)) as (_, endpoint), connect(endpoint) as wire:
        sender = await wire.sender(QUEUE)
        with pytest.raises(kind, match=text):
            await sender.send(message())
        # The next message is another one, and was not refused.
        with pytest.raises(errors.Unreachable):
            await sender.send(message())
        if is_lost:
            assert isinstance(wire.error, errors.Unreachable)
            for opening in (wire.sender, wire.receiver):
                with pytest.raises(errors.Unreachable):
                    await opening("other")
        else:
            await (await wire.sender("other")).send(message())
            assert wire.error is None


@pytest.mark.parametrize(
    ("state", "settled", "kind"),
    [
        (Rejected(Error("amqp:not-allowed", "no")), True, errors.ServiceRefused),
        (Rejected(Error("com.microsoft:server-busy", "slow")), True, errors.Throttled),
        (Rejected(Error("amqp:resource-limit-exceeded", "full")), True, errors.QuotaExceeded),
        (Rejected(Error("com.microsoft:timeout", "late")), True, errors.InDoubt),
        (Rejected(), True, errors.ServiceRefused),
        (Released(), True, errors.Unreachable),
        (None, True, errors.InDoubt),
        (Received(0, 0), True, errors.InDoubt),
        (Described(Symbol("x:outcome"), []), True, errors.InDoubt),
        (Released(), False, errors.Unreachable),
    ],
)
async def test_each_answer_to_a_send_means_what_it_says(state: Any, settled: bool, kind: type[Exception]) -> None:
    def act(_peer: Peer, event: Delivery) -> None:
        event.link.session.dispose(event.id, event.id, state, receiver=True, settled=settled)

    async with scripted(on_message(act)) as (_, endpoint), connect(endpoint) as wire:
        sender = await wire.sender(QUEUE)
        with pytest.raises(errors.SbpairError) as caught:
            await sender.send(message())
        assert type(caught.value) is kind
        assert sender.error is None


async def test_a_peer_that_waits_for_us_to_settle_first_is_settled_with() -> None:
    def act(_peer: Peer, event: Delivery) -> None:
        event.link.session.dispose(event.id, event.id, Accepted(), receiver=True, settled=False)

    async with scripted(on_message(act)) as (peers, endpoint), connect(endpoint) as wire:
        sender = await wire.sender(QUEUE)
        await sender.send(message(1))
        await sender.send(message(2))
        await until(lambda: sum(isinstance(each, Disposed) for each in peers[0].said) == 2)


async def test_a_peer_that_never_answers_a_send_leaves_doubt() -> None:
    async with scripted(on_message()) as (_, endpoint), connect(endpoint) as wire:
        sender = await wire.sender(QUEUE)
        with pytest.raises(errors.InDoubt, match=r"within 0\.02 s"):
            await sender.send(message(), seconds=0.02)


async def test_a_sign_in_without_an_answer_ends_as_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "FIRST_ANSWER_SECONDS", 0.05)
    async with scripted(instead(LinkAttaching)) as (_, endpoint):
        with pytest.raises(errors.Silent, match=r"signing in .* cannot be reached at .*: no answer within 0\.05 s"):
            async with connect(endpoint) as wire:
                await wire.sender(QUEUE)


@pytest.mark.parametrize("silent", [True, False])
async def test_a_silent_connection_is_closed_and_one_with_other_traffic_is_kept(
    silent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "SILENT_SECONDS", 0.02)

    def act(peer: Peer, event: Delivery) -> None:
        if not silent:
            event.link.grant(7)
            peer.flush()

    async with scripted(on_message(act)) as (_, endpoint), connect(endpoint) as wire:
        sender = await wire.sender(QUEUE)
        with pytest.raises(errors.InDoubt):
            await sender.send(message(), seconds=0.1)
        assert (wire.error is not None) == silent
        if silent:
            with pytest.raises(errors.Unreachable, match="nothing has come from"):
                await wire.sender("other")


async def test_a_send_without_credit_never_left_and_is_not_in_doubt() -> None:
    stingy = instead(LinkAttaching, lambda _peer, event: event.link.accept(), QUEUE)
    async with scripted(stingy) as (peers, endpoint), connect(endpoint) as wire:
        sender = await wire.sender(QUEUE)
        with pytest.raises(errors.TimedOut):
            await sender.send(message(), seconds=0.02)
        sending = asyncio.create_task(sender.send(message(), seconds=TEST_SECONDS))
        await asyncio.sleep(0)
        peers[0].links(QUEUE, ReceivingLink)[0].grant(1)
        peers[0].flush()
        await sending


async def test_a_message_larger_than_the_link_takes_is_refused_here() -> None:
    async with emulated() as (_, endpoint), connect(endpoint) as wire:
        sender = await wire.sender(QUEUE)
        with pytest.raises(errors.ServiceRefused) as caught:
            await sender.send(message(1, size=sender.max_message_size))
        assert caught.value.condition == "amqp:link:message-size-exceeded"
        await sender.send(message(2))


async def test_a_link_that_is_never_answered_is_given_up() -> None:
    async with scripted(instead(LinkAttaching, address=QUEUE)) as (_, endpoint), connect(endpoint) as wire:
        await wire.sender("other")
        assert wire._sending is not None
        sender = client.RawSender(wire._stream, wire._sending, QUEUE)
        with pytest.raises(errors.TimedOut):
            await sender.open(source=None, target=None, seconds=0.02)
        assert sender.on_lost not in wire._stream.when_lost


async def test_deliveries_that_the_peer_takes_back_unasked_have_lost_their_lock() -> None:
    async with scripted() as (peers, endpoint), connect(endpoint) as wire:
        receiver = await wire.receiver(QUEUE)
        receiver.grant(2)
        link = await peers[0].granted(2)
        numbers = [link.send(message(number), uuid.uuid4().bytes_le) for number in range(2)]
        link.session.dispose(numbers[0], numbers[0], Released(), receiver=False, settled=True)
        peers[0].flush()
        first, second = await take(receiver, 2)
        await until(lambda: first.settled)
        with pytest.raises(errors.MessageLockLost):
            await receiver.settle([first], ACCEPTED)
        with pytest.raises(errors.InDoubt):
            await receiver.settle([second], ACCEPTED, seconds=0.02)


async def test_only_the_last_word_on_each_delivery_counts() -> None:
    async with scripted(instead(Disposed)) as (peers, endpoint), connect(endpoint) as wire:
        receiver = await wire.receiver(QUEUE)
        receiver.grant(2)
        link = await peers[0].granted(2)
        first, second = (link.send(message(number), uuid.uuid4().bytes_le) for number in range(2))
        peers[0].flush()
        settling = asyncio.create_task(receiver.settle(await take(receiver, 2), ACCEPTED))
        await until(lambda: isinstance(peers[0].said[-1], Disposed))
        for settled in (False, True):
            link.session.dispose(first, first, Accepted(), receiver=False, settled=settled)
            peers[0].flush()
        await wire.sender("other")  # all that was said has been heard
        assert not settling.done()
        link.session.dispose(second, second, Accepted(), receiver=False, settled=True)
        peers[0].flush()
        await settling


async def test_a_reply_that_is_none_fails_the_request_at_once() -> None:
    def act(peer: Peer, event: Any) -> None:
        accept(event)
        peer.links("$cbs", SendingLink)[0].send(b"\x00\x53\x99nonsense", b"1", settled=True)

    async with scripted(instead(Delivery, act)) as (_, endpoint), connect(endpoint) as wire:
        with pytest.raises(errors.Unreachable, match="malformed response"):
            await wire.sender(QUEUE)


async def test_a_late_answer_to_a_request_is_not_kept() -> None:
    requests: list[Delivery] = []

    def script(_peer: Peer, event: Any) -> bool:
        late = isinstance(event, Delivery) and not requests
        if late:
            requests.append(event)
            accept(event)
        return late

    async with scripted(script) as (peers, endpoint), connect(endpoint) as wire:
        node = await wire._node("$cbs")
        with pytest.raises(errors.TimedOut):
            await node.call({"operation": "put-token"}, "t", seconds=0.02)
        peers[0].reply(requests[0])
        answer = await node.call({"operation": "put-token"}, "t")
        assert answer.status == 202
        assert not node._receiver._expected


async def test_requests_that_wait_learn_that_the_connection_is_gone() -> None:
    async with (
        scripted(instead(Delivery, lambda peer, _: peer.transport.abort())) as (_, endpoint),
        connect(endpoint) as wire,
    ):
        with pytest.raises(errors.Unavailable):
            await wire.sender(QUEUE)


async def test_a_session_that_ends_during_an_attach_leaves_the_link_retryable() -> None:
    ends = [True]

    def script(_peer: Peer, event: Any) -> bool:
        asked = isinstance(event, LinkAttaching) and terminus_address(event.link.remote.target) == QUEUE
        if asked and ends and ends.pop():
            event.link.session.end(Error("amqp:session:window-violation", "too much of another link"))
            return True
        return False

    async with scripted(script) as (_, endpoint), connect(endpoint) as wire:
        with pytest.raises(errors.Unreachable, match="too much of another link"):
            await wire.sender(QUEUE)
        await (await wire.sender(QUEUE)).send(message())


async def test_a_peer_may_not_offer_links() -> None:
    def act(peer: Peer, event: Delivery) -> None:
        event.link.session.sender("uninvited").open(source=None, target=None)
        peer.usual(event)

    async with scripted(on_message(act)) as (peers, endpoint), connect(endpoint) as wire:
        sender = await wire.sender(QUEUE)
        await sender.send(message())
        await sender.send(message())
        refused = [each for each in peers[0].said if isinstance(each, LinkDetached)]
        assert refused
        assert wire.error is None


async def test_heartbeats_keep_a_connection_that_has_nothing_to_say() -> None:
    async with scripted(idle_seconds=0.1) as (peers, endpoint), connect(endpoint) as wire:
        await wire.sender(QUEUE)
        for _ in range(3):
            peers[0].heard.clear()
            await peers[0].heard.wait()
        assert wire.error is None


async def test_closing_a_stream_does_not_wait_long_for_the_peers_close(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scripted(instead(ConnectionClosed)) as (peers, endpoint):
        opened = await stream.open_stream(endpoint, "c")
        monkeypatch.setattr(peers[0], "flush", lambda: None)
        await opened.close(0.02)
        assert isinstance(opened.error, errors.Unreachable)


# Claims


class Now:
    """A clock that a test sets."""

    def __init__(self, seconds: float = 1_700_000_000.0) -> None:
        self.seconds = seconds

    def __call__(self) -> float:
        return self.seconds


async def test_a_claim_is_renewed_when_a_third_of_its_life_is_left() -> None:
    now = Now()
    async with scripted() as (peers, endpoint), connect(endpoint, now=now) as wire:
        await wire.sender("a")
        await wire.sender("a")
        assert peers[0].tokens == [f"sb://{endpoint.authority}/a"]
        now.seconds += 2_399
        await wire.sender("b")
        assert len(peers[0].tokens) == 2
        now.seconds += 2
        wire._claimed.set()
        await until(lambda: len(peers[0].tokens) == 3)
        assert peers[0].tokens[2] == f"sb://{endpoint.authority}/a"


async def test_a_renewal_that_fails_for_now_is_tried_again_while_the_token_lives() -> None:
    now = Now()
    async with scripted(replying(202, 503, 202)) as (peers, endpoint), connect(endpoint, now=now) as wire:
        await wire.sender("a")
        now.seconds += 2_401
        wire._claimed.set()
        await until(lambda: len(peers[0].tokens) == 2)
        await until(lambda: not wire._opening.locked())
        assert wire.error is None
        now.seconds += client.RETRY_RENEW_SECONDS
        wire._claimed.set()
        await until(lambda: len(peers[0].tokens) == 3)
        assert wire.error is None


async def test_a_refused_claim_renewal_ends_the_connection_with_its_error() -> None:
    now = Now()
    async with scripted(replying(202, 401)) as (_, endpoint), connect(endpoint, now=now) as wire:
        receiver = await wire.receiver("a")
        now.seconds += 2_401
        wire._claimed.set()
        with pytest.raises(errors.NotAuthenticated):
            await receiver.take(1, seconds=TEST_SECONDS)
        assert isinstance(wire.error, errors.NotAuthenticated)


async def test_a_sign_in_refused_with_status_400_is_an_authentication_error() -> None:
    async with scripted(replying(400)) as (_, endpoint), connect(endpoint) as wire:
        with pytest.raises(errors.NotAuthenticated, match="status 400"):
            await wire.sender(QUEUE)


async def test_a_slow_claim_does_not_delay_links_that_already_have_theirs() -> None:
    slow: list[Delivery] = []

    def script(_peer: Peer, event: Any) -> bool:
        if isinstance(event, Delivery):
            name = Sections.split(event.payload).read_application_properties().get("name") or ""
            if name.endswith("/slow"):
                slow.append(event)
                accept(event)
                return True
        return False

    async with scripted(script) as (peers, endpoint), connect(endpoint) as wire:
        await wire.sender("quick")
        waiting = asyncio.create_task(wire.sender("slow"))
        await until(lambda: bool(slow))
        await (await wire.sender("quick")).send(message())
        peers[0].reply(slow[0])
        peers[0].flush()
        await waiting


# Cancellation


async def story(endpoint: Endpoint) -> None:
    async with connect(endpoint) as wire:
        sender, receiver = await wire.sender(QUEUE), await wire.receiver(QUEUE)
        await sender.send(message(1, size=100_000))
        receiver.grant(1)
        deliveries = await take(receiver, 1)
        await wire.renew_locks(QUEUE, [lock_token(each.tag) for each in deliveries])
        await receiver.settle(deliveries, ACCEPTED)


async def test_cancelled_at_any_point_a_connection_leaves_nothing_behind() -> None:
    async with emulated() as (emulator, endpoint):
        queue = emulator.namespaces["contoso"].queue(QUEUE)
        before = asyncio.all_tasks()
        turns, finished = 0, False
        while not finished:
            task = asyncio.create_task(story(endpoint))
            for _ in range(turns):
                await asyncio.sleep(0)
            finished = task.done()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            if not finished:
                assert task.cancelled()
            # The listening side has tasks of its own, for a moment.
            await until(lambda: asyncio.all_tasks() == before)
            await until(lambda: not queue._watchers)
            emulator.advance(60_000)
            turns += 1
        assert turns > 10
        assert not task.cancelled()


async def test_cancelled_twice_it_does_not_wait_for_the_peers_goodbye() -> None:
    async with scripted(instead(ConnectionClosed)) as (_, endpoint):
        entered = asyncio.Event()

        async def hold() -> None:
            async with connect(endpoint) as wire:
                await wire.sender(QUEUE)
                entered.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(hold())
        await entered.wait()
        task.cancel()
        for _ in range(3):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0)


async def test_a_send_that_is_cancelled_does_not_disturb_the_next_one() -> None:
    kept: list[Delivery] = []

    def act(_peer: Peer, event: Delivery) -> None:
        kept.append(event)
        if len(kept) == 2:
            for each in kept:
                accept(each)

    async with scripted(on_message(act)) as (_, endpoint), connect(endpoint) as wire:
        sender = await wire.sender(QUEUE)
        first = asyncio.create_task(sender.send(message(1)))
        await until(lambda: len(kept) == 1)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        await sender.send(message(2))
        assert sender.idle


def test_a_lock_token_is_a_guid_in_the_order_of_dotnet() -> None:
    token = uuid.uuid4()
    assert lock_token(token.bytes_le) == token
    with pytest.raises(errors.ProtocolError):
        lock_token(b"short")
