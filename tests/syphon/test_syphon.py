"""The syphon between two emulated namespaces: what it moves, what it leaves, and what it says of both."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from sbpair import errors
from sbpair.amqp import codec
from sbpair.amqp.message import APPLICATION_PROPERTIES, MESSAGE_ANNOTATIONS, Sections, data_body, encode_map, section
from sbpair.amqp.types import Int, Long, Symbol, Timestamp
from sbpair.backlog import Aliases, queue_path, write_aliases
from sbpair.emulator.access.sas import AccessRight, AuthorizationRule
from sbpair.emulator.entities import service_envelope
from sbpair.emulator.entities.description import QueueDescription
from sbpair.emulator.frontends.amqp.outgoing_link import OutgoingLink
from sbpair.model.backoff import Backoff
from sbpair.model.connection_string import endpoint_from_connection_string
from sbpair.model.pair import Pair, SasKey
from sbpair.move import destination_sender, events, intake, new_messages, raw_primary, raw_source
from sbpair.move.context import MoveContext, MoveTimings
from sbpair.move.peek import locked
from sbpair.move.receipt import MissingDestination, RemainingMessages
from sbpair.runs.database import now_ms
from sbpair.syphon import queue_end, run_plan, runner, worker, worker_connections
from sbpair.syphon.move_spec import MoveSpec
from sbpair.testing import Emulator
from tests.kit.stranded import numbered, put
from tests.kit.waiting import until

if TYPE_CHECKING:
    from sbpair.emulator.entities.queue import QueueEntity

HASTY = run_plan.RunTimings(
    backoff=Backoff(0.02, 60.0),
    empty_wait_seconds=0.03,
    count_wait_seconds=(0.01, 0.02),
    report_seconds=0.01,
    destinations_seconds=0.01,
    move=MoveTimings(backoff=Backoff(0.01, 60.0)),
)
"""Waits that make sense against a real service are cut short."""

RENEWING = replace(HASTY, move=replace(HASTY.move, renew_before_seconds=1_000.0, min_renewal_seconds=0.01))
MINUTE_TICKS = 600_000_000


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages leave one after the other, so that something can happen between two of them."""
    monkeypatch.setattr(destination_sender, "MAX_ROUND", 1)


class World:
    """Two namespaces, some backlog queues, some destinations; and all that a syphon has told."""

    def __init__(self, emulator: Emulator, queues: int) -> None:
        self.emulator = emulator
        self.primary = emulator.namespaces["contoso"]
        self.secondary = emulator.namespaces["contoso-dr"]
        ends = [
            endpoint_from_connection_string(each.connection_string, name=each.name)
            for each in (self.primary, self.secondary)
        ]
        self.pair = Pair("p", *ends, backlog_queues=queues)
        self.told: list[Any] = []
        self.watchers: list[Callable[[Any], None]] = []
        self.stop = asyncio.Event()

    def backlog(self, index: int = 0) -> QueueEntity:
        path = queue_path("contoso", index)
        description = QueueDescription(
            max_size_in_megabytes=5120, max_delivery_count=2**31 - 1, dead_lettering_on_message_expiration=True
        )
        return self.secondary.find_queue(path) or self.secondary.create_queue(path, description)

    def destination(self, path: str = "orders") -> QueueEntity:
        return self.primary.find_queue(path) or self.primary.create_queue(path)

    def strand(self, *numbers: int, to: str = "orders", index: int = 0, **changed: Any) -> None:
        for number in numbers:
            put(self.backlog(index), numbered(number, to, **changed))

    def schedule(self, number: int, *, in_ms: int) -> None:
        """Store a message in the backlog that is scheduled there."""
        due = Timestamp(self.emulator.clock.now_ms() + in_ms)
        annotations = encode_map(MESSAGE_ANNOTATIONS, {Symbol("x-opt-scheduled-enqueue-time"): due})
        self.strand(number, sections={"message_annotations": annotations})

    def tell(self, event: Any) -> None:
        self.told.append(event)
        for watcher in self.watchers:
            watcher(event)

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.told if isinstance(event, kind)]

    async def told_of(self, kind: type[Any], fits: Callable[[Any], bool] = lambda _event: True) -> Any:
        happened = asyncio.Event()
        self.watchers.append(lambda event: happened.set() if isinstance(event, kind) and fits(event) else None)
        if not any(fits(event) for event in self.of(kind)):
            await happened.wait()
        return next(event for event in self.of(kind) if fits(event))

    async def run(self, *, once: bool = True, **terms: Any) -> runner.SyphonResult:
        terms = {"timings": HASTY, **terms}
        result = await runner.run(self.pair, once=once, stop=self.stop, on_event=self.tell, **terms)
        assert result.receipt.balanced
        assert all(
            queue["received"] == sum(count for bucket, count in queue.items() if bucket != "received")
            for queue in result.receipt.queues.values()
        )
        return result

    @asynccontextmanager
    async def watching(self, **terms: Any) -> AsyncIterator[asyncio.Task[runner.SyphonResult]]:
        task = asyncio.create_task(self.run(once=False, **terms))
        try:
            yield task
        finally:
            self.stop.set()
            await task

    def may_only(self, side: str, *claims: AccessRight, key: str = "key") -> None:
        """From here on the pair has a key that grants these claims alone."""
        namespace = self.primary if side == "primary" else self.secondary
        namespace.keys = (*namespace.keys, AuthorizationRule("only", "key", "other", frozenset(claims)))
        endpoint = replace(getattr(self.pair, side), credential=SasKey("only", key))
        self.pair = replace(self.pair, **{side: endpoint})


