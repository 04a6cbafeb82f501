"""The client against peers that misbehave: refused, lost, late, silent and wrong answers."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest

from sbpair import errors
from sbpair.amqp.connection import ConnectionClosed
from sbpair.amqp.link import Delivery, LinkAttaching, LinkDetached, ReceivingLink, SendingLink, terminus_address
from sbpair.amqp.performatives import Accepted, Error, Received, Rejected, Released
from sbpair.amqp.session import Disposed
from sbpair.amqp.types import Described, Symbol
from sbpair.amqp_client import client, stream
from sbpair.amqp_client.client import connect
from sbpair.amqp_client.raw_links import ACCEPTED
from tests.amqp_client.peers import (
    QUEUE,
    TEST_SECONDS,
    Act,
    Peer,
    accept,
    emulated,
    instead,
    message,
    on_message,
    scripted,
    take,
)
from tests.kit.waiting import until


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
        with pytest.raises(errors.InDoubt, match=r"within 0\.1 s|nothing has come from"):
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
        sender._attach_seconds = 0.02
        with pytest.raises(errors.TimedOut):
            await sender.attach()
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
