"""Audit on the emulator, through the real clients: findings, unseen parts, and no side effect."""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from sbpair.amqp_client.client import AmqpClient
from sbpair.amqp_server.shared_access import AccessRight, AuthorizationRule
from sbpair.backlog import queue_path
from sbpair.errors import ServiceRefused
from sbpair.management.audit_findings import Audit, AuditFinding, ReasonCount, Unseen, audit_exit_code, audit_mends
from sbpair.management.auditing import audit
from sbpair.management.calls import Listed, SecondSample
from sbpair.management.pruning import prune
from sbpair.model.message_state import dead_letter_path
from sbpair.model.pair import SasKey
from sbpair.model.queues import AuditedQueue, Counts, Difference, Utilisation
from sbpair.model.report import Outcome, ReportItem
from sbpair.move.peek.peeker import Peeked
from sbpair.status import read_status
from sbpair.testing import Emulator
from tests.kit.pairs import BacklogWorld, slip_in, stored
from tests.kit.stranded import put, stranded

MEGABYTE = 1024 * 1024


class World(BacklogWorld):
    """A pair with some backlog queues, on one emulator. `meanwhile` happens between the two samples."""

    def __init__(self, emulator: Emulator, queues: int) -> None:
        super().__init__(emulator, queues)
        self.meanwhile: Callable[[], object] = lambda: None
        self.slept = 0.0

    def strand(self, number: int, to: str = "orders", index: int = 0) -> None:
        put(self.secondary.queue(queue_path("contoso", index)), stranded(f"m{number}", to))

    def now(self) -> float:
        return self.emulator.clock.now_ms() / 1000

    async def sleep(self, seconds: float) -> None:
        """Return at once."""
        self.slept += seconds
        if seconds:
            self.meanwhile()

    async def audit(self, **options: Any) -> Audit:
        before = self.traces()
        made = await audit(self.pair, now=self.now, clock=lambda: self.slept, sleep=self.sleep, **options)
        assert self.traces() == before
        return made

    def traces(self) -> list[Any]:
        """Return everything that an audit could change."""
        queues = [queue for side in (self.primary, self.secondary) for queue in side.queues()]
        found: list[Any] = [queue.description for queue in queues]
        for queue in queues:
            found += [
                (each.sequence_number, each.state, each.delivery_count, each.locked_until_ms)
                for part in (queue.messages, queue.dead_letters)
                for each in part.peek(0, 10_000)
            ]
        return found


@asynccontextmanager
async def world(queues: int = 1, *destinations: str) -> AsyncIterator[World]:
    async with Emulator([("contoso", 0), ("contoso-dr", 0)]) as emulator:
        w = World(emulator, queues)
        for index in range(queues):
            w.queue(index)
        for name in destinations:
            w.primary.create_queue(name)
        yield w


def fill_of(made: Audit, index: int = 0) -> Utilisation:
    [fill] = [item.detail.fill for item in made if item.detail and item.detail.index == index and item.detail.fill]
    return fill


# A backlog


async def test_empty_backlog_is_neither_peeked_nor_sampled() -> None:
    async with world(3) as w:
        used = [queue.last_used_ms for queue in w.secondary.queues()]
        w.emulator.advance(60_000)
        made = await audit(w.pair, sleep=w.sleep)
        assert (made.findings, made.unseen, made.destinations, w.slept) == (frozenset(), (), (), 0)
        assert [queue.last_used_ms for queue in w.secondary.queues()] == used


async def test_a_clock_behind_the_namespace_is_reported_instead_of_ages() -> None:
    async with world(1) as w:
        w.strand(1)
        made = await audit(w.pair, sample_seconds=0, now=lambda: time.time() - 1200)
        assert fill_of(made, 0).oldest_seconds is None
        [unseen] = [each for each in made.unseen if each.name == "the age of messages"]
        assert re.fullmatch(r"this machine's clock is 1[12]\d\d s behind that of contoso-dr", unseen.reason)


async def test_the_age_is_that_of_the_oldest_message() -> None:
    async with world(1, "orders") as w:
        w.strand(1)
        w.emulator.advance(1_800_000)
        w.strand(2)
        assert fill_of(await w.audit(sample_seconds=0)).oldest_seconds == pytest.approx(1800, abs=5)


