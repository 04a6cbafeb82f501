"""Corrupted SQLite files: whatever bytes they have, opening and reading them ends well or with a designed refusal."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import pytest

from sbpair.amqp.message import Sections
from sbpair.emulator.clock import ManualClock
from sbpair.emulator.entities.namespace import Namespace
from sbpair.emulator.entities.stored_message import StoredMessage
from sbpair.emulator.server import RequestedNamespace
from sbpair.emulator.storage.storage import Storage
from sbpair.errors import MachineLacks, SbpairError, StateRefused
from sbpair.failover.outbox import Outbox, outbox_depths
from sbpair.runs.database import RunDatabase
from sbpair.runs.journal import Journal
from sbpair.runs.run_log import RunEntry, all_runs
from sbpair.runs.timeline import Figures, timeline_of
from tests.runs.states import KEY, PAIR, accepted, sending

ROUNDS = 300
CONTOSO = RequestedNamespace("contoso", 0)


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
    with closing(Storage(path, [CONTOSO])) as storage:
        storage.start({"contoso": namespace}, [5672], namespace.clock, lambda *_: None)  # type: ignore[arg-type,return-value]
        queue = namespace.create_queue("orders")
        queue.send([StoredMessage(Sections(), 10) for _ in range(200)])
    return path


def read_data(path: Path) -> None:
    namespace = Namespace("contoso", ManualClock())
    with closing(Storage(path, [CONTOSO])) as storage:
        storage.start({"contoso": namespace}, [5672], namespace.clock, lambda *_: None)  # type: ignore[arg-type,return-value]


def corrupted(whole: bytes, chance: random.Random) -> bytes:
    """Return the content with one kind of damage: random bytes, a cut end, or a page that is zero or another one."""
    data, page = bytearray(whole), 4096
    # Half of them hit the first page, whose schema SQLite quotes in its errors.
    start = chance.randrange(100, chance.choice((page, len(whole))))
    match chance.randrange(7):
        case 0 | 1 | 2 | 3:
            data[start : start + 200] = chance.randbytes(200)
            del data[len(whole) :]
        case 4:
            del data[start:]
        case 5:
            first = start // page * page
            data[first : first + page] = bytes(page)
        case 6:
            first, other = (chance.randrange(len(whole) // page) * page for _ in range(2))
            data[first : first + page] = data[other : other + page]
    return bytes(data)


@pytest.mark.parametrize(
    ("write", "read"), [(write_state, read_state), (write_outbox, read_outbox), (write_data, read_data)]
)
def test_a_corrupted_file_is_read_or_refused_with_a_hint(
    tmp_path: Path, write: Callable[[Path], Path], read: Callable[[Path], None]
) -> None:
    path = write(tmp_path)
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        db.execute("PRAGMA journal_mode = DELETE")
    whole = path.read_bytes()
    refusals = []
    for seed in range(ROUNDS):
        for beside in path.parent.glob(f"{path.name}-*"):
            beside.unlink()
        path.write_bytes(corrupted(whole, random.Random(seed)))
        # Any other error fails here, in the round whose seed it shows.
        with suppress(StateRefused, MachineLacks):
            read(path)
            continue
        refusals.append(refusal(path, read))
    assert len(refusals) > ROUNDS // 3
    assert {each.exit_code for each in refusals} <= {4, 7}
    assert all(each.hint for each in refusals)
    assert [each.message for each in refusals if not each.message.startswith((str(path), "the journal"))] == []


def refusal(path: Path, read: Callable[[Path], None]) -> SbpairError:
    """Return the refusal of a file that was refused: it is refused again."""
    with pytest.raises((StateRefused, MachineLacks)) as raised:
        read(path)
    return raised.value