@asynccontextmanager
async def world(queues: int = 1, *destinations: str) -> AsyncIterator[World]:
    async with Emulator() as emulator:
        made = World(emulator, queues)
        for index in range(queues):
            made.backlog(index)
        for path in destinations or ("orders",):
            made.destination(path)
        yield made


def held_in(queue: QueueEntity, *, dead: bool = False) -> list[Any]:
    return (queue.dead_letters if dead else queue.messages).peek(0, 100_000)


def ids(queue: QueueEntity, *, dead: bool = False) -> list[str]:
    return [each.sections.read_properties().message_id for each in held_in(queue, dead=dead)]


def names(*numbers: int) -> list[str]:
    return [f"m{number}" for number in numbers]


def after(engine: Any, method: str, act: Callable[[], Any], *, times: int = 1, skip: int = 0) -> None:
    """Do something each time that an engine has done something, so often."""
    call, counted = getattr(engine, method), Counter[str]()

    def wrapped(*arguments: Any, **keywords: Any) -> Any:
        result = call(*arguments, **keywords)
        counted["calls"] += 1
        if skip < counted["calls"] <= skip + times:
            act()
        return result

    setattr(engine, method, wrapped)


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


async def test_what_arrives_is_what_was_sent() -> None:
    async with world() as w:
        w.strand(1, session_id="s-1", ttl_ticks=MINUTE_TICKS)
        w.strand(2, scheduled_at=w.emulator.clock.now_ms() + 3_600_000)
        assert (await w.run()).exit_code == 0
        first, second = held_in(w.destination())
        assert first.sections.read_application_properties().pairs == (("number", Int(1)),)
        assert first.sections.read_properties().group_id == "s-1"
        assert first.sections.read_header().ttl == 60_000
        assert first.sections.body == data_body(b"\x01" * 20)
        assert (w.destination().counts().active, w.destination().counts().scheduled) == (1, 1)
        assert second.scheduled_at_ms is not None


async def test_an_empty_backlog_is_done_at_once() -> None:
    async with world(2) as w:
        result = await w.run()
        assert (result.exit_code, result.receipt.received) == (0, 0)


def with_property(name: str, value: Any) -> dict[str, Any]:
    own = {**write_aliases(Aliases("orders")), name: value}
    return {"application_properties": encode_map(APPLICATION_PROPERTIES, own)}


