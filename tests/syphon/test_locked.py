"""Messages that others have locked, and the end of `--once`: what it waits for, what it leaves, and its events."""

import asyncio
import itertools
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from sbpair.amqp_server.shared_access import AccessRight
from sbpair.backlog import queue_path
from sbpair.emulator.entities.description import QueueDescription
from sbpair.emulator.frontends.amqp.message_links import OutgoingLink
from sbpair.move import events, raw_source
from sbpair.move.peek import locked
from sbpair.runs.database import now_ms
from sbpair.runs.run_record import RemainingMessages
from sbpair.syphon import queue_end, run_plan
from tests.kit.moves import ids
from tests.kit.waiting import until
from tests.syphon.worlds import after, names, world

CLAIMS = pytest.mark.parametrize("claims", [tuple(AccessRight), (AccessRight.LISTEN,)], ids=["manage", "listen"])


@CLAIMS
async def test_messages_that_somebody_else_has_locked_are_waited_for(claims: tuple[AccessRight, ...]) -> None:
    async with world() as w:
        w.may_only("secondary", *claims)
        w.strand(1, 2, 3)
        assert len(w.backlog().messages.receive(2)) == 2
        before = now_ms()
        running = asyncio.create_task(w.run())
        found = await w.told_of(events.MessagesLocked)
        assert (found.locked, found.waiting, found.overdue) == (2, True, False)
        assert 60_000 <= found.until_ms - before <= 60_000 + now_ms() - before
        w.emulator.advance(61_000)
        result = await running
        assert (result.exit_code, result.receipt.sent, result.receipt.locked, result.remaining) == (0, 3, 0, None)
        assert sorted(ids(w.destination())) == names(1, 2, 3)
        assert w.of(events.MessagesLocked) == [found]
        waits = [(each.locked, each.locked_until_ms) for each in w.of(events.QueueProgress)]
        assert (2, found.until_ms) in waits
        assert waits[-1] == (0, None)
        (queues,) = w.of(events.QueuesFound)
        assert queues.managed == (AccessRight.MANAGE in claims)


@CLAIMS
async def test_locked_messages_are_left_and_counted_if_asked(claims: tuple[AccessRight, ...]) -> None:
    async with world(2) as w:
        w.may_only("secondary", *claims)
        w.strand(1, 2, 3)
        w.strand(4, index=1)
        assert len(w.backlog().messages.receive(2)) == 2
        result = await w.run(wait_for_locks=False)
        assert (result.exit_code, result.receipt.sent, result.receipt.locked) == (3, 2, 2)
        assert result.remaining == RemainingMessages(2, exact=False)
        (found,) = w.of(events.MessagesLocked)
        assert (found.queue, found.locked, found.waiting) == (w.backlog().path, 2, False)
        w.emulator.advance(61_000)
        assert (await w.run(wait_for_locks=False)).exit_code == 0
        assert sorted(ids(w.destination())) == names(1, 2, 3, 4)


@CLAIMS
async def test_a_run_that_is_stopped_while_it_waits_counts_what_is_locked(claims: tuple[AccessRight, ...]) -> None:
    async with world() as w:
        w.may_only("secondary", *claims)
        w.strand(1, 2)
        w.backlog().messages.receive(1)
        running = asyncio.create_task(w.run(count_remaining=True))
        await w.told_of(events.MessagesLocked)
        w.stop.set()
        result = await running
        assert (result.stopped, result.receipt.sent, result.receipt.locked) == (True, 1, 1)
        assert result.remaining == RemainingMessages(1, exact=AccessRight.MANAGE in claims)


@CLAIMS
async def test_locks_that_outlast_their_time_are_told_of_again(claims: tuple[AccessRight, ...]) -> None:
    async with world() as w:
        w.may_only("secondary", *claims)
        w.strand(1)
        (message,) = w.backlog().messages.receive(1)
        w.backlog().update(replace(w.backlog().description, lock_duration=10_000_000))  # for later locks
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(locked, "ASSUMED_LOCK_SECONDS", 1.0)
            running = asyncio.create_task(w.run())
            first = await w.told_of(events.MessagesLocked)
            again = await w.told_of(events.MessagesLocked, lambda event: event.overdue)
            assert again.until_ms > first.until_ms
        w.backlog().messages.complete(message.lock_token)
        result = await running
        assert (result.exit_code, result.receipt.sent, result.receipt.locked) == (0, 0, 0)


