"""A direct replay's task in this process: its moves and records, and those of a killed one."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sbpair import errors
from sbpair.backlog import Aliases
from sbpair.model.document import encoded
from sbpair.model.message_state import dead_letter_path
from sbpair.move.message.route import Facts, TimeToLive
from sbpair.move.raw_source import RawReceivedMessage, RawSource
from sbpair.replay import driver
from sbpair.replay.archive import DOUBTFUL, HELD, LEDGER, QUARANTINE, Archive
from sbpair.replay.ledger import Entry, Ledger, read_held
from sbpair.replay.outcomes import Proof, replay_receipt
from sbpair.replay.progress import PhaseWatcher, run_status
from sbpair.replay.queue_task import DirectMove, RecordedSource, _entries, accepted_by_dead_attempts, task_queues
from sbpair.replay.run_description import DedupMode, ReplayMode, ReplayOptions, ReplaySelection, TaskJob
from sbpair.replay.verify import prove_run
from tests.replay.segments import rows_of
from tests.replay.tasks import job_of as archive_job_of
from tests.replay.tasks import move, proof_of
from tests.replay.world import HOUR_TICKS, World

QUICK = ReplayOptions(mode=ReplayMode.DIRECT, empty_seconds=0.05)


def job_of(place: World, directory: Path, tasks: int = 2, **options: Any) -> TaskJob:
    return archive_job_of(place, directory, tasks=tasks, started_ms=2**53, mode=ReplayMode.DIRECT, **options)


def stranded(place: World, directory: Path, count: int) -> TaskJob:
    place.strand_many(count)
    return job_of(place, directory)


def moved(made: TaskJob, queues: Sequence[str] | None = None) -> Proof:
    move(made, queues)
    return proof_of(made)


def test_everything_arrives_once_or_is_dead_lettered_and_no_body_is_kept(place: World, tmp_path: Path) -> None:
    place.strand_many(60, body=b"a secret of some kind")
    place.strand(0, "nowhere", None)
    place.strand(0, "lost", Aliases("not-there", None, HOUR_TICKS))
    place.strand(1, "late", Aliases("orders", None, 1))
    place.running.advance(1)
    made = job_of(place, tmp_path, ttl=TimeToLive.REMAINING)
    proof = moved(made)
    assert (proof.archived, proof.acknowledged, proof.quarantined, proof.expired, proof.unsent) == (63, 60, 2, 1, 0)
    assert (proof.balanced, proof.exit_code) == (True, 3)
    assert sorted(place.ids()) == sorted(f"m{number}" for number in range(60))
    assert (place.altered(), place.left()) == ([], 3)
    dead = place.running.do(lambda: [place.backlog(index).counts().dead_letter for index in range(2)])
    assert dead == [2, 1]
    assert made.open().files(HELD) == []
    assert [row["message"] for row in rows_of(made.open(), QUARANTINE)] == [None, None]
    assert not any(b"a secret of some kind" in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    document = encoded(replay_receipt("r1", made.run.options.mode, proof))
    counts = {"mode": "direct", "archived": None, "unsent": None, "received": 63, "in_doubt": 0}
    assert {name: document[name] for name in counts} == counts
    of_queue = {"received": 31, "acknowledged": 30, "expired": 1}
    assert document["queues"][place.queues[1]] == {**dict.fromkeys(document["queues"][place.queues[0]], 0), **of_queue}


def test_the_order_of_a_queue_is_kept(place: World, tmp_path: Path) -> None:
    place.queues = place.queues[:1]
    place.strand_many(300)
    move(job_of(place, tmp_path))
    assert all(numbers == sorted(numbers) for numbers in place.by_session().values())


@pytest.mark.parametrize(("ordered", "tasks"), [(True, 2), (False, 5)])
def test_a_queue_has_several_tasks_only_without_order(place: World, tmp_path: Path, ordered: bool, tasks: int) -> None:
    made = job_of(place, tmp_path, tasks=5, ordered=ordered)
    assert len(task_queues(made, {})) == tasks
    archived = replace(made, run=replace(made.run, options=ReplayOptions()))
    assert len(task_queues(archived, {})) == 5
    few, many = place.queues
    assert task_queues(archived, {many: 90, few: 10}) == [few, many, *[many] * 4]
    assert task_queues(archived, {many: 50, few: 50}) == [few, many, few, few, many, many]
    assert task_queues(made, {many: 90, few: 10}) == task_queues(made, {})


def keys(place: World, index: int = 0) -> list[Any]:
    def look() -> list[Any]:
        queue = place.queues[index]
        found = place.running.other.queue(queue).messages.peek(0, 100)
        return [
            (queue, each.sequence_number, each.enqueued_at_ms, each.sections.read_properties().message_id)
            for each in found
        ]

    return place.running.do(look)


def test_messages_a_killed_task_had_sent_are_completed_and_not_sent_again(place: World, tmp_path: Path) -> None:
    """Of the first queue's three the first is in the ledger, the second may have arrived, the third was never held.

    The key of another message, which was, differs from the third's in one part.
    """
    made = stranded(place, tmp_path, 6)
    first, second, third = keys(place)
    dead = Ledger(made.open(), made.run.shards, "dead")
    other = (*third[:2], third[2] - 1, third[3])
    dead.write(LEDGER, 0, [Entry(first, "orders"), Entry(other, "orders")])
    dead.record_held([Entry(each, "orders") for each in (first, second, other)])
    before = proof_of(made)
    assert (before.archived, before.acknowledged, before.unsent) == (3, 2, 1)
    proof = moved(made)
    assert (proof.archived, proof.acknowledged, proof.unsent) == (7, 7, 0)
    assert sorted(place.ids()) == [f"m{number}" for number in range(1, 6)]
    assert place.left() == 0
    assert [each.message_id for each in proof.doubtful] == [second[3]]


@pytest.mark.parametrize("damaged", [lambda whole: whole[:-9], lambda whole: whole[:4] + bytes(200) + whole[204:]])
@pytest.mark.parametrize("kinds", [(HELD,), (LEDGER, DOUBTFUL)])
def test_any_truncation_of_unsynced_files_allows_a_resume(
    place: World, tmp_path: Path, kinds: tuple[str, ...], damaged: Any
) -> None:
    """Its end may exist without its beginning; records of doubtful messages are no more durable."""
    made = stranded(place, tmp_path, 3)
    archive = made.open()
    dead = Ledger(archive, made.run.shards, "dead", sync=False)
    first, second = keys(place)
    dead.record_held([Entry(first, "orders")])
    dead.add_doubtful(Entry(second, "orders", "no answer"))
    dead.write(LEDGER, 0, [Entry(first, "orders")])
    paths = [path for kind in kinds for path in archive.files(kind)]
    for path in paths:
        Path(archive.root, path).write_bytes(damaged(archive.read(path)))
    assert PhaseWatcher(archive, "move").sample().messages == (LEDGER not in kinds)
    proof = moved(made)
    assert (sorted(proof.unreadable), proof.unsent, place.left()) == (sorted(paths), 0, 0)
    doubtful = [first] if LEDGER in kinds else [first, second]
    assert [each.message_id for each in proof.doubtful] == [each[3] for each in doubtful]
    assert {*place.ids()} == {"m0", "m1", "m2"}


def test_accepted_unsettled_messages_are_known_to_the_next_attempt(
    place: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = stranded(place, tmp_path, 8)
    complete, broken = RecordedSource.complete, Counter[str]()

    async def late(self: Any, arrivals: Any) -> Any:
        if not broken[self.queue]:
            broken[self.queue] += 1
            place.running.do(lambda: place.running.emulator.faults.expire_locks("contoso-dr", self.queue))
        return await complete(self, arrivals)

    monkeypatch.setattr(RecordedSource, "complete", late)
    proof = moved(made)

    place.check_arrived()
    assert (proof.acknowledged, proof.balanced, proof.doubtful) == (8, True, [])


def test_unconfirmed_settlements_are_known_after_a_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledger has the message and the backlog may deliver it again: it is recorded as held."""
    archive = Archive(str(tmp_path), "r1")
    archive.create()
    first, second, later = (
        RawReceivedMessage(Facts("q", number, 1_000, f"m{number}", "orders"), 60.0, None, None, number)  # type: ignore[arg-type]
        for number in range(3)
    )

    async def settled(_self: Any, arrivals: Any) -> Any:
        return [(each, errors.Unreachable("no answer came")) for each in arrivals if each is second]

    monkeypatch.setattr(RawSource, "complete", settled)
    source = RecordedSource.__new__(RecordedSource)
    source.record_to(Ledger(archive, 1, "dead"), 0, set())
    for arrivals in ([first, second], [later]):
        source._ledger.hold(dict(zip(arrivals, _entries(arrivals), strict=True)))
    assert [each for each, _ in asyncio.run(source.complete([first, second]))] == [second]

    assert ("q", 1, 1_000, "m1") in accepted_by_dead_attempts(archive, "q", 0)


