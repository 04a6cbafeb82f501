"""Events of a mover and phases of a replay as rows of a table, and the lines that a replay prints."""

import json
from io import StringIO
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from sbpair.cli.options.common import Display, LogFormat
from sbpair.cli.progress.boards import (
    MAX_DESTINATIONS,
    OTHER_DESTINATIONS,
    Board,
    BoardView,
    DestinationRow,
    PhaseBoard,
    PhaseRow,
    PhaseView,
    QueueRow,
    together,
)
from sbpair.cli.progress.live_table import draw_phase
from sbpair.cli.progress.replay_progress import JsonReplayProgress, LiveReplayProgress, ReplayProgress
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
    SyphonEvent,
)
from sbpair.replay.progress import Expected, LocksFound, PhaseProgress, ReplayPhase
from tests.kit import command

NOW_MS = 1_800_000_000_000
Q = "contoso/x-servicebus-transfer/0"


def board(*events: SyphonEvent, now: float = 0.0) -> Board:
    made = Board(0.0)
    for event in events:
        made.take(event, now)
    return made


def row(*events: SyphonEvent, now: float = 0.0) -> QueueRow:
    [found] = board(*events).view(now, NOW_MS).queues
    return found


def destination(*events: SyphonEvent, now: float = 0.0) -> DestinationRow:
    [found] = board(*events).view(now, NOW_MS).destinations
    return found


def progress(received: int, gone: int, **changed: Any) -> QueueProgress:
    return QueueProgress(
        **{"queue": Q, "received": received, "sent": gone, "held": received - gone, "gone": gone} | changed
    )


def test_a_depth_is_what_was_counted_less_what_has_gone_since() -> None:
    counted = [progress(10, 5), QueueDepths(Q, 100)]
    assert (row(*counted).remaining, row(*counted).exact) == (100, True)
    later = row(*counted, progress(45, 35))
    assert (later.remaining, later.exact) == (70, False)
    again = row(*counted, progress(45, 35), QueueDepths(Q, 200), progress(46, 36))
    assert again.remaining == 199


@given(st.integers(0, 50), st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20))))
def test_a_reckoned_depth_is_never_less_than_what_is_in_hand(depth: int, steps: list[tuple[int, int]]) -> None:
    made, received, gone = board(QueueDepths(Q, depth)), 0, 0
    for came, went in steps:
        received += came
        gone = min(received, gone + went)
        made.take(progress(received, gone), 0.0)
        [at] = made.view(0.0, NOW_MS).queues
        assert at.remaining is not None
        assert at.remaining >= at.held
        assert at.exact == (at.remaining == depth)


def test_a_depth_that_cannot_be_counted_is_unknown() -> None:
    at = row(progress(10, 5))
    assert (at.remaining, at.eta_seconds) == (None, None)
    assert row(progress(10, 10, remaining=3)).remaining == 3
    assert together("total", (at, row(QueueDepths(Q, 3)))).remaining is None


def test_a_rate_is_that_of_the_last_seconds_and_ends_with_them() -> None:
    made = board(QueueDepths(Q, 1_000))
    rates = []
    for second in range(31):
        made.take(progress(min(second, 10) * 20, min(second, 10) * 20), float(second))
        [at] = made.view(float(second), NOW_MS).queues
        rates.append(round(at.per_second, 1))
    assert rates[1:11] == [20.0] * 10
    assert rates[15] == 10.0
    assert rates[20:] == [0.0] * 11
    assert rates[10:21] == sorted(rates[10:21], reverse=True)


def test_an_eta_needs_recent_progress_and_a_sensible_duration() -> None:
    made = board(QueueDepths(Q, 100), progress(50, 50))
    [moving] = made.view(10.0, NOW_MS).queues
    assert (moving.remaining, moving.per_second, moving.eta_seconds) == (50, 5.0, 10.0)
    [resting] = made.view(30.0, NOW_MS).queues
    assert (resting.per_second, resting.eta_seconds) == (0.0, None)
    [ages_away] = board(QueueDepths(Q, 10**9), progress(1, 1)).view(10.0, NOW_MS).queues
    assert ages_away.eta_seconds is None