@pytest.mark.parametrize(
    ("sections", "why"),
    [
        ({"application_properties": b""}, "the message has no x-ms-path"),
        (with_property("x-ms-path", Int(1)), "x-ms-path is of type int"),
        (with_property("x-ms-path", Timestamp(1)), "the message has no x-ms-path"),
        (with_property("x-ms-path", "nowhere"), "queue or topic 'nowhere' does not exist in the primary namespace"),
        (with_property("x-ms-path", "no such/name!"), "which is not a valid path"),
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


async def test_a_message_too_large_is_dead_lettered_and_others_are_sent() -> None:
    async with world() as w:
        w.destination().update(replace(w.destination().description, max_message_size_in_kilobytes=1))
        w.strand(1)
        w.strand(2, size=2_000)
        w.strand(3)
        result = await w.run()
        assert result.exit_code == 3
        assert ids(w.destination()) == names(1, 3)
        (dead,) = held_in(w.backlog(), dead=True)
        assert "1024" in dead.dead_letter.description


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
        count = runner._counter

        def counter(*arguments: Any) -> Any:
            counted = count(*arguments)

            async def later(queue: str) -> int:
                return await counted(queue) + next(late, 0)

            return later

        monkeypatch.setattr(runner, "_counter", counter)
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
                with pytest.raises(errors.TimedOut, match="cannot list the queues"):
                    await w.run()
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
        monkeypatch.setattr(new_messages, "CLOCKS_DIFFER_MS", -150_000)
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
        monkeypatch.setattr(new_messages, "CLOCKS_DIFFER_MS", -150_000)
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


async def test_a_watch_waits_for_a_backlog_queue_and_can_be_stopped_meanwhile() -> None:
    async with world(1) as w:
        w.secondary.delete_queue(queue_path("contoso", 0))
        async with w.watching() as task:
            await w.told_of(events.QueuesFound)
        assert task.result().receipt.received == 0


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
        assert failed.reason == "not found in contoso-dr; sbpair provision creates missing queues"


async def test_a_clock_that_is_behind_the_services_leaves_nothing_behind() -> None:
    async with world() as w:
        w.emulator.advance(600_000)
        w.strand(*range(20))
        result = await w.run()
        assert (result.exit_code, result.receipt.sent) == (0, 20)
        assert held_in(w.backlog()) == []


async def test_messages_that_arrive_after_the_start_do_not_keep_it_from_ending() -> None:
    async with world() as w:
        w.strand(*range(10))
        # Ever more messages, enqueued two minutes after the first was received as the service sees it.
        later = iter(range(100, 100_000))

        def more(event: Any) -> None:
            if isinstance(event, events.QueueProgress) and event.received:
                number = next(later)
                if number == 100:
                    w.emulator.advance(120_000)
                w.strand(number, next(later))

        w.watchers.append(more)
        result = await w.run()
        assert result.exit_code == 0
        assert set(names(*range(10))) <= set(ids(w.destination()))
        assert w.backlog().messages.locked_count == 0


async def test_more_destinations_than_links_are_served_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw_primary, "MAX_SENDERS", 3)
    paths = [f"d{number}" for number in range(10)]
    async with world(1, *paths) as w:
        for number in range(50):
            w.strand(number, to=paths[number % 10])
        result = await w.run()
        assert (result.exit_code, result.receipt.sent) == (0, 50)
        for number, path in enumerate(paths):
            assert ids(w.destination(path)) == names(*range(number, 50, 10))


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


def fill(queue: QueueEntity) -> Callable[[], None]:
    """Make a queue full; what is answered makes room again."""
    limit, queue._max_bytes = queue._max_bytes, 0

    def room() -> None:
        queue._max_bytes = limit

    return room


async def test_messages_of_a_full_destination_are_held_and_released() -> None:
    async with world(1, "orders", "full") as w:
        fill(w.destination("full"))
        for number in range(20):
            w.strand(number, to=("orders", "full")[number % 2])
        result = await w.run()
        assert result.exit_code == 3
        assert (result.receipt.sent, result.receipt.released, result.receipt.dead_lettered) == (10, 10, 0)
        assert ids(w.destination("orders")) == names(*range(0, 20, 2))
        assert ids(w.backlog()) == names(*range(1, 20, 2))
        assert {message.delivery_count for message in held_in(w.backlog())} == {0}
        assert w.backlog().messages.locked_count == 0
        assert w.of(events.DestinationBackingOff)[0].destination == "full"


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


async def test_a_worker_holds_no_more_bytes_than_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MoveContext, "max_held_bytes", 100_000)
    monkeypatch.setattr(intake, "ASSUMED_BYTES", 25_000)
    original = runner.MoveContext
    monkeypatch.setattr(
        runner, "MoveContext", lambda *given, **terms: original(*given, **terms, max_held_bytes=100_000)
    )
    async with world() as w:
        fill(w.destination())
        w.strand(*range(30), size=20_000)
        result = await w.run()
        assert 4 <= result.receipt.received <= 6
        assert result.receipt.released == result.receipt.received
        assert w.of(events.QueueBlocked)


