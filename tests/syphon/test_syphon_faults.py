"""The syphon while a side fails, refuses its key, or lacks a destination: nothing is lost, and doubts are named."""

import asyncio
import functools
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sbpair import errors
from sbpair.amqp_server.shared_access import AccessRight
from sbpair.backlog import queue_path
from sbpair.move import destination_sender, events
from sbpair.move.receipt import MissingDestination, Tally
from sbpair.runs.database import RunDatabase
from sbpair.runs.journal import Journal, doubts_of
from sbpair.runs.run_log import all_runs
from sbpair.runs.run_record import RemainingMessages
from sbpair.syphon import runner
from sbpair.syphon.run_request import syphon_request
from sbpair.syphon.run_store import LiveRun, RunStore
from tests.kit.moves import ids
from tests.kit.moves import peeked as held_in
from tests.kit.pairs import unconnected_pair
from tests.kit.shortages import no_file_left
from tests.kit.waiting import until
from tests.syphon.worlds import after, fill, names, world


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages leave one after the other, so that something can happen between two of them."""
    monkeypatch.setattr(destination_sender, "MAX_ROUND", 1)


async def test_the_primary_goes_down_and_comes_back(one_by_one: None) -> None:
    del one_by_one
    async with world() as w:
        w.strand(*range(20))
        outages: list[str] = []

        def down() -> None:
            outages.append(w.emulator.faults.namespace_down("contoso"))

        def up(event: Any) -> None:
            if isinstance(event, events.DestinationBackingOff) and outages:
                w.emulator.faults.end(outages.pop())

        after(w.destination().messages, "enqueue", down, skip=4)
        w.watchers.append(up)
        result = await w.run()
        assert (result.exit_code, result.receipt.sent, result.failures) == (0, 20, ())
        # The fifth was accepted, and nobody heard of it: it is there twice, and the receipt says which.
        counted = Counter(ids(w.destination()))
        assert set(counted) == set(names(*range(20)))
        assert {name for name, count in counted.items() if count > 1} == {"m4"}
        assert [each.message_id for each in result.receipt.doubtful] == ["m4"], result.receipt.doubtful
        assert result.receipt.in_doubt == 0


async def test_a_primary_down_from_the_start_leaves_the_backlog_untouched() -> None:
    async with world() as w:
        w.strand(1, 2)
        w.emulator.faults.namespace_down("contoso")
        result = await w.run()
        assert result.exit_code == 6
        assert (result.receipt.received, ids(w.backlog())) == (0, names(1, 2))
        assert {message.delivery_count for message in held_in(w.backlog())} == {0}


async def test_a_lost_secondary_names_unconfirmed_messages(one_by_one: None) -> None:
    del one_by_one
    async with world() as w:
        w.strand(*range(5))
        after(
            w.destination().messages,
            "enqueue",
            functools.partial(w.emulator.faults.namespace_down, "contoso-dr"),
            skip=4,
        )
        result = await w.run()
        assert result.exit_code == 6
        assert [queue for queue, _ in result.failures] == [queue_path("contoso", 0)]
        in_both = {each.message_id for each in result.receipt.doubtful}
        assert in_both == set(ids(w.backlog())) & set(ids(w.destination()))
        assert "m4" in in_both


def test_the_receipt_names_what_a_full_journal_forgot() -> None:
    journal, tally = Journal(limit=2), Tally()
    for number in range(5):
        journal.note_accepted(journal.note_sending([[("contoso-dr", "q", number, 1, f"m{number}")]], "orders"))
    runner._name_possible_duplicates(tally, journal, "r", syphon_request(unconnected_pair(1), once=True))
    receipt = tally.receipt()
    assert ([each.message_id for each in receipt.doubtful], receipt.doubtful_total) == (["m3", "m4", "m0", "m1"], 5)
    assert ["full" in each.reason for each in receipt.doubtful] == [False, False, True, True]


async def test_a_watch_without_a_free_file_says_so_waits_and_goes_on() -> None:
    async with world() as w:
        async with w.watching() as task:
            await w.told_of(events.QueueOpened)
            with no_file_left():
                w.emulator.faults.drop("contoso-dr", count=1)
                w.strand(1)
                failed = await w.told_of(events.QueueFailed, lambda at: "too many open files" in at.reason)
                assert failed.reason == "contoso-dr: too many open files"
                assert failed.retry_seconds is not None
                assert (failed.side, failed.away_since_ms) == (None, None)  # neither namespace is to blame
            await until(lambda: ids(w.destination()) == names(1))
        assert task.result().exit_code == 0


async def test_a_syphon_without_a_free_file_ends_with_7() -> None:
    async with world() as w:
        w.strand(1)
        with no_file_left(), pytest.raises(errors.Exhausted, match="too many open files"):
            await w.run()
        assert {message.delivery_count for message in held_in(w.backlog())} == {0}


@pytest.mark.parametrize("cancelled", [False, True])
async def test_what_a_crashed_run_sent_and_nobody_completed_is_named_once(tmp_path: Path, cancelled: bool) -> None:
    """The source may have dead-lettered it at its delivery limit, or expired it: no later run receives it."""
    async with world() as w:
        with RunStore(syphon_request(w.pair, once=True, lease=False), tmp_path, LiveRun()) as crashed:
            key = (w.pair.secondary.name, queue_path("contoso", 0), 7, 1, "m7")
            [batch] = crashed.journal.note_sending([[key]], "orders")
            crashed.journal.note_accepted([batch])
        task = asyncio.create_task(w.run(once=not cancelled, state=tmp_path))
        if cancelled:
            await until(lambda: w.of(events.QueueOpened))
            task.cancel()
        await asyncio.wait([task])
        await w.run(state=tmp_path)
    with RunDatabase(tmp_path, w.pair.ends) as state:
        receipts = [found.receipt or {} for found in all_runs(state)]
    reason = "the primary accepted it, and the backlog did not confirm its completion"
    named = {"queue": key[1], "sequence_number": 7, "message_id": "m7", "destination": None, "reason": reason}
    assert [receipt.get("doubtful", []) for receipt in receipts] == [[], [named], []]


@pytest.mark.parametrize("once", [True, False])
async def test_a_wrong_key_for_the_primary_stops_everything_and_harms_no_message(once: bool) -> None:
    async with world(2) as w:
        w.may_only("primary", AccessRight.SEND, key="wrong-s3cret")
        w.strand(*range(5), index=0)
        w.strand(*range(5), index=1)
        result = await w.run(once=once)
        assert result.exit_code == 5
        assert (result.receipt.sent, result.receipt.dead_lettered) == (0, 0)
        assert result.receipt.released == result.receipt.received
        assert len(held_in(w.backlog(0))) == len(held_in(w.backlog(1))) == 5
        assert w.backlog(0).messages.locked_count + w.backlog(1).messages.locked_count == 0
        assert "s3cret" not in str(result) + str(w.told)


async def test_a_primary_that_is_configured_wrongly_harms_no_message() -> None:
    async with world() as w:
        w.pair = replace(w.pair, primary=replace(w.pair.primary, tls=True, ca_file="/nowhere/ca.pem"))
        w.strand(1, 2)
        result = await w.run(once=False)
        assert result.exit_code == 2
        assert isinstance(result.failures[0][1], errors.UsageError)
        assert (ids(w.backlog()), held_in(w.backlog(), dead=True)) == (names(1, 2), [])


# Destinations that the primary lacks


@pytest.mark.parametrize("queues", [1, 2])
async def test_missing_destinations_cost_few_dead_letters_each(queues: int) -> None:
    async with world(queues, "d4") as w:
        for number in range(200):
            w.strand(number, to=f"d{number % 5}", index=number % queues)
        result = await w.run(count_remaining=True)
        receipt = result.receipt
        assert (result.exit_code, receipt.sent, receipt.dead_lettered, receipt.released) == (3, 40, 80, 80)
        assert result.missing_destinations == tuple(MissingDestination(f"d{each}", 20, 20) for each in range(4))
        assert result.remaining == RemainingMessages(80, exact=True)
        dead = [message for index in range(queues) for message in held_in(w.backlog(index), dead=True)]
        assert len(dead) == 80
        assert sum(w.backlog(index).messages.locked_count for index in range(queues)) == 0
        assert receipt.received == 200
        for number in range(4):
            w.destination(f"d{number}")
        assert (await w.run()).receipt.sent == 80


async def test_a_destination_that_is_created_gets_its_held_messages() -> None:
    async with world(1, "orders") as w:
        w.strand(*range(50), to="gone")
        async with w.watching(max_missing=5) as task:
            held = await w.told_of(events.DestinationBackingOff)
            assert (held.destination, held.waiting) == ("gone", 45)
            assert "5 of its messages were dead-lettered" in held.reason
            w.destination("gone")
            await until(lambda: w.destination("gone").counts().active == 45)
        result = task.result()
        assert (result.receipt.dead_lettered, result.receipt.sent, result.receipt.received) == (5, 45, 50)
        assert [(each.destination, each.dead_lettered, each.held) for each in result.missing_destinations] == [
            ("gone", 5, 0)
        ]


async def test_more_held_messages_than_may_be_held_end_the_run_and_stay() -> None:
    async with world(1, "orders") as w:
        w.strand(*range(300), to="gone")
        result = await w.run(max_held=50, count_remaining=True)
        assert (result.exit_code, result.receipt.dead_lettered) == (3, 20)
        assert result.remaining == RemainingMessages(280, exact=True)
        assert ids(w.backlog()) == names(*range(20, 300))


async def test_without_manage_the_remainder_is_at_least_what_went_back() -> None:
    async with world(1) as w:
        w.may_only("secondary", AccessRight.LISTEN)
        w.strand(*range(50), to="gone")
        result = await w.run(count_remaining=True)
        assert result.remaining == RemainingMessages(30, exact=False)


@pytest.mark.usefixtures("one_by_one")
async def test_a_destination_deleted_between_sends_is_held() -> None:
    async with world(1) as w:
        w.destination("gone")
        w.strand(*range(60), to="gone")
        async with w.watching(max_missing=3) as task:
            await until(lambda: w.destination("gone").counts().active > 0)
            w.destination("gone").delete()
            await w.told_of(events.DestinationBackingOff, lambda event: "does not exist" in event.reason)
        receipt = task.result().receipt
        assert (receipt.dead_lettered, receipt.sent + receipt.released) == (3, 57)


async def test_a_kill_while_a_destination_backs_off_leaves_no_doubt(tmp_path: Path) -> None:
    async with world() as w:
        w.strand(1, 2)
        room, found = fill(w.destination()), list[Any]()

        def killed(event: Any) -> None:
            """Read what a kill at this moment would leave."""
            if isinstance(event, events.DestinationBackingOff):
                with RunDatabase(tmp_path, w.pair.ends) as state:
                    found.append(doubts_of(state, all_runs(state)[0].id, ended=True))
                room()

        w.watchers.append(killed)
        await w.run(state=tmp_path)
        assert found
        assert not any(found)
