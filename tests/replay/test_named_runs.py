"""A run by its name: the same command continues it, and once it has ended only shows what it came to."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sbpair import errors
from sbpair.backlog import Aliases
from sbpair.move.message.route import TimeToLive
from sbpair.replay import driver
from sbpair.replay.archive import RECEIPT_FILE, Archive
from sbpair.replay.delivery import ReplayDelivery
from sbpair.replay.progress import Event, ReplayPhase
from sbpair.replay.run_description import DedupMode, ReplayMode, ReplayOptions, ReplayResult, ReplaySelection
from sbpair.replay.verify import plan_gc, remove_messages
from tests.replay.replays import LATENCY_MS, TASKS, end_all, nothing_is_lost, replay
from tests.replay.tasks import QUICK
from tests.replay.world import HOUR_TICKS, NAMESPACE, OTHER, SENDING, World, world

NAME = "manual__2026-12-01T100000.5-0000"
MESSAGES = 400


def start(place: World, directory: Path, options: ReplayOptions = QUICK, **changed: Any) -> ReplayResult:
    given = {"queues": place.queues, "on_event": lambda _event: None, "name": NAME, **changed}
    return driver.start_run(place.request(directory), options, **given)


@pytest.fixture
def few(place: World, local_tasks: None) -> World:  # noqa: ARG001
    place.strand_many(8)
    return place


@pytest.mark.parametrize("mode", SENDING)
def test_a_finished_run_shows_its_receipt_and_moves_nothing(mode: ReplayMode, few: World, tmp_path: Path) -> None:
    few.strand(0, "nowhere", Aliases("not-there", None, HOUR_TICKS))
    options = replace(QUICK, mode=mode, allow_missing=True)
    first = start(few, tmp_path, options)
    archive, there = Archive(str(tmp_path / "archive"), NAME), sorted(few.ids())
    stored = archive.read(RECEIPT_FILE)
    assert (first.run.id, first.exit_code, len(there)) == (NAME, 3, 8)

    again = start(few, tmp_path, options)
    assert (again.document(), again.exit_code, again.later) == (first.document(), 3, ())
    few.strand(1, "later", Aliases("orders", None, HOUR_TICKS))
    if mode is ReplayMode.ARCHIVE:
        remove_messages(archive, plan_gc(archive, unsent=True))
    again = start(few, tmp_path, options)
    assert (again.document(), again.later) == (first.document(), (few.queues[1],))
    assert (archive.read(RECEIPT_FILE), sorted(few.ids())) == (stored, there)
    assert start(few, tmp_path, options, name="next").proof.acknowledged == 1


@pytest.mark.parametrize(
    ("named", "changed"),
    [
        ("--dedup", {"dedup": DedupMode.REPORT}),
        ("--destination or --where", {"selection": ReplaySelection(("orders",))}),
        ("--max-discard, --order, --rate", {"ordered": False, "rate": 5.0, "max_discard": None}),
        ("--mode", {"mode": ReplayMode.DIRECT}),
        ("--to or --map", {"delivery": ReplayDelivery(map=("a=b",))}),
        ("--allow-missing, --ttl", {"allow_missing": True, "ttl": TimeToLive.REMAINING}),
        ("--queue, --count or --dead-letters", {"queues": 1}),
    ],
)
def test_other_options_or_queues_are_refused_by_name(
    named: str, changed: dict[str, Any], few: World, tmp_path: Path
) -> None:
    start(few, tmp_path)
    queues = few.queues[: changed.pop("queues", 2)]
    few.strand(0, "later", Aliases("orders", None, HOUR_TICKS))
    with pytest.raises(errors.Unsafe, match=f"run {NAME} began with other options: {named}$") as refused:
        start(few, tmp_path, replace(QUICK, **changed), queues=queues)
    assert refused.value.exit_code == 4
    assert (few.left(), len(few.ids())) == (1, 8)


def test_a_start_that_was_refused_may_change_its_options(few: World, tmp_path: Path) -> None:
    wrong = replace(QUICK, selection=ReplaySelection(("nowhere",)))
    with pytest.raises(errors.EntityMissing):
        start(few, tmp_path, wrong)
    assert (few.left(), [*(tmp_path / "archive").glob("*")]) == (8, [])
    assert start(few, tmp_path).proof.acknowledged == 8


def test_the_run_of_another_pair_is_refused(few: World, tmp_path: Path) -> None:
    start(few, tmp_path)
    request = few.request(tmp_path, state=tmp_path / "other")
    pair = replace(request.pair, secondary=request.pair.primary, primary=request.pair.secondary)
    with pytest.raises(errors.StateRefused, match=f"run {NAME} belongs to {NAMESPACE} and {OTHER}"):
        driver.start_run(replace(request, pair=pair), QUICK, few.queues, lambda _event: None, name=NAME)


@pytest.mark.parametrize("receipt", [b"{", b"[]", b"{}", b'{"unsent": 0}', b'{"unsent": "x"}'])
def test_a_broken_receipt_is_refused(receipt: bytes, few: World, tmp_path: Path) -> None:
    start(few, tmp_path)
    Archive(str(tmp_path / "archive"), NAME).write(RECEIPT_FILE, receipt)
    with pytest.raises(errors.StateRefused, match=r"receipt\.json is broken"):
        start(few, tmp_path)
    assert len(few.ids()) == 8


def test_of_two_at_once_with_one_name_one_is_refused(few: World, tmp_path: Path) -> None:
    refused: list[errors.SbpairError] = []

    def begin_another(event: Event) -> None:
        if isinstance(event, ReplayPhase) and event.name == "send" and not refused:
            with pytest.raises(errors.LeaseHeld, match=NAME) as held:
                start(few, tmp_path)
            refused.append(held.value)

    result = start(few, tmp_path, on_event=begin_another)
    assert (result.exit_code, [each.exit_code for each in refused]) == (0, [4])
    few.check_arrived()


def test_a_stopped_run_and_one_with_locked_messages_go_on(few: World, tmp_path: Path) -> None:
    few.lock(1)

    def stop(event: Event) -> None:
        if isinstance(event, ReplayPhase) and event.name == "send":
            Archive(str(tmp_path / "archive"), NAME).write("STOP", b"")

    options = replace(QUICK, locked_seconds=0.1)
    stopped = start(few, tmp_path, options, on_event=stop)
    assert (stopped.end.stopped, stopped.proof.acknowledged) == (True, 0)
    partial = start(few, tmp_path, options)
    assert (partial.exit_code, partial.proof.acknowledged, partial.proof.locked) == (3, 7, 1)
    few.running.advance(301)
    assert start(few, tmp_path, options).exit_code == 0
    few.check_arrived()


@pytest.fixture
def many() -> Iterator[World]:
    with world(lock_seconds=5) as place:
        place.strand_many(MESSAGES)
        yield place


@pytest.mark.parametrize("mode", SENDING)
def test_attempts_that_are_killed_add_up_to_one_run(mode: ReplayMode, many: World, tmp_path: Path) -> None:
    """Each attempt is the same command, as an orchestrator repeats it, and ends by a kill."""
    options = {"segment_messages": 50, "empty_seconds": 0.5, "rate": 300.0, "mode": mode}
    command = {"name": NAME, "local": True, "options": options, "request": {"tasks": TASKS}}
    for phase, files in [("drain", 2), ("send", 1)] if mode is ReplayMode.ARCHIVE else [("move", 1)]:
        with many.during("latency", OTHER, ms=LATENCY_MS), replay(many, tmp_path, **command) as running:
            running.until(phase, files)
            end_all(running.process)
    with replay(many, tmp_path, **command) as running:
        receipt = running.receipt()
    assert receipt is not None
    nothing_is_lost(many, receipt)
    assert [each.name for each in (tmp_path / "archive").iterdir()] == [NAME]
    with replay(many, tmp_path, **command) as running:
        assert running.receipt() == receipt
