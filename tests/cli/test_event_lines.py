"""Event lines of `--watch`: the form of each line, and their rate."""

import dataclasses
import json
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbpair.cli.logs import utc
from sbpair.cli.options.common import Display
from sbpair.cli.progress import move_progress
from sbpair.cli.progress.move_progress import BURST, PROGRESS_SECONDS, SCHEMA, EventLines, EventPrinter, line
from sbpair.cli.render.screen import Screen
from sbpair.move.events import (
    DeadLettered,
    DestinationBackingOff,
    DestinationProgress,
    DestinationRecovered,
    LimitChanged,
    MessagesLocked,
    QueueBlocked,
    QueueDepths,
    QueueDone,
    QueueFailed,
    QueueOpened,
    QueueProgress,
    QueuesFound,
    RampProgress,
    RunCancelled,
    RunPaused,
    RunPausing,
    RunResumed,
    SyphonEvent,
    TopicsUnchecked,
)
from tests.kit.command import untimed

NOW_MS = 1_800_000_000_000
HEAD = {"schema": SCHEMA, "time": "2027-01-15T08:00:00Z"}
RESTS = DestinationBackingOff("q", "down", "it is away", 8.0, 12)


def taken(lines: EventLines, *events: SyphonEvent, now: float = 0.0) -> list[dict[str, Any]]:
    return [dict(each) for event in events for each in lines.take(event, now, NOW_MS)]


def names(found: list[Any]) -> list[str]:
    return [each["event"] for each in found]


@pytest.mark.parametrize(
    ("event", "name", "level"),
    [
        (QueuesFound(("a", "b"), ("b",), managed=True), "queues-found", "info"),
        (QueueOpened("q"), "queue-opened", "info"),
        (QueueDone("q"), "queue-done", "info"),
        (QueueBlocked("q", ("d", "e")), "queue-blocked", "warning"),
        (MessagesLocked("q", 3, NOW_MS, waiting=True, overdue=False), "messages-locked", "warning"),
        (QueueFailed("q", "why\x1b\n", None), "queue-failed", "warning"),
        (RESTS, "destination-backing-off", "warning"),
        (DestinationRecovered("q", "down"), "destination-recovered", "info"),
    ],
)
def test_a_line_has_the_events_name_and_its_fields(event: SyphonEvent, name: str, level: str) -> None:
    text = json.dumps(line(event, NOW_MS))
    assert text.isprintable()
    fields = {each.name: getattr(event, each.name) for each in dataclasses.fields(event)}
    fields = {key: [*value] if isinstance(value, tuple) else value for key, value in fields.items()}
    assert json.loads(text) == {**HEAD, "level": level, "event": name, **fields}


def test_every_event_is_either_a_line_or_part_of_one() -> None:
    lines = EventLines(0.0)
    figures = [
        QueueProgress("q", 5, 2, 3, None, 2, NOW_MS - 61_000),
        QueueDepths("q", 9),
        DestinationProgress("d", 2, 1),
    ]
    assert taken(lines, *figures) == []
    printed = [QueueOpened("q"), QueueDone("q"), QueueFailed("q", "x", 1.0), QueueBlocked("q", ("d",))]
    printed += [RESTS, DestinationRecovered("q", "down"), QueuesFound(("q",), (), managed=False)]
    printed += [DeadLettered("q", 7, "m7", "NoPath", "there is none"), LimitChanged(500.0, "--rate")]
    printed += [MessagesLocked("q", 3, NOW_MS, waiting=True, overdue=False)]
    printed += [RampProgress(1, 3, 10, 10, "observing", 30.0)]
    printed += [TopicsUnchecked("no claim"), RunPausing("r"), RunPaused("r"), RunResumed("r"), RunCancelled("r")]
    assert len(taken(lines, *printed)) == len(printed)
    assert {type(each) for each in (*figures, *printed)} == set(get_args(SyphonEvent))


BY = "locked by another receiver or a killed run, until"
WAITING = "waiting (--no-wait-for-locks leaves them)"


