"""The timeline of a run: few samples of a long run, exact ends of an idle time, and files of the first version."""

import sqlite3
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbpair.errors import MachineLacks, StateRefused
from sbpair.model.pair import Pair, SasKey
from sbpair.move.events import LimitChanged, QueueDepths, QueuesFound
from sbpair.move.receipt import Tally
from sbpair.public_names import __version__
from sbpair.runs.database import FILE_NAME, FORMAT, RunDatabase
from sbpair.runs.run_log import (
    MAX_DESTINATIONS,
    MAX_KEPT,
    MAX_SAMPLES,
    SPACING_MS,
    Figures,
    RunEntry,
    TimelineWriter,
    find_run,
    timeline_of,
)
from sbpair.syphon.run_request import syphon_request
from sbpair.syphon.run_store import LiveRun, RunStore
from tests.runs.states import PAIR, endpoint

WEEK_MS = 7 * 86_400_000


def sent(number: int) -> Figures:
    return Figures({"received": number, "sent": number})


def times(state: RunDatabase, run: str = "r") -> list[int]:
    return [sample.at_ms for sample in timeline_of(state, run)]


# Samples


def test_a_busy_week_keeps_both_ends_and_at_most_two_thousand(state: RunDatabase) -> None:
    writer = TimelineWriter(state, "r")
    for at_ms in range(0, WEEK_MS, 20_000):
        writer.add(at_ms, sent(at_ms))
    writer.add(WEEK_MS, sent(WEEK_MS), last=True)
    found = times(state)
    assert MAX_SAMPLES / 2 <= len(found) <= MAX_SAMPLES
    assert (found[0], found[-1]) == (0, WEEK_MS)
    gaps = [after - before for before, after in pairwise(found)]
    assert max(gaps) <= WEEK_MS / (MAX_SAMPLES / 4)


@given(st.lists(st.tuples(st.integers(1, 5_000), st.integers(0, 2)), min_size=1, max_size=60))
def test_figures_between_samples_are_those_of_the_run(steps: list[tuple[int, int]]) -> None:
    state = RunDatabase.__new__(RunDatabase)
    written: list[tuple[int, str]] = []
    state.read = lambda *_: [(0,)]  # type: ignore[method-assign]
    state.write = lambda *changes: written.extend(row[1:] for _, rows in changes for row in rows)  # type: ignore[method-assign]
    writer, at_ms, number, truth = TimelineWriter(state, "r"), 0, 0, {}
    for wait_ms, more in steps:
        at_ms, number = at_ms + wait_ms, number + more
        truth[at_ms] = sent(number).encode()
        writer.add(at_ms, sent(number))
    writer.add(at_ms, sent(number), last=True)
    assert all(truth[at] == figures for at, figures in written)
    assert [at for at, _ in written] == sorted(at for at, _ in written)
    assert written[-1] == (at_ms, truth[at_ms])


def test_an_idle_time_has_only_its_two_ends(state: RunDatabase) -> None:
    writer = TimelineWriter(state, "r")
    for second in range(0, 3_600, 2):
        writer.add(1_000 * second, sent(5))
    writer.add(3_600_000, sent(6))
    assert times(state) == [0, 3_598_000, 3_600_000]


def test_a_burst_after_an_idle_day_keeps_its_steep_rise(state: RunDatabase) -> None:
    writer, day_ms = TimelineWriter(state, "r", max_samples=100), 86_400_000
    for at_ms in range(0, day_ms, 60_000):
        writer.add(at_ms, sent(0))
    for number in range(200):
        writer.add(day_ms + SPACING_MS * number, sent(1 + number))
    found = timeline_of(state, "r")
    assert len(found) <= 100
    rise = [(before, after) for before, after in pairwise(found) if after.figures.counts["sent"]]
    assert rise[0][1].at_ms - rise[0][0].at_ms < day_ms / 20


def test_changes_within_the_spacing_make_one_sample(state: RunDatabase) -> None:
    writer = TimelineWriter(state, "r")
    for at_ms in range(0, SPACING_MS + 1, 100):
        writer.add(at_ms, sent(at_ms))
    assert times(state) == [0, SPACING_MS]


def test_the_destinations_with_most_messages_are_kept(state: RunDatabase) -> None:
    many = {f"d{number:02}": number for number in range(MAX_DESTINATIONS + 5)}
    TimelineWriter(state, "r").add(0, Figures({}, many))
    [sample] = timeline_of(state, "r")
    assert sorted(sample.figures.destinations.values()) == list(range(5, MAX_DESTINATIONS + 5))


def test_a_resumed_run_goes_on_with_its_timeline(state: RunDatabase) -> None:
    TimelineWriter(state, "r", max_samples=10).add(0, sent(1), last=True)
    later = TimelineWriter(state, "r", max_samples=10)
    for number in range(1, 30):
        later.add(SPACING_MS * 8 * number, sent(number))
    assert times(state)[0] == 0
    assert len(times(state)) <= 10


# The record of a run


def test_a_sample_names_the_limit_that_slows_the_run_down(tmp_path: Path) -> None:
    with RunStore(syphon_request(PAIR, once=True), tmp_path, LiveRun()) as store:
        observe = store.observing(lambda _event: None)
        for event, said in (
            (LimitChanged(500.0, "--rate"), "500 messages/s by --rate"),
            (LimitChanged(None, None), ""),
        ):
            observe(event)
            store.sample(last=True)
            with RunDatabase(tmp_path, PAIR.ends) as state:
                limit = timeline_of(state, store.run)[-1].figures.limit
            assert limit.removeprefix("limited to ") == said
        store.finish(0)