async def test_locks_of_what_is_held_are_renewed() -> None:
    async with world() as w:
        room = fill(w.destination())
        w.strand(1, 2)
        renewed = asyncio.Event()
        after(w.backlog().messages, "renew", renewed.set, skip=3)
        async with w.watching(timings=RENEWING):
            await renewed.wait()
            w.emulator.advance(59_000)
            renewed.clear()
            after(w.backlog().messages, "renew", renewed.set, skip=3)
            await renewed.wait()
            w.emulator.advance(59_000)
            room()
            await until(lambda: ids(w.destination()) == names(1, 2))
            await until(lambda: held_in(w.backlog()) == [])


async def test_held_messages_that_lose_their_lock_come_again_and_are_sent_once() -> None:
    async with world() as w:
        room = fill(w.destination())
        w.strand(*range(5))
        async with w.watching(timings=RENEWING) as task:
            await w.told_of(events.DestinationBackingOff)
            w.emulator.advance(61_000)
            await w.told_of(events.QueueProgress, lambda event: event.received > 5)
            room()
            await until(lambda: held_in(w.backlog()) == [])
        receipt = task.result().receipt
        assert sorted(ids(w.destination())) == names(*range(5))
        assert (receipt.sent, receipt.distinct, receipt.exit_code) == (5, 5, 0)
        assert receipt.released >= 1


# Watching


async def test_a_watch_moves_what_arrives_later_and_stops_when_it_is_told_to() -> None:
    async with world(2) as w:
        async with w.watching() as task:
            await w.told_of(events.QueueOpened)
            w.strand(1, index=0)
            await until(lambda: ids(w.destination()) == names(1))
            w.strand(2, index=1)
            await until(lambda: ids(w.destination()) == names(1, 2))
        result = task.result()
        assert (result.stopped, result.exit_code, result.receipt.sent) == (True, 0, 2)
        assert held_in(w.backlog(0)) + held_in(w.backlog(1)) == []


async def test_a_watch_tells_how_far_it_is_until_nothing_is_in_hand() -> None:
    async with world() as w:
        w.strand(*range(50))
        async with w.watching():
            await w.told_of(events.QueueProgress, lambda at: (at.received, at.sent, at.held) == (50, 50, 0))


async def test_a_stop_releases_what_is_held() -> None:
    async with world() as w:
        fill(w.destination())
        w.strand(*range(5))
        async with w.watching() as task:
            await w.told_of(events.DestinationBackingOff)
        receipt = task.result().receipt
        assert (receipt.received, receipt.released) == (5, 5)
        assert w.backlog().messages.locked_count == 0
        assert {message.delivery_count for message in held_in(w.backlog())} == {0}


async def test_a_stop_while_the_primary_cannot_be_reached_does_not_wait_for_it() -> None:
    async with world() as w:
        called = asyncio.Event()

        class Silent(asyncio.Protocol):
            def connection_made(self, _transport: asyncio.BaseTransport) -> None:
                called.set()

        silent = await asyncio.get_running_loop().create_server(Silent, "127.0.0.1", 0)
        port = silent.sockets[0].getsockname()[1]
        w.pair = replace(w.pair, primary=replace(w.pair.primary, port=port))
        w.strand(1, 2)
        async with w.watching() as task:
            await called.wait()
        silent.close()
        await silent.wait_closed()
        receipt = task.result().receipt
        assert (receipt.received, receipt.doubtful) == (0, ())
        assert ids(w.backlog()) == names(1, 2)


async def test_a_stop_while_the_secondary_does_not_answer_does_not_wait_for_it() -> None:
    async with world() as w:
        silent = await asyncio.get_running_loop().create_server(asyncio.Protocol, "127.0.0.1", 0)
        port = silent.sockets[0].getsockname()[1]
        pair = replace(w.pair, secondary=replace(w.pair.secondary, port=port))
        context = MoveContext("contoso-dr", on_event=w.tell)
        plan = run_plan.RunPlan(False, context, w.stop, MoveSpec(pair), None, started_ms=0)
        waiting = worker.QueueWorker(queue_path("contoso", 0), plan)
        task = asyncio.create_task(waiting.run())
        await asyncio.sleep(0)
        w.stop.set()
        waiting.interrupt()
        await task
        silent.close()
        await silent.wait_closed()
        assert waiting.error is None