@CLAIMS
@pytest.mark.parametrize("wait_for_locks", [True, False])
async def test_deferred_and_scheduled_messages_are_not_waited_for(
    claims: tuple[AccessRight, ...], wait_for_locks: bool
) -> None:
    async with world() as w:
        w.may_only("secondary", *claims)
        w.strand(1, 2)
        (message,) = w.backlog().messages.receive(1)
        w.backlog().messages.defer(message.lock_token)
        w.schedule(3, in_ms=3_600_000)
        result = await w.run(wait_for_locks=wait_for_locks)
        assert (result.exit_code, result.receipt.sent, result.receipt.locked) == (0, 1, 0)
        assert sorted(ids(w.backlog())) == names(1, 3)
        assert not w.of(events.MessagesLocked)


@CLAIMS
@pytest.mark.parametrize("wait_for_locks", [True, False])
async def test_a_due_scheduled_message_that_is_locked_counts_as_locked(
    claims: tuple[AccessRight, ...], wait_for_locks: bool
) -> None:
    async with world() as w:
        w.may_only("secondary", *claims)
        w.schedule(1, in_ms=1_000)
        w.emulator.advance(1_000)
        assert len(w.backlog().messages.receive(1)) == 1
        running = asyncio.create_task(w.run(wait_for_locks=wait_for_locks))
        found = await w.told_of(events.MessagesLocked)
        assert (found.locked, found.waiting, found.overdue) == (1, wait_for_locks, False)
        if wait_for_locks:
            w.emulator.advance(61_000)
        result = await running
        assert (result.exit_code, result.receipt.locked) == ((0, 0) if wait_for_locks else (3, 1))
        assert ids(w.destination()) == (names(1) if wait_for_locks else [])


