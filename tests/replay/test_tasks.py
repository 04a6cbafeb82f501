"""Drain and send tasks whose archive fills up, disappears or breaks, and whose connections break."""

import asyncio
import contextlib
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sbpair import errors
from sbpair.backlog import Aliases
from sbpair.move.context import DEFAULT_BATCH_LIMITS
from sbpair.move.peek import locked
from sbpair.move.raw_source import RawSource
from sbpair.replay import destination_checks, driver
from sbpair.replay.archive import HELD, LEDGER, Archive
from sbpair.replay.ledger import Ledger, read_held
from sbpair.replay.queue_task import SHORT_WAITS, Remaining, count_remaining
from sbpair.replay.run_description import ReplayMode, TaskJob
from sbpair.replay.send_task import MAX_CHUNK, ShardSource, move_context
from sbpair.replay.task_lease import TaskLease
from sbpair.runs.database import RunDatabase
from sbpair.runs.file_lease import hold_machine_leases
from sbpair.runs.journal import Journal
from tests.kit.disks import full, read_only
from tests.replay.tasks import QUICK, drain, job_of, left, proof_of, replayed, send, stranded
from tests.replay.world import NAMESPACE, OTHER, SENDING, World

MESSAGES = 100
MANY = 3 * DEFAULT_BATCH_LIMITS.prefetch
BODY = os.urandom(4_000)
WORLD = {"queues": 1, "lock_seconds": 300}


SILENT = pytest.param("stall", 1, marks=pytest.mark.slow)
"""It takes the minute after which an answer is no longer awaited."""


def everything_is_there(place: World, job: TaskJob) -> None:
    proof = proof_of(job)
    assert proof.exit_code == 0, proof
    assert proof.acknowledged == len(place.sent)
    named = (each.message_id for each in proof.doubtful)
    place.check_arrived(named, max_twice=MAX_CHUNK + DEFAULT_BATCH_LIMITS.prefetch)


# Faults of the archive during a drain or a send, and their repair.


@contextmanager
def vanished(root: Path) -> Iterator[None]:
    """Rename the archive's root, so that it is missing, as after an unmount."""
    root.rename(root.with_name("elsewhere"))
    try:
        yield
    finally:
        assert not root.exists(), "it was created again"
        root.with_name("elsewhere").rename(root)


