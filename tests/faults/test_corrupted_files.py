"""Corrupted files that outlive a process: reading them ends well or with a designed refusal, whatever their bytes."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from sbpair.amqp.message import Sections
from sbpair.emulator.clock import ManualClock
from sbpair.emulator.entities.namespace import Namespace
from sbpair.emulator.entities.stored_message import StoredMessage
from sbpair.emulator.storage.storage import Storage
from sbpair.errors import SbpairError
from sbpair.failover.outbox import Outbox, outbox_depths
from sbpair.replay.archive import Archive, find_archive
from sbpair.replay.archive_layout import (
    ACCEPTED_FILE,
    DOUBTFUL,
    DRAINED_FILE,
    EXPIRED,
    HELD,
    LEASE,
    LEDGER,
    OUTCOME,
    RECEIPT_FILE,
    REMOVED_FILE,
    RUN_FILE,
    SEGMENTS,
)
from sbpair.replay.drain_task import load_accepted
from sbpair.replay.gc import plan_gc
from sbpair.replay.ledger import Entry, Key, Ledger, check_chunks, read_held
from sbpair.replay.progress import run_status, run_summary
from sbpair.replay.run import ReplayOptions, ReplayRun, load_run, save_run
from sbpair.replay.segment import SegmentReader
from sbpair.replay.task_lease import end_detached_tasks
from sbpair.replay.verify import check_acknowledged, check_segments, prove_run
from sbpair.runs.database import RunDatabase
from sbpair.runs.journal import Journal
from sbpair.runs.lease import FILE_NAME, Lease
from sbpair.runs.lease_location import LeaseHolder
from sbpair.runs.run_log import RunEntry, all_runs
from sbpair.runs.timeline import Figures, timeline_of
from sbpair.spark.write_run import OWNER_FILE, RUN_SCHEMA, WRITE_FILE, read_mark, read_owner
from tests.replay.segments import write_segment
from tests.runs.states import KEY, PAIR, accepted, sending

ROUNDS = 300
CONTOSO = {"contoso": (5672, "standard", 1)}


def write_state(directory: Path) -> Path:
    with RunDatabase(directory, PAIR) as state:
        for number in range(20):
            entry = RunEntry(state, "syphon --once")
            journal = Journal(state, run=entry.id)
            flight = sending(journal, [(*KEY[:2], number, 1, f"m{number}")], "orders")
            if number % 2:
                accepted(journal, flight)
            entry.sample(Figures({"sent": 1}), last=True)
            entry.finish({"sent": number}, 3 if number % 3 else 0)
            entry.close()
    return directory / "state.db"


def read_state(path: Path) -> None:
    with RunDatabase(path.parent, PAIR) as state:
        for run in all_runs(state):
            timeline_of(state, run.id)
        Journal(state, run="next")


def write_outbox(directory: Path) -> Path:
    path = directory / "outbox.db"
    with closing(Outbox(path, PAIR)) as outbox:
        for number in range(200):
            outbox.put(f"orders{number % 3}", [b"x" * number])
    return path


def read_outbox(path: Path) -> None:
    outbox_depths(path)
    with closing(Outbox(path, PAIR)) as outbox:
        for entity in outbox.entities():
            outbox.peek(entity, 100, 1_000_000)


def write_data(directory: Path) -> Path:
    path = directory / "data.db"
    namespace = Namespace("contoso", ManualClock())
    with closing(Storage(path, CONTOSO)) as storage:
        storage.start({"contoso": namespace}, [5672], namespace.clock, lambda *_: None)  # type: ignore[arg-type,return-value]
        queue = namespace.create_queue("orders")
        queue.send([StoredMessage(Sections(), 10) for _ in range(200)])
    return path


def read_data(path: Path) -> None:
    namespace = Namespace("contoso", ManualClock())
    with closing(Storage(path, CONTOSO)) as storage:
        storage.start({"contoso": namespace}, [5672], namespace.clock, lambda *_: None)  # type: ignore[arg-type,return-value]


QUEUE = "contoso/x-servicebus-transfer/0"
RUN = ReplayRun("r1", {"primary": "contoso", "secondary": "contoso-dr"}, (QUEUE,), 4, 1_000, ReplayOptions())
KEYS: list[Key] = [(QUEUE, number, 1_000 + number, f"m{number}") for number in range(60)]


def write_archive(directory: Path, *, damaged: str) -> Path:
    """Write a run with files of each kind; return the first that is, or is below, `damaged`."""
    archive = Archive(str(directory), RUN.id)
    save_run(archive, RUN)
    write_segment(archive, "one", KEYS, [b"body"] * len(KEYS), queue=QUEUE, shards=RUN.shards)
    for kind, keys in ((LEDGER, KEYS[:50]), (EXPIRED, KEYS[50:]), (DOUBTFUL, KEYS[:2])):
        Ledger(archive, RUN.shards, "a").write(kind, 1, [Entry(key, "orders", kind) for key in keys])
    archive.write_line(f"{HELD}/a.0.jsonl", KEYS[:5])
    archive.write_json(DRAINED_FILE, {"messages": 60, "remaining_in_queues": {QUEUE: 1}, "locked": 1})
    archive.write_json(RECEIPT_FILE, {"acknowledged": 50, "balanced": True, "stopped": False, "unsent": 0})
    archive.write_json(ACCEPTED_FILE, {"keys": [["contoso-dr", *key] for key in KEYS]})
    archive.write_json(f"{LEASE}/detached-a.json", {"number": 1, "valid_seconds": 0.1, "lost": "it ended"})
    if damaged == REMOVED_FILE:
        archive.write_json(REMOVED_FILE, {"at_ms": 1, "places": [SEGMENTS], "segments": archive.files(SEGMENTS)})
    path = Path(archive.root, damaged)
    return next(each for each in sorted(path.rglob("*")) if each.is_file()) if path.is_dir() else path


def read_archive(path: Path, read: Callable[[Archive], object]) -> None:
    root = next(each for each in path.parents if each.name == RUN.id)
    read(find_archive(str(root.parent), RUN.id))


def prove(archive: Archive) -> None:
    _, proof = prove_run(archive)
    check_acknowledged(archive, proof)
    assert proof.exit_code != 1


def read_all_held(archive: Archive) -> None:
    for path in archive.files(HELD):
        list(read_held(archive, path))


def read_segments(archive: Archive) -> None:
    check_segments(archive)
    SegmentReader(archive).read([("one", at) for at in range(len(KEYS))])


ARCHIVE_READS = tuple(
    partial(read_archive, read=each)
    for each in (
        load_run,
        run_status,
        run_summary,
        prove,
        partial(plan_gc, unsent=False),
        read_segments,
        read_all_held,
        partial(check_chunks, shards=RUN.shards, synced=True),
        partial(load_accepted, queue=QUEUE),
        partial(end_detached_tasks, spare_seconds=0.0),
    )
)
ARCHIVE_FILES = (
    *(RUN_FILE, SEGMENTS, LEDGER, EXPIRED, DOUBTFUL, HELD, LEASE),
    *(DRAINED_FILE, RECEIPT_FILE, ACCEPTED_FILE, REMOVED_FILE),
)


def write_spark_run(directory: Path, *, damaged: str) -> Path:
    """Write the files of a run of the data source; return the first that is, or is below, `damaged`."""
    archive = Archive(str(directory), RUN.id)
    archive.create()
    archive.write_json(WRITE_FILE, {"schema": RUN_SCHEMA, "version": 1, "run": RUN.id, "mark": "a" * 32})
    archive.write_json(OWNER_FILE, {"job": "a", "number": 1})
    keys: list[Key] = [("batch", number, number * 7, f"m{number}") for number in range(60)]
    Ledger(archive, 4, "a").write(LEDGER, 1, [Entry(key, "orders", "") for key in keys])
    path = Path(archive.root, damaged)
    return next(each for each in sorted(path.rglob("*")) if each.is_file()) if path.is_dir() else path


def read_spark_run(path: Path) -> None:
    archive = Archive(str(next(each for each in path.parents if each.name == RUN.id).parent), RUN.id)
    read_mark(archive)
    read_owner(archive)
    for each in archive.files(LEDGER):
        archive.read_table(each, ["sequence_number", "enqueued_at_ms"], OUTCOME)


def write_lease(directory: Path) -> Path:
    with Lease(directory, "r1"):
        return directory / FILE_NAME


def read_lease(path: Path) -> None:
    damaged = path.read_bytes()
    LeaseHolder.decode(damaged)
    with Lease(path.parent, "r1"):
        path.write_bytes(damaged)
        Lease(path.parent, "r2")


SPARK_FILES = (WRITE_FILE, OWNER_FILE, LEDGER)

Kind = tuple[Callable[[Path], Path], tuple[Callable[[Path], object], ...]]
KINDS: dict[str, Kind] = {
    "state": (write_state, (read_state,)),
    "outbox": (write_outbox, (outbox_depths, read_outbox)),
    "data": (write_data, (read_data,)),
    "lease": (write_lease, (read_lease,)),
    **{f"Spark {name}": (partial(write_spark_run, damaged=name), (read_spark_run,)) for name in SPARK_FILES},
    **{f"archive {name}": (partial(write_archive, damaged=name), ARCHIVE_READS) for name in ARCHIVE_FILES},
}
"""For each kind of file, a function that writes one, and the functions that read it."""


def corrupted(whole: bytes, chance: random.Random) -> bytes:
    """Return the content with one kind of damage: other bytes, a cut or a longer end, or a page of other content."""
    data, page = bytearray(whole), 4096
    # Half of them hit the first page, whose schema SQLite quotes in its errors.
    start = chance.randrange(min(len(whole), chance.choice((page, len(whole)))))
    match chance.randrange(9):
        case 0 | 1 | 2:
            data[start : start + 200] = chance.randbytes(200)
            del data[len(whole) :]
        case 3 | 4:
            # Of a text, it may remain one.
            data[start] = chance.choice(b"0aZ-.,:]} \xff")
        case 5:
            del data[start if chance.random() < 0.9 else 0 :]
        case 6:
            first = start // page * page
            data[first : first + page] = bytes(len(data[first : first + page]))
        case 7:
            first, other = (chance.randrange(1 + len(whole) // page) * page for _ in range(2))
            data[first : first + page] = data[other : other + page]
        case 8:
            data += chance.choice((bytes(page), chance.randbytes(page), whole))
    return bytes(data)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seeds", [range(10), pytest.param(range(10, 300), marks=pytest.mark.slow)], ids=str)
def test_a_corrupted_file_is_read_or_refused_with_a_hint(tmp_path: Path, kind: str, seeds: range) -> None:
    write, reads = KINDS[kind]
    path = write(tmp_path)
    if path.suffix == ".db":
        with closing(sqlite3.connect(path)) as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            db.execute("PRAGMA journal_mode = DELETE")
    whole = path.read_bytes()
    refusals: list[SbpairError] = []
    for seed in seeds:
        for read in reads:
            for beside in path.parent.glob(f"{path.name}-*"):
                beside.unlink()
            path.write_bytes(corrupted(whole, random.Random(seed)))
            # Any other error fails here, in the round whose seed it shows.
            try:
                read(path)
            except SbpairError as error:
                refusals.append(error)
    assert refusals
    assert {each.exit_code for each in refusals} <= {4, 7}
    assert all(each.hint for each in refusals)
