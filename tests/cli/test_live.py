"""The live table on a terminal: the rows that fit, and golden drawings.

`python tests/cli/test_live.py` writes them again.
"""

from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from sbpair.cli.progress.boards import BoardView, DestinationRow, PhaseRow, PhaseView, QueueRow
from sbpair.cli.progress.live_table import WIDE, draw_board, draw_phase, fit, number, rate
from sbpair.cli.progress.move_progress import progress_text
from sbpair.cli.render.table import cut

DRAWINGS = Path(__file__).parent / "drawings"
PATH = "contoso/x-servicebus-transfer/"
WHY = "link to 'billing/\x1b[31minvoices': The messaging entity is not available. Please retry the operation."
MISSING = "DestinationNotFound: queue or topic 'fulfilment/customers/europe/orders-completed' does not exist"

SOME = BoardView(
    (
        QueueRow(
            f"{PATH}0", 1_234_567, False, 765_433, 764_433, 5_123.4, 93_784.0, 1_000, "blocked by billing/invoices"
        ),
        QueueRow(f"{PATH}1", 12, False, 100, 90, 2.34, 61.0, 10, "waiting for billing/invoices; 3 dead-lettered"),
        QueueRow(f"{PATH}2", 7, True, note="next try in 12 s: contoso-dr.servicebus.windows.net cannot be reached"),
        QueueRow(f"{PATH}3", 0, True, 5, 5, note="done", idle=True),
        QueueRow(f"{PATH}4", 0, True, idle=True),
    ),
    (
        DestinationRow("billing/invoices", 12, 0.0, 1_010, WHY, 11.2),
        DestinationRow("orders", 764_511, 5_125.7),
        DestinationRow("a/path/that/is/rather/long/and/goes/on/for/longer/than/a/narrow/terminal", 3),
    ),
    754.0,
)
AWAY = BoardView(
    tuple(QueueRow(f"{PATH}{each}", None, True, 120, 110, note="waiting for the secondary") for each in range(10)),
    (
        DestinationRow("orders", 1_100),
        DestinationRow("fulfilment/customers/europe/orders-completed", 0, dead_letters=628, dead_reason=MISSING),
    ),
    61.0,
    (
        "secondary unreachable since 18:01:07Z, next try in 17 s: connection refused 127.0.0.1:5671",
        "limited to 500 messages/s by --credits 50%",
    ),
)
START = BoardView((), (), 3.0, ("connecting to contoso-dr and contoso",))
LOCKED = BoardView(
    (
        QueueRow(
            f"{PATH}0",
            960,
            received=19_040,
            sent=19_040,
            note="960 locked, until 18:01:07Z at the latest, waiting",
            locked=960,
            locked_until_ms=1_785_348_067_000,
            locked_seconds=42.0,
        ),
        QueueRow(f"{PATH}1", 0, True, 5, 5, note="done", idle=True),
    ),
    (),
    61.0,
)
UNCOUNTED = BoardView((QueueRow(f"{PATH}0", None, True, 3, 2, 0.3, 4.0, 1), QueueRow(f"{PATH}1", idle=True)), (), 8.0)
MANY = BoardView(
    tuple(
        QueueRow(f"{PATH}{each}", each % 3, True, each, each, float(each % 3), idle=each % 3 == 0) for each in range(40)
    ),
    tuple(DestinationRow(f"d{each}", each, backing_off="why" if each == 3 else "") for each in range(50)),
    1.0,
)
REPLAY = PhaseView(
    "send",
    "DESTINATION",
    (
        PhaseRow("billing/customers/europe/north/invoices-of-the-year-before-the-last-one", 12_345, 20_000, 1_234.5),
        PhaseRow("orders", 1_234_567, 2_345_678, 2_345.6),
        PhaseRow("shipments", 7, None, 0.0),
    ),
    125.0,
)
SIZES = ((80, 24), (100, 30), (160, 50), (40, 10))
CASES: dict[str, tuple[BoardView | PhaseView, int, int]] = {
    **{f"syphon-{w}x{h}": (SOME, w, h) for w, h in SIZES},
    **{f"away-{w}x{h}": (AWAY, w, h) for w, h in SIZES},
    **{f"replay-{w}x{h}": (REPLAY, w, h) for w, h in SIZES},
    "locked-80x24": (LOCKED, 80, 24),
    "locked-160x50": (LOCKED, 160, 50),
    "locked-40x10": (LOCKED, 40, 10),
    "low": (SOME, 80, 10),
    "uncounted": (UNCOUNTED, 80, 24),
    "many": (MANY, 80, 24),
    "start": (START, 80, 24),
    "stopping": (replace(SOME, is_stopping=True), 80, 24),
}