async def test_all_partitions_are_looked_at_and_the_size_is_that_of_all_of_them() -> None:
    async with world(1, "orders") as w:
        w.secondary.delete_queue(queue_path("contoso", 0))
        w.queue(0, enable_partitioning=True)
        for number in range(300):
            w.strand(number)
        made = await w.audit()
        fill = fill_of(made)
        assert (made.items[0].outcome, fill.peeked, fill.complete) == (Outcome.OK, 300, True)
        assert made.items[0].detail.partitioned
        assert fill.max_bytes == 81_920 * MEGABYTE
        some = fill_of(await w.audit(max_peek=7))
        assert (some.peeked, some.complete) == (7, False)


# Dead letters


class DeadWorld(World):
    """A World with dead letters in the first two of three queues."""

    def __init__(self, emulator: Emulator) -> None:
        super().__init__(emulator, 3)
        for index, reasons in enumerate((["A"] * 600, ["B"] * 198 + [None] * 2, [])):
            queue = self.queue(index)
            for number, reason in enumerate(reasons):
                self.strand(number, index=index)
                queue.messages.dead_letter(queue.messages.receive(1)[0].lock_token, reason)


@pytest.mark.parametrize(
    ("options", "reasons", "peeked"),
    [
        ({}, {"A": 600, "B": 198, None: 2}, [0, 1]),
        ({"max_peek_dead_letters": 800}, {"A": 600, "B": 198, None: 2}, [0, 1]),
        ({"max_peek_dead_letters": 401}, {"A": 301, "B": 101}, [0, 1]),
        ({"max_peek_dead_letters": 1}, {"A": 1, "B": 1}, [0, 1]),
        ({"max_peek_dead_letters": 0}, None, []),
        ({"max_peek": 0}, None, []),
    ],
)
async def test_reasons_of_dead_letters_are_those_of_a_bounded_sample(
    options: dict[str, int], reasons: dict[str | None, int] | None, peeked: list[int]
) -> None:
    events: list[Any] = []
    async with Emulator() as emulator:
        w = DeadWorld(emulator)
        made = await w.audit(sample_seconds=0, on_event=events.append, **options)
    found = made.reasons and {each.reason: each.messages for each in made.reasons}
    assert (found, made.total.dead_letters, made.unseen) == (reasons, 800, ())
    queues = {each.queue for each in events if isinstance(each, Peeked) and "dead" in each.queue}
    assert queues == {dead_letter_path(queue_path("contoso", index)) for index in peeked}


async def test_without_the_listen_claim_dead_letters_are_counted_without_reasons() -> None:
    async with Emulator() as emulator:
        w = DeadWorld(emulator)
        w.secondary.keys = (AuthorizationRule("manage", "key", "other", frozenset({AccessRight.MANAGE})),)
        w.pair = replace(w.pair, secondary=replace(w.pair.secondary, credential=SasKey("manage", "key")))
        made = await w.audit(sample_seconds=0)
        status = await read_status(w.pair)
    assert (made.reasons, made.total.dead_letters, [each.name for each in made.unseen]) == (None, 800, ["contoso-dr"])
    assert (status.reasons, status.total.dead_letters) == (None, 800)


async def test_an_unreadable_dead_letter_queue_is_reported_and_hides_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    peek, away = AmqpClient.peek, dead_letter_path(queue_path("contoso", 0))

    async def refused(client: AmqpClient, entity: str, *options: Any, **more: Any) -> list[bytes]:
        if entity == away:
            raise ServiceRefused("no")
        return await peek(client, entity, *options, **more)

    monkeypatch.setattr(AmqpClient, "peek", refused)
    async with Emulator() as emulator:
        made = await DeadWorld(emulator).audit(sample_seconds=0)
    assert made.reasons == (ReasonCount("B", 198), ReasonCount(None, 2))
    assert made.unseen == (Unseen(away, "no"),)


# How full