def test_an_eta_accounts_for_locks() -> None:
    def eta(remaining: int | None, *, locked: int = 30, sent: int = 0) -> float | None:
        at = progress(sent, sent, locked=locked, locked_until_ms=NOW_MS + 45_000, remaining=remaining)
        return row(QueueOpened(Q), at, now=10.0).eta_seconds

    assert eta(30) == eta(None) == 45.0, "nothing else is left"
    assert eta(80) is None
    assert eta(30, sent=100) == 48.0, "45 s, and then 30 messages at 10 a second"
    assert eta(80, sent=100) == 48.0, "the other 50 leave meanwhile"
    assert eta(1_030, sent=100) == 103.0
    assert eta(80, sent=100, locked=0) == 8.0
    first = row(progress(0, 0, remaining=30, locked=30, locked_until_ms=NOW_MS + 45_000))
    total = together("total", (first, row(progress(10, 10, remaining=0))))
    assert (total.locked, total.locked_until_ms, total.eta_seconds) == (30, NOW_MS + 45_000, 46.5), "at 20 a second"


def test_the_oldest_is_held_or_was_peeked() -> None:
    assert row(progress(2, 1, oldest_ms=NOW_MS - 5_000)).oldest_seconds == 5.0
    assert row(QueueDepths(Q, 1, NOW_MS - 9_000)).oldest_seconds == 9.0
    assert row(QueueDepths(Q, 0, NOW_MS - 9_000)).oldest_seconds is None
    assert row(progress(2, 1, oldest_ms=NOW_MS + 5_000)).oldest_seconds == 0.0  # the clocks differ


RESTS = DestinationBackingOff(Q, "down", "it is away", 8.0, 12)
BLOCKED = QueueBlocked(Q, ("down", "full"))
LOCKED = progress(0, 0, locked=61, locked_until_ms=NOW_MS)
WAITING = MessagesLocked(Q, 61, NOW_MS, waiting=True, overdue=False)
LEFT = MessagesLocked(Q, 61, NOW_MS, waiting=False, overdue=False)
IS_LOCKED = "61 locked, until 08:00:00Z at the latest"
FAILED = QueueFailed(Q, "unreachable", 3.5)
AWAY = QueueFailed(Q, "unreachable", 3.5, side="primary")


@pytest.mark.parametrize(
    ("events", "note", "idle"),
    [
        ([QueuesFound((Q,), (), managed=True)], "connecting", False),
        ([QueueOpened(Q)], "", True),
        ([QueueOpened(Q), QueueDepths(Q, 0)], "", True),
        ([QueueOpened(Q), QueueDepths(Q, 1)], "", False),
        ([QueueOpened(Q), progress(1, 0)], "", False),
        ([QueueOpened(Q), QueueDone(Q)], "done", True),
        ([QueueOpened(Q), RESTS], "waiting for down", False),
        ([QueueOpened(Q), RESTS, DestinationRecovered(Q, "down")], "", True),
        ([QueueOpened(Q), RESTS, BLOCKED], "blocked by down, full", False),
        ([QueueOpened(Q), BLOCKED, progress(0, 0)], "blocked by down, full", False),
        ([QueueOpened(Q), BLOCKED, progress(1, 1)], "", False),  # it has moved of late
        ([QueueOpened(Q), LOCKED, WAITING], f"{IS_LOCKED}, waiting", False),
        ([QueueOpened(Q), WAITING, LOCKED, progress(1, 1)], "", False),
        ([QueueOpened(Q), LOCKED, progress(8, 8, locked=61, locked_until_ms=NOW_MS)], f"{IS_LOCKED}, waiting", False),
        ([QueueOpened(Q), LOCKED, FAILED, QueueOpened(Q)], "", True),
        ([QueueOpened(Q), LOCKED, QueueDone(Q)], "done", True),
        ([QueueOpened(Q), LEFT, QueueDone(Q)], IS_LOCKED, True),
        ([QueueOpened(Q), RESTS, FAILED], "next try in 4 s: unreachable", False),
        ([QueueOpened(Q), RESTS, FAILED, QueueOpened(Q)], "", True),
        ([QueueFailed(Q, "refused", None)], "failed: refused", False),
        (
            [QueueOpened(Q), DeadLettered(Q, 1, "m", "r", "d"), DeadLettered(Q, 2, "n", "r", "d")],
            "2 dead-lettered",
            False,
        ),
        ([DeadLettered(Q, 1, "m", "r", "d"), QueueDone(Q)], "done; 1 dead-lettered", False),
    ],
)
def test_a_queues_row_notes_the_cause_of_its_delay(events: list[SyphonEvent], note: str, idle: bool) -> None:
    found = row(*events)
    assert (found.note, found.idle) == (note, idle)