@pytest.fixture
def peeks_show_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a queue whose partition is down: its messages are counted, and neither delivered nor peeked."""

    async def nothing(*_arguments: Any) -> list[Any]:
        return []

    monkeypatch.setattr(raw_source, "peek_headers", nothing)


@pytest.mark.usefixtures("peeks_show_nothing")
async def test_counted_messages_that_no_peek_shows_are_left_if_asked() -> None:
    async with world() as w:
        w.strand(1, 2, 3)
        assert len(w.backlog().messages.receive(2)) == 2
        result = await w.run(wait_for_locks=False)
        assert (result.exit_code, result.receipt.sent, result.receipt.locked) == (3, 1, 2)
        assert result.remaining == RemainingMessages(2, exact=False)
        (found,) = w.of(events.MessagesLocked)
        assert (found.locked, found.waiting, found.overdue) == (2, False, False)


@pytest.mark.usefixtures("peeks_show_nothing")
async def test_a_wait_for_counted_messages_that_no_peek_shows_is_told_of() -> None:
    async with world() as w:
        w.strand(1)
        (message,) = w.backlog().messages.receive(1)
        w.backlog().update(replace(w.backlog().description, lock_duration=10_000_000))  # for later locks
        running = asyncio.create_task(w.run())
        first = await w.told_of(events.MessagesLocked)
        assert (first.locked, first.waiting, first.overdue) == (1, True, False)
        again = await w.told_of(events.MessagesLocked, lambda event: event.overdue)
        assert again.until_ms > first.until_ms
        w.backlog().messages.abandon(message.lock_token)
        result = await running
        assert (result.exit_code, result.receipt.sent, result.receipt.locked) == (0, 1, 0)


async def test_a_count_that_is_late_leaves_nothing_locked(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world() as w:
        w.strand(1)
        late = iter([1] * (queue_end.EXCESS_RECEIVES - 1))
        count = run_plan.RunPlan.count

        async def later(plan: run_plan.RunPlan, queue: str) -> int:
            return (await count(plan, queue) or 0) + next(late, 0)

        monkeypatch.setattr(run_plan.RunPlan, "count", later)
        result = await w.run(wait_for_locks=False)
        assert (result.exit_code, result.receipt.sent, result.receipt.locked) == (0, 1, 0)
        assert not w.of(events.MessagesLocked)


async def test_a_peek_finds_what_is_locked_in_every_partition() -> None:
    async with world() as w:
        w.may_only("secondary", AccessRight.LISTEN)
        w.secondary.delete_queue(w.backlog().path)
        queue = w.secondary.create_queue(
            queue_path("contoso", 0), QueueDescription(enable_partitioning=True, max_delivery_count=2**31 - 1)
        )
        w.strand(*range(40))
        taken = len(queue.messages.receive(40))
        assert taken > 1
        result = await w.run(wait_for_locks=False)
        assert (result.receipt.sent, result.receipt.locked) == (40 - taken, taken)
        running = asyncio.create_task(w.run())
        await w.told_of(events.MessagesLocked, lambda event: event.waiting)
        w.emulator.advance(61_000)
        assert (await running).receipt.sent == taken


@CLAIMS
async def test_without_manage_messages_of_a_partition_that_is_down_are_unseen(claims: tuple[AccessRight, ...]) -> None:
    async with world() as w:
        w.may_only("secondary", *claims)
        path = w.backlog().path
        w.secondary.delete_queue(path)
        w.secondary.create_queue(path, QueueDescription(enable_partitioning=True, max_delivery_count=2**31 - 1))
        for number in range(40):
            w.strand(number)
        with w.emulator.faults.during("partition-down", "contoso-dr", entity=path, partition=3):
            if AccessRight.MANAGE in claims:
                result = await w.run(wait_for_locks=False)
                assert result.receipt.locked == w.backlog().counts().active  # it is counted there, and so not lost
            else:
                assert (await w.run()).exit_code == 0  # documented: neither a receive nor a peek shows them
        left = 40 - w.destination().counts().active
        assert left == w.backlog().counts().active > 0
        result = await w.run()
        assert (result.exit_code, result.receipt.sent, w.backlog().counts().active) == (0, left, 0)


async def test_a_slow_backlog_is_not_peeked_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world() as w:
        w.may_only("secondary", AccessRight.LISTEN)
        w.strand(*range(500))
        pull, peek, held_back = OutgoingLink.pull, raw_source.peek_headers, asyncio.Event()
        pages: list[int] = []

        async def counted(*arguments: Any) -> Any:
            pages.append(arguments[2])
            if len(pages) == 2:
                held_back.set()
                for consumer in list(w.backlog().messages._waiting) or links:
                    asyncio.get_running_loop().call_soon(consumer.wake)
            return await peek(*arguments)

        links: list[OutgoingLink] = []

        def late(link: OutgoingLink) -> None:
            if link.path.endswith("/0") and not held_back.is_set():
                links.append(link)
            else:
                pull(link)

        monkeypatch.setattr(OutgoingLink, "pull", late)
        monkeypatch.setattr(raw_source, "peek_headers", counted)
        result = await w.run()
        assert (result.exit_code, result.receipt.sent) == (0, 500)
        assert pages[:2] == [0, 0]  # the first page each time
        assert not w.of(events.MessagesLocked)


@pytest.mark.parametrize("wait_for_locks", [True, False])
async def test_a_busy_backlog_ends_once_nothing_old_is_locked(
    monkeypatch: pytest.MonkeyPatch, wait_for_locks: bool
) -> None:
    async with world() as w:
        w.strand(0)
        w.emulator.advance(200_000)
        w.backlog().messages.receive(1)
        # All that follows counts as new, and each message that arrives strands another one.
        monkeypatch.setattr(locked, "CLOCKS_DIFFER_MS", -150_000)
        numbers = itertools.count(1)
        after(w.destination().messages, "enqueue", lambda: w.strand(next(numbers)), times=1_000_000)
        w.strand(next(numbers))
        running = asyncio.create_task(w.run(wait_for_locks=wait_for_locks))
        assert (await w.told_of(events.MessagesLocked)).locked == 1
        if wait_for_locks:
            w.backlog().messages.expire_locks()
        result = await running
        assert (result.exit_code, result.receipt.locked) == ((0, 0) if wait_for_locks else (3, 1))
        assert ("m0" in ids(w.destination())) == wait_for_locks


async def test_a_busy_backlog_is_peeked_rarely_while_old_messages_are_locked(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world() as w:
        w.strand(*range(300))
        w.emulator.advance(200_000)
        assert len(w.backlog().messages.receive(300)) == 300
        monkeypatch.setattr(locked, "CLOCKS_DIFFER_MS", -150_000)
        numbers, peek, pages = itertools.count(1_000), raw_source.peek_headers, Counter[str]()

        async def counted(*arguments: Any) -> Any:
            pages["peeked"] += 1
            return await peek(*arguments)

        monkeypatch.setattr(raw_source, "peek_headers", counted)
        after(w.destination().messages, "enqueue", lambda: w.strand(next(numbers)), times=1_000_000)
        w.strand(next(numbers))
        running = asyncio.create_task(w.run())
        assert (await w.told_of(events.MessagesLocked)).locked == 300
        assert pages["peeked"] >= 4
        pages.clear()
        seconds = asyncio.get_running_loop().time()
        arrived = w.destination().counts().active
        await until(lambda: w.destination().counts().active >= arrived + 100)
        seconds = asyncio.get_running_loop().time() - seconds
        assert pages["peeked"] <= 1 + seconds / queue_end.PEEK_SECONDS
        w.backlog().messages.expire_locks()
        result = await running
        assert (result.exit_code, result.receipt.locked) == (0, 0)
        assert set(names(*range(300))) <= set(ids(w.destination()))