@pytest.mark.parametrize(
    ("size", "later", "per_second", "full_in", "full"),
    [
        (1024 * MEGABYTE, 1024 * MEGABYTE, 0.0, None, False),
        (1024 * MEGABYTE, 1000 * MEGABYTE, -24.0 * MEGABYTE / 60, None, False),
        (5119 * MEGABYTE, 5000 * MEGABYTE, -119.0 * MEGABYTE / 60, None, True),
        (1024 * MEGABYTE, 1030 * MEGABYTE, 6.0 * MEGABYTE / 60, 40_900.0, True),
        (100, 160, 1.0, 5120.0 * MEGABYTE - 160, False),
    ],
)
async def test_how_fast_a_queue_fills_is_the_difference_of_two_samples(
    size: int, later: int, per_second: float, full_in: float | None, full: bool
) -> None:
    async with world(1, "orders") as w:
        queue = w.secondary.queue(queue_path("contoso", 0))
        w.strand(1)
        queue.messages._store.size_bytes = size
        w.meanwhile = lambda: setattr(queue.messages._store, "size_bytes", later)
        made = await w.audit(sample_seconds=60)
        fill = fill_of(made)
        assert (fill.bytes_per_second, fill.full_in_seconds) == (per_second, full_in)
        assert (AuditFinding.FULL in made.findings) is full
        assert w.slept == 60


async def test_wait_for_the_second_sample_is_an_event_after_all_peeks() -> None:
    async with world(1, "orders") as w:
        w.strand(1)
        events: list[Any] = []
        waiting = asyncio.Event()

        def on_event(event: Any) -> None:
            events.append(event)
            if isinstance(event, SecondSample):
                waiting.set()

        async def sleep(seconds: float) -> None:
            if seconds == 60:
                await waiting.wait()

        await audit(w.pair, sample_seconds=60, on_event=on_event, clock=lambda: 0.0, sleep=sleep)
        assert events[-2:] == [Peeked(queue_path("contoso", 0), 1), SecondSample(60)]


async def test_failed_second_sample_is_reported() -> None:
    async with world(1, "orders") as w:
        w.strand(1)
        w.meanwhile = lambda: w.emulator.faults.namespace_down("contoso-dr")
        made = await w.audit(sample_seconds=60, max_peek=0)
        [unseen] = made.unseen
        assert (unseen.name, fill_of(made).bytes_per_second) == ("contoso-dr", None)
        assert unseen.reason.startswith("how fast the queues fill: cannot list the queues")


# Extra, idle, foreign


async def test_queue_unused_for_long_is_idle() -> None:
    async with world(2) as w:
        w.emulator.advance(1_200_000)
        w.strand(1, index=1)
        looking = partial(audit, w.pair, now=w.now, sleep=w.sleep, sample_seconds=0)
        made = await looking(idle_seconds=600)
        assert [fill_of(made, index).idle for index in (0, 1)] == [True, False]
        assert fill_of(made).idle_seconds == pytest.approx(1200, abs=5)
        assert AuditFinding.IDLE in made.findings
        assert AuditFinding.IDLE not in (await looking()).findings


async def test_queue_left_by_an_interrupted_prune_is_reported() -> None:
    async with world(1) as w:
        w.queue("7", status="SendDisabled")
        [_, extra] = await w.audit()
        assert extra.outcome is Outcome.EXTRA
        assert extra.detail.differences == (Difference("Status", "Active", "SendDisabled"),)
        assert extra.reason.endswith("Status is SendDisabled and should be Active: a prune may have been cut short")
        assert {AuditFinding.EXTRA, AuditFinding.DRIFT} == (await w.audit()).findings


# What it may not see


async def test_concurrently_deleted_queue_is_reported() -> None:
    async with world(1) as w:
        gone = w.queue("1")
        gone.send([stored()])

        def delete(event: object) -> None:
            if isinstance(event, Listed):
                w.secondary.delete_queue(gone.path)

        made = await audit(w.pair, on_event=delete, sleep=w.sleep)
        assert [each.name for each in made.unseen] == [gone.path]