def test_what_a_lane_had_in_hand_when_it_failed_is_back_in_the_queue() -> None:
    found = row(QueueOpened(Q), QueueDepths(Q, 10), progress(5, 2, oldest_ms=1), FAILED)
    assert (found.remaining, found.held, found.oldest_seconds) == (None, 0, None)
    [kept] = board(QueueOpened(Q), QueueDepths(Q, 10), progress(5, 2), AWAY).view(0.0, NOW_MS).queues
    assert (kept.remaining, kept.note) == (8, "waiting for the primary")


def test_an_unreachable_namespace_is_one_notice_until_a_queue_is_open() -> None:
    other = QueueFailed("q1", "connection refused 127.0.0.1:5671", 17.0, side="primary")
    made = board(QueueOpened(Q), AWAY, now=1.0)
    made.take(other, 5.0)
    assert made.view(6.0, NOW_MS).notices == (
        "primary unreachable since 07:59:55Z, next try in 0 s: connection refused 127.0.0.1:5671",
    )
    made.take(QueueFailed(Q, "connection refused 127.0.0.1:5671", 30.0, side="primary"), 6.0)
    assert "next try in 16 s" in made.view(6.0, NOW_MS).notices[0]
    made.take(QueueFailed(Q, "still refused", 1.0, NOW_MS - 60_000, "primary"), 7.0)
    [notice] = made.view(7.0, NOW_MS).notices
    assert notice == "primary unreachable since 07:59:00Z, trying each second: still refused"
    made.take(QueueOpened(Q), 8.0)
    assert made.view(8.0, NOW_MS).notices == ()
    made.take(AWAY, 9.0)
    made.take(QueueFailed(Q, "the queue does not exist", None), 10.0)
    assert made.view(10.0, NOW_MS).notices == ()


def test_a_limit_at_work_is_a_notice_while_it_holds() -> None:
    made = board(LimitChanged(500.0, "--credits 50%"))
    assert made.view(0.0, NOW_MS).notices == ("limited to 500 messages/s by --credits 50%",)
    made.take(LimitChanged(None, None), 1.0)
    assert made.view(1.0, NOW_MS).notices == ()


def test_dead_letters_have_a_row_with_destination_and_reason() -> None:
    dead = [DeadLettered(Q, number, "m", "DestinationNotFound", "'Gone' does not exist", "Gone") for number in (1, 2)]
    assert destination(*dead) == DestinationRow(
        "Gone", dead_letters=2, dead_reason="DestinationNotFound: 'Gone' does not exist"
    )
    assert destination(*dead).note == "2 dead-lettered: DestinationNotFound: 'Gone' does not exist"
    assert destination(DeadLettered(Q, 1, "m", "Invalid", "no path")).destination == OTHER_DESTINATIONS


