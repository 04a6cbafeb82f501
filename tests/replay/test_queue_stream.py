"""A queue drained as a stream of segments: kills at each write, what is completed, sessions, leases, old segments."""

import asyncio
import os
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs

from sbpair.amqp.message import Properties, Sections, data_body
from sbpair.emulator.entities.description import QueueDescription
from sbpair.errors import LeaseHeld, LeaseLost, SbpairError, UsageError
from sbpair.move.raw_source import RawSource
from sbpair.replay import archive as archive_module
from sbpair.replay import queue_stream
from sbpair.replay.archive import PARQUET, SEGMENTS, Archive
from sbpair.replay.digests import merge_digests, read_digests
from sbpair.replay.outcomes import DrainedStream, Proof
from sbpair.replay.queue_stream import collect_segments, drain_stream, plan_collection
from sbpair.replay.verify import prove_run
from sbpair.runs.file_lease import hold_machine_leases
from sbpair.syphon.move_ends import EntityAddress
from sbpair.syphon.run_request import RunRequest
from sbpair.timespan import TICKS_PER_SECOND
from tests.kit.stranded import in_session, put
from tests.kit.waiting import until
from tests.replay.object_store import Store
from tests.replay.segments import rows_of
from tests.replay.world import World

LOCK_SECONDS = 30


class Killed(BaseException):
    """The end of a process, which nothing catches."""


class Ground:
    """A queue of the primary, and the stream of its messages in an archive at `url`."""

    def __init__(self, place: World, url: str, **description: Any) -> None:
        self.place, self.url, self.sent = place, url, list[str]()
        wanted = {"lock_duration": LOCK_SECONDS * TICKS_PER_SECOND, **description}
        self.queue = place.running.do(lambda: place.running.namespace.create_queue("q", QueueDescription(**wanted)))
        self.archive = Archive(url, "s")

    def put(self, *names: str) -> None:
        self.sent += names
        for name in names:
            message = Sections(properties=Properties(message_id=name).encode(), body=data_body(name.encode())).join()
            self.place.running.do(lambda message=message: put(self.queue, message))  # type: ignore[misc]

    def request(self, path: str = "q", **terms: Any) -> RunRequest:
        ends = EntityAddress("primary", self.place.pair.primary, path).alone
        return RunRequest(**{"ends": ends, "once": True, "source": path, "lease": False, **terms})

    async def drain(self, seal: float = 10.0, stop: asyncio.Event | None = None, **terms: Any) -> DrainedStream:
        state, stop = Path(self.place.environment["STATE"]), stop or asyncio.Event()
        return await drain_stream(self.request(**terms), self.archive, seal, state, lambda _: None, stop)

    def archived(self) -> Counter[str]:
        return Counter(row["message_id"] for row in rows_of(self.archive, SEGMENTS))

    def proof(self) -> Proof:
        return prove_run(self.archive, full=True)[1]

    def left(self) -> int:
        return self.place.running.do(lambda: self.queue.counts().total)


