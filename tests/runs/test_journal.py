"""The journal against what it stands for, also when it is opened again, after a crash too."""

import asyncio
import functools
import itertools
import shutil
import sqlite3
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sbpair.errors import MachineLacks
from sbpair.runs import database as state_module
from sbpair.runs.database import RunDatabase
from sbpair.runs.journal import REMEMBERED_DAYS, Doubt, Journal, Key, doubts_of, messages_accepted_twice
from tests.runs.states import PAIR, accepted, sending

DAY_MS = 86_400_000
PRIMARY, OTHER = "contoso.example", "fabrikam.example"


def key(number: int, message_id: str | None = "m", queue: str = "q") -> Key:
    return ("contoso-dr", queue, number, 1_790_000_000_000 + number, message_id)


def moved(journal: Journal, *keys: Key) -> None:
    accepted(journal, sending(journal, keys, "orders"))


# What it says, whatever was done, with a file and without, and also when it is opened again


class Machine(RuleBasedStateMachine):
    """A few messages, sent alone and together, and a journal that is closed, or crashes, and is opened again."""

    on_disk = False

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.state = RunDatabase(self.directory, PAIR.ends) if self.on_disk else None
        self.run = 0
        self.flying: dict[int, list[Key]] = {}
        self.accepted: set[Key] = set()
        self.earlier: set[Key] = set()
        self.returned: set[Key] = set()
        self.doubtful: dict[str, set[int]] = {}
        self.unwritten: set[int] = set()
        self.completed: set[Key] = set()
        self.open()

    def open(self) -> None:
        self.run += 1
        self.name = f"run {self.run}"
        self.doubtful[self.name] = set()
        self.journal = Journal(self.state, run=self.name)

    keys = st.integers(0, 5).map(key)
    batches = st.lists(keys, min_size=1, max_size=4, unique=True)

    @rule(batch=batches)
    def send(self, batch) -> None:
        self.flying[sending(self.journal, batch, "orders")] = batch

    @precondition(lambda self: self.flying)
    @rule(data=st.data(), answer=st.sampled_from(["accepted", "accepted", "note_unsent", "note_in_doubt"]))
    def is_answered(self, data, answer) -> None:
        flight = data.draw(st.sampled_from(sorted(self.flying)))
        batch = self.flying.pop(flight)
        (functools.partial(accepted, self.journal) if answer == "accepted" else getattr(self.journal, answer))(flight)
        if answer == "accepted":
            self.accepted.update(batch)
            self.earlier.difference_update(batch)
            self.returned.difference_update(batch)
            self.completed.difference_update(batch)
        elif answer == "note_in_doubt":
            self.doubtful[self.name].update(each[2] for each in batch)
        else:
            self.unwritten.update(each[2] for each in batch)

    @rule(batch=batches)
    def give_back(self, batch) -> None:
        self.journal.note_returned(batch)
        self.returned.update(batch)

    @rule(batch=batches)
    def complete(self, batch) -> None:
        self.journal.note_completed(batch)
        self.accepted.difference_update(batch)
        self.earlier.difference_update(batch)
        self.returned.difference_update(batch)
        self.completed.update(batch)

    @precondition(lambda self: self.on_disk)
    @rule()
    def closed_and_opened(self) -> None:
        self.journal.close()
        self.doubtful[self.name].update(each[2] for batch in self.flying.values() for each in batch)
        for run, numbers in self.doubtful.items():
            assert {doubt.sequence_number for doubt in doubts_of(self.state, run, ended=True)} == numbers
        self.begin_anew()

    @precondition(lambda self: self.on_disk)
    @rule()
    def killed_and_opened(self) -> None:
        in_flight = {each[2] for batch in self.flying.values() for each in batch}
        found = {doubt.sequence_number for doubt in doubts_of(self.state, self.name, ended=True)}
        sure = self.doubtful[self.name] | in_flight
        assert sure <= found <= sure | self.unwritten
        self.doubtful[self.name] = found
        forgotten = self.accepted
        self.begin_anew()
        for each in map(key, range(6)):
            # What was completed may be remembered still: it does not come again.
            assert self.journal.was_accepted(each) or each not in forgotten
            if self.journal.was_accepted(each) and each not in self.accepted:
                assert each in self.completed
                self.accepted.add(each)
                self.earlier.add(each)

    def begin_anew(self) -> None:
        self.state.close()
        self.state = RunDatabase(self.directory, PAIR.ends)
        self.earlier = set(self.accepted)
        self.flying, self.returned, self.unwritten = {}, set(), set()
        self.open()

    @invariant()
    def says_the_same(self) -> None:
        for each in map(key, range(6)):
            assert self.journal.was_accepted(each) == (each in self.accepted)
            assert self.journal.seen(each) == (each in self.accepted | self.returned)
        assert set(self.journal.unconfirmed()) == self.accepted - self.earlier
        assert {doubt.sequence_number for doubt in self.journal.in_doubt()} == self.doubtful[self.name]

    def teardown(self) -> None:
        if self.state is not None:
            self.state.close()
        shutil.rmtree(self.directory)


