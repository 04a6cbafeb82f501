"""The state on disk: whose it is, what may be done with it, who holds the lease, and what is known of earlier runs."""

import itertools
import json
import os
import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from sbpair.errors import LeaseHeld, LeaseLost, MachineLacks, StateRefused, Unreachable, UsageError
from sbpair.model.document import encoded
from sbpair.model.pair import Pair
from sbpair.move.receipt import Tally
from sbpair.runs.database import FORMAT, RunDatabase, state_if_any
from sbpair.runs.file_lease import Lease, lease_directory, lease_name
from sbpair.runs.journal import Doubt, Journal
from sbpair.runs.run_log import MAX_KEPT, RunEntry, all_runs, check_run_name, find_run, new_id
from sbpair.syphon.run_request import syphon_request
from sbpair.syphon.run_store import LiveRun, RunStore
from tests.runs.states import KEY, PAIR, accepted, endpoint, sending


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# Whose it is


def test_files_are_private(tmp_path: Path) -> None:
    home = tmp_path / "sbpair" / "orders"
    with Lease(home, "r"), RunDatabase(home, PAIR.ends) as state:
        Journal(state)
        RunEntry(state, "syphon")
        assert {mode(path) for path in home.iterdir()} == {0o600}
        assert len(list(home.iterdir())) > 3
    assert mode(home) == 0o700