@contextmanager
def limited(_root: Path) -> Iterator[None]:
    """Limit the size of files, as a quota or a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


BROKEN = [vanished, limited, full, read_only]


@contextmanager
def after_the_first(owner: Any, method: str, trouble: Any) -> Iterator[None]:
    real = getattr(owner, method)
    with contextlib.ExitStack() as happened:

        def call(*arguments: Any, **keywords: Any) -> Any:
            answer = real(*arguments, **keywords)
            if not calls:
                happened.enter_context(trouble)
            calls.append(method)
            return answer

        calls: list[str] = []
        setattr(owner, method, call)
        try:
            yield
        finally:
            setattr(owner, method, real)


@pytest.mark.parametrize("broken", BROKEN)
def test_a_failing_archive_settles_nothing(broken: Any, place: World, own_disk: Path) -> None:
    place.strand_many(MESSAGES, body=BODY)
    job = job_of(place, own_disk)
    root = Path(job.open().root)
    with after_the_first(Archive, "put", broken(root)), pytest.raises(errors.MachineLacks, match="archive"):
        drain(job)
    archived = proof_of(job).archived
    assert 0 < archived < MESSAGES
    assert archived == MESSAGES - place.left()
    assert (place.locked(), {*place.delivery_counts()}) == ([], {0}), "what the task held was released"
    assert not [path for path in root.rglob(".*") if path.is_file()], "nothing that is half written is left"
    drain(job)
    send(job)
    everything_is_there(place, job)


@pytest.mark.parametrize("broken", BROKEN)
def test_a_failing_ledger_leads_to_one_listed_duplicate_at_most(
    broken: Any, place: World, own_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sbpair.replay.send_task.MAX_CHUNK", DEFAULT_BATCH_LIMITS.prefetch // 2)
    monkeypatch.setattr("sbpair.replay.ledger.MAX_HELD_PER_FILE", 1)
    place.strand_many(MANY)
    job = job_of(place, own_disk, segment_messages=MANY)
    drain(job)
    with after_the_first(Ledger, "write", broken(Path(job.open().root))), pytest.raises(errors.MachineLacks):
        send(job)
    proof = proof_of(job)
    held = sum(len([*read_held(job.open(), path)]) for path in job.open().files(HELD))
    assert 0 < proof.acknowledged < MANY
    assert len(place.ids()) <= proof.acknowledged + held < MANY
    send(job)
    everything_is_there(place, job)


def test_a_broken_ledger_chunk_stops_the_send_by_name(place: World, tmp_path: Path) -> None:
    job = stranded(place, tmp_path, 4)
    drain(job)
    job.open().write(f"{LEDGER}/0/cut.parquet", b"PAR1")
    with pytest.raises(errors.StateRefused, match=r"ledger/0/cut\.parquet is broken"):
        send(job)
    assert place.ids() == []


@pytest.mark.parametrize("place", [{"lock_seconds": 2}], indirect=True, ids=["short locks"])
@pytest.mark.parametrize(("kind", "count"), [("reset", 2), ("drop", 2), ("detach", None), ("throttle", 2), SILENT])
@pytest.mark.parametrize(("owner", "method", "side"), [(Archive, "put", OTHER), (ShardSource, "complete", NAMESPACE)])
def test_a_drain_and_a_send_continue_after_faults(
    owner: type, method: str, side: str, kind: str, count: int | None, place: World, tmp_path: Path
) -> None:
    job = stranded(place, tmp_path, MESSAGES, rate=100.0)
    wanted = {"count": count} if count else {}
    with after_the_first(owner, method, place.during(kind, side, **wanted)):
        drain(job)
        assert place.left() == 0
        send(job)
    if kind == "stall":  # what came twice, or was sent without an answer, is named
        assert proof_of(job).copies if owner is Archive else proof_of(job).doubtful
    everything_is_there(place, job)


def test_a_rate_is_shared_by_all_tasks_that_may_send_at_once(place: World, tmp_path: Path) -> None:
    job = job_of(place, tmp_path, rate=50.0)

    async def seconds(job: TaskJob) -> float:
        pace = move_context(job, TaskLease(job.open(), None), Ledger(job.open(), job.run.shards)).rate_limiter
        assert pace is not None
        now = asyncio.get_running_loop().time()
        pace.count_sent(now, 10_000)
        return pace.delay(now, 1)

    alone = asyncio.run(seconds(job))
    assert asyncio.run(seconds(replace(job, senders=4 * job.tasks))) == pytest.approx(4 * alone, rel=0.01)


@pytest.mark.parametrize("kind", ["reset", "drop"])
def test_the_check_of_destinations_retries_after_a_lost_connection(kind: str, place: World, tmp_path: Path) -> None:
    job = job_of(place, tmp_path)
    with place.during(kind, NAMESPACE, count=1):
        assert asyncio.run(destination_checks.find_missing(job, [*place.destinations, "nowhere"])) == ["nowhere"]


def test_a_held_lease_and_an_unreadable_journal_refuse_the_run(place: World, tmp_path: Path) -> None:
    request = place.request(tmp_path)
    with (
        hold_machine_leases(place.pair.ends, tmp_path / "other", "another"),
        pytest.raises(errors.LeaseHeld) as refused,
    ):
        driver.start_run(request, QUICK, place.queues, lambda _event: None)
    assert refused.value.exit_code == 4
    assert not (tmp_path / "archive").exists()
    request.state.mkdir(exist_ok=True)
    (request.state / "state.db").write_bytes(b"no database at all" * 100)
    with pytest.raises(errors.StateRefused):
        driver.start_run(request, QUICK, place.queues, lambda _event: None)
    assert list((tmp_path / "archive").glob("*")) == []


def test_short_waits_outlast_a_queue_that_pauses(place: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = stranded(place, tmp_path, 10).with_waits(*SHORT_WAITS)
    take, pauses = RawSource.receive, iter([True])

    async def pausing(self: Any, limit: int, *, seconds: float) -> Any:
        return [] if next(pauses, False) else await take(self, limit, seconds=seconds)

    monkeypatch.setattr(RawSource, "receive", pausing)
    assert asyncio.run(count_remaining(job, max_locked=1)) == {place.queues[0]: Remaining(10, 10)}
    drain(job)
    assert (proof_of(job).archived, asyncio.run(count_remaining(job, max_locked=1))) == (10, {})


def test_newer_messages_do_not_count_as_remaining(place: World, tmp_path: Path) -> None:
    job = stranded(place, tmp_path, 2)
    place.running.advance(120)
    place.strand(0, "later", None)
    assert left(job, 0) == {place.queues[0]: 2}
    assert left(job) == {place.queues[0]: 3}, "nobody has compared the clocks"


@pytest.mark.parametrize("locked", [1, 4])
def test_a_clock_behind_the_services_leaves_nothing_unreported(place: World, tmp_path: Path, locked: int) -> None:
    place.running.advance(600)
    place.strand_many(4)
    place.lock(locked)
    job = job_of(place, tmp_path, locked_seconds=1.0)
    drain(job)
    proof = proof_of(job)
    assert (proof.archived, proof.remaining_in_queues, proof.locked) == (4 - locked, {place.queues[0]: locked}, locked)


@pytest.mark.parametrize("mode", SENDING)
def test_a_run_ends_while_applications_go_on_sending(
    mode: ReplayMode, place: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message arrives before each receive, up to a number that would end it in any case."""
    job = stranded(place, tmp_path, 30, mode=mode)
    coming, take = iter(range(300)), RawSource.receive
    place.running.advance(120)
    monkeypatch.setattr(locked, "CLOCKS_DIFFER_MS", -300_000)  # clock and long locks count as a clock ahead

    async def fed(self: Any, limit: int, *, seconds: float) -> Any:
        if (number := next(coming, None)) is not None:
            await asyncio.to_thread(place.strand, 0, f"later-{number}", Aliases("orders"))
        return await take(self, limit, seconds=seconds)

    monkeypatch.setattr(RawSource, "receive", fed)
    replayed(job)
    assert next(coming, None) is not None
    assert proof_of(job).remaining_in_queues == {}
    assert {f"m{number}" for number in range(30)} <= {*place.ids()}


def test_messages_in_the_journal_are_completed_and_not_archived(place: World, tmp_path: Path) -> None:
    place.strand_many(6)
    job, request = job_of(place, tmp_path), place.request(tmp_path)
    message = place.running.do(lambda: place.backlog(0).messages.peek(0, 1))[0]
    key = ("contoso-dr", place.queues[0], message.sequence_number, message.enqueued_at_ms, "m0")
    with RunDatabase(request.state, request.pair.ends) as state:
        journal = Journal(state, run="before")
        journal.note_accepted(journal.note_sending([[key]], "orders"))
        journal.close()
    driver.save_journal(request, job.open())
    drain(job)
    send(job)
    assert proof_of(job).archived == proof_of(job).acknowledged == 5
    assert sorted(place.ids()) == [f"m{number}" for number in range(1, 6)]
    assert place.left() == 0
