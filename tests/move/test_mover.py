"""The mover over an in-memory engine: every delivery ends in one bucket, whatever both sides do."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from itertools import chain, repeat
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbpair import errors
from sbpair.model.cost import UNIT_BYTES, Operations
from sbpair.model.retries import Backoff
from sbpair.move.context import MoveContext
from sbpair.move.message.route import TimeToLive
from sbpair.move.mover import Mover
from sbpair.move.rate_limit import RateLimiter
from sbpair.timespan import TICKS_PER_SECOND
from tests.kit.costs import moved as moved_cost
from tests.move.memory import (
    FAST,
    IN_DOUBT,
    LOST,
    REFUSED,
    RENEWING,
    UNREACHABLE,
    Memory,
    fast_context,
    message,
    move,
    receipt_of,
)


@pytest.mark.parametrize(
    ("answers", "sent", "dead_lettered", "in_doubt", "code"),
    [([IN_DOUBT, IN_DOUBT, None], 1, 0, 0, 0), ([IN_DOUBT, REFUSED], 0, 1, 0, 3), ([IN_DOUBT] * 50, 0, 0, 1, 3)],
    ids=["sent later", "refused later", "at the end"],
)
async def test_a_message_in_doubt_is_named_once_wherever_it_ends(
    answers: list[Any], sent: int, dead_lettered: int, in_doubt: int, code: int
) -> None:
    context = fast_context()
    made = await move(Memory(send=answers), [message(1)], context)
    receipt = receipt_of(context)
    assert (receipt.sent, receipt.dead_lettered, receipt.in_doubt) == (sent, dead_lettered, in_doubt)
    assert (receipt.released, receipt.exit_code) == (0, code)
    assert [each.message_id for each in receipt.doubtful] == ["m1"]
    assert [(each.message_id, each.destination) for each in context.journal.in_doubt()] == [("m1", "orders")]
    assert not made._settlement._in_doubt


@pytest.mark.parametrize("error", [LOST, UNREACHABLE, IN_DOUBT])
async def test_a_failed_dead_letter_is_counted_as_released(error: Exception) -> None:
    memory, context = Memory(dead_letter=[error]), fast_context()
    made = await move(memory, [message(1, None)], context)
    receipt = receipt_of(context)
    assert (receipt.dead_lettered, receipt.released, receipt.dead_letters) == (0, 1, ())
    assert (made.settlement_error is None) == (error is LOST)
    assert (len(made.refused), len(made.unsettled)) == ((0, 1) if error is IN_DOUBT else (1, 0))


async def test_a_message_that_expires_while_it_waits_is_dead_lettered() -> None:
    times = chain([1], repeat(60_000))
    memory, context = Memory(), fast_context(ttl=TimeToLive.REMAINING, now_ms=lambda: next(times))
    messages = [message(1), message(2)]
    messages[0].facts = messages[0].facts._replace(ttl_ticks=TICKS_PER_SECOND)
    await move(memory, messages, context)
    assert sorted(memory.done) == [("complete", 2), ("dead_letter", 1), ("send", 2)]
    receipt = receipt_of(context)
    assert (receipt.sent, receipt.expired, receipt.dead_lettered) == (1, 1, 0)


class BusyOnce(Memory):
    """Fails the first batch, once `may_answer` is set."""

    def __init__(self) -> None:
        super().__init__(together=10)
        self.may_answer = asyncio.Event()

    async def answer(self, what: str, *messages: Any) -> None:
        if what == "send" and not self.may_answer.is_set():
            self.reached.set()
            await self.may_answer.wait()
            raise UNREACHABLE
        await super().answer(what, *messages)


@pytest.mark.parametrize("copies", [1, 2, 3])
async def test_a_redelivery_during_a_failed_send_is_not_overtaken(copies: int) -> None:
    memory, context = BusyOnce(), fast_context()

    async def come_again(made: Mover) -> None:
        await memory.reached.wait()
        made.accept([message(2)])
        for _ in range(copies):
            made.accept([message(1)])
        memory.may_answer.set()
        while made.held:
            await made.wait_changed(1.0)

    await move(memory, [message(1)], context, settle=False, then=come_again)
    assert [number for what, number in memory.done if what == "send"] == [1, 2]
    receipt = receipt_of(context)
    assert (receipt.sent, receipt.released, receipt.distinct) == (2, copies, 2)


class HalfAway(Memory):
    """One of two destinations backs off."""

    async def ready(self, destination: str) -> Memory:
        if destination == "away":
            raise UNREACHABLE
        return await super().ready(destination)


@pytest.mark.parametrize("end", ["stop", "stop before the answers", "cancellation"])
async def test_an_end_settles_without_waiting_for_a_contiguous_range(end: str) -> None:
    memory, context = HalfAway(together=5), fast_context(timings=replace(FAST, settle_seconds=1_000.0))
    messages = [message(number, "orders" if number % 2 else "away") for number in range(10)]

    async def accepted(made: Mover) -> None:
        is_early, journal = end == "stop before the answers", context.journal
        while not (journal._sending if is_early else journal.count_seen() == 5):  # noqa: ASYNC110  a turn of the loop is no sleep
            await asyncio.sleep(0)
        if end == "cancellation":
            await made.release_held()
            raise asyncio.CancelledError

    with suppress(asyncio.CancelledError):
        await move(memory, messages, context, settle=False, then=accepted)
    receipt = receipt_of(context)
    assert (receipt.sent, receipt.released) == (5, 5)
    for what, numbers in (("complete", [1, 3, 5, 7, 9]), ("release", [0, 2, 4, 6, 8])):
        assert [number for name, number in memory.done if name == what] == numbers


class CancelledMeanwhile(Memory):
    """Dead-letters a message in the very turn in which its mover is cancelled."""

    moving: asyncio.Task[Mover]

    async def dead_letter(self, message: Any, _reason: str, _description: str) -> None:
        self.done.append(("dead_letter", message.facts.sequence_number))
        self.moving.cancel()


async def test_a_redelivery_that_is_admitted_after_a_cancellation_is_released() -> None:
    memory, context = CancelledMeanwhile(), fast_context()
    memory.moving = asyncio.create_task(move(memory, [message(1, None), message(1, None)], context))
    with pytest.raises(asyncio.CancelledError):
        await memory.moving
    receipt = receipt_of(context)
    assert (receipt.received, receipt.dead_lettered, receipt.released) == (2, 1, 1)
    assert memory.done == [("dead_letter", 1)]


@pytest.mark.parametrize("accepted_before", [False, True])
async def test_a_cancelled_completion_is_counted(accepted_before: bool) -> None:
    memory, context = Memory(complete=["hang"]), fast_context()
    if accepted_before:
        context.journal.note_accepted(context.journal.note_sending([[("ns", "q", 1, 1, "m1")]], "orders"))
    task = asyncio.create_task(move(memory, [message(1)], context))
    await memory.reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    receipt = receipt_of(context)
    assert (receipt.sent, receipt.already_sent) == (not accepted_before, accepted_before)


@pytest.mark.parametrize(("step", "doubtful"), [("ready", 0), ("send", 1)])
async def test_cancelling_leaves_only_sent_messages_in_doubt(step: str, doubtful: int) -> None:
    memory, context = Memory(**{step: ["hang"]}), fast_context()
    task = asyncio.create_task(move(memory, [message(1)], context))
    await memory.reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    receipt = receipt_of(context)
    assert (receipt.in_doubt, receipt.released, len(receipt.doubtful)) == (doubtful, 1 - doubtful, doubtful)


async def test_cancelling_a_wait_for_the_rate_releases_everything() -> None:
    loop = asyncio.get_running_loop()
    memory, context = Memory(), fast_context(rate_limiter=RateLimiter(loop.time(), rate=0.001))
    context.rate_limiter.reserve(loop.time(), 2, 1.0)
    task = asyncio.create_task(move(memory, [message(1), message(2)], context, settle=False, then=forever))
    while not any(each.get_name() == "send to orders" for each in asyncio.all_tasks()):  # noqa: ASYNC110  a turn of the loop is no sleep
        await asyncio.sleep(0)
    for _ in range(10):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert receipt_of(context).released == 2


async def test_a_redelivery_is_counted_if_the_first_completion_is_cancelled() -> None:
    memory, context = Memory(complete=["hang"]), fast_context()

    async def comes_again(made: Mover) -> None:
        await memory.reached.wait()
        made.accept([message(1)])
        task.cancel()
        await forever(made)

    task = asyncio.create_task(move(memory, [message(1)], context, settle=False, then=comes_again))
    with pytest.raises(asyncio.CancelledError):
        await task
    receipt = receipt_of(context)
    assert (receipt.received, receipt.distinct, receipt.sent, receipt.already_sent) == (2, 1, 1, 1)


async def forever(_mover: Mover) -> None:
    await asyncio.Event().wait()


async def test_a_stop_does_not_wait_for_a_destination() -> None:
    memory, context = Memory(ready=["hang"]), fast_context()
    await move(memory, [message(1), message(2)], context, settle=False, then=lambda _mover: memory.reached.wait())
    assert memory.stopped
    assert receipt_of(context).released == 2
    assert memory.done == [("release", 1), ("release", 2)]


@pytest.mark.parametrize("step", ["ready", "send"])
@pytest.mark.parametrize(
    "error", [errors.NotAuthorized("no claim"), errors.UsageError("bad CA file"), errors.MachineLacks("no room")]
)
async def test_an_error_that_no_message_caused_stops_without_dead_letters(step: str, error: errors.SbpairError) -> None:
    memory, context = Memory(**{step: [error]}), fast_context()
    made = await move(memory, [message(1), message(2)], context)
    assert made.fatal is error
    assert memory.interrupted
    receipt = receipt_of(context)
    assert (receipt.released, receipt.dead_lettered) == (2, 0)


async def test_a_protocol_error_backs_off_and_dead_letters_nothing() -> None:
    memory, context = Memory(send=[errors.ProtocolError("bad frame")]), fast_context()
    await move(memory, [message(1)], context)
    assert receipt_of(context).sent == 1


@pytest.mark.parametrize("error", [UNREACHABLE, errors.NotAuthorized("no"), errors.ProtocolError("bad"), REFUSED])
async def test_a_failed_renewal_loses_no_message(error: Exception) -> None:
    memory, context = Memory(renew=[error] * 3, ready=[UNREACHABLE] * 99), fast_context(timings=RENEWING)
    await move(memory, [message(1)], context, settle=False, then=lambda _made: memory.used_up("renew"))
    assert receipt_of(context).released == 1


async def test_a_lost_lock_is_not_renewed_again() -> None:
    memory, context = (
        Memory(ready=[UNREACHABLE] * 99, renew=[LOST, LOST, LOST, None, LOST]),
        fast_context(timings=RENEWING),
    )
    messages = [message(1), message(2), message(3)]
    await move(memory, messages, context, settle=False, then=lambda _made: memory.used_up("renew"))
    # All three at once, then by halves: the first, which its sender drops, and the third are lost.
    assert [each.lock_until == 0.0 for each in messages] == [True, False, True]
    assert ("release", 3) not in memory.done
    assert ("release", 2) in memory.done
    assert receipt_of(context).released == 3


async def test_room_is_limited_by_messages_and_bytes() -> None:
    context = fast_context(max_held=10, max_held_bytes=1_000)
    memory = Memory(ready=[UNREACHABLE] * 1_000)
    rooms: list[int] = []

    async def fill(made: Mover) -> None:
        for number in range(1, 6):
            rooms.append(made.room)
            made.accept([message(number, size=300)])
        rooms.append(made.room)

    async with asyncio.TaskGroup() as tasks:
        made = Mover(memory, memory, tasks, context)
        await fill(made)
        await made.finish()
    # Unknown at first how large they are: one; then as many as fit; and none beyond.
    assert rooms == [1, 2, 1, 1, 0, 0]
    assert made.room == 3


async def test_a_refused_batch_is_split_and_only_the_cause_is_dead_lettered() -> None:
    memory, context = Memory(3, send=[REFUSED, None, REFUSED, None]), fast_context()
    await move(memory, [message(1), message(2), message(3)], context)
    receipt = receipt_of(context)
    assert (receipt.sent, receipt.dead_lettered, receipt.doubtful) == (2, 1, ())
    assert [number for what, number in memory.done if what == "send"] == [1, 3]
    assert [number for what, number in memory.done if what == "dead_letter"] == [2]


async def test_a_batch_in_doubt_is_named_by_message_and_resent_in_order() -> None:
    memory, context = Memory(3, send=[IN_DOUBT]), fast_context()
    await move(memory, [message(1), message(2), message(3)], context)
    receipt = receipt_of(context)
    assert (receipt.sent, receipt.in_doubt) == (3, 0)
    assert [each.message_id for each in receipt.doubtful] == ["m1", "m2", "m3"]
    assert [number for what, number in memory.done if what == "send"] == [1, 2, 3]


@pytest.mark.parametrize("writes", [0, 1])
async def test_nothing_is_sent_that_the_journal_cannot_record(writes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one write, the disk is full once the primary has the messages: they are completed all the same."""
    memory, context, left = Memory(2), fast_context(), writes
    full = errors.MachineLacks("the disk is full")

    async def flush() -> None:
        nonlocal left
        if not left:
            raise full
        left -= 1

    async def another(made: Mover) -> None:
        made.accept([message(3)])

    monkeypatch.setattr(context.journal, "flush", flush)
    made = await move(memory, [message(1), message(2)], context, then=another)
    assert made.fatal is full
    for what in ("send", "complete"):
        assert [number for name, number in memory.done if name == what] == ([1, 2] if writes else [])
    receipt = receipt_of(context)
    assert (receipt.sent, receipt.in_doubt, receipt.released, receipt.doubtful) == (2 * writes, 0, 3 - 2 * writes, ())


