"""Corrupted files that outlive a process: reading them ends well or with a designed refusal, whatever their bytes."""

import itertools
import json
import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sbpair.amqp.message import Sections
from sbpair.emulator.clock import ManualClock
from sbpair.emulator.entities.namespace import Namespace
from sbpair.emulator.entities.stored_message import StoredMessage
from sbpair.emulator.storage.storage import Storage
from sbpair.errors import SbpairError
from sbpair.failover.outbox import Outbox, outbox_depths
from sbpair.model.document import encoded
from sbpair.model.pair import Pair
from sbpair.move.receipt import BackingOff, NamedMessage, Receipt
from sbpair.replay.archive import (
    ACCEPTED_FILE,
    DIGESTS,
    DOUBTFUL,
    DRAINED_FILE,
    EXPIRED,
    HELD,
    LEASE,
    LEDGER,
    RECEIPT_FILE,
    REMOVED_FILE,
    RUN_FILE,
    SEGMENTS,
    Archive,
    find_archive,
)
from sbpair.replay.digests import adopt_segments, write_report
from sbpair.replay.ledger import OUTCOME, Entry, Key, Ledger, check_chunks, read_held
from sbpair.replay.progress import run_status, run_summary
from sbpair.replay.queue_task import load_accepted
from sbpair.replay.run_description import ReplayOptions, ReplayRun, load_run, save_run
from sbpair.replay.segment import SegmentReader
from sbpair.replay.task_lease import end_detached_tasks
from sbpair.replay.verify import check_segments, plan_gc, prove_run
from sbpair.runs.database import RunDatabase
from sbpair.runs.file_lease import FILE_NAME, Lease
from sbpair.runs.journal import Journal
from sbpair.runs.run_log import Figures, RunEntry, all_runs, timeline_of
from sbpair.runs.session_lease import LeaseHolder
from sbpair.spark.archive_frame import ArchiveFrame
from sbpair.spark.write_run import OWNER_FILE, RUN_SCHEMA, WRITE_FILE, read_mark, read_owner
from tests.kit.command import Here, environment
from tests.kit.pairs import BACKLOG, UNDER_CONTOSO
from tests.kit.running import Running
from tests.kit.stranded import numbered, put
from tests.replay.segments import write_segment
from tests.runs.states import KEY, accepted, endpoint, sending

PAIR = Pair("orders", endpoint("contoso", emulator=True), endpoint("contoso-dr", emulator=True))
CONTOSO = {"contoso": (5672, "standard", 1)}


RECEIPT = Receipt(
    received=9,
    sent=6,
    dead_lettered=2,
    released=1,
    distinct=9,
    queues={"q": {"received": 9, "sent": 6}},
    destinations={"orders": 6},
    dead_letters=(NamedMessage("q", 7, "m7", "orders", "it expired"),),
    dead_letter_reasons={"it expired": 2},
    stayed=(NamedMessage("q", 8, "m8", "orders", "it is locked until 12:00"),),
    backing_off=(BackingOff("orders", "it is full", "wait", 1),),
    backing_off_total=1,
)


def write_state(directory: Path) -> Path:
    clock_ms = partial(next, itertools.count(4_000_000_000_000, 1_000))
    with RunDatabase(directory, PAIR.ends) as state:
        for number in range(20):
            entry = RunEntry(state, "syphon --once", run_id=f"run-{number:02}", clock_ms=clock_ms)
            entry.describe({"sbpair": "1", "primary": "contoso", "secondary": "contoso-dr"})
            journal = Journal(state, run=entry.id, service_ms=clock_ms)
            flight = sending(journal, [(*KEY[:2], number, 1, f"m{number}")], "orders")
            if number % 2:
                accepted(journal, flight)
            entry.sample(Figures({"sent": 1}), last=True)
            entry.finish(encoded(RECEIPT), 3 if number % 3 else 0)
            entry.close()
    return directory / "state.db"


def read_state(path: Path) -> None:
    with RunDatabase(path.parent, PAIR.ends) as state:
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
NAMESPACES = {"primary": "contoso", "secondary": "contoso-dr"}
RUN = ReplayRun("r1", NAMESPACES, (QUEUE,), 4, 1_000, ReplayOptions(), digests=True)
KEYS: list[Key] = [(QUEUE, number, 1_000 + number, f"m{number}") for number in range(60)]


