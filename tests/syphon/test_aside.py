"""Moves of scheduled and deferred messages over real sockets; kills are in tests/faults/test_kill_move.py."""

import asyncio
from collections.abc import Collection
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from sbpair.amqp.message import MESSAGE_ANNOTATIONS, Sections, data_body, encode_map
from sbpair.amqp.types import Map, Timestamp
from sbpair.amqp_client.client import AmqpClient, connect
from sbpair.amqp_server.shared_access import AccessRight
from sbpair.emulator.entities.queue import QueueEntity
from sbpair.errors import ExitCode, TimedOut
from sbpair.model.message_state import MessageState
from sbpair.model.sequence_ranges import SequenceRanges
from sbpair.move.filter import MessageFilter
from sbpair.move.message.envelope import SCHEDULE
from tests.kit import moves
from tests.kit.stranded import in_session, put

HOUR_MS = 3_600_000
KINDS = ["queue", "session queue", "partitioned"]
SCHEDULED, DEFERRED = {"messages": MessageState.SCHEDULED}, {"messages": MessageState.DEFERRED}


def schedule(w: moves.World, queue: QueueEntity, numbers: range, *, hours: int = 1, size: int = 1) -> None:
    """Store messages, each of which is due some hours later than the one before it."""
    for number in numbers:
        at = w.namespaces[0].clock.now_ms() + (hours + number) * HOUR_MS
        sections = Sections.split(in_session(number))
        due = encode_map(MESSAGE_ANNOTATIONS, Map([(SCHEDULE, Timestamp(at))]))
        put(queue, replace(sections, message_annotations=due, body=data_body(b"x" * size)).join())


def by_id(queue: QueueEntity) -> dict[Any, int]:
    return {each.sections.read_properties().message_id: each.sequence_number for each in moves.peeked(queue)}


def kept(queue: QueueEntity, names: Collection[Any]) -> dict[Any, Any]:
    """Return the bytes that a move keeps of the messages with these ids, by session."""
    found = moves.by_session([each for each in moves.stored(queue) if each.read_properties().message_id in names])
    return {session: sorted(each, key=str) for session, each in found.items()}


@pytest.mark.parametrize("kind", KINDS)
async def test_scheduled_messages_keep_their_times_and_get_numbers(kind: str) -> None:
    async with moves.world() as w:
        path, source, _ = w.create(kind, "from")
        _, there, _ = w.create("session queue" if "session" in kind else "queue", "to", 1)
        put(source, in_session(999))
        schedule(w, source, range(230))
        schedule(w, source, range(230, 232), size=245_000)  # too large for a request
        old, wanted = by_id(source), kept(source, {f"m{number}" for number in range(232)} - {"m7"})
        result = await w.move(path, "to", sides=(0, 1), where=MessageFilter("number <> 7"), **SCHEDULED)
        receipt, new = result.receipt, by_id(there)
        assert (receipt.received, receipt.sent, receipt.skipped, result.exit_code) == (232, 231, 1, 0)
        assert not receipt.doubtful
        assert by_id(source).keys() == {"m7", "m999"}
        assert {each.reported_state for each in moves.peeked(there)} == {2}
        named = {each.message_id: (each.sequence_number, each.new_number) for each in receipt.renumbered}
        large = {"m230", "m231"}
        assert named == {name: (old[name], None if name in large else new[name]) for name in new}
        assert kept(there, new.keys()) == wanted


@pytest.mark.parametrize("is_lost", [False, True])
async def test_one_that_is_due_before_its_cancellation_is_named(is_lost: bool) -> None:
    cancel = AmqpClient.cancel_scheduled

    async def late(client: AmqpClient, *arguments: Any) -> None:
        if is_lost:
            await cancel(client, *arguments)
            raise TimedOut("no answer", hint="")
        if not source.messages.active_count:
            w.emulator.advance(HOUR_MS + 1)
        await cancel(client, *arguments)

    async with moves.world() as w:
        path, source, _ = w.create("queue", "from")
        _, there, _ = w.create("queue", "to")
        schedule(w, source, range(3))
        with patch.object(AmqpClient, "cancel_scheduled", late):
            receipt = (await w.move(path, "to", **SCHEDULED)).receipt
        assert receipt.sent == 3
        twice = {"m0", "m1", "m2"} if is_lost else {"m0"}
        assert {each.message_id for each in receipt.doubtful} == twice
        assert moves.ids(source) == ([] if is_lost else ["m0"])
        assert sorted(map(str, moves.ids(there))) == ["m0", "m1", "m2"]