async def test_an_idle_watch_asks_for_messages_four_times_an_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_plan.DEFAULT_TIMINGS.long_poll_seconds == 15 * 60
    asked, polled = Counter[str](), asyncio.Event()
    on_flow, taking = OutgoingLink.on_flow, raw_source.RawSource.receive

    def counted(outlet: OutgoingLink) -> None:
        asked["flows"] += 1
        on_flow(outlet)

    async def take(source: Any, limit: int, *, seconds: float) -> Any:
        asked["polls"] += 1
        if asked["polls"] == 5:
            polled.set()
        return await taking(source, limit, seconds=seconds)

    monkeypatch.setattr(OutgoingLink, "on_flow", counted)
    monkeypatch.setattr(raw_source.RawSource, "receive", take)
    async with world() as w, w.watching(timings=replace(HASTY, long_poll_seconds=0.02)):
        await polled.wait()
        assert asked["polls"] - 1 <= asked["flows"] <= asked["polls"]


async def test_an_idle_link_closed_by_the_service_is_reopened() -> None:
    async with world() as w, w.watching():
        await w.told_of(events.QueueOpened)
        for number in range(3):
            w.emulator.advance(601_000)
            w.strand(number)
            await until(lambda: ids(w.destination()) == names(*range(number + 1)))  # noqa: B023
            await until(lambda: w.backlog().counts().total == 0)
        assert w.of(events.QueueFailed) == []
        assert len(w.of(events.QueueOpened)) == 1


# The end of patience


async def test_cancelled_it_lets_go_of_every_lock() -> None:
    async with world(2) as w:
        fill(w.destination())
        w.strand(*range(5), index=0)
        w.strand(*range(5), index=1)
        task = asyncio.create_task(w.run(once=False))
        await w.told_of(events.DestinationBackingOff)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: w.backlog(0).messages.locked_count + w.backlog(1).messages.locked_count == 0)
        assert len(held_in(w.backlog(0))) == len(held_in(w.backlog(1))) == 5


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


# Faults


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


async def test_a_primary_that_stays_down_causes_no_dead_letters(one_by_one: None) -> None:
    del one_by_one
    async with world() as w:
        w.strand(*range(10))
        after(
            w.destination().messages, "enqueue", functools.partial(w.emulator.faults.namespace_down, "contoso"), skip=4
        )
        result = await w.run()
        assert result.exit_code == 6
        assert result.receipt.sent == 4
        assert (result.receipt.in_doubt, result.receipt.released) == (1, 5)
        assert ids(w.backlog()) == names(*range(4, 10))
        assert held_in(w.backlog(), dead=True) == []


async def test_the_secondary_breaks_and_what_the_primary_has_is_not_sent_again(one_by_one: None) -> None:
    del one_by_one
    async with world() as w:
        w.strand(*range(20))

        def blink() -> None:
            outage = w.emulator.faults.namespace_down("contoso-dr")
            asyncio.get_running_loop().call_soon(w.emulator.faults.end, outage)

        after(w.destination().messages, "enqueue", blink, skip=4)
        result = await w.run()
        assert (result.exit_code, result.receipt.sent, result.failures) == (0, 20, ())
        assert sorted(Counter(ids(w.destination())).items()) == sorted((name, 1) for name in names(*range(20)))
        assert result.receipt.distinct == 20
        assert result.receipt.doubtful == ()
        assert held_in(w.backlog()) == []


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


async def test_a_settlement_that_comes_too_late_is_made_up_for() -> None:
    async with world() as w:
        w.strand(1, 2, 3)
        after(w.destination().messages, "enqueue", lambda: w.emulator.advance(61_000))
        result = await w.run()
        assert (result.exit_code, result.receipt.sent) == (0, 3)
        assert result.receipt.already_sent >= 1
        assert sorted(ids(w.destination())) == names(1, 2, 3)
        assert held_in(w.backlog()) == []


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


async def test_a_primary_key_without_send_stops_the_run_unharmed() -> None:
    async with world() as w:
        w.may_only("primary", AccessRight.LISTEN)
        w.strand(1, 2)
        result = await w.run()
        assert result.exit_code == 5
        assert isinstance(result.failures[0][1], errors.NotAuthorized)
        assert ids(w.backlog()) == names(1, 2)