def write_archive(directory: Path, *, damaged: str) -> Path:
    """Write a run with files of each kind; return the first that is, or is below, `damaged`."""
    archive = Archive(str(directory), RUN.id)
    save_run(archive, RUN)
    write_segment(archive, "one", KEYS, [b"body"] * len(KEYS), queue=QUEUE, shards=RUN.shards)
    adopt_segments(archive, RUN)
    for kind, keys in ((LEDGER, KEYS[:50]), (EXPIRED, KEYS[50:]), (DOUBTFUL, KEYS[:2])):
        Ledger(archive, RUN.shards, "a").write(kind, 1, [Entry(key, "orders", kind) for key in keys])
    archive.write_line(f"{HELD}/a.0.jsonl", KEYS[:5])
    drained = {"messages": 60, "remaining_in_queues": {QUEUE: 0}, "locked": 1}
    receipt = {"run": RUN.id, "acknowledged": 50, "balanced": True, "stopped": False, "unsent": 0}
    write_report(archive, RUN, DRAINED_FILE, drained)
    write_report(archive, RUN, RECEIPT_FILE, receipt)
    archive.write_line(ACCEPTED_FILE, ["", QUEUE, [key[1:] for key in KEYS]])
    archive.write_json(WRITE_FILE, {"schema": RUN_SCHEMA, "version": 1, "run": RUN.id, "mark": "a" * 32})
    archive.write_json(OWNER_FILE, {"job": "a", "number": 1})
    archive.write_json(f"{LEASE}/detached-a.json", {"number": 1, "valid_seconds": 0.1, "lost": "it ended"})
    with (
        RunDatabase(directory / "state", PAIR.ends) as state,
        closing(RunEntry(state, "replay run", run_id=RUN.id)) as entry,
    ):
        entry.finish({"archive": str(directory)}, 0)
    if damaged == REMOVED_FILE:
        archive.write_json(REMOVED_FILE, {"at_ms": 1, "places": [SEGMENTS], "segments": archive.files(SEGMENTS)})
    path = Path(archive.root, damaged)
    return next(each for each in sorted(path.rglob("*")) if each.is_file()) if path.is_dir() else path


def read_archive(path: Path, read: Callable[[Archive], object]) -> None:
    root = next(each for each in path.parents if each.name == RUN.id)
    read(find_archive(str(root.parent), RUN.id))


def prove(archive: Archive) -> None:
    _, proof = prove_run(archive)
    assert proof.exit_code != 1


def read_all_held(archive: Archive) -> None:
    for path in archive.files(HELD):
        list(read_held(archive, path))


def read_outcomes(archive: Archive) -> None:
    for each in archive.files(LEDGER):
        archive.read_table(each, ["sequence_number", "enqueued_at_ms"], OUTCOME)


def read_segments(archive: Archive) -> None:
    check_segments(archive, RUN)
    SegmentReader(archive).read([("one", at) for at in range(len(KEYS))])


def read_rows(archive: Archive) -> None:
    options = {"path": archive.root, "states": "segments, expired", "unfinished": "true"}
    frame = ArchiveFrame.open(options).check_files()
    for file in frame.files:
        list(frame.read(*file))


ARCHIVE_READS = tuple(
    partial(read_archive, read=each)
    for each in (
        load_run,
        read_mark,
        read_owner,
        read_outcomes,
        run_status,
        run_summary,
        prove,
        partial(plan_gc, unsent=False),
        read_segments,
        read_all_held,
        read_rows,
        partial(check_chunks, shards=RUN.shards, synced=True),
        partial(load_accepted, queue=QUEUE),
        partial(end_detached_tasks, spare_seconds=0.0),
    )
)
ARCHIVE_FILES = (
    *(RUN_FILE, SEGMENTS, LEDGER, EXPIRED, DOUBTFUL, HELD, LEASE, DIGESTS),
    *(DRAINED_FILE, RECEIPT_FILE, ACCEPTED_FILE, REMOVED_FILE),
)


def write_lease(directory: Path) -> Path:
    with Lease(directory, "r1"):
        return directory / FILE_NAME


def read_lease(path: Path) -> None:
    damaged = path.read_bytes()
    LeaseHolder.decode(damaged)
    with Lease(path.parent, "r1"):
        path.write_bytes(damaged)
        Lease(path.parent, "r2")


