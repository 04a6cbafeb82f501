"""What a syphon between two emulated namespaces tells those who watch, and what it is billed for all it does."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from sbpair import errors
from sbpair.amqp.message import APPLICATION_PROPERTIES, encode_map
from sbpair.amqp_server.shared_access import AccessRight
from sbpair.backlog import Aliases, write_aliases
from sbpair.cli.progress.boards import Board, BoardView
from sbpair.model.cost import MoverOperations
from sbpair.move import events
from sbpair.move.message.route import BACKLOG_DEAD_LETTERS
from sbpair.move.run_state import RunState
from sbpair.syphon.run_plan import RunPlan
from tests.kit.costs import moved, turned_away
from tests.kit.moves import HASTY
from tests.kit.moves import peeked as held_in
from tests.kit.waiting import until
from tests.syphon.worlds import World, fill, world

SOON = 0.01


def view_of(w: World) -> BoardView:
    state = RunState()
    for event in w.told:
        state.take(event)
    return Board(state, 0.0).view(0.0, w.emulator.clock.now_ms())


async def test_samples_cover_queues_and_destinations_down_to_zero() -> None:
    async with world(2, "orders", "billing/invoices") as w:
        w.strand(*range(20), index=0)
        w.strand(*range(20, 25), to="billing/invoices", index=1)
        result = await w.run(sample_seconds=SOON)
        assert result.receipt.sent == 25
        view = view_of(w)
        assert [(row.sent, row.remaining, row.held, row.note) for row in view.queues] == [
            (20, 0, 0, "done"),
            (5, 0, 0, "done"),
        ]
        assert {row.destination: row.sent for row in view.destinations} == {"orders": 20, "billing/invoices": 5}


async def test_what_waits_for_a_destination_is_told_with_its_depth_and_age() -> None:
    async with world(1, "orders", "full") as w:
        room = fill(w.destination("full"))
        w.strand(*range(6), to="full")
        w.emulator.advance(5_000)
        async with w.watching(sample_seconds=SOON) as task:
            await w.told_of(events.DestinationProgress, lambda at: (at.destination, at.waiting) == ("full", 6))
            await w.told_of(events.QueueDepths, lambda at: at.messages == 6 and at.oldest_ms is not None)
            [queue], [destination] = view_of(w).queues, view_of(w).destinations
            assert (queue.remaining, queue.held, queue.note) == (6, 6, "waiting for full")
            assert queue.oldest_seconds is not None
            assert queue.oldest_seconds >= 5
            assert (destination.waiting, bool(destination.backing_off)) == (6, True)
            room()
            await w.told_of(events.DestinationProgress, lambda at: (at.sent, at.waiting) == (6, 0))
        assert task.result().receipt.sent == 6


async def test_the_age_of_what_another_one_has_locked_is_found_by_a_peek() -> None:
    async with world() as w:
        w.strand(1)
        [message] = held_in(w.backlog())
        assert len(w.backlog().messages.receive(1)) == 1
        async with w.watching(sample_seconds=SOON) as task:
            depth = await w.told_of(events.QueueDepths, lambda at: at.oldest_ms is not None)
            assert (depth.messages, depth.oldest_ms) == (1, message.enqueued_at_ms)
        assert task.result().receipt.received == 0


async def test_an_empty_queue_is_counted_again_only_after_a_message() -> None:
    async with world(2) as w:
        async with w.watching(sample_seconds=SOON) as task:
            await until(lambda: len(w.of(events.QueueDepths)) == 2)
            await until(lambda: len(w.of(events.QueueOpened)) == 2)
            for _ in range(20):
                await asyncio.sleep(SOON)
            assert len(w.of(events.QueueDepths)) == 2
            w.strand(1, index=1)
            await until(lambda: len(w.of(events.QueueDepths)) > 2)
            assert {each.queue[-1] for each in w.of(events.QueueDepths)[2:]} == {"1"}
        # A count that comes when its lane knows better is told to nobody.
        assert task.result().receipt.operations.management_calls - len(w.of(events.QueueDepths)) in (0, 1)


async def test_nothing_is_counted_for_show_where_nobody_watches_or_may() -> None:
    async with world() as w:
        w.strand(1)
        async with w.watching() as task:
            await w.told_of(events.QueueProgress, lambda at: (at.sent, at.held) == (1, 0))
        assert task.result().receipt.operations.management_calls == 0
        assert not w.of(events.QueueDepths) + w.of(events.DestinationProgress)
    async with world() as w:
        w.may_only("secondary", AccessRight.LISTEN)
        w.strand(1)
        async with w.watching(sample_seconds=SOON) as task:
            await w.told_of(events.DestinationProgress, lambda at: at.sent == 1)
        assert task.result().receipt.operations.management_calls == 0
        assert not w.of(events.QueueDepths)


async def test_a_count_that_fails_is_asked_for_again_and_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Any] = [errors.Unreachable("it is away"), errors.Throttled("it is busy")]
    count = RunPlan.count

    async def answer(plan: RunPlan, queue: str) -> int | None:
        if answers:
            raise answers.pop(0)
        return await count(plan, queue)

    monkeypatch.setattr(RunPlan, "count", answer)
    async with world() as w:
        async with w.watching(sample_seconds=SOON):
            await w.told_of(events.QueueDepths)
            w.strand(1)
            await w.told_of(events.QueueProgress, lambda at: at.sent == 1)
        assert not answers


async def test_a_late_count_does_not_replace_a_newer_one(monkeypatch: pytest.MonkeyPatch) -> None:
    count, next_queue = RunPlan.count, asyncio.Event()

    async def answer(plan: RunPlan, queue: str) -> int | None:
        for_show, number = asyncio.current_task().get_name() == "count the queues", queue[-1]  # type: ignore[union-attr]
        if number == "1":
            await next_queue.wait() if not for_show else next_queue.set()
        messages = await count(plan, queue)
        if for_show and number == "0":
            await w.told_of(events.QueueDone)
        return messages

    monkeypatch.setattr(RunPlan, "count", answer)
    async with world(2) as w:
        w.strand(*range(5), index=0)
        w.strand(5, index=1)
        await w.run(sample_seconds=SOON)
        assert [(row.sent, row.remaining) for row in view_of(w).queues] == [(5, 0), (1, 0)]


async def test_a_run_is_billed_for_what_it_did() -> None:
    async with world() as w:
        w.may_only("secondary", AccessRight.LISTEN)  # it waits in vain once, and peeks
        sizes = dict.fromkeys(range(10), 20) | {10: 70_000, 11: 140_000}
        for number, size in sizes.items():
            w.strand(number, size=size)
        w.strand(12, to="nowhere")
        result = await w.run(timings=replace(HASTY, count_wait_seconds=(2.0,)))
        assert (result.receipt.sent, result.receipt.dead_lettered) == (12, 1)
        whole = sum(map(moved, sizes.values()), turned_away(20))
        assert result.receipt.operations == MoverOperations(
            received=whole.received, sent=whole.sent, empty_receives=1, management_calls=1
        )


async def test_a_watch_of_dead_letters_leaves_those_of_sessions_named() -> None:
    async with world() as w:
        for number, session in enumerate((None, "s")):
            own = encode_map(APPLICATION_PROPERTIES, write_aliases(Aliases("orders", session)))
            w.strand(number, sections={"application_properties": own})
        for each in w.backlog().messages.receive(2):
            w.backlog().messages.dead_letter(each.lock_token, "Bad", "why")
        terms = {"form": BACKLOG_DEAD_LETTERS, "keeps_refused": True}
        async with w.watching(**terms) as task:
            await until(lambda: w.destination().messages.peek(0, 10))
        receipt = task.result().receipt
        assert (receipt.sent, [each.message_id for each in receipt.stayed]) == (1, ["m1"])
        assert w.backlog().counts().dead_letter == 1