async def test_a_primary_that_is_configured_wrongly_harms_no_message() -> None:
    async with world() as w:
        w.pair = replace(w.pair, primary=replace(w.pair.primary, tls=True, ca_file="/nowhere/ca.pem"))
        w.strand(1, 2)
        result = await w.run(once=False)
        assert result.exit_code == 2
        assert isinstance(result.failures[0][1], errors.UsageError)
        assert (ids(w.backlog()), held_in(w.backlog(), dead=True)) == (names(1, 2), [])


async def test_a_wrong_secondary_key_raises_before_any_receive() -> None:
    async with world() as w:
        w.may_only("secondary", *AccessRight, key="wrong")
        with pytest.raises(errors.NotAuthenticated):
            await w.run()


async def test_a_queue_that_is_deleted_under_it_ends_that_lane_only() -> None:
    async with world(2) as w:
        fill(w.destination())
        w.destination("other")
        w.strand(*range(5), index=0)
        async with w.watching() as task:
            await w.told_of(events.DestinationBackingOff)
            w.secondary.delete_queue(queue_path("contoso", 0))
            await w.told_of(events.QueueFailed, lambda event: event.retry_seconds is None)
            w.strand(9, to="other", index=1)
            await until(lambda: ids(w.destination("other")) == names(9))
        receipt = task.result().receipt
        assert (receipt.sent, receipt.released) == (1, 5)


# Destinations that the primary lacks


@pytest.mark.parametrize("queues", [1, 2])
async def test_missing_destinations_cost_few_dead_letters_each(queues: int) -> None:
    async with world(queues, "d4") as w:
        for number in range(200):
            w.strand(number, to=f"d{number % 5}", index=number % queues)
        result = await w.run(count_remaining=True)
        receipt = result.receipt
        assert (result.exit_code, receipt.sent, receipt.dead_lettered, receipt.released) == (3, 40, 80, 80)
        assert result.missing == tuple(MissingDestination(f"d{each}", 20, 20) for each in range(4))
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
        assert [(each.destination, each.dead_lettered, each.held) for each in result.missing] == [("gone", 5, 0)]


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


@pytest.mark.parametrize(("terms", "dead"), [({"allow_missing": True}, 100), ({"max_missing": 0}, 0), ({}, 20)])
async def test_messages_of_missing_destinations_are_dead_lettered_as_allowed(terms: dict[str, Any], dead: int) -> None:
    async with world(1) as w:
        w.strand(*range(100), to="gone")
        result = await w.run(**terms)
        assert (result.exit_code, result.receipt.dead_lettered, result.receipt.released) == (3, dead, 100 - dead)


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


# One side breaks, over real sockets


class Door:
    """Connections pass through it to a server, until it shuts."""

    def __init__(self) -> None:
        self.port = 0
        self._server: asyncio.Server | None = None
        self._pipes: set[asyncio.Transport] = set()

    async def open(self, to: int, port: int = 0) -> None:
        async def passing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            out_reader, out = await asyncio.open_connection("127.0.0.1", to)
            self._pipes |= {writer.transport, out.transport}
            with contextlib.suppress(ConnectionError):
                await asyncio.gather(carry(reader, out), carry(out_reader, writer))
            writer.close()
            out.close()

        async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while data := await reader.read(65_536):
                writer.write(data)
            writer.close()

        self._server = await asyncio.start_server(passing, "127.0.0.1", port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def shut(self) -> None:
        """Nobody gets through any more, and who was through is cut off."""
        assert self._server is not None
        self._server.close()
        for transport in self._pipes:
            transport.abort()
        self._pipes.clear()
        await self._server.wait_closed()


@pytest.mark.parametrize("side", ["primary", "secondary"])
async def test_a_side_that_is_cut_off_ends_the_other_and_the_run_with_6(
    side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_connections, "FAULT_SECONDS", 0.2)
    async with world() as w:
        door = Door()
        await door.open(getattr(w.pair, side).port)
        w.pair = replace(w.pair, **{side: replace(getattr(w.pair, side), port=door.port)})
        w.destination()
        async with w.watching(reconnect=False) as task:
            w.strand(1)
            await w.told_of(events.QueueProgress, lambda at: (at.sent, at.held) == (1, 0))
            await door.shut()
            result = await task
        assert (result.exit_code, result.receipt.sent) == (6, 1)
        assert isinstance(result.failures[0][1], errors.ConnectionFaulted)