STATE_COMMANDS = (
    "runs list --state {place}",
    "runs show run-07 --state {place}",
    "runs report run-07 --markdown - --state {place}",
    "syphon --once --state {place}",
    "runs pause run-07 --state {place}",
    "runs show run-07 -o json --state {place}",
    "runs report run-07 --html {place}/page --state {place}",
)
# What waits in the outbox for other entities keeps `send` for seconds: a harmless corruption is rarely sent with.
OUTBOX_COMMANDS = ("send orders {place}/lines --outbox {path}", *("status --outbox {path}",) * 2)
# Its ready file cannot be written, which ends an emulator that has read its data.
DATA_COMMANDS = ("emulator --namespace contoso=0 --data {path} --ready-file {place}/none/ready",)
ARCHIVE_COMMANDS = (
    "replay status r1 --archive {place}",
    "replay verify r1 --archive {place}",
    "replay list --archive {place}",
    "replay gc r1 --dry-run --archive {place}",
    "replay resume r1 --archive {place} --state {place}/state --shared-archive --remote sc://127.0.0.1:1",
    "replay stop r1 --archive {place}",
    "runs report r1 --markdown - --state {place}/state",
)
CHANGING = ("syphon --once", "runs pause", "send", "emulator", "replay resume", "replay stop")
"""Commands that may change the files that they read."""


class Kind(NamedTuple):
    """A kind of file: what writes one, what reads it in this process, and the command lines that read it.

    `{path}` is the file, `{place}` the directory given to `write`. `values`: a corruption changes values of a database.
    """

    write: Callable[[Path], Path]
    reads: tuple[Callable[[Path], object], ...]
    commands: tuple[str, ...] = ()
    values: bool = False


KINDS: dict[str, Kind] = {
    "state": Kind(write_state, (read_state,), STATE_COMMANDS),
    "values of state": Kind(write_state, (read_state,), STATE_COMMANDS, values=True),
    "outbox": Kind(write_outbox, (outbox_depths, read_outbox), OUTBOX_COMMANDS),
    "values of outbox": Kind(write_outbox, (outbox_depths, read_outbox), OUTBOX_COMMANDS[1:], values=True),
    "data": Kind(write_data, (read_data,), DATA_COMMANDS),
    "values of data": Kind(write_data, (read_data,), DATA_COMMANDS, values=True),
    "lease": Kind(write_lease, (read_lease,), ("syphon --once --state {place}",)),
    **{f"Spark {name}": Kind(partial(write_archive, damaged=name), ARCHIVE_READS) for name in (WRITE_FILE, OWNER_FILE)},
    **{
        f"archive {name}": Kind(partial(write_archive, damaged=name), ARCHIVE_READS, ARCHIVE_COMMANDS)
        for name in ARCHIVE_FILES
    },
}


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


def change_values(path: Path, chance: random.Random) -> None:
    """Give one column of a database another value, which no checksum betrays."""
    with closing(sqlite3.connect(path)) as db:
        tables = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%' ORDER BY name"
        table = chance.choice([name for [name] in db.execute(tables)])
        column = chance.choice([name for _, name, *_ in db.execute(f"PRAGMA table_info({table})")])
        [old, *_] = db.execute(f"SELECT {column} FROM {table} LIMIT 1").fetchone() or [None]  # noqa: S608
        value = chance.choice((None, "", "x", -1, 2**62, 1e300, b"\x00\xff", "[]", "5"))
        if isinstance(old, str) and old.startswith(("{", "[")):
            value = json.dumps(other_json(json.loads(old), chance))
        with suppress(sqlite3.IntegrityError):
            db.execute(f"UPDATE {table} SET {column} = ?", [value])  # noqa: S608
            db.commit()


def other_json(value: Any, chance: random.Random) -> Any:
    """Return a document in which one value differs."""
    if isinstance(value, dict | list) and value and chance.random() < 0.8:
        at = chance.choice(list(value) if isinstance(value, dict) else range(len(value)))
        value[at] = other_json(value[at], chance)
        return value
    return chance.choice((None, -1, 1e400, "x", [], {}, [1], {"x": 1}))


BACKLOG_QUEUE = f"{UNDER_CONTOSO}0"
SEEDS = pytest.mark.parametrize("seeds", [range(10), pytest.param(range(10, 300), marks=pytest.mark.slow)], ids=str)
FOUND = [
    *(("values of state", seed) for seed in (20, 24, 35, 38, 118, 199)),
    *(("values of outbox", seed) for seed in (4, 86, 89)),
]
"""Corruptions that once ended a command with a traceback, or let it wait for good."""


