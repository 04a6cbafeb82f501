"""The live table on a terminal: the rows that fit, and figures in words. Drawings are in `stories.txt`."""

import io
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbpair.cli.options.common import Display
from sbpair.cli.progress.boards import BoardView, DestinationRow, QueueRow
from sbpair.cli.progress.live_table import LiveTable, fit, number, rate
from sbpair.cli.progress.reporting import LineProgress
from sbpair.cli.render.screen import Screen

rows = st.builds(
    QueueRow,
    st.just("q"),
    remaining=st.none() | st.integers(0, 10**12),
    sent=st.integers(0, 10**12),
    per_second=st.floats(0, 1e6),
    note=st.sampled_from(["", "why"]),
    idle=st.booleans(),
)


@given(st.lists(rows, max_size=60), st.integers(0, 60), st.integers(12, 60))
def test_whatever_there_is_fits_and_every_queue_is_shown_or_folded(
    queues: list[QueueRow], destinations: int, lines: int
) -> None:
    named = tuple(replace(each, queue=f"q/{at}") for at, each in enumerate(queues))
    view = BoardView(named, tuple(DestinationRow(f"d{at}") for at in range(destinations)), 0.0)
    shown = fit(view, lines)
    assert {*shown.queues, *shown.folded} == set(named)
    assert not {*shown.queues} & {*shown.folded}
    assert len(shown.destinations) + shown.more_destinations == destinations
    height = 3 + len(shown.queues) + bool(shown.folded)
    if destinations:
        height += 2 + len(shown.destinations) + bool(shown.more_destinations)
    assert height <= lines
    if any(each.idle for each in shown.queues):
        assert not shown.folded  # nothing idle stands where something else would have


@pytest.mark.parametrize(
    ("count", "text"),
    [
        *((0, "0"), (99_999, "99999"), (100_000, "100k"), (123_456, "123k"), (999_499, "999k"), (999_500, "1.0M")),
        *((1_234_567, "1.2M"), (99_949_999, "99.9M"), (100_000_000, "100M"), (10**12, "1.0T")),
    ],
)
def test_a_large_count_is_abbreviated_in_a_narrow_column(count: int, text: str) -> None:
    assert number(count, wide=False) == text
    assert number(count, wide=True) == str(count)


@given(st.integers(0, 10**13))
def test_a_count_never_takes_more_than_six_characters(count: int) -> None:
    assert len(number(count, wide=False)) <= 6


@pytest.mark.parametrize(
    ("per_second", "text"), [(0.0, ""), (0.04, "<0.1"), (9.94, "9.9"), (9.99, "10"), (820.4, "820")]
)
def test_a_rate_in_figures(per_second: float, text: str) -> None:
    assert rate(per_second) == text


@pytest.mark.parametrize(
    "drawing",
    [
        lambda: LiveTable(lambda: "seen", lambda seen, *_: seen),
        lambda: LineProgress(Screen(Display()), "connecting", animated=True),
    ],
)
def test_a_line_above_a_drawing_is_wrapped_by_the_terminal_alone(
    drawing: Callable[[], AbstractContextManager[object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal, line = io.StringIO(), "hint: sbpair replay resume r1 --archive /srv/archives/of-contoso/2026-11"
    monkeypatch.setenv("COLUMNS", "30")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setattr(sys, "stderr", terminal)
    with drawing():
        sys.stderr.write(f"{line}\n")
    assert line in terminal.getvalue()


def test_what_goes_to_a_file_is_not_drawn_on_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, file = io.StringIO(), io.StringIO()
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(sys, "stdout", file)
    screen = Screen(Display())
    with LineProgress(screen, "peeking", animated=True):
        screen.write("a line of a copy")
    assert file.getvalue() == "a line of a copy\n"
    assert "a line of a copy" not in terminal.getvalue()