def test_an_existing_directory_keeps_its_mode(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    RunDatabase(tmp_path, PAIR.ends).close()
    assert mode(tmp_path) == 0o755


def test_namespaces_identify_the_pair_not_its_name(tmp_path: Path) -> None:
    RunDatabase(tmp_path, PAIR.ends).close()
    RunDatabase(tmp_path, replace(PAIR, name="renamed").ends).close()


@pytest.mark.parametrize(
    "other",
    [
        replace(PAIR, primary=endpoint("fabrikam")),
        replace(PAIR, secondary=endpoint("contoso-dr", authority="contoso-dr.elsewhere")),
        replace(PAIR, primary=PAIR.secondary, secondary=PAIR.primary),
    ],
)
def test_the_state_of_another_pair_is_refused(tmp_path: Path, other: Pair) -> None:
    RunDatabase(tmp_path, PAIR.ends).close()
    before = (tmp_path / "state.db").read_bytes()
    with pytest.raises(StateRefused, match=r"state\.db is the state of contoso\.example and contoso-dr\.example") as no:
        RunDatabase(tmp_path, other.ends)
    assert (no.value.exit_code, no.value.hint) == (4, "pass --state DIR for another directory")
    assert (tmp_path / "state.db").read_bytes() == before


def test_an_emulator_on_another_port_is_the_same_pair(tmp_path: Path) -> None:
    for port in (5672, 40000):
        both = [endpoint(name, authority=f"127.0.0.1:{port}", emulator=True) for name in ("contoso", "contoso-dr")]
        both[1] = replace(both[1], authority=f"127.0.0.1:{port + 1}")
        RunDatabase(tmp_path, Pair("p", *both).ends).close()


# What cannot be relied upon


Spoil = Callable[[Path], object]


def changed(statement: str) -> Spoil:
    def spoil(path: Path) -> None:
        with closing(sqlite3.connect(path, isolation_level=None)) as db:
            db.execute(statement)

    return spoil


def somebody_elses(path: Path) -> None:
    path.unlink()
    changed("CREATE TABLE songs (name)")(path)


UNREADABLE: dict[str, Spoil] = {
    "of a newer version": changed(f"PRAGMA user_version = {FORMAT.version + 1}"),
    "not of SQLite": lambda path: path.write_text("pairs = []\n" * 1_000),
    "somebody else's": somebody_elses,
    "torn": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "overwritten": lambda path: path.write_bytes(path.read_bytes()[:4096] + os.urandom(path.stat().st_size - 4096)),
    "without a table": changed("DROP TABLE meta"),
}
ROWS: dict[str, Spoil] = {
    "unreadable": changed("UPDATE flights SET keys = '[[1,2],[1],[null]]'"),
    "not text": changed("UPDATE flights SET keys = CAST(x'ff' AS TEXT)"),
}


@pytest.mark.parametrize("spoilt", [*UNREADABLE, *ROWS])
def test_an_unreliable_file_is_refused_and_unchanged(tmp_path: Path, spoilt: str) -> None:
    with RunDatabase(tmp_path, PAIR.ends) as state:
        journal = Journal(state, run="r")
        accepted(journal, sending(journal, [KEY], "orders"))
    path = tmp_path / "state.db"
    (UNREADABLE | ROWS)[spoilt](path)
    before = path.read_bytes()
    with pytest.raises(StateRefused) as refused, RunDatabase(tmp_path, PAIR.ends) as state:
        Journal(state)
    assert refused.value.exit_code == 4
    assert refused.value.hint
    if spoilt in UNREADABLE:
        assert str(path) in refused.value.message
        assert path.read_bytes() == before


@pytest.mark.parametrize(
    "change",
    ["receipt = '[1]'", "settings = '[1]'", "receipt = '{'", "exit_code = 'x'", "started_ms = 'x'", "command = ' '"],
)
def test_a_record_of_another_program_is_refused(state: RunDatabase, change: str) -> None:
    run = RunEntry(state, "syphon")
    run.finish({}, 0)
    run.close()
    state.write((f"UPDATE runs SET {change}", [()]))  # noqa: S608
    with pytest.raises(StateRefused):
        all_runs(state)


@pytest.mark.parametrize("count", range(1, 4))
def test_a_change_is_made_with_each_of_its_rows(state: RunDatabase, count: int) -> None:
    state.write(("INSERT INTO controls VALUES (?, 'running', 'running')", [(str(run),) for run in range(count)]))
    assert state.read("SELECT count(*) FROM controls") == [(count,)]


def test_an_empty_file_is_initialized(tmp_path: Path) -> None:
    (tmp_path / "state.db").touch()
    RunDatabase(tmp_path, PAIR.ends).close()


# What the machine does not let it


def a_file_above(home: Path) -> None:
    home.parent.rmdir()
    home.parent.write_text("")


def open_state(home: Path) -> RunDatabase:
    return RunDatabase(home, PAIR.ends)


def open_lease(home: Path) -> Lease:
    return Lease(home, "r")


def a_link_to_nowhere(home: Path) -> None:
    home.mkdir()
    (home / "state.db").symlink_to("/nowhere/state.db")


@pytest.mark.parametrize(
    ("spoil", "opened"),
    [
        *itertools.product([lambda home: home.write_text(""), a_file_above], [open_state, open_lease]),
        (lambda home: (home / "state.db").mkdir(parents=True), open_state),
        (a_link_to_nowhere, open_state),
    ],
)
def test_an_impossible_path_raises_machine_lacks(tmp_path: Path, spoil: Spoil, opened: Spoil) -> None:
    home = tmp_path / "sbpair" / "orders"
    home.parent.mkdir()
    spoil(home)
    with pytest.raises(MachineLacks) as lacks:
        opened(home)
    assert lacks.value.exit_code == 7
    assert str(tmp_path) in lacks.value.message
    assert lacks.value.hint


def test_a_state_locked_by_another_process_raises(tmp_path: Path, state: RunDatabase) -> None:
    other = sqlite3.connect(tmp_path / "state.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    state.read("PRAGMA busy_timeout = 1")
    with pytest.raises(MachineLacks, match=r"another process keeps .* locked"):
        Journal(state)
    other.close()


def test_reading_a_missing_state_creates_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert state_if_any(tmp_path / "orders", PAIR.ends) is None
    assert state_if_any(tmp_path / "file" / "orders", PAIR.ends) is None
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


@pytest.mark.parametrize("name", ["n" * 300, "loop", "file"])
def test_reading_at_an_impossible_path_raises_machine_lacks(tmp_path: Path, name: str) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").touch()
    with pytest.raises(MachineLacks):
        state_if_any(tmp_path / name, PAIR.ends)


# The lease


def replaced(lease: Path) -> None:
    lease.unlink()
    lease.write_text("{}")


@pytest.mark.parametrize(
    "lose", [Path.unlink, replaced, lambda lease: lease.parent.rename(lease.parent.with_name("a"))]
)
def test_a_lost_lease_is_noticed_before_the_next_send(tmp_path: Path, lose: Spoil) -> None:
    home = tmp_path / "orders"
    held = rf"^process {os.getpid()} \(run r1, since 2026-09-21 14:13:20 UTC\) is moving messages of this pair$"
    with Lease(home, "r1", clock_ms=lambda: 1_790_000_000_000) as lease:
        with pytest.raises(LeaseHeld, match=held):
            Lease(home, "r2")
        lease.check()
        lose(home / "lease")
        with pytest.raises(LeaseLost, match=f"the lease {home / 'lease'} was deleted or replaced"):
            lease.check()
        with Lease(home, "r2"), pytest.raises(LeaseLost):
            lease.check()


@pytest.mark.parametrize("on_disk", [True, False])
def test_a_lost_lease_prevents_sending(tmp_path: Path, on_disk: bool) -> None:
    others = [Unreachable("the lease of another machine is not confirmed")]

    def may_send() -> None:
        for error in others:
            raise error

    directory = tmp_path if on_disk else None
    with RunStore(syphon_request(PAIR, once=True), directory, LiveRun(), may_send=may_send) as books:
        with pytest.raises(Unreachable):
            sending(books.journal, [KEY], "orders")
        others.clear()
        accepted(books.journal, sending(books.journal, [KEY], "orders"))
        (tmp_path / "lease" if on_disk else lease_directory(os.environ) / lease_name(PAIR.ends)).unlink()
        with pytest.raises(LeaseLost):
            sending(books.journal, [KEY], "orders")
        assert books.journal.in_doubt() == []
        books.finish(4)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"pid": 1, "run": "r", "started_ms": "x"}', "\x00\xff"])
def test_an_unreadable_holder_is_another_process(tmp_path: Path, content: str) -> None:
    with Lease(tmp_path, "r1"):
        (tmp_path / "lease").write_text(content)
        with pytest.raises(LeaseHeld, match=r"^another process is moving"):
            Lease(tmp_path, "r2")


# The runs


def test_ids_sort_by_start_and_contain_the_time() -> None:
    chances = iter([0.0, 0.5, 0.999, 0.1])
    assert new_id(1_790_000_000_000, lambda: next(chances)) == "260921-141320-0gz3"
    assert new_id(1_790_000_000_000) < new_id(1_790_000_001_000)


@pytest.mark.parametrize(
    ("ending", "outcome"),
    [
        ({"exit_code": 0}, "done"),
        ({"exit_code": 3}, "partial"),
        ({"exit_code": 0, "stopped": True}, "stopped"),
        ({"exit_code": 6, "error": "it is away"}, "failed"),
    ],
)
def test_a_run_is_recorded_with_its_outcome(tmp_path: Path, ending: dict, outcome: str) -> None:
    with RunDatabase(tmp_path, PAIR.ends) as state:
        run = RunEntry(state, "syphon --once", clock_ms=lambda: 5_000)
        assert [each.outcome for each in all_runs(state)] == ["running"]
        run.record({"received": 1})
        assert find_run(state, run.id).receipt == {"received": 1}
        run.finish({"received": 2}, **ending)
        run.close()
        [found] = all_runs(state)
        assert (found.outcome, found.exit_code, found.error) == (outcome, ending["exit_code"], ending.get("error", ""))
        assert (found.command, found.started_ms, found.ended_ms) == ("syphon --once", 5_000, 5_000)
        assert found.receipt == {"received": 2}
    assert not list(tmp_path.glob("*.running"))


def test_the_latest_runs_are_kept_with_their_doubts(state: RunDatabase) -> None:
    for number in range(MAX_KEPT + 5):
        run = RunEntry(state, "syphon", clock_ms=lambda number=number: number * 1_000)
        journal = Journal(state, run=run.id)
        journal.note_in_doubt(sending(journal, [KEY], "orders"))
        journal.close()
        run.finish({}, 0)
        run.close()
    kept = all_runs(state)
    assert [run.started_ms for run in kept] == [1_000 * number for number in range(MAX_KEPT + 4, 4, -1)]
    assert all(len(run.doubts) == 1 for run in kept)
    assert len(state.read("SELECT id FROM flights")) == MAX_KEPT


def test_a_unique_prefix_of_an_id_finds_the_run(tmp_path: Path) -> None:
    with RunDatabase(tmp_path, PAIR.ends) as state:
        for name in ("260921-141320-aaaa", "260921-141320-aabb", "260922-000000-aaaa", "nightly-1T", "nightly-1T0"):
            run = RunEntry(state, "syphon", run_id=name)
            run.finish({}, 0)
            run.close()
        assert find_run(state, "260922").id == "260922-000000-aaaa"
        assert find_run(state, "260921-141320-AAB").id == "260921-141320-aabb"
        assert [find_run(state, each).id for each in ("nightly-1T", "nightly-1t0")] == ["nightly-1T", "nightly-1T0"]
        with pytest.raises(UsageError, match="2 runs begin with '260921'"):
            find_run(state, "260921")
        for nothing in ("", "141320", "%", "_", "260921-141320-aaaaa"):
            with pytest.raises(UsageError, match="does not exist"):
                find_run(state, nothing)
    with pytest.raises(UsageError, match="does not exist"):
        find_run(None, "260922")


@pytest.mark.parametrize("name", ["", ".", "..", ".a", "-a", "_a", "a/b", "a b", "a:b", "é", "a\n", "x" * 65])
def test_a_run_is_named_so_that_its_directory_can_be(name: str) -> None:
    assert check_run_name("x" * 64) == "x" * 64
    with pytest.raises(UsageError, match="is not the name of a run"):
        check_run_name(name)


# All of it together


@pytest.mark.parametrize(
    ("raised", "outcome", "code", "why"),
    [
        (LeaseLost("it is gone"), "failed", 4, "it is gone"),
        (KeyboardInterrupt(), "stopped", 130, ""),
        (ZeroDivisionError("a secret"), "failed", 1, "ZeroDivisionError"),
    ],
)
def test_a_forced_end_of_a_run_is_recorded(
    tmp_path: Path, raised: BaseException, outcome: str, code: int, why: str
) -> None:
    tally = Tally()

    def run_for_a_while() -> None:
        with RunStore(syphon_request(PAIR, once=True), tmp_path, LiveRun(tally=tally)):
            tally.received("q", 1)
            raise raised

    with pytest.raises(type(raised)):
        run_for_a_while()
    with RunDatabase(tmp_path, PAIR.ends) as state:
        [run] = all_runs(state)
    assert (run.outcome, run.exit_code, run.error) == (outcome, code, why)
    assert run.receipt is not None
    assert run.receipt["received"] == 1


def test_changed_figures_are_written(tmp_path: Path) -> None:
    tally = Tally()
    with (
        RunStore(syphon_request(PAIR, once=True), tmp_path, LiveRun(tally=tally)) as books,
        RunDatabase(tmp_path, PAIR.ends) as state,
    ):
        books.record()
        state.write(("UPDATE runs SET receipt = NULL", [()]))
        books.record()
        assert find_run(state, books.run).receipt is None
        tally.received("q", 1)
        books.record()
        assert find_run(state, books.run).receipt == json.loads(json.dumps(encoded(tally.receipt())))
        books.finish(0)


def test_without_a_directory_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with RunStore(syphon_request(PAIR, once=True), None, LiveRun()) as books:
        accepted(books.journal, sending(books.journal, [KEY], "orders"))
        books.journal.note_in_doubt(sending(books.journal, [KEY], "orders"))
        assert [doubt.run for doubt in books.journal.in_doubt()] == [books.run]
        books.record()
        books.finish(0)
    assert list(tmp_path.iterdir()) == []


def test_a_run_whose_end_cannot_be_written_still_has_a_result(tmp_path: Path) -> None:
    with (
        RunStore(syphon_request(PAIR, once=True), tmp_path, LiveRun()) as books,
        RunDatabase(tmp_path, PAIR.ends) as state,
    ):
        other = sqlite3.connect(tmp_path / "state.db", isolation_level=None)
        other.execute("DROP TABLE runs")
        other.close()
        books.finish(0)
        assert state.read("SELECT count(*) FROM flights") == [(0,)]


def test_messages_on_their_way_at_a_full_disk_are_named_when_sent_again(tmp_path: Path) -> None:
    with RunStore(syphon_request(PAIR, once=True), tmp_path, LiveRun()) as books:
        sending(books.journal, [KEY], "orders")
        books.finish(7)
        assert books.journal._state is not None
        books.journal._state.read("PRAGMA query_only = 1")  # the journal's end is not written
    with RunStore(syphon_request(PAIR, once=True), tmp_path, LiveRun()) as again:
        accepted(again.journal, sending(again.journal, [KEY], "orders"))
        again.journal.note_completed([KEY])
        assert again.journal.ended_doubts() == [(Doubt(books.run, "q", 1, "m", "orders", "contoso.example"), True)]
        again.finish(0)
    with RunStore(syphon_request(PAIR, once=True), tmp_path, LiveRun()) as last:
        last.journal.note_completed([KEY])
        assert last.journal.ended_doubts() == []
        last.finish(0)