def test_invalid_paths_of_poison_messages_do_not_fill_the_memory() -> None:
    made = board(*(DeadLettered(Q, at, "m", "Invalid", "why", f"path-{at}") for at in range(2 * MAX_DESTINATIONS)))
    assert len(made.view(0.0, NOW_MS).destinations) == MAX_DESTINATIONS + 1


def test_an_empty_board_names_what_it_waits_for() -> None:
    made = Board(0.0, "connecting to contoso")
    assert made.view(1.0, NOW_MS).notices == ("connecting to contoso",)
    made.take(QueuesFound((Q,), (), managed=True), 2.0)
    assert made.view(2.0, NOW_MS).notices == ()


def test_the_next_try_comes_nearer() -> None:
    made = board(QueueOpened(Q), FAILED, RESTS)
    assert made.view(1.0, NOW_MS).queues[0].note == "next try in 3 s: unreachable"
    assert made.view(60.0, NOW_MS).queues[0].note == "next try in 0 s: unreachable"
    assert made.view(2.0, NOW_MS).destinations[0].note == "retrying in 6 s, 12 waiting: it is away"


def test_a_destination_recovers_once_it_recovered_for_every_queue() -> None:
    other = DestinationBackingOff("q1", "Down", "it is full", 5.0, 30)
    assert board(RESTS, other).view(1.0, NOW_MS).destinations == (
        DestinationRow("down", waiting=42, backing_off="it is full", retry_seconds=4.0),
    )
    half = [RESTS, other, DestinationRecovered("q1", "DOWN")]
    assert destination(*half).backing_off == "it is away"
    assert destination(*half, DestinationRecovered(Q, "down")).note == ""
    assert destination(RESTS, DestinationProgress("down", 3, 99)).waiting == 99


def test_a_destination_of_a_lane_that_has_failed_does_not_rest() -> None:
    assert destination(QueueOpened(Q), RESTS, FAILED).backing_off == ""


def test_ten_comes_behind_nine_and_the_total_is_of_all() -> None:
    names = [f"c/t/{number}" for number in (10, 2, 9)] + ["other"]
    made = board(*(QueueProgress(name, 5, 4, 1) for name in names), *(QueueDepths(name, 7) for name in names))
    view = made.view(0.0, NOW_MS)
    assert [each.queue for each in view.queues] == ["other", "c/t/2", "c/t/9", "c/t/10"]
    total = view.total
    assert (total.remaining, total.received, total.sent, total.held) == (28, 20, 16, 4)


def test_a_view_of_nothing_is_no_mistake() -> None:
    assert Board(1.0).view(3.0, NOW_MS) == BoardView((), (), 2.0)
    assert Board(1.0).view(3.0, NOW_MS).total == QueueRow("total")


@pytest.mark.parametrize(
    ("state", "sent", "after", "notice"),
    [
        ("sending", 1, 2.0, "ramp step 2 of 3: 4 of 10 messages sent"),
        ("observing", 10, 12.5, "ramp step 2 of 3: 10 messages sent, observing dead letters for 18s more"),
        ("observing", 1, 90.0, "ramp step 2 of 3: 1 message sent, observing dead letters for 0s more"),
        ("stopped", 10, 1.0, "ramp step 2 of 3: 10 messages sent, stopped: dead letters came"),
        ("passed", 10, 1.0, "ramp step 2 of 3: passed"),
    ],
)
def test_notice_has_the_step_of_a_ramp(state: str, sent: int, after: float, notice: str) -> None:
    made = Board(0.0)
    made.take(RampProgress(2, 3, 10, sent, state, 30.0), 5.0)
    made.take(QueueProgress("q", 4, 4, 0), 6.0)
    assert made.view(5.0 + after, 0).notices == (notice,)


PATH = "contoso/x-servicebus-transfer/"
DRAIN = ReplayPhase("drain", "draining")


def drawn(view: PhaseView, width: int = 80, lines: int = 24) -> list[str]:
    console = Console(file=StringIO(), width=width, color_system=None, force_terminal=False)
    with console.capture() as captured:
        console.print(draw_phase(view, width, lines))
    return [line.rstrip() for line in captured.get().splitlines()]


