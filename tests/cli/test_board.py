"""Rows of moves and replays for any events; `stories.txt` has what certain events show."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbpair.cli.options.common import Display
from sbpair.cli.progress.boards import Board, PhaseRow, PhaseView
from sbpair.cli.progress.live_table import draw_phase
from sbpair.cli.progress.replay_progress import LiveReplayProgress
from sbpair.cli.render.screen import Screen
from sbpair.move.events import (
    DeadLettered,
    QueueDepths,
    QueueProgress,
    SyphonEvent,
)
from sbpair.move.run_state import MAX_DESTINATIONS, RunState
from sbpair.replay.progress import Expected, PhaseProgress, ReplayPhase
from tests.cli.test_stories import drawn
from tests.kit import command

NOW_MS = 1_800_000_000_000
Q = "contoso/x-servicebus-transfer/0"


def board(*events: SyphonEvent) -> tuple[Board, RunState]:
    state = RunState()
    for event in events:
        state.take(event)
    return Board(state, 0.0), state


def progress(received: int, gone: int) -> QueueProgress:
    return QueueProgress(Q, received, gone, received - gone, gone=gone)


@given(st.integers(0, 50), st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20))))
def test_a_reckoned_depth_is_never_less_than_what_is_in_hand(depth: int, steps: list[tuple[int, int]]) -> None:
    (made, state), received, gone = board(QueueDepths(Q, depth)), 0, 0
    for came, went in steps:
        received += came
        gone = min(received, gone + went)
        state.take(progress(received, gone))
        [at] = made.view(0.0, NOW_MS).queues
        assert at.remaining is not None
        assert at.remaining >= at.held
        assert at.exact == (at.remaining == depth)


def test_a_rate_is_that_of_the_last_seconds_and_ends_with_them() -> None:
    made, state = board(QueueDepths(Q, 1_000))
    rates = []
    for second in range(31):
        state.take(progress(min(second, 10) * 20, min(second, 10) * 20))
        [at] = made.view(float(second), NOW_MS).queues
        rates.append(round(at.per_second, 1))
    assert rates[1:11] == [20.0] * 10
    assert rates[15] == 10.0
    assert rates[20:] == [0.0] * 11
    assert rates[10:21] == sorted(rates[10:21], reverse=True)


def test_invalid_paths_of_poison_messages_do_not_fill_the_memory() -> None:
    made, _ = board(*(DeadLettered(Q, at, "m", "Invalid", "why", f"path-{at}") for at in range(2 * MAX_DESTINATIONS)))
    assert len(made.view(0.0, NOW_MS).destinations) == MAX_DESTINATIONS + 1


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


def test_above_live_bars_the_last_figures_of_a_phase_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    phases = LiveReplayProgress(Screen(Display()))
    for event in (ReplayPhase("drain", "draining"), Expected("drain", {Q: 10}), PhaseProgress("drain", 10, 1, {Q: 10})):
        phases(event)
    phases(ReplayPhase("plan", "planning"))
    lines = command.untimed(capsys.readouterr().err).splitlines()
    assert lines == ["draining", "drain: 10 of 10 messages, 0 a second", "planning"]