def test_a_run_has_settings_without_secrets_and_a_timeline(tmp_path: Path) -> None:
    pair = Pair("orders", endpoint("contoso", credential=SasKey("Root", "a-secret-key")), PAIR.secondary)
    tally = Tally()
    with RunStore(syphon_request(pair, once=True), tmp_path, LiveRun(tally=tally)) as store:
        store.describe(ttl="original")
        observe = store.observing(lambda _event: None)
        observe(QueuesFound(("q",), (), managed=True))
        observe(QueueDepths("q", 9, 3))
        store.sample()
        tally.received("q", 2)
        tally.sent("q", "orders", 2, 10)
        store.finish(0)
    with RunDatabase(tmp_path, pair.ends) as state:
        run = find_run(state, store.run)
        found = timeline_of(state, run.id)
    assert run.settings == run.settings | {
        "sbpair": __version__,
        "ttl": "original",
        "primary": "contoso.example",
        "secondary_sign_in": "identity",
        "secondary_transport": "tcp",
    }
    assert run.settings["primary_sign_in"] == "key Root ***"
    assert found[-1].figures.counts["sent"] == 2
    assert found[-1].figures.destinations == {"orders": 2}
    assert (found[-1].figures.depth, found[-1].figures.oldest_ms) == (9, 3)
    assert b"a-secret-key" not in (tmp_path / FILE_NAME).read_bytes()


def test_samples_of_runs_no_longer_kept_are_removed(state: RunDatabase) -> None:
    for number in range(MAX_KEPT + 2):
        run = RunEntry(state, "syphon", clock_ms=lambda number=number: number * 1_000)
        run.sample(sent(1))
        run.finish({}, 0)
        run.close()
    RunEntry(state, "syphon", clock_ms=lambda: 10**9).close()
    [[runs]] = state.read("SELECT count(DISTINCT run) FROM samples")
    assert runs == MAX_KEPT - 1


def test_a_timeline_that_cannot_be_written_does_not_end_the_run(
    tmp_path: Path, state: RunDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    run = RunEntry(state, "syphon")
    other = sqlite3.connect(tmp_path / FILE_NAME, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    state.read("PRAGMA busy_timeout = 1")
    run.sample(sent(1))
    other.execute("ROLLBACK")
    other.close()
    run.sample(sent(2))
    run.finish({}, 0)
    run.close()
    assert (timeline_of(state, run.id), find_run(state, run.id).exit_code) == ([], 0)
    assert "no further timeline" in caplog.text


# A file of the first version


def first_version(path: Path) -> None:
    """Create a file as the first version did, with one run."""
    with sqlite3.connect(path, isolation_level=None) as db:
        for statement in FORMAT.schema:
            db.execute(statement)
        owner = {"primary": "contoso.example", "secondary": "contoso-dr.example"}
        db.executemany("INSERT INTO meta VALUES (?, ?)", owner.items())
        db.execute("INSERT INTO runs VALUES ('261122-101500-aaaa', 'syphon', 1, 2, 'done', 0, '', '{}')")
        db.execute(f"PRAGMA application_id = {FORMAT.application_id}")
        db.execute("PRAGMA user_version = 1")
    db.close()


def test_a_file_of_the_first_version_opens_and_takes_samples(tmp_path: Path) -> None:
    first_version(tmp_path / FILE_NAME)
    for _ in range(2):
        with RunDatabase(tmp_path, PAIR.ends) as state:
            before = find_run(state, "261122-")
            assert (before.outcome, before.settings, timeline_of(state, before.id)) == ("done", {}, [])
            run = RunEntry(state, "syphon")
            run.sample(sent(1))
            run.close()
            assert len(timeline_of(state, run.id)) == 1
            assert state.read("PRAGMA user_version") == [(FORMAT.version,)]


def test_a_new_file_and_an_upgraded_one_have_the_same_schema(tmp_path: Path) -> None:
    schemas = []
    for name in ("new", "old"):
        (tmp_path / name).mkdir()
        if name == "old":
            first_version(tmp_path / name / FILE_NAME)
        with RunDatabase(tmp_path / name, PAIR.ends) as state:
            schemas.append(state.read("SELECT name, sql FROM sqlite_master ORDER BY name"))
    assert schemas[0] == schemas[1]


def test_the_first_version_of_another_pair_is_not_upgraded(tmp_path: Path) -> None:
    first_version(tmp_path / FILE_NAME)
    before = (tmp_path / FILE_NAME).read_bytes()
    with pytest.raises(StateRefused):
        RunDatabase(tmp_path, Pair("p", endpoint("fabrikam"), PAIR.secondary).ends)
    assert (tmp_path / FILE_NAME).read_bytes() == before


def test_a_locked_file_of_the_first_version_is_not_half_upgraded(tmp_path: Path) -> None:
    first_version(tmp_path / FILE_NAME)
    other = sqlite3.connect(tmp_path / FILE_NAME, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(MachineLacks, match="locked"):
        RunDatabase(tmp_path, PAIR.ends)
    other.execute("ROLLBACK")
    assert other.execute("PRAGMA user_version").fetchall() == [(1,)]
    other.close()
    RunDatabase(tmp_path, PAIR.ends).close()