def phase_board(*events: Expected | PhaseProgress, at: float = 0.0) -> PhaseBoard:
    made = PhaseBoard(0.0)
    made.begin(DRAIN, 0.0)
    for event in events:
        made.expect(event) if isinstance(event, Expected) else made.take(event, at)
    return made


def test_expected_queues_are_shown_at_once_in_numerical_order() -> None:
    made = phase_board(Expected("drain", {f"{PATH}{index}": 5 for index in (10, 9, 0)}))
    view = made.view(1.0)
    assert [row.name for row in view.rows] == [f"{PATH}0", f"{PATH}9", f"{PATH}10"]
    assert view.total == PhaseRow("total", 0, 15, 0.0)


def test_how_fast_it_goes_leaves_out_what_an_earlier_run_had_done() -> None:
    made = phase_board(
        Expected("drain", {f"{PATH}0": 2_000}), PhaseProgress("drain", 1_000, 1, {f"{PATH}0": 1_000}), at=1.0
    )
    assert made.view(2.0).total.per_second == 0.0
    made.take(PhaseProgress("drain", 1_500, 2, {f"{PATH}0": 1_500}), 6.0)
    row = made.view(6.0).total
    assert (row.done, row.per_second, row.eta_seconds) == (1_500, 100.0, 5.0)


def test_a_phase_without_a_count_has_no_total_and_no_eta() -> None:
    made = phase_board(PhaseProgress("drain", 5, 1, {f"{PATH}0": 5}))
    made.take(PhaseProgress("drain", 50, 1, {f"{PATH}0": 50}), 9.0)
    assert (made.view(9.0).total.whole, made.view(9.0).total.eta_seconds) == (None, None)


def test_another_phase_begins_anew_and_a_stop_is_none() -> None:
    made = phase_board(PhaseProgress("drain", 5, 1, {f"{PATH}0": 5}))
    made.begin(ReplayPhase("stop", "finishing"), 2.0)
    assert (made.view(3.0).phase, made.view(3.0).seconds) == ("drain", 3.0)
    made.begin(ReplayPhase("send", "sending"), 4.0)
    made.take(PhaseProgress("drain", 9, 2, {f"{PATH}0": 9}), 4.5)
    view = made.view(5.0)
    assert (view.phase, view.heading, view.rows, view.seconds) == ("send", "DESTINATION", (), 1.0)


def test_a_drawing_has_a_bar_a_queue_and_their_total() -> None:
    rows = (PhaseRow(f"{PATH}0", 250, 500, 125.0), PhaseRow(f"{PATH}1", 7, None, 0.0))
    lines = drawn(PhaseView("drain", "QUEUE", rows, 65.0))
    assert lines[0].split() == ["QUEUE", "DONE", "OF", "MSG/S", "ETA"]
    assert lines[1].split() == ["…/0", "━" * 8, "250", "500", "125", "2s"]
    assert lines[2].split() == ["…/1", "7"]
    assert lines[3].split() == ["total", "257", "125"]
    assert lines[4] == "drain 1m 5s - Ctrl-C to stop"


def test_a_phase_without_rows_is_named_all_the_same() -> None:
    assert drawn(PhaseView("spark", "DESTINATION", (), 7.4)) == ["spark 7s - Ctrl-C to stop"]


rows = st.builds(
    PhaseRow,
    st.text(min_size=1, max_size=300),
    st.integers(0, 10**12),
    st.none() | st.integers(0, 10**12),
    st.floats(0, 1e6),
)


