"""Events of a mover and phases of a replay as rows of a table, and the lines that a replay prints."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbpair.cli.options.common import Display, LogFormat
from sbpair.cli.progress.boards import (
    MAX_DESTINATIONS,
    Board,
    PhaseRow,
    PhaseView,
    QueueRow,
)
from sbpair.cli.progress.live_table import draw_phase
from sbpair.cli.progress.replay_progress import JsonReplayProgress, LiveReplayProgress, ReplayProgress
from sbpair.cli.render.screen import Screen
from sbpair.move.events import (
    DeadLettered,
    MessagesLocked,
    QueueDepths,
    QueueProgress,
    SyphonEvent,
)
from sbpair.replay.progress import Expected, LocksFound, PhaseProgress, ReplayPhase
from tests.cli.test_stories import drawn
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


def progress(received: int, gone: int, **changed: Any) -> QueueProgress:
    return QueueProgress(
        **{"queue": Q, "received": received, "sent": gone, "held": received - gone, "gone": gone} | changed
    )


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


def test_invalid_paths_of_poison_messages_do_not_fill_the_memory() -> None:
    made = board(*(DeadLettered(Q, at, "m", "Invalid", "why", f"path-{at}") for at in range(2 * MAX_DESTINATIONS)))
    assert len(made.view(0.0, NOW_MS).destinations) == MAX_DESTINATIONS + 1


PATH = "contoso/x-servicebus-transfer/"
DRAIN = ReplayPhase("drain", "draining")


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
    drawn(draw_phase(PhaseView("send", "DESTINATION", tuple(found), 1.0), width, lines), width, lines)


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