class OnDisk(Machine):
    on_disk = True


TestInMemory = Machine.TestCase
TestInMemory.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)
TestOnDisk = OnDisk.TestCase
TestOnDisk.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)


@pytest.mark.parametrize("part", range(5))
def test_all_five_parts_must_match(state: RunDatabase, part: int) -> None:
    moved(Journal(state), key(1))
    journal = Journal(state)
    other = (*key(1)[:part], {0: "n", 1: "p", 2: 9, 3: 9, 4: None}[part], *key(1)[part + 1 :])
    assert journal.was_accepted(key(1))
    assert not journal.was_accepted(other)


@pytest.mark.parametrize("message_id", [None, "", "a" * 128, "é\U0001f600\x00\n'\";", "\ud800", "[1]"])
def test_any_message_id_round_trips(state: RunDatabase, message_id: str | None) -> None:
    journal = Journal(state)
    moved(journal, key(2**62, message_id), key(2, "other"))
    journal.note_completed([key(2, "other")])
    asyncio.run(journal.flush())
    assert Journal(state).was_accepted(key(2**62, message_id))


def test_doubts_of_earlier_runs_are_named_first() -> None:
    left = Doubt("earlier", "q", 1, "m", "orders")
    journal = Journal(run="r", earlier_doubts=[left])
    journal.note_in_doubt(sending(journal, [key(2)], "orders"))
    assert journal.in_doubt() == [left, Doubt("r", "q", 2, "m", "orders")]


def leave_in_doubt(state: RunDatabase, run: str, *numbers: int) -> None:
    journal = Journal(state, run=run)
    journal.note_in_doubt(sending(journal, [key(number) for number in numbers], "orders"))
    journal.close()


def ended(journal: Journal) -> list[tuple[str, int, bool]]:
    return [(doubt.run, doubt.sequence_number, sent) for doubt, sent in journal.ended_doubts()]


@pytest.mark.parametrize("named", [True, False])
def test_an_earlier_doubt_stays_open_until_a_receipt_names_it(state: RunDatabase, named: bool) -> None:
    leave_in_doubt(state, "earlier", 1, 2, 3, 4)
    journal = Journal(state, run="later")
    assert ended(journal) == []
    moved(journal, key(2))
    journal.note_completed([key(3), key(9)])
    assert ended(journal) == [("earlier", 2, True), ("earlier", 3, False)]
    if named:
        journal.note_named()
    journal.close()
    for run in ("last", "none"):
        journal = Journal(state, run=run)
        journal.note_completed([key(number) for number in range(6)])
        left = [1, 4] if named else [1, 2, 3, 4]
        assert ended(journal) == [("earlier", number, False) for number in (left if run == "last" else [])]
        journal.note_named()
        journal.close()
    assert sorted(each.sequence_number for each in doubts_of(state, "earlier", ended=True)) == [1, 2, 3, 4]


def test_a_message_in_doubt_twice_is_open_again(state: RunDatabase) -> None:
    leave_in_doubt(state, "first", 1)
    journal = Journal(state, run="second")
    moved(journal, key(1))
    journal.note_in_doubt(sending(journal, [key(1)], "orders"))
    assert ended(journal) == []
    journal.note_named()
    journal.close()
    journal = Journal(state, run="third")
    moved(journal, key(1))
    assert [(number, sent) for _, number, sent in ended(journal)] == [(1, True)]


# How much it remembers, and how long