@settings(max_examples=40, deadline=None)
@given(st.lists(rows, max_size=60, unique_by=lambda row: row.name), st.integers(40, 200), st.integers(6, 60))
def test_a_drawing_fits_and_obeys_no_message(found: list[PhaseRow], width: int, lines: int) -> None:
    printed = drawn(PhaseView("send", "DESTINATION", tuple(found), 1.0), width, lines)
    assert len(printed) <= lines
    assert all(character.isprintable() for line in printed for character in line)


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("sbpair.cli.progress.replay_progress.REPORT_SECONDS", 0.0)

    def tell(kind: type[ReplayProgress], log_format: LogFormat) -> list[str]:
        with kind(Screen(Display(log_format=log_format))) as phases:
            phases(ReplayPhase("check", "run r1: checking", "r1"))
            phases(DRAIN)
            phases(Expected("drain", {f"{PATH}0": 10}))
            phases(PhaseProgress("drain", 0, 0, {}))
            phases(PhaseProgress("drain", 4, 1, {f"{PATH}0": 4}))
            phases(PhaseProgress("drain", 4, 1, {f"{PATH}0": 4}))
        err = capsys.readouterr().err
        return (err if log_format is LogFormat.JSON else command.untimed(err)).splitlines()

    return tell


def test_the_figures_of_a_phase_are_reported_at_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    for kind in (ReplayProgress, LiveReplayProgress):
        phases = kind(Screen(Display()))
        for event in (DRAIN, Expected("drain", {f"{PATH}0": 10}), PhaseProgress("drain", 10, 1, {f"{PATH}0": 10})):
            phases(event)
        phases(ReplayPhase("plan", "planning"))
        phases(ReplayPhase("plan", "checking 1 destination"))
        lines = command.untimed(capsys.readouterr().err).splitlines()
        assert lines == ["draining", "drain: 10 of 10 messages, 0 a second", "planning", "checking 1 destination"]


def test_what_comes_at_once_after_an_empty_sample_has_a_rate() -> None:
    made = phase_board(Expected("drain", {f"{PATH}0": 2_000}), PhaseProgress("drain", 0, 0, {}), at=1.0)
    made.take(PhaseProgress("drain", 1_000, 1, {f"{PATH}0": 1_000}), 5.0)
    row = made.view(5.0).total
    assert (row.per_second, row.eta_seconds) == (200.0, 5.0)


def test_elsewhere_there_are_lines_of_json_where_something_has_changed(printed: Any) -> None:
    lines = [json.loads(line) for line in printed(JsonReplayProgress, LogFormat.JSON)]
    assert [line["event"] for line in lines] == ["phase", "phase", "progress", "progress"]
    assert all(line["schema"] == "sbpair/replay-event/1" for line in lines)
    assert (lines[0]["phase"], lines[0]["run"], lines[0]["text"]) == ("check", "r1", "run r1: checking")
    assert [(line["queue"], line["messages"], line["of"]) for line in lines[2:]] == [(None, 4, 10), (f"{PATH}0", 4, 10)]


def test_locked_messages_are_a_warning_or_a_line_for_each_queue(capsys: pytest.CaptureFixture[str]) -> None:
    until_ms = 1_795_000_000_000
    found = LocksFound(tuple(MessagesLocked(f"{PATH}{index}", 3, until_ms, True, False) for index in range(2)))
    JsonReplayProgress(Screen(Display(log_format=LogFormat.JSON)))(found)
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(line["event"], line["level"], line["queue"], line["locked"]) for line in lines] == [
        ("messages-locked", "warning", f"{PATH}{index}", 3) for index in range(2)
    ]
    assert {(line["until_ms"], line["waiting"], line["overdue"]) for line in lines} == {(until_ms, True, False)}
    ReplayProgress(Screen(Display()))(found)
    [line] = command.untimed(capsys.readouterr().err).splitlines()
    assert line.startswith("warning: 6 messages in 2 backlog queues are locked")
    assert "--no-wait-for-locks" in line


def test_in_words_a_phase_is_a_line(printed: Any) -> None:
    lines = printed(ReplayProgress, LogFormat.TEXT)
    assert lines == ["run r1: checking", "draining", "drain: 4 of 10 messages, 8 a second, about 1s to go"]
