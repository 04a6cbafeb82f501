"""The syphon between two emulated namespaces: what it moves, what it leaves, and what it says of both."""

import asyncio
import re
from typing import Any

import pytest

from sbpair import errors
from sbpair.amqp import codec
from sbpair.amqp.message import Sections, section
from sbpair.amqp.types import Int, Long, Timestamp
from sbpair.amqp_server.shared_access import AccessRight
from sbpair.backlog import queue_path
from sbpair.emulator.entities import description, service_envelope
from sbpair.move import events, raw_destination
from tests.kit.moves import ids
from tests.kit.moves import peeked as held_in
from tests.kit.stranded import numbered
from tests.kit.waiting import until
from tests.syphon.worlds import fill, names, with_property, world

# Once


async def test_once_moves_everything_in_order_and_ends() -> None:
    async with world(3, "orders", "billing/invoices") as w:
        for index in range(3):
            for number in range(40):
                to = ("orders", "billing/invoices", "ORDERS")[number % 3]
                w.strand(1000 * index + number, to=to, index=index)
        result = await w.run()
        assert (result.exit_code, result.failures, result.stopped) == (0, (), False)
        assert (result.receipt.received, result.receipt.sent, result.receipt.distinct) == (120, 120, 120)
        assert result.receipt.destinations == {"orders": 81, "billing/invoices": 39}
        arrived = ids(w.destination("orders"))
        for index in range(3):
            of_lane = [name for name in arrived if int(name[1:]) // 1000 == index]
            assert of_lane == names(*(1000 * index + number for number in range(40) if number % 3 != 1))
            assert held_in(w.backlog(index)) == []


@pytest.mark.odd_messages
@pytest.mark.parametrize(
    ("sections", "why"),
    [
        ({"application_properties": b""}, "the message has no x-ms-path"),
        (with_property("x-ms-path", Int(1)), "x-ms-path is of type int"),
        (with_property("x-ms-path", Timestamp(1)), "the message has no x-ms-path"),
        (with_property("x-ms-path", "nowhere"), "queue or topic 'nowhere' does not exist in the primary namespace"),
        (with_property("x-ms-path", "no such/name!"), "which is not a valid path"),
        (with_property("x-ms-path", "a~b"), "queue or topic 'a~b' does not exist in the primary namespace"),
        (with_property("x-ms-sessionid", Int(1)), "x-ms-sessionid is of type int"),
        (with_property("x-ms-timetolive", Long(1)), "x-ms-timetolive is of type long"),
        (with_property("x-ms-scheduledenqueuetimeutc", "x"), "x-ms-scheduledenqueuetimeutc is of type string"),
        ({"properties": section(0x73, codec.encode([f"m{1}"] + [None] * 13))}, "its properties cannot be read"),
    ],
)
async def test_a_message_that_can_go_nowhere_is_dead_lettered_with_the_reason(sections: Any, why: str) -> None:
    async with world() as w:
        payload = Sections.split(numbered(1, "orders"))
        w.strand(0, 2)
        (bad,) = service_envelope.read_delivery(payload.join(), 0)
        for name, raw in sections.items():
            setattr(bad.sections, name, raw)
        w.backlog().send([bad])
        w.strand(3)
        result = await w.run()
        assert result.exit_code == 3
        assert (result.receipt.sent, result.receipt.dead_lettered, result.receipt.released) == (3, 1, 0)
        assert ids(w.destination()) == names(0, 2, 3)
        (dead,) = held_in(w.backlog(), dead=True)
        assert dead.dead_letter.reason in ("InvalidBacklogMessage", "RefusedByPrimary", "DestinationNotFound")
        assert why in dead.dead_letter.description
        (named,) = result.receipt.dead_letters
        assert why in named.reason
        (told,) = w.of(events.DeadLettered)
        assert why in told.description


@pytest.mark.parametrize("claims", [tuple(AccessRight), (AccessRight.SEND,)])
async def test_a_service_that_accepts_a_tilde_gets_its_messages(
    claims: tuple[AccessRight, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(description, "_PATH", re.compile(".+"))
    async with world(1, "a~b", "a/b") as w:
        w.may_only("primary", *claims)
        w.strand(1, to="a~b")
        w.strand(2, to="a/b")
        result = await w.run()
        assert (result.exit_code, result.receipt.destinations) == (0, {"a~b": 1, "a/b": 1})
        assert [ids(w.destination(name)) for name in ("a~b", "a/b")] == [names(1), names(2)]


async def test_a_stranded_queue_beyond_the_count_is_emptied_too_and_told_of() -> None:
    async with world(2) as w:
        w.strand(1, index=7)
        w.strand(2, index=0)
        result = await w.run()
        assert result.receipt.sent == 2
        (found,) = w.of(events.QueuesFound)
        assert found.managed
        assert found.stranded == (queue_path("contoso", 7),)
        assert found.queues == tuple(queue_path("contoso", index) for index in (0, 1, 7))


@pytest.mark.parametrize("claims", [tuple(AccessRight), (AccessRight.LISTEN,)])
async def test_no_backlog_queue_at_all_is_an_error(claims: tuple[AccessRight, ...]) -> None:
    async with world(2) as w:
        w.may_only("secondary", *claims)
        for index in range(2):
            w.secondary.delete_queue(queue_path("contoso", index))
        with pytest.raises(errors.EntityMissing, match="no backlog queue of contoso"):
            await w.run()


async def test_a_missing_queue_is_told_of_and_the_others_are_emptied() -> None:
    async with world(3) as w:
        w.may_only("secondary", AccessRight.LISTEN)
        w.secondary.delete_queue(queue_path("contoso", 1))
        w.strand(1, index=0)
        w.strand(2, index=2)
        result = await w.run()
        assert (result.exit_code, result.receipt.sent, result.failures) == (0, 2, ())
        (failed,) = w.of(events.QueueFailed)
        assert (failed.queue, failed.retry_seconds) == (queue_path("contoso", 1), None)
        assert failed.reason == "not found in contoso-dr; create missing queues with sbpair provision"


async def test_more_destinations_than_links_are_served_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw_destination, "MAX_SENDERS", 3)
    paths = [f"d{number}" for number in range(10)]
    async with world(1, *paths) as w:
        for number in range(50):
            w.strand(number, to=paths[number % 10])
        result = await w.run()
        assert (result.exit_code, result.receipt.sent) == (0, 50)
        for number, path in enumerate(paths):
            assert ids(w.destination(path)) == names(*range(number, 50, 10))


async def test_an_idle_link_makes_room_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw_destination, "MAX_SENDERS", 3)
    paths = [f"d{number}" for number in range(5)]
    async with world(1, *paths) as w:
        primary = raw_destination.RawDestination(w.pair.primary)
        links = [await primary.ready(path) for path in paths]
        assert [link.sender.error is None for link in links] == [False, False, True, True, True]
        assert await primary.ready("D2") is links[2]
        await primary.ready("d0")
        assert [link.sender.error is None for link in links] == [False, False, True, False, True]
        await primary.close()


async def test_a_mistake_in_a_callback_comes_out_as_itself() -> None:
    async with world() as w:
        w.strand(1)

        def broken(event: Any) -> None:
            if isinstance(event, events.QueueProgress):
                raise ZeroDivisionError

        w.watchers.append(broken)
        with pytest.raises(ZeroDivisionError):
            await w.run()
        await until(lambda: w.backlog().messages.locked_count == 0)


# Holding


async def test_a_destination_that_has_room_again_gets_everything_in_order() -> None:
    async with world() as w:
        room = fill(w.destination())
        w.strand(*range(10))
        w.watchers.append(lambda event: room() if isinstance(event, events.DestinationBackingOff) else None)
        result = await w.run()
        assert (result.exit_code, result.receipt.sent) == (0, 10)
        assert ids(w.destination()) == names(*range(10))
        assert len(w.of(events.DestinationRecovered)) == 1


async def test_a_lane_holds_no_more_than_it_may_and_says_what_blocks_it() -> None:
    async with world(1, "orders", "full") as w:
        fill(w.destination("full"))
        w.strand(*range(30), to="full")
        w.strand(99)
        limit = 0

        def look(_event: Any) -> None:
            nonlocal limit
            limit = max(limit, w.backlog().messages.locked_count)

        w.watchers.append(look)
        result = await w.run(max_held=7)
        assert result.exit_code == 3
        assert (result.receipt.received, result.receipt.released) == (7, 7)
        assert limit <= 7
        (blocked,) = w.of(events.QueueBlocked)
        assert blocked.destinations == ("full",)
        assert w.backlog().messages.locked_count == 0


# The end of patience


async def test_cancelled_at_any_point_it_loses_nothing() -> None:
    async with world() as w:
        before = asyncio.all_tasks()
        total, turns, finished = 0, 0, False
        while not finished:
            w.strand(total, total + 1)
            total += 2
            task = asyncio.create_task(w.run())
            for _ in range(turns):
                await asyncio.sleep(0)
            finished = task.done()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await until(lambda: asyncio.all_tasks() == before)
            await until(lambda: w.backlog().messages.locked_count == 0)
            turns += 7
        everywhere = set(ids(w.destination())) | set(ids(w.backlog()))
        assert everywhere == set(names(*range(total)))
        assert held_in(w.backlog(), dead=True) == []