def drawn(name: str) -> str:
    view, width, lines = CASES[name]
    console = Console(file=StringIO(), width=width, color_system=None, force_terminal=False)
    with console.capture() as captured:
        console.print(draw_board(view, width, lines) if isinstance(view, BoardView) else draw_phase(view, width, lines))
    return "".join(f"{line.rstrip()}\n" for line in captured.get().splitlines())


@pytest.mark.parametrize("name", CASES)
def test_a_drawing_is_as_it_was_last_agreed(name: str) -> None:
    found = drawn(name)
    assert found == (DRAWINGS / f"{name}.txt").read_text(), "if it should change: python tests/cli/test_live.py"


@pytest.mark.parametrize("name", CASES)
def test_a_drawing_fits_its_terminal_and_prints_no_control_characters(name: str) -> None:
    _view, width, lines = CASES[name]
    found = drawn(name).splitlines()
    assert len(found) <= lines
    assert all(len(line) <= width for line in found)
    assert all(character.isprintable() for line in found for character in line)


def test_there_is_no_drawing_too_many() -> None:
    assert {path.stem for path in DRAWINGS.glob("*.txt")} == CASES.keys()


def test_a_line_has_the_figures_of_the_whole_run() -> None:
    assert [
        progress_text(view) for view in (START, AWAY, UNCOUNTED, LOCKED, replace(SOME, queues=SOME.queues[:2]))
    ] == [
        "connecting to contoso-dr and contoso",
        f"1100 sent, 628 dead-lettered; {'; '.join(AWAY.notices)}",
        "2 sent, 0 a second",
        "19045 sent, 960 left, waiting for 960 locked messages, until 18:01:07Z at the latest, about 42s to go",
        "764523 sent, ~1234579 left, 5126 a second, about 4m 1s to go, 1 destination unavailable",
    ]


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


def test_a_name_is_cut_in_its_middle() -> None:
    assert [cut("orders-completed", width) for width in (16, 15, 9, 2, 1)] == [
        *("orders-completed", "orders-…mpleted", "orde…eted", "…d", "…")
    ]


@pytest.mark.parametrize("width", [40, 60, 80, 100, 160])
@pytest.mark.parametrize("view", [SOME, AWAY, REPLAY], ids=["syphon", "away", "replay"])
def test_figures_are_whole_at_every_width(view: BoardView | PhaseView, width: int) -> None:
    console = Console(file=StringIO(), width=width, color_system=None, force_terminal=False)
    with console.capture() as captured:
        console.print(draw_board(view, width, 50) if isinstance(view, BoardView) else draw_phase(view, width, 50))
    total = next(line for line in captured.get().splitlines() if line.startswith("total"))
    figure = number(view.total.sent if isinstance(view, BoardView) else view.total.done, wide=width >= WIDE)
    assert figure in total.split()
    assert rate(view.total.per_second) in total


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


def regenerate() -> None:
    """Write every drawing."""
    for name in CASES:
        (DRAWINGS / f"{name}.txt").write_text(drawn(name))


if __name__ == "__main__":
    regenerate()
