"""Progress of a replay, on a terminal and elsewhere."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from sbpair.cli.options.common import Display, LogFormat
from sbpair.cli.progress.boards import PhaseBoard, PhaseRow, PhaseView
from sbpair.cli.progress.live_table import draw_phase
from sbpair.cli.progress.replay_progress import JsonReplayProgress, LiveReplayProgress, ReplayProgress
from sbpair.cli.render.screen import Screen
from sbpair.move.events import MessagesLocked
from sbpair.replay.progress import Expected, LocksFound, PhaseProgress, ReplayPhase
from tests.kit import command

Q = "contoso/x-servicebus-transfer/"
DRAIN = ReplayPhase("drain", "draining")


def drawn(view: PhaseView, width: int = 80, lines: int = 24) -> list[str]:
    console = Console(file=StringIO(), width=width, color_system=None, force_terminal=False)
    with console.capture() as captured:
        console.print(draw_phase(view, width, lines))
    return [line.rstrip() for line in captured.get().splitlines()]


def board(*events: Expected | PhaseProgress, at: float = 0.0) -> PhaseBoard:
    made = PhaseBoard(0.0)
    made.begin(DRAIN, 0.0)
    for event in events:
        made.expect(event) if isinstance(event, Expected) else made.take(event, at)
    return made


def test_expected_queues_are_shown_at_once_in_numerical_order() -> None:
    made = board(Expected("drain", {f"{Q}{index}": 5 for index in (10, 9, 0)}))
    view = made.view(1.0)
    assert [row.name for row in view.rows] == [f"{Q}0", f"{Q}9", f"{Q}10"]
    assert view.total == PhaseRow("total", 0, 15, 0.0)


def test_how_fast_it_goes_leaves_out_what_an_earlier_run_had_done() -> None:
    made = board(Expected("drain", {f"{Q}0": 2_000}), PhaseProgress("drain", 1_000, 1, {f"{Q}0": 1_000}), at=1.0)
    assert made.view(2.0).total.per_second == 0.0
    made.take(PhaseProgress("drain", 1_500, 2, {f"{Q}0": 1_500}), 6.0)
    row = made.view(6.0).total
    assert (row.done, row.per_second, row.eta_seconds) == (1_500, 100.0, 5.0)


def test_a_phase_without_a_count_has_no_total_and_no_eta() -> None:
    made = board(PhaseProgress("drain", 5, 1, {f"{Q}0": 5}))
    made.take(PhaseProgress("drain", 50, 1, {f"{Q}0": 50}), 9.0)
    assert (made.view(9.0).total.whole, made.view(9.0).total.eta_seconds) == (None, None)


def test_another_phase_begins_anew_and_a_stop_is_none() -> None:
    made = board(PhaseProgress("drain", 5, 1, {f"{Q}0": 5}))
    made.begin(ReplayPhase("stop", "finishing"), 2.0)
    assert (made.view(3.0).phase, made.view(3.0).seconds) == ("drain", 3.0)
    made.begin(ReplayPhase("send", "sending"), 4.0)
    made.take(PhaseProgress("drain", 9, 2, {f"{Q}0": 9}), 4.5)
    view = made.view(5.0)
    assert (view.phase, view.heading, view.rows, view.seconds) == ("send", "DESTINATION", (), 1.0)


def test_a_drawing_has_a_bar_a_queue_and_their_total() -> None:
    rows = (PhaseRow(f"{Q}0", 250, 500, 125.0), PhaseRow(f"{Q}1", 7, None, 0.0))
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
            phases(Expected("drain", {f"{Q}0": 10}))
            phases(PhaseProgress("drain", 0, 0, {}))
            phases(PhaseProgress("drain", 4, 1, {f"{Q}0": 4}))
            phases(PhaseProgress("drain", 4, 1, {f"{Q}0": 4}))
        err = capsys.readouterr().err
        return (err if log_format is LogFormat.JSON else command.untimed(err)).splitlines()

    return tell


def test_the_figures_of_a_phase_are_reported_at_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    for kind in (ReplayProgress, LiveReplayProgress):
        phases = kind(Screen(Display()))
        for event in (DRAIN, Expected("drain", {f"{Q}0": 10}), PhaseProgress("drain", 10, 1, {f"{Q}0": 10})):
            phases(event)
        phases(ReplayPhase("plan", "planning"))
        phases(ReplayPhase("plan", "checking 1 destination"))
        lines = command.untimed(capsys.readouterr().err).splitlines()
        assert lines == ["draining", "drain: 10 of 10 messages, 0 a second", "planning", "checking 1 destination"]


def test_what_comes_at_once_after_an_empty_sample_has_a_rate() -> None:
    made = board(Expected("drain", {f"{Q}0": 2_000}), PhaseProgress("drain", 0, 0, {}), at=1.0)
    made.take(PhaseProgress("drain", 1_000, 1, {f"{Q}0": 1_000}), 5.0)
    row = made.view(5.0).total
    assert (row.per_second, row.eta_seconds) == (200.0, 5.0)


def test_elsewhere_there_are_lines_of_json_where_something_has_changed(printed: Any) -> None:
    lines = [json.loads(line) for line in printed(JsonReplayProgress, LogFormat.JSON)]
    assert [line["event"] for line in lines] == ["phase", "phase", "progress", "progress"]
    assert all(line["schema"] == "sbpair/replay-event/1" for line in lines)
    assert (lines[0]["phase"], lines[0]["run"], lines[0]["text"]) == ("check", "r1", "run r1: checking")
    assert [(line["queue"], line["messages"], line["of"]) for line in lines[2:]] == [(None, 4, 10), (f"{Q}0", 4, 10)]


def test_locked_messages_are_a_warning_or_a_line_for_each_queue(capsys: pytest.CaptureFixture[str]) -> None:
    until_ms = 1_795_000_000_000
    found = LocksFound(tuple(MessagesLocked(f"{Q}{index}", 3, until_ms, True, False) for index in range(2)))
    JsonReplayProgress(Screen(Display(log_format=LogFormat.JSON)))(found)
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(line["event"], line["level"], line["queue"], line["locked"]) for line in lines] == [
        ("messages-locked", "warning", f"{Q}{index}", 3) for index in range(2)
    ]
    assert {(line["until_ms"], line["waiting"], line["overdue"]) for line in lines} == {(until_ms, True, False)}
    ReplayProgress(Screen(Display()))(found)
    [line] = command.untimed(capsys.readouterr().err).splitlines()
    assert line.startswith("warning: 6 messages in 2 backlog queues are locked")
    assert "--no-wait-for-locks" in line


def test_in_words_a_phase_is_a_line(printed: Any) -> None:
    lines = printed(ReplayProgress, LogFormat.TEXT)
    assert lines == ["run r1: checking", "draining", "drain: 4 of 10 messages, 8 a second, about 1s to go"]