async def test_nothing_is_sent_if_the_lease_expires_during_a_write(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, context = Memory(2), fast_context()
    lost = errors.LeaseLost("it is another's")

    def may_send() -> None:
        raise lost

    async def flush() -> None:
        context.journal.may_send = may_send

    monkeypatch.setattr(context.journal, "flush", flush)
    made = await move(memory, [message(1), message(2)], context)
    assert made.fatal is lost
    assert [what for what, _ in memory.done if what == "send"] == []
    assert (receipt_of(context).released, context.journal.in_doubt()) == (2, [])


ANSWERS = st.lists(
    st.sampled_from(
        [None, None, UNREACHABLE, IN_DOUBT, REFUSED, errors.QuotaExceeded("full"), errors.EntityMissing("?")]
    ),
    max_size=12,
)
SETTLEMENTS = st.lists(st.sampled_from([None, None, LOST, UNREACHABLE, IN_DOUBT, REFUSED]), max_size=12)


@settings(max_examples=150, deadline=None)
@given(
    ready=st.lists(st.sampled_from([None, None, UNREACHABLE, errors.EntityMissing("?")]), max_size=12),
    send=ANSWERS,
    complete=SETTLEMENTS,
    dead_letter=SETTLEMENTS,
    release=SETTLEMENTS,
    messages=st.lists(
        st.tuples(st.integers(1, 6), st.sampled_from(["orders", "ORDERS", "billing", None])), max_size=12
    ),
    turns=st.none() | st.integers(0, 60),
    together=st.integers(1, 4),
    ordered=st.booleans(),
)
def test_every_delivery_ends_in_exactly_one_bucket(
    ready: Any,
    send: Any,
    complete: Any,
    dead_letter: Any,
    release: Any,
    messages: Any,
    turns: int | None,
    together: int,
    ordered: bool,
) -> None:
    async def main() -> None:
        memory = Memory(together, ready=ready, send=send, complete=complete, dead_letter=dead_letter, release=release)
        context = fast_context(ordered=ordered, timings=replace(FAST, backoff=Backoff(0.0, 0.0)))
        taken = [message(number, path) for number, path in messages]
        task = asyncio.create_task(move(memory, taken, context))
        if turns is not None:
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled() or task.exception() is None
        receipt = context.tally.receipt()
        assert receipt.balanced, receipt
        sent = [number for what, number in memory.done if what == "send"]
        assert receipt.sent == len(sent)
        assert {number for what, number in memory.done if what == "complete"} <= set(sent)

    asyncio.run(main())


# What it is billed


def spent(context: MoveContext) -> tuple[int, int, int]:
    """Return the operations: to receive and settle, to send, to renew."""
    operations = context.tally.receipt().operations
    assert operations.by_sbpair == operations.received + operations.sent + operations.renewals
    return operations.received, operations.sent, operations.renewals


@given(st.lists(st.integers(1, 300_000), max_size=30), st.integers(1, 10))
@settings(max_examples=30, deadline=None)
def test_operations_count_units_of_messages_not_batches(sizes: list[int], together: int) -> None:
    context = fast_context()

    async def main() -> None:
        await move(Memory(together), [message(at, size=size) for at, size in enumerate(sizes)], context)

    asyncio.run(main())
    whole = sum(map(moved_cost, sizes), Operations())
    assert spent(context) == (whole.received, whole.sent, 0)


@pytest.mark.parametrize(
    ("answers", "path", "size", "operations"),
    [
        ([], None, UNIT_BYTES + 1, (4, 0, 0)),
        ([REFUSED], "orders", 10, (2, 0, 0)),
        ([IN_DOUBT, IN_DOUBT, None], "orders", 10, (2, 3, 0)),
    ],
    ids=["dead-lettered", "refused", "in doubt"],
)
async def test_sends_without_an_outcome_and_dead_letters_are_operations(
    answers: list[Any], path: str | None, size: int, operations: tuple[int, int, int]
) -> None:
    context = fast_context()
    await move(Memory(send=answers), [message(1, path, size=size)], context)
    assert spent(context) == operations


async def test_releases_are_operations_and_abandoned_messages_are_not() -> None:
    context = fast_context()
    await move(Memory(ready=[UNREACHABLE] * 50), [message(1), message(2)], context, settle=False)
    assert spent(context) == (4, 0, 0)
    context = fast_context()

    async def killed(_made: Mover) -> None:
        raise ZeroDivisionError

    with pytest.raises(ExceptionGroup):
        await move(Memory(ready=["hang"]), [message(1), message(2)], context, settle=False, then=killed)
    assert spent(context) == (2, 0, 0)


async def test_each_renewed_lock_is_an_operation() -> None:
    memory, context = Memory(ready=["hang"]), fast_context()

    async def then(made: Mover) -> None:
        for _ in range(10):
            await asyncio.sleep(0)  # until nothing is left to renew
        made.accept([message(1, lock=10.0), message(2, lock=10.0)])
        await memory.renewed.wait()

    await move(memory, [], context, settle=False, then=then)
    _taken, _sent, renewals = spent(context)
    assert renewals >= 2
    assert renewals == memory.renewals