async def test_unseen_is_reported_once_for_a_namespace() -> None:
    async with world(12, "orders") as w:
        for index in range(12):
            w.strand(index, index=index)
        for index in range(12):
            w.emulator.faults.entity_down("contoso-dr", queue_path("contoso", index))
        made = await w.audit(sample_seconds=0)
        assert [type(each) for each in made.unseen] == [Unseen]
        assert {item.outcome for item in made} == {Outcome.OK}


async def test_a_queue_that_is_away_hides_no_other() -> None:
    async with world(2, "orders") as w:
        for index in range(2):
            w.strand(index, index=index)
        w.queue("7", status="Disabled")
        slip_in(w.secondary.queue("contoso/x-servicebus-transfer/7"))
        w.emulator.faults.entity_down("contoso-dr", queue_path("contoso", 1))
        made = await w.audit(sample_seconds=0)
        assert fill_of(made, 0).peeked == 1
        assert not fill_of(made, 1).complete
        assert len(made.unseen) == 1 + (not fill_of(made, 7).complete)


async def test_a_queue_with_a_partition_that_is_down_is_limited() -> None:
    async with world(2) as w:
        path = queue_path("contoso", 1)
        w.secondary.delete_queue(path)
        w.queue(1, enable_partitioning=True)
        with w.emulator.faults.during("partition-down", "contoso-dr", entity=path, partition=3):
            made = await w.audit(sample_seconds=0)
            status = await read_status(w.pair)
            w.pair = replace(w.pair, backlog_queues=1)
            pruned = await prune(w.pair)
        why = "Limited: a part of it does not answer"
        assert (made.findings, audit_exit_code(made, {AuditFinding.LIMITED})) == ({AuditFinding.LIMITED}, 3)
        assert [item.reason for item in made] == ["", why]
        assert [item.detail.availability for item in made if item.detail] == [None, "Limited"]
        assert [each.note for each in status.queues] == ["", why]
        assert [item.outcome for item in pruned] == [Outcome.KEPT]
        assert [item.outcome for item in await prune(w.pair)] == [Outcome.WOULD_REMOVE]
        w.pair = replace(w.pair, backlog_queues=2)
        assert (await w.audit(sample_seconds=0)).findings == frozenset()


PLACE, PROVISION = "in the Azure portal: dr, Queues, the queue", "create it with sbpair provision"
EMPTY = "empty the queue with sbpair syphon --once; bring dead letters back with sbpair redrive --backlog"


def named(name: str, outcome: Outcome, *properties: str, **more: Any) -> ReportItem[AuditedQueue]:
    differences = tuple(Difference(each, 1, 2) for each in properties)
    return ReportItem(name, outcome, "", AuditedQueue(0, differences=differences, **more))


@pytest.mark.parametrize(
    ("items", "mends"),
    [
        ([named("q", Outcome.OK)], []),
        ([named("q", Outcome.MISSING)], ["create the missing queues with sbpair provision"]),
        (
            [named("q", Outcome.EXTRA, counts=Counts(dead_letter=1)), named("r", Outcome.EXTRA, counts=Counts())],
            ["empty the extra queues with sbpair syphon --once; then delete them with sbpair prune"],
        ),
        ([named("q", Outcome.EXTRA, counts=Counts())], ["delete the extra queues, which are empty, with sbpair prune"]),
        (
            [named("q", Outcome.DRIFTED, "RequiresSession", "LockDuration", "Status")],
            [
                f"RequiresSession cannot be changed: {EMPTY}; delete it {PLACE}, Delete; then {PROVISION}",
                f"set the Status to Active {PLACE}, Overview",
                f"change LockDuration {PLACE}, Properties",
            ],
        ),
        (
            [named("q", Outcome.OK, fill=Utilisation(max_bytes=10, size_bytes=9), availability="Limited")],
            [
                f"empty the full queues with sbpair syphon --once; or raise MaxSizeInMegabytes {PLACE}, Properties",
                "see why a queue is limited in the Azure portal: dr, Resource health",
            ],
        ),
    ],
)
def test_each_finding_has_a_command_or_a_place_that_mends_it(items: list[Any], mends: list[str]) -> None:
    assert [*audit_mends(Audit(tuple(items)), "dr")] == mends