@pytest.mark.parametrize(
    ("queues", "locked", "flags", "text"),
    [
        ("a", 3, (True, False), f"3 messages in a are {BY} 08:00:00Z at the latest, at most 41s from now; {WAITING}"),
        (
            "ab",
            1,
            (False, False),
            f"2 messages in 2 backlog queues are {BY} 08:00:01Z at the latest, at most 42s from now; left there",
        ),
        (
            "a",
            1,
            (True, True),
            "1 message in a is still locked, until 08:00:00Z at the latest, at most 41s from now: another receiver",
        ),
    ],
)
def test_locked_messages_of_all_queues_are_one_warning(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    queues: str,
    locked: int,
    flags: tuple[bool, bool],
    text: str,
) -> None:
    monkeypatch.setattr(move_progress, "wall_clock_ms", lambda: NOW_MS - 40_300)
    printer = EventPrinter(Screen(Display()))
    for number, queue in enumerate(queues):
        printer(MessagesLocked(queue, locked, NOW_MS + 1000 * number, *flags))
    assert capsys.readouterr().err == ""
    printer.ended_queues()
    (line,) = untimed(capsys.readouterr().err).splitlines()
    assert line.startswith(f"warning: {text}")
    printer.ended_queues()
    assert capsys.readouterr().err == ""


def test_progress_lines_are_periodic_and_only_for_changed_counts() -> None:
    lines = EventLines(0.0)
    taken(
        lines,
        QueueProgress("q", 5, 2, 3, None, 2, NOW_MS - 61_000),
        QueueDepths("q", 9),
        DestinationProgress("d", 2, 1),
    )
    assert lines.tick(PROGRESS_SECONDS - 1, NOW_MS) == []
    queue, destination = lines.tick(PROGRESS_SECONDS, NOW_MS)
    figures = {"received": 5, "sent": 2, "held": 3, "skipped": 0, "locked": 0, "locked_until_ms": None}
    ages = {"per_second": 0.1, "eta_seconds": 135, "oldest_seconds": 61}
    head = {**HEAD, "level": "info", "event": "progress"}
    assert queue == {**head, "queue": "q", "remaining": 9, "counted": True, **figures, **ages}
    more = {"per_second": 0.1, "waiting": 1, "backing_off": None, "dead_lettered": 0}
    assert destination == {**head, "event": "destination-progress", "destination": "d", "sent": 2, **more}
    assert lines.tick(2 * PROGRESS_SECONDS, NOW_MS) == []
    taken(lines, QueueProgress("q", 6, 3, 3, None, 3))
    assert names(lines.tick(2 * PROGRESS_SECONDS + 1, NOW_MS)) == []
    assert names(lines.tick(2 * PROGRESS_SECONDS + 1, NOW_MS, last=True)) == ["progress"]


def test_progress_names_the_locked_messages_that_the_run_waits_for() -> None:
    lines = EventLines(0.0)
    taken(lines, QueueProgress("q", 5, 5, 0, 3, 5, None, 3, NOW_MS + 42_000))
    [queue] = lines.tick(PROGRESS_SECONDS, NOW_MS)
    assert (queue["locked"], queue["locked_until_ms"], queue["eta_seconds"]) == (3, NOW_MS + 42_000, 60)
    taken(lines, QueueProgress("q", 7, 7, 0, 1, 7, None, 1, NOW_MS + 42_000))
    [queue] = lines.tick(2 * PROGRESS_SECONDS, NOW_MS)
    assert queue["locked"] == 1


def test_dead_letters_of_a_kind_are_one_line_with_the_first_of_them() -> None:
    lines = EventLines(0.0)
    [first] = taken(lines, DeadLettered("q", 0, "m0", "NoPath", "there is none", "gone"))
    for number in range(1, 1_000):
        assert taken(lines, DeadLettered("q", number, f"m{number}", "NoPath", "there is none", "gone")) == []
    [other] = taken(lines, DeadLettered("q", 1, "n", "Expired", "too late", "gone"))
    more, _queue, destination = lines.tick(PROGRESS_SECONDS, NOW_MS)
    assert (other["message_id"], other["messages"]) == ("n", 1)
    assert (more["message_id"], more["messages"], destination["dead_lettered"]) == ("m1", 999, 1_001)
    dead = DeadLettered("q", 0, "m0", "NoPath", "there is none", "gone")
    assert first == {**line(dead, NOW_MS), "messages": 1}
    assert (first["event"], first["level"], first["reason"]) == ("dead-lettered", "warning", "NoPath")
    assert lines.tick(2 * PROGRESS_SECONDS, NOW_MS) == []