@pytest.mark.parametrize("on_disk", [False, True])
def test_messages_taken_by_other_movers_are_forgotten(state: RunDatabase, on_disk: bool) -> None:
    journal = Journal(state if on_disk else None, limit=3)
    for number in range(10):
        journal.note_returned([key(number)])
        moved(journal, key(number, queue="other"))
    assert [number for number in range(10) if journal.seen(key(number))] == [7, 8, 9]
    assert [each[2] for each in journal.unconfirmed()] == [7, 8, 9]
    journal.close()
    assert len(state.read("SELECT id FROM flights")) == (3 if on_disk else 0)


def test_each_change_is_written_once(state: RunDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = []
    write = state.write

    def observed(*changes) -> None:
        rows.extend((statement, tuple(row)) for statement, some in changes for row in some)
        write(*changes)

    journal = Journal(state)
    monkeypatch.setattr(state, "write", observed)
    for number in range(3):
        moved(journal, key(number))
        journal.note_completed([key(number)])
    moved(journal, key(3))
    assert len([row for row in rows if row[0].startswith("DELETE")]) == 3
    assert len(rows) == len(set(rows))


def test_a_long_run_leaves_a_small_file(tmp_path: Path) -> None:
    with RunDatabase(tmp_path, PAIR.ends) as state:
        journal = Journal(state)
        for first in range(0, 20_000, 100):
            batch = [key(number) for number in range(first, first + 100)]
            moved(journal, *batch)
            journal.note_completed(batch)
        assert len(state.read("SELECT id FROM flights")) <= 1
    assert (tmp_path / "state.db").stat().st_size < 200_000


def test_too_many_earlier_entries_are_remembered_in_part(state: RunDatabase) -> None:
    first = Journal(state)
    for number in range(10):
        moved(first, key(number))
    assert [number for number in range(10) if Journal(state, limit=4).was_accepted(key(number))] == [6, 7, 8, 9]


def remembered(state: RunDatabase, *numbers: int) -> list[int]:
    """Return which messages a journal remembers that ends without a receipt, and knows no time."""
    journal = Journal(state)
    found = [number for number in numbers if journal.was_accepted(key(number))]
    journal.close()
    return found


def test_what_a_receipt_names_is_forgotten_after_days_of_the_service(state: RunDatabase) -> None:
    late_ms = (REMEMBERED_DAYS + 1) * DAY_MS + 1
    moved(Journal(state, service_ms=lambda: DAY_MS), key(1))
    moved(Journal(state, service_ms=lambda: 2 * DAY_MS), key(2))
    for time_ms, named, left in ((late_ms, False, [1, 2]), (None, True, [1, 2]), (late_ms, True, [2])):
        journal = Journal(state, unreported=[""], service_ms=lambda time_ms=time_ms: time_ms)
        if named:
            journal.note_named()
        # A pause of a month: what comes now is not sent again, and is forgotten only after this run has named it.
        assert (journal.was_accepted(key(1)), len(journal.unconfirmed())) == (True, 2)
        journal.close()
        assert remembered(state, 1, 2) == left


@pytest.mark.parametrize("at", ["note", "flush", "close"])
def test_an_entry_without_a_time_has_that_of_its_first_contact(state: RunDatabase, at: str) -> None:
    moved(Journal(state), key(1))
    known: list[int] = []
    journal = Journal(state, service_ms=lambda: known[0] if known else None)
    asyncio.run(journal.flush())
    assert state.read("SELECT at_ms FROM flights") == [(0,)]
    known.append(40 * DAY_MS)
    if at == "note":
        moved(journal, key(2))
    elif at == "flush":
        asyncio.run(journal.flush())
    journal.note_named()
    journal.close()
    assert set(state.read("SELECT at_ms FROM flights")) == {(40 * DAY_MS,)}
    assert remembered(state, 1) == [1]


def test_entries_of_an_earlier_version_have_no_time_yet(tmp_path: Path) -> None:
    with RunDatabase(tmp_path, PAIR.ends) as state:
        moved(Journal(state, service_ms=lambda: DAY_MS), key(1))
        state.write(("ALTER TABLE flights DROP COLUMN destination_namespace", [()]))
        state.write(("PRAGMA user_version = 3", [()]))
    with RunDatabase(tmp_path, PAIR.ends) as state:
        assert state.read("SELECT at_ms, destination_namespace FROM flights") == [(0, PRIMARY)]
        assert Journal(state, destination_namespace=PRIMARY).was_accepted(key(1))


def journal_to(state: RunDatabase, run: str, namespace: str = OTHER) -> Journal:
    return Journal(state, run=run, destination_namespace=namespace, unreported=["killed"])


def end(journal: Journal) -> None:
    journal.note_named()
    journal.close()


@pytest.mark.parametrize("dies", ["at its end", "before a completion is confirmed", "after it has sent"])
def test_an_acceptance_counts_for_its_namespace_only(state: RunDatabase, dies: str) -> None:
    end_of_first = journal_to(state, "first", PRIMARY)
    moved(end_of_first, key(1))
    moved(end_of_first, key(2))
    end(end_of_first)
    assert not Journal(state, destination_namespace=OTHER).was_accepted(key(1))
    killed = journal_to(state, "killed")
    moved(killed, key(1))
    if dies != "after it has sent":
        moved(killed, key(3))
        killed.note_completed([key(1), key(3)] if dies == "at its end" else [key(3)])
        asyncio.run(killed.flush())
    named = [Doubt("first", "q", 1, "m", "orders", PRIMARY)]
    assert killed.accepted_twice() == named
    assert [each.namespace for each in messages_accepted_twice(state)] == [PRIMARY, OTHER]
    last = journal_to(state, "last")
    assert last.was_accepted(key(1))
    last.note_completed([key(1)])
    assert last.accepted_twice() == named
    assert last.unconfirmed() == []
    end(last)
    assert messages_accepted_twice(state) == named
    again = journal_to(state, "again")
    assert (again.accepted_twice(), again.was_accepted(key(1)), again.was_accepted(key(2))) == ([], False, False)
    assert Journal(state, destination_namespace=PRIMARY).was_accepted(key(2))


def test_a_run_names_once_what_two_killed_runs_have_sent_elsewhere(state: RunDatabase) -> None:
    for run, namespace in (("killed", PRIMARY), ("killed again", OTHER)):
        moved(journal_to(state, run, namespace), key(1), key(2) if run == "killed" else key(3))
    last = journal_to(state, "last", "third.example")
    assert last.accepted_twice() == [Doubt("killed again", "q", 1, "m", "orders", OTHER)]
    end(last)
    assert journal_to(state, "later", "fourth.example").accepted_twice() == []


def test_the_limit_names_messages_that_it_forgets(state: RunDatabase) -> None:
    first = Journal(state, run="first")
    for number in range(6):
        moved(first, key(number))
    # Those of the first run, which has named them, are not named again.
    journal = Journal(state, limit=4, unreported=["crashed"])
    assert (journal.forgotten, journal.forgotten_total) == ([], 0)
    for number in range(6, 16):
        moved(journal, key(number))
    assert [each[2] for each in journal.forgotten] == list(range(6, 10))
    assert journal.forgotten_total == 6
    assert [each[2] for each in journal.unconfirmed()] == list(range(12, 16))


def test_no_entry_repeats_the_number_of_a_batch(state: RunDatabase) -> None:
    moved(Journal(state), key(1))
    journal = Journal(state)
    moved(journal, key(2))
    journal.note_completed([key(2)])
    journal.close()
    assert Journal(state).was_accepted(key(1))
    assert len(state.read("SELECT * FROM journals")) == 1


def test_two_open_journals_do_not_interfere(tmp_path: Path) -> None:
    RunDatabase(tmp_path, PAIR.ends).close()
    with RunDatabase(tmp_path, PAIR.ends) as one, RunDatabase(tmp_path, PAIR.ends) as other:
        first, second = Journal(one, run="a"), Journal(other, run="b")
        flights = [sending(first, [key(1)], "orders"), sending(second, [key(2)], "orders")]
        accepted(first, flights[0])
        accepted(second, flights[1])
        first.note_completed([key(1)])
        first.close()
        third = Journal(one)
        assert (third.was_accepted(key(1)), third.was_accepted(key(2))) == (False, True)


# A disk that is full, and one that may not be written


def send_for_ever(journal: Journal) -> None:
    for first in itertools.count(2, 100):
        sending(journal, [key(number) for number in range(first, first + 100)], "orders")


def fill(state: RunDatabase) -> None:
    """Let the file not grow any more."""
    [[pages]] = state.read("PRAGMA page_count")
    state.read(f"PRAGMA max_page_count = {pages}")


def test_a_full_file_stops_before_anything_is_sent(state: RunDatabase) -> None:
    journal = Journal(state, run="r")
    moved(journal, key(1))
    fill(state)
    with pytest.raises(MachineLacks, match="full") as raised:
        send_for_ever(journal)
    assert raised.value.exit_code == 7
    assert raised.value.hint
    [[pages]] = state.read("PRAGMA page_count")
    state.read(f"PRAGMA max_page_count = {pages + 100}")
    moved(journal, key(1_000_000))
    assert Journal(state).was_accepted(key(1_000_000))


def test_messages_accepted_while_the_disk_was_full_stay_accepted(state: RunDatabase) -> None:
    journal = Journal(state, run="r")
    flight = sending(journal, [key(1)], "orders")
    state.read("PRAGMA query_only = 1")
    with pytest.raises(MachineLacks):
        accepted(journal, flight)
    assert journal.was_accepted(key(1))
    journal.close()
    assert [doubt.sequence_number for doubt in doubts_of(state, "r", ended=True)] == [1]


# Its log, which is folded into the file where nobody waits for it


async def test_the_log_is_folded_in_a_thread_and_starts_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folding, really = [], RunDatabase.fold_log

    def fold(state: RunDatabase) -> None:
        folding.append(threading.current_thread())
        really(state)

    sizes: list[int] = []
    monkeypatch.setattr(RunDatabase, "fold_log", fold)
    monkeypatch.setattr(state_module, "MAX_LOG_BYTES", 500_000)
    with RunDatabase(tmp_path, PAIR.ends) as state:
        journal = Journal(state, run="r")
        for first in range(0, 100_000, 100):
            journal.note_sending([[key(number) for number in range(first, first + 100)]], "orders")
            await journal.flush()
            sizes.append((tmp_path / "state.db-wal").stat().st_size)
        assert len(doubts_of(state, "r", ended=True)) == 100_000
        assert state.read("PRAGMA wal_autocheckpoint") == [(0,)]
        journal.close()
    assert len(folding) > 3
    assert threading.main_thread() not in folding
    assert max(sizes) < 1_000_000
    assert len([size for size, before in zip(sizes[1:], sizes, strict=False) if size < before]) == len(folding)


async def test_nothing_is_written_while_the_log_is_folded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, may_end, really = threading.Event(), threading.Event(), RunDatabase.fold_log

    def fold(state: RunDatabase) -> None:
        begun.set()
        may_end.wait()
        really(state)

    monkeypatch.setattr(RunDatabase, "fold_log", fold)
    monkeypatch.setattr(state_module, "MAX_LOG_BYTES", 1)
    with RunDatabase(tmp_path, PAIR.ends) as state, RunDatabase(tmp_path, PAIR.ends) as other:
        journal = Journal(state, run="r")
        journal.note_sending([[key(1)]], "orders")
        await journal.flush()
        await asyncio.to_thread(begun.wait)
        journal.note_sending([[key(2)]], "orders")
        waiting = asyncio.create_task(journal.flush())
        for _ in range(100):
            await asyncio.sleep(0)
        assert [doubt.sequence_number for doubt in doubts_of(other, "r", ended=True)] == [1]
        may_end.set()
        await waiting
        assert [doubt.sequence_number for doubt in doubts_of(other, "r", ended=True)] == [1, 2]
        journal.close()


async def test_a_log_that_cannot_be_folded_is_retried_when_it_has_grown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries, connect = [], sqlite3.connect

    def refuse(*_: object, **__: object) -> None:
        tries.append(1)
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(state_module, "MAX_LOG_BYTES", 500_000)
    with RunDatabase(tmp_path, PAIR.ends) as state:
        monkeypatch.setattr(sqlite3, "connect", refuse)
        journal = Journal(state, run="r")
        for first in range(0, 10_000, 100):
            journal.note_sending([[key(number) for number in range(first, first + 100)]], "orders")
            await journal.flush()
        journal.close()
    monkeypatch.setattr(sqlite3, "connect", connect)
    with RunDatabase(tmp_path, PAIR.ends) as state:
        assert len(doubts_of(state, "r", ended=True)) == 10_000
    assert 1 <= len(tries) <= 6
