"""The client against the emulator: connecting, receiving and settling, claims, and cancellation."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sbpair import errors
from sbpair.amqp import session
from sbpair.amqp.connection import ConnectionClosed
from sbpair.amqp.link import CreditChanged, Delivery, terminus_address
from sbpair.amqp.message import Sections
from sbpair.amqp.session import Disposed
from sbpair.amqp.types import Map
from sbpair.amqp_client import client, stream
from sbpair.amqp_client.client import connect, lock_token
from sbpair.amqp_client.raw_links import ACCEPTED, RELEASED
from sbpair.amqp_server.shared_access import AccessRight, AuthorizationRule
from sbpair.emulator.frontends.amqp.management_operations import OPERATIONS, Operation, Reply
from sbpair.model.pair import Endpoint, Identity, SasKey, SasToken
from sbpair.model.signature import sign
from sbpair.move.raw_source import RawSource
from tests.amqp_client.peers import (
    QUEUE,
    TEST_SECONDS,
    Peer,
    accept,
    emulated,
    ids,
    instead,
    listening,
    message,
    on_message,
    receive_one,
    replying,
    scripted,
    take,
)
from tests.kit.waiting import until

# Connecting


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
    assert caught.value.hint.endswith("test each step with sbpair doctor")


async def test_a_name_that_is_no_host_is_unreachable() -> None:
    bad = Endpoint("x", "x" * 70 + ".invalid", "x" * 70 + ".invalid", 5671, False, SasKey("k", "key"))
    with pytest.raises(errors.Unreachable, match=r"x cannot be reached at .*\.invalid:5671: name not known"):
        await stream.open_stream(bad, "c")


class Speaker(asyncio.Protocol):
    """A peer that says these bytes and nothing more, and hangs up if there are none."""

    def __init__(self, words: bytes) -> None:
        self.words = words

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.write(self.words)
        if not self.words:
            transport.close()


async def test_opening_a_stream_to_a_silent_peer_times_out() -> None:
    async with listening(asyncio.Protocol) as endpoint:
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
    async with listening(lambda: Speaker(words)) as endpoint:
        with pytest.raises(errors.Unreachable) as caught:
            await stream.open_stream(endpoint, "c")
        assert "check the address" in caught.value.hint


async def test_tls_serves_only_where_the_certificate_is_trusted() -> None:
    async with emulated(tls=True) as (_, endpoint):
        async with connect(endpoint) as wire:
            await (await wire.sender(QUEUE)).send(message(1, size=150_000))
        with pytest.raises(errors.Unreachable, match="its certificate is not trusted"):
            async with connect(replace(endpoint, ca_file=None)):
                pass


async def test_a_ca_file_that_cannot_be_read_is_a_usage_error(tmp_path: Path) -> None:
    endpoint = Endpoint("c", "localhost", "localhost", 1, True, SasKey("k", "key"), str(tmp_path / "missing.pem"))
    with pytest.raises(errors.UsageError, match="CA file"):
        async with connect(endpoint):
            pass


# Receiving and settling


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


async def test_a_peek_that_answers_null_shows_no_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "com.microsoft:peek-message"
    answer = Operation(AccessRight.LISTEN, lambda _call: Reply(body=Map([("messages", None)])))
    monkeypatch.setitem(OPERATIONS, name, answer)
    async with emulated() as (_, endpoint), connect(endpoint) as wire:
        assert await wire.peek(QUEUE, 0, 10) == []


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


@pytest.mark.parametrize(("on_the_way", "kind"), [(3_599, errors.TokenExpired), (1, errors.NotAuthenticated)])
async def test_a_request_refused_as_its_token_ends_may_be_repeated(on_the_way: int, kind: type[Exception]) -> None:
    now = Now()

    def refuse(peer: Peer, event: Any) -> None:
        now.seconds += on_the_way
        accept(event)
        peer.reply(event, 401)

    async with (
        scripted(instead(Delivery, refuse, "a/$management")) as (_, endpoint),
        connect(endpoint, now=now) as wire,
    ):
        with pytest.raises(errors.SbpairError) as caught:
            await wire.peek("a", 0, 1)
        assert type(caught.value) is kind


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
        namespace = emulator.namespaces["contoso"]
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
            await until(lambda: not namespace.on_refusing)
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