def test_repeated_events_are_emitted_once() -> None:
    lines = EventLines(0.0)
    other = DestinationBackingOff("q1", "DOWN", "it is away", 3.0, 5)
    assert names(taken(lines, RESTS, other, RESTS)) == ["destination-backing-off"]
    assert names(taken(lines, DestinationBackingOff("q", "down", "it is full", 1.0, 1))) == ["destination-backing-off"]
    emitted = names(taken(lines, DestinationRecovered("q", "down"), DestinationRecovered("q1", "down")))
    assert emitted == ["destination-recovered"]
    assert names(taken(lines, RESTS)) == ["destination-backing-off"]
    fails = QueueFailed("q", "unreachable", 4.0)
    emitted = names(taken(lines, fails, fails, QueueOpened("q"), fails))
    assert emitted == ["queue-failed", "queue-opened", "queue-failed"]
    assert len(taken(lines, QueueFailed("q", "unreachable", None))) == 1


def test_what_is_left_out_is_counted() -> None:
    lines = EventLines(0.0)
    flood = [event for _ in range(BURST) for event in (QueueBlocked("q", ("d",)), QueueDone("q"))]
    assert len(taken(lines, *flood)) == BURST
    assert taken(lines, QueueOpened("q"), now=0.5) == []
    found = taken(lines, QueueDone("q"), now=10.0)
    emitted = [(each["event"], each.get("events")) for each in found]
    assert emitted == [("events-dropped", BURST + 1), ("queue-done", None)]
    assert names(taken(lines, QueueDone("q"), now=10.0)) == ["queue-done"]


queues = st.sampled_from(["q0", "q1", "q2"])
destinations = st.sampled_from(["d0", "d1"])
events = st.one_of(
    st.builds(QueueOpened, queues),
    st.builds(QueueFailed, queues, st.text(max_size=3), st.none() | st.floats(0, 60)),
    st.builds(DestinationBackingOff, queues, destinations, st.text(max_size=3), st.floats(0, 60), st.integers(0, 9)),
    st.builds(DestinationRecovered, queues, destinations),
    st.builds(QueueProgress, queues, st.integers(0, 99), st.integers(0, 99), st.integers(0, 9)),
    st.builds(DestinationProgress, destinations, st.integers(0, 99), st.integers(0, 9)),
    st.builds(DeadLettered, queues, st.integers(0, 99), st.none(), st.sampled_from("ab"), st.just("")),
)


@given(st.lists(events, max_size=60), st.integers(1, 200))
def test_a_run_of_any_length_writes_no_more_than_it_may(some: list[SyphonEvent], rounds: int) -> None:
    lines, written, now = EventLines(0.0), 0, 0.0
    for _ in range(rounds):
        for event in some:
            written += len(lines.take(event, now, NOW_MS))
        now += 1.0
        written += len(lines.tick(now, NOW_MS))
    progress = (3 + 3) * (now // PROGRESS_SECONDS)  # the queues and destinations there are, and that of no destination
    assert written <= BURST + now + progress


def test_an_hour_of_idleness_writes_nothing_more() -> None:
    lines = EventLines(0.0)
    taken(lines, QueueOpened("q"), QueueProgress("q", 1, 1, 0))
    lines.tick(PROGRESS_SECONDS, NOW_MS)
    assert [lines.tick(float(now), NOW_MS) for now in range(60, 3_660)] == [[]] * 3_600


def test_a_namespace_that_is_away_is_printed_once_with_since_when(capsys: pytest.CaptureFixture[str]) -> None:
    printer = EventPrinter(Screen(Display()))
    for queue in ("q1", "q2"):
        printer(QueueFailed(queue, "contoso cannot be reached", 1.0, NOW_MS))
    [line] = capsys.readouterr().err.splitlines()
    assert line.endswith(f"q1: contoso cannot be reached; away since {utc(NOW_MS / 1000)}, trying each second")


def test_queues_that_end_together_are_one_warning(capsys: pytest.CaptureFixture[str]) -> None:
    printer = EventPrinter(Screen(Display()))
    for number in (10, *range(10)):
        printer(QueueFailed(f"q/{number}", "not found in contoso-dr", None))
    printer(QueueFailed("q/11", "refused", None))
    assert capsys.readouterr().err == ""
    printer.ended_queues()
    missing, other = untimed(capsys.readouterr().err).splitlines()
    assert missing == "warning: 11 backlog queues (q/0, q/1, q/2, …): not found in contoso-dr"
    assert other == "warning: q/11: refused"
    printer.ended_queues()
    assert capsys.readouterr().err == ""