def test_a_ledger_error_ends_the_move_before_settlement(
    place: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = stranded(place, tmp_path, 4)

    def full(_ledger: Ledger, _kind: str, _shard: int, entries: Any) -> None:
        if entries:
            raise errors.MachineLacks("the archive is full", hint="make room")

    monkeypatch.setattr(Ledger, "write", full)
    with pytest.raises(errors.MachineLacks, match="full"):
        move(made)
    assert place.left() == 4
    held = [key for path in made.open().files(HELD) for key in read_held(made.open(), path)]
    assert held, "possible duplicates are listed"


def test_nothing_is_sent_without_a_heartbeat(place: World, tmp_path: Path) -> None:
    place.strand_many(4)
    made = replace(job_of(place, tmp_path), heartbeat="lease/none.json")
    with pytest.raises(errors.Unreachable):
        asyncio.run(DirectMove(made, place.queues[0]).run(ready_seconds=0.0))
    assert (place.ids(), place.left()) == ([], 4)


@pytest.mark.parametrize(
    ("option", "options"),
    [
        ("--dedup message-id", {"dedup": DedupMode.MESSAGE_ID}),
        ("--destination", {"selection": ReplaySelection(("orders",))}),
        ("--where", {"selection": ReplaySelection((), "size < 3")}),
        ("--dead-letters", {}),
    ],
)
def test_options_that_need_an_archive_are_refused_by_name(
    place: World, tmp_path: Path, option: str, options: dict[str, Any]
) -> None:
    queues = [dead_letter_path(queue) if option == "--dead-letters" else queue for queue in place.queues]
    with pytest.raises(errors.UsageError, match=f"{option} cannot be combined with --mode direct"):
        driver.start_run(place.request(tmp_path), replace(QUICK, **options), queues, lambda _event: None)
    assert not (tmp_path / "archive").exists()


def test_a_direct_run_has_no_proof_and_no_selection(place: World, tmp_path: Path) -> None:
    made = job_of(place, tmp_path / "archive")
    with pytest.raises(errors.UsageError, match="run r1 is direct"):
        prove_run(made.open())
    with pytest.raises(errors.UsageError, match="run r1 is direct"):
        driver.resume_run(place.request(tmp_path), "r1", lambda _event: None, ReplaySelection())


def test_the_status_of_a_direct_run_comes_from_its_ledger(place: World, tmp_path: Path) -> None:
    made = stranded(place, tmp_path, 6)
    assert run_status(made.open()).phase == "move"
    move(made)
    status = run_status(made.open())
    assert (status.mode, status.acknowledged_rows, status.archived_rows) == ("direct", 6, 0)
    assert status.queues == dict.fromkeys(place.queues, 3)


@pytest.mark.usefixtures("local_tasks")
def test_a_deleted_queue_leaves_the_records_of_the_others(place: World, tmp_path: Path) -> None:
    place.strand_many(20)
    gone = f"{place.queues[0]}0"
    with pytest.raises(errors.EntityMissing):
        driver.start_run(place.request(tmp_path), QUICK, [*place.queues, gone], lambda _event: None)
    [directory] = (tmp_path / "archive").iterdir()
    archive = Archive(str(directory.parent), directory.name)
    accepted = [row["message_id"] for row in rows_of(archive, LEDGER)]
    assert sorted(accepted) == sorted(place.ids())
    assert len(accepted) + place.left() == 20
