"""A live table on a terminal, in its current size.

A thread of its own draws it: a terminal that is paused (Ctrl-S) does not delay messages.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

from rich import live as rich_live
from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from sbpair.cli.progress.boards import BoardView, DestinationRow, PhaseRow, PhaseView, QueueRow, together
from sbpair.cli.render.screen import clean, spoken

REFRESH_SECONDS = 0.5
WIDE = 120
"""From this width, whole paths and whole numbers fit."""

MIN_LINES = 6
"""Below this height, only the queues fit."""

CLOSE_SECONDS = 2.0
BAR_WIDTH, BAR_WIDTH_WIDE = 16, 32

Row = TypeVar("Row", QueueRow, DestinationRow, PhaseRow)
Seen = TypeVar("Seen")


@dataclass(frozen=True, slots=True)
class FittingRows:
    """The rows that fit. The others are `folded`, or only counted."""

    queues: tuple[QueueRow, ...]
    folded: tuple[QueueRow, ...]
    destinations: tuple[DestinationRow, ...]
    more_destinations: int


def fit(view: BoardView, lines: int) -> FittingRows:
    """Return the rows of a view that fit into `lines`; active rows and those with problems come first."""
    queues, destinations = view.queues, view.destinations
    room = lines - 3  # the heading, the total and the foot
    if room < MIN_LINES:
        destinations = ()
    all_of_them = len(destinations)
    if destinations:
        room -= 2
        limit = max(2, room - len(queues), room // 3)
        room -= min(limit, all_of_them)
        if all_of_them > limit:
            destinations = _foremost(destinations, limit - 1, _by_trouble)
    if len(queues) > room:
        queues = _foremost(tuple(row for row in queues if not row.idle), room - 1, _by_note)
    folded = tuple(row for row in view.queues if row not in queues)
    return FittingRows(queues, folded, destinations, all_of_them - len(destinations))


def _by_trouble(row: DestinationRow) -> tuple[float, ...]:
    return not row.backing_off, -row.per_second, -row.sent


def _by_note(row: QueueRow) -> tuple[float, ...]:
    return not row.note, -row.per_second, -(row.remaining or 0)


def _foremost(rows: tuple[Row, ...], limit: int, key: Callable[[Row], tuple[float, ...]]) -> tuple[Row, ...]:
    """Return the first `limit` rows by `key`, in their original order."""
    chosen = sorted(rows, key=key)[: max(0, limit)]
    return tuple(row for row in rows if row in chosen)


def draw_board(view: BoardView, width: int, lines: int) -> RenderableType:
    """Return a view as a drawing."""
    shown, wide = fit(view, lines), width >= WIDE
    parts: list[RenderableType] = [_queues(view, shown, wide=wide)]
    if shown.destinations or shown.more_destinations:
        parts += [Text(), _destinations(shown, wide=wide)]
    # The terminal echoes Ctrl-C behind this line, so it is short.
    parts.append(Text(f"running {spoken(view.seconds)} - Ctrl-C to stop", "dim"))
    return Group(*parts)


def _queues(view: BoardView, shown: FittingRows, *, wide: bool) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), expand=True, pad_edge=False)
    table.add_column("QUEUE", no_wrap=True, overflow="ellipsis", min_width=5)
    _add_figures(table, "LEFT", "RECEIVED" if wide else "RECVD", "SENT", "MSG/S", "ETA", "OLDEST", "HELD")
    table.add_column("", no_wrap=True, overflow="ellipsis", ratio=1)
    for row in shown.queues:
        table.add_row(*_cells(row, wide=wide), style="dim" if row.idle else None)
    if shown.folded:
        what = "idle" if all(row.idle for row in shown.folded) else "more"
        table.add_row(*_cells(together(f"+ {len(shown.folded)} {what}", shown.folded), wide=wide), style="dim")
    table.add_row(*_cells(view.total, wide=wide), style="bold")
    return table


def _cells(row: QueueRow, *, wide: bool) -> list[Text]:
    left = "" if row.remaining is None else ("" if row.exact else "~") + number(row.remaining, wide=wide)
    ages = ("" if seconds is None else spoken(seconds) for seconds in (row.eta_seconds, row.oldest_seconds))
    figures = [left, *(number(each, wide=wide) for each in (row.received, row.sent)), rate(row.per_second), *ages]
    style = "red" if row.note.startswith(("failed", "next try")) else "yellow"
    # Text and not str: what came from a service is not markup.
    return [
        Text(clean(row.queue if wide else _short(row.queue))),
        *map(Text, figures),
        Text(str(row.held) if row.held else ""),
        Text(clean(row.note), "" if row.note.startswith("done") else style),
    ]


def _destinations(shown: FittingRows, *, wide: bool) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), expand=True, pad_edge=False)
    table.add_column("DESTINATION", no_wrap=True, overflow="ellipsis", min_width=16, max_width=60 if wide else 28)
    _add_figures(table, "SENT", "MSG/S")
    table.add_column("", no_wrap=True, overflow="ellipsis", ratio=1)
    for row in shown.destinations:
        cells = (row.destination, number(row.sent, wide=wide), rate(row.per_second))
        table.add_row(*(Text(clean(cell)) for cell in cells), Text(clean(row.note), "yellow"))
    if shown.more_destinations:
        table.add_row(f"+ {shown.more_destinations} more", style="dim")
    return table


def _add_figures(table: Table, *headings: str) -> None:
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)


def draw_phase(view: PhaseView, width: int, lines: int) -> RenderableType:
    """Return a view as a drawing."""
    parts: list[RenderableType] = []
    if view.rows:
        parts.append(_phase_rows(view, lines - 3, wide=width >= WIDE))
    # The terminal echoes Ctrl-C behind this line, so it is short.
    parts.append(Text(f"{view.phase or 'start'} {spoken(view.seconds)} - Ctrl-C to stop", "dim"))
    return Group(*parts)


def _phase_rows(view: PhaseView, room: int, *, wide: bool) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(view.heading, no_wrap=True, overflow="ellipsis", min_width=5)
    table.add_column("", width=BAR_WIDTH_WIDE if wide else BAR_WIDTH)
    _add_figures(table, "DONE", "OF", "MSG/S", "ETA")
    shown = view.rows if len(view.rows) <= room else _foremost(view.rows, room - 1, _by_activity)
    for row in shown:
        table.add_row(*_phase_cells(row, wide=wide))
    folded = [row for row in view.rows if row not in shown]
    if folded:
        table.add_row(*_phase_cells(_together(folded), wide=wide), style="dim")
    table.add_row(*_phase_cells(view.total, wide=wide), style="bold")
    return table


def _by_activity(row: PhaseRow) -> tuple[float, ...]:
    return -row.per_second, (row.whole or 0) <= row.done, -row.done


def _together(rows: list[PhaseRow]) -> PhaseRow:
    total = PhaseView("", "", tuple(rows), 0.0).total
    return PhaseRow(f"+ {len(rows)} more", total.done, total.whole, total.per_second)


def _phase_cells(row: PhaseRow, *, wide: bool) -> list[RenderableType]:
    # Text and not str: what came from a service is not markup.
    name = Text(clean(row.name if wide else _short(row.name)))
    bar: RenderableType = Text()
    if row.whole is not None:
        # Messages enqueued after the count may also be drained.
        bar = ProgressBar(total=row.whole or 1, completed=min(row.done, row.whole) if row.whole else 1)
    whole = "" if row.whole is None else number(row.whole, wide=wide)
    eta = "" if row.eta_seconds is None else spoken(row.eta_seconds)
    return [name, bar, *map(Text, (number(row.done, wide=wide), whole, rate(row.per_second), eta))]


def _short(name: str) -> str:
    return "…" + name[name.rfind("/") :] if "/x-servicebus-transfer/" in name.lower() else name


def number(count: int, *, wide: bool) -> str:
    """Return a count as text, with three digits if space is short."""
    if wide or count < 100_000:
        return str(count)
    scaled, units = count / 1000, iter("kMGTP")
    unit = next(units)
    while scaled >= 999.5:
        scaled, unit = scaled / 1000, next(units)
    return f"{scaled:.0f}{unit}" if scaled >= 99.95 else f"{scaled:.1f}{unit}"


def rate(per_second: float) -> str:
    """Return messages a second as text; a small rate is not 0."""
    if not per_second:
        return ""
    if per_second < 0.05:
        return "<0.1"
    return f"{per_second:.1f}" if per_second < 9.95 else f"{per_second:.0f}"


class LiveTable(Generic[Seen]):
    """Draws the result of `sample` on stderr at intervals, and removes the drawing at the end.

    `draw` receives the sample, the width and the number of lines.
    """

    def __init__(self, sample: Callable[[], Seen], draw: Callable[[Seen, int, int], RenderableType]) -> None:
        self._sample = sample
        self._draw = draw
        self._console = Console(stderr=True)
        self._size = self._console.size
        self._live = rich_live.Live(
            get_renderable=self._drawing,
            console=self._console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
        )
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="draw", daemon=True)

    def __enter__(self) -> "LiveTable[Seen]":
        self._live.start()
        self._thread.start()
        return self

    def __exit__(self, *_details: object) -> None:
        self._ended.set()
        self._thread.join(CLOSE_SECONDS)
        if not self._thread.is_alive():
            with suppress(OSError):  # the terminal has gone
                self._live.stop()

    def _run(self) -> None:
        try:
            while not self._ended.wait(REFRESH_SECONDS):
                self._refresh()
        except OSError:
            return  # the terminal has gone

    def _refresh(self) -> None:
        size = self._console.size
        if size != self._size:
            # The terminal has rewrapped the old drawing onto an unknown number of lines.
            self._live.stop()
            self._console.clear()
            self._live.start()
            self._size = size
        self._live.refresh()

    def _drawing(self) -> RenderableType:
        return self._draw(self._sample(), self._console.width, self._console.height - 1)