async def test_scheduled_messages_stay_without_the_right_to_cancel_them() -> None:
    async with moves.world() as w:
        path, source, _ = w.create("queue", "from")
        _, there, _ = w.create("queue", "to", 1)
        schedule(w, source, range(3))
        w.may_only("primary", AccessRight.LISTEN)
        result = await w.move(path, "to", sides=(0, 1), **SCHEDULED)
        assert (result.exit_code, result.receipt.received) == (ExitCode.ACCESS, 0)
        assert len(moves.stored(source)) == 3
        assert not moves.stored(there)


@pytest.mark.parametrize("kind", KINDS)
async def test_deferred_messages_arrive_active_and_others_stay_untouched(kind: str) -> None:
    async with moves.world() as w:
        path, source, _ = w.create(kind, "from")
        _, there, _ = w.create("session queue" if "session" in kind else "queue", "to")
        for number in range(250):
            put(source, in_session(number))
        moves.defer_all(source)
        put(source, in_session(999))
        old, chosen = by_id(source), {f"m{number}" for number in range(250) if number % 2}
        counts = {each.sequence_number: each.delivery_count for each in moves.peeked(source)}
        wanted = kept(source, chosen)
        result = await w.move(path, "to", where=MessageFilter("number % 2 = 1 AND number <> 999"), **DEFERRED)
        receipt = result.receipt
        assert (receipt.received, receipt.sent, receipt.skipped, result.exit_code) == (250, 125, 125, 0)
        assert by_id(there).keys() == chosen
        assert {each.message_id: each.sequence_number for each in receipt.renumbered} == {m: old[m] for m in chosen}
        assert kept(there, chosen) == wanted
        assert {each.reported_state for each in moves.peeked(there)} == {0}
        assert all(each.delivery_count == counts[each.sequence_number] for each in moves.peeked(source))


async def test_states_of_sessions_that_have_old_numbers_are_named() -> None:
    async with moves.world() as w:
        path, source, _ = w.create("session queue", "from")
        w.create("session queue", "to")
        for number in range(6):
            put(source, in_session(number))
        moves.defer_all(source)
        old = by_id(source)
        async with connect(w.endpoints[0]) as client:
            session = await client.session(path, "S1")
            await client.set_session_state(session, f'{{"waits": [{old["m1"]}, {old["m4"]}9]}}'.encode())
        receipt = (await w.move(path, "to", **DEFERRED)).receipt
        assert receipt.session_states == {"S1": (old["m1"],)}
        assert not moves.stored(source)


async def test_deferred_messages_that_others_have_locked_are_awaited() -> None:
    async with moves.world() as w:
        path, source, _ = w.create("queue", "from")
        _, there, _ = w.create("queue", "to")
        for number in range(3):
            put(source, in_session(number))
        moves.defer_all(source)
        numbers = by_id(source)
        [locked] = source.messages.receive_deferred([numbers["m1"]])
        left = await w.move(path, "to", wait_for_locks=False, **DEFERRED)
        assert (left.receipt.sent, left.receipt.locked, left.exit_code) == (2, 1, 3)
        moving = asyncio.create_task(w.move(path, "to", where=_only(numbers["m1"]), **DEFERRED))
        source.messages.abandon(locked.lock_token)
        assert (await moving).receipt.sent == 1
        assert len(moves.stored(there)) == 3


def _only(number: int) -> MessageFilter:
    return MessageFilter("", sequences=SequenceRanges.read(str(number)))


async def test_scheduled_message_that_is_refused_stays_scheduled() -> None:
    async with moves.world() as w:
        path, source, _ = w.create("queue", "from")
        w.create("session queue", "to")
        at = w.namespaces[0].clock.now_ms() + HOUR_MS
        due = encode_map(MESSAGE_ANNOTATIONS, Map([(SCHEDULE, Timestamp(at))]))
        put(source, Sections(message_annotations=due, body=data_body(b"x")).join())
        result = await w.move(path, "to", **SCHEDULED)
        assert (result.receipt.skipped, result.exit_code) == (1, ExitCode.PARTIAL_OR_FINDINGS)
        assert [each.reported_state for each in moves.peeked(source)] == [2]