class Corrupting:
    """A file of a kind, and corruptions of it."""

    def __init__(self, name: str, directory: Path) -> None:
        self.kind, self._directory = KINDS[name], directory
        self.path = self.kind.write(directory)
        if self.path.suffix == ".db":
            with closing(sqlite3.connect(self.path)) as db:
                db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._whole = self.path.read_bytes()

    def corrupt(self, seed: int) -> bytes:
        """Replace the file by a corrupted one, without those that SQLite puts beside it. Return its content."""
        for beside in self.path.parent.glob(f"{self.path.name}-*"):
            beside.unlink()
        chance = random.Random(seed)
        self.path.write_bytes(self._whole if self.kind.values else corrupted(self._whole, chance))
        if self.kind.values:
            change_values(self.path, chance)
        return self.path.read_bytes()

    def refusal(self, read: Callable[[Path], object]) -> SbpairError | None:
        """Return the refusal of the file, if any. Any other error fails in the round whose seed it shows."""
        try:
            read(self.path)
        except SbpairError as error:
            return error
        return None

    def check(self, line: str, seed: int, run: Callable[..., tuple[int, str, str]]) -> bool:
        """Run a command line over a corrupted file, and check its end. Return whether it refused the file."""
        for heartbeat in self._directory.rglob("detached-*.json"):
            heartbeat.unlink()  # of the driver before: its tasks have to be waited for
        data = self.corrupt(seed)
        code, out, err = run(*line.format(path=self.path, place=self._directory).split())
        shown = f"seed {seed}, {line}: {code}, {err}"
        last = [each for each in err.splitlines() if each.startswith(("error: ", "hint: "))][-2:]
        assert code in (0, 3, 4, 7) or (code == 2 and "run-07" in err), shown
        assert "Traceback (" not in out + err, shown
        assert code in (0, 3) or [each.split(":")[0] for each in last] == ["error", "hint"], shown
        # An empty file is one that was never written to.
        may_change = line.startswith(CHANGING) or not data
        if code == 4 or not may_change:
            assert self.path.read_bytes() == data, shown
        return code in (4, 7)


@pytest.fixture(scope="module")
def pair() -> Iterator[Running]:
    """A pair with a backlog queue and a destination."""
    with Running() as running:
        running.do(lambda: running.other.create_queue(BACKLOG_QUEUE, BACKLOG))
        running.do(lambda: running.namespace.create_queue("orders"))
        yield running


@pytest.fixture
def command(here: Here, pair: Running, impatient: None, tmp_path: Path) -> Here:  # noqa: ARG001
    """Run a command line for the pair, in whose backlog a message waits."""
    tmp_path.joinpath("lines").write_text("hello\n")
    backlog = pair.do(lambda: pair.other.queue(BACKLOG_QUEUE))
    env = environment(pair.emulator)

    def run(*words: str) -> tuple[int, str, str]:
        pair.do(lambda: put(backlog, numbered(1, "orders")))
        return here(*words, **env)

    return run


@pytest.mark.parametrize("kind", KINDS)
@SEEDS
def test_a_corrupted_file_is_read_or_refused_with_a_hint(tmp_path: Path, kind: str, seeds: range) -> None:
    file = Corrupting(kind, tmp_path)
    refused = set()
    for seed in seeds:
        for read in file.kind.reads:
            file.corrupt(seed)
            if error := file.refusal(read):
                refused.add(seed)
                assert error.exit_code in (4, 7), seed
                assert error.hint, seed
                assert str(file.refusal(read)) == str(error), seed
                assert error.message.startswith(str(file.path)) or file.path.suffix != ".db", seed
    assert len(refused) > (0 if file.kind.values else len(seeds) // 3)


@pytest.mark.parametrize("kind", [name for name, kind in KINDS.items() if kind.commands])
@SEEDS
def test_a_command_reads_a_corrupted_file_or_refuses_it(command: Here, tmp_path: Path, kind: str, seeds: range) -> None:
    file = Corrupting(kind, tmp_path)
    lines = file.kind.commands
    with Lease(tmp_path, "r1") if kind == "lease" else nullcontext():
        refused = [seed for seed in seeds if file.check(lines[seed % len(lines)], seed, command)]
    assert refused


@pytest.mark.parametrize(("kind", "seed"), FOUND)
def test_what_once_ended_commands_is_read_or_refused(command: Here, tmp_path: Path, kind: str, seed: int) -> None:
    file = Corrupting(kind, tmp_path)
    for line in file.kind.commands:
        file.check(line, seed, command)