@pytest.fixture
def ground(place: World, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Ground:
    monkeypatch.setattr(os, "fsync", lambda _file: None)  # a busy disk may take longer than a lock
    place.environment["STATE"] = str(tmp_path / "state")
    return Ground(place, str(tmp_path / "archive"), **getattr(request, "param", {}))


def kill_at(patch: pytest.MonkeyPatch, number: int) -> Callable[[], bool]:
    """Kill the drain before its write or settlement of this number, or after it. Returns whether it came so far."""
    calls, real_write, real_complete = Counter[str](), Archive.write, RawSource.complete

    def count(when: int) -> None:
        calls["all"] += 1
        if calls["all"] == number + when:
            raise Killed

    def write(*arguments: Any, **terms: Any) -> None:
        count(0)
        real_write(*arguments, **terms)
        count(0)

    async def complete(*arguments: Any) -> Any:
        count(0)
        failures = await real_complete(*arguments)
        count(0)
        return failures

    patch.setattr(Archive, "write", write)
    patch.setattr(RawSource, "complete", complete)
    return lambda: calls["all"] >= number


async def test_a_drain_killed_anywhere_goes_on_and_loses_nothing(ground: Ground) -> None:
    for number in range(1, 99):
        ground.put(*(f"m{number}-{each}" for each in range(3)))
        with pytest.MonkeyPatch.context() as patch:
            reached = kill_at(patch, number)
            try:
                await ground.drain()
            except* Killed:
                pass
        if not reached():
            break
        assert ground.left() + ground.archived().total() >= len(ground.sent), "what is completed is archived"
        ground.place.running.advance(LOCK_SECONDS + 1)
    assert number > 8, "it was killed before and after each write and settlement"
    await ground.drain()
    archived, proof = ground.archived(), ground.proof()
    copies = archived.total() - len(archived)
    assert (set(archived), ground.left()) == ({*ground.sent}, 0)
    assert (proof.archived, proof.copies, proof.unsent, proof.exit_code) == (len(ground.sent), copies, 0, 0)
    assert copies > 0
    assert (proof.streamed, proof.balanced, proof.not_adopted) == (len(ground.sent), True, [])


@pytest.mark.parametrize(
    ("ground", "seal"), [({}, 0.2), ({"lock_duration": 5 * TICKS_PER_SECOND}, 120.0)], indirect=["ground"]
)
async def test_a_watch_seals_after_its_time_or_a_part_of_a_lock(ground: Ground, seal: float) -> None:
    stop = asyncio.Event()
    watch = asyncio.create_task(ground.drain(seal, stop, once=False))
    segments = Path(ground.archive.root, SEGMENTS)
    await until(segments.exists)
    for number in range(2):
        ground.put(f"m{number}a", f"m{number}b")
        await until(lambda number=number: len(ground.archive.files(SEGMENTS)) > number)
    await until(lambda: ground.left() == 0)
    stop.set()
    done = await watch
    assert (done.messages, done.stopped, done.exit_code) == (4, False, 0)
    rows = rows_of(ground.archive, SEGMENTS)
    assert [row["message_id"] for row in rows] == ground.sent, "names of files sort by time, and rows by arrival"
    assert {(row["destination"], row["flaw"]) for row in rows} == {(None, None)}
    assert [f"{SEGMENTS}/{name}{PARQUET}" for name in dict.fromkeys(row["segment"] for row in rows)] == (
        ground.archive.files(SEGMENTS)
    )


@pytest.mark.parametrize("ground", [{"requires_session": True}], indirect=True)
async def test_sessions_are_drained_in_order_and_given_back(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_stream, "MAX_SESSIONS", 2)
    for number in range(30):
        ground.place.running.do(lambda number=number: put(ground.queue, in_session(number, 5)))  # type: ignore[misc]
    done = await ground.drain(sessions=True)
    assert (done.messages, done.remaining, ground.left()) == (30, 0, 0)
    assert done.segments >= 3, "of two sessions each"
    by_session = dict[str, list[int]]()
    for row in rows_of(ground.archive, SEGMENTS):
        by_session.setdefault(row["session_id"], []).append(int(row["message_id"][1:]))
    assert by_session == {f"S{each}": [*range(each, 30, 5)] for each in range(5)}


async def test_one_drain_or_move_of_a_source_runs_at_a_time(ground: Ground, tmp_path: Path) -> None:
    ends, source = ground.request().leased
    with hold_machine_leases(ends, None, "other", source), pytest.raises(LeaseHeld, match="messages of q") as held:
        await ground.drain(lease=True)
    assert "of a drain sbpair replay stop RUN" in held.value.hint, "no record of a run knows it"
    assert not Path(ground.archive.root).exists(), "a refused drain leaves nothing"
    watch = asyncio.create_task(ground.drain(once=False, lease=True))
    await until(lambda: ground.archive.exists(f"{SEGMENTS}/.stream"))
    next(each for each in (tmp_path / "state").iterdir() if "lease" in each.name).unlink()
    ground.put("m1")
    with pytest.raises(LeaseLost):
        await watch


async def test_old_segments_leave_tombstones(ground: Ground) -> None:
    for number in range(3):
        ground.put(f"m{number}")
        await ground.drain()
    first, second, last = ground.archive.files(SEGMENTS)
    ground.archive.remove(first)  # as cleanSource does
    with pytest.raises(SbpairError, match="is missing"):
        ground.proof()
    at = datetime.strptime(last[len(SEGMENTS) + 1 :].partition("Z")[0] + "+0000", "%Y%m%dT%H%M%S.%f%z").timestamp()
    assert plan_collection(ground.archive, 3_600, at).files == 0
    planned = plan_collection(ground.archive, 0, at)
    assert planned.places == {SEGMENTS: (first, second)}
    merge_digests(ground.archive, planned.places[SEGMENTS])  # and then it is killed
    ground.put("m3")
    await ground.drain()
    again = plan_collection(ground.archive, 0, at)
    assert again.places == {SEGMENTS: (second,)}, "which is not adopted"
    collect_segments(ground.archive, again)
    proof = ground.proof()
    assert (proof.archived, proof.collected, proof.exit_code) == (2, 2, 0)
    assert len(read_digests(ground.archive).files()) == 4
    assert plan_collection(ground.archive, 0, at).files == 0


async def test_an_object_store_gets_each_file_by_one_put(place: World, store: Store, tmp_path: Path) -> None:
    place.environment["STATE"] = str(tmp_path)
    ground = Ground(place, "s3://bucket/streams")
    ground.put("m1", "m2")
    assert (await ground.drain()).messages == 2
    [segment] = ground.archive.files(SEGMENTS)
    puts = Counter(store.puts)
    assert (puts[f"bucket/streams/s/{segment}"], puts[f"bucket/streams/s/{SEGMENTS}/.stream"]) == (1, 1)
    assert ground.proof().archived == 2


def test_a_file_system_that_shows_parts_is_renamed_in_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = Archive(str(tmp_path), "s")
    archive.create()
    archive._fs, archive.root, archive.is_local = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem()), "s", False
    with pytest.raises(UsageError, match="subtree lists files before they are whole"):
        archive.require_whole_files()
    monkeypatch.setattr(archive_module, "_RENAMES", "subtree")
    monkeypatch.setattr(archive_module, "_WHOLE", {"subtree"})
    (tmp_path / "s" / SEGMENTS).mkdir()
    archive.require_whole_files()

    class Source(BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            seen.append([each.name for each in (tmp_path / "s" / SEGMENTS).iterdir()])
            return super().read(size)

    seen: list[list[str]] = []
    archive.write(f"{SEGMENTS}/one{PARQUET}", Source(b"whole"))
    assert seen == [[]] * len(seen)
    assert archive.read(f"{SEGMENTS}/one{PARQUET}") == b"whole"
