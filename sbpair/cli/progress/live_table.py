"""A live table on a terminal, in its current size.

A thread of its own draws it: a terminal that is paused (Ctrl-S) does not delay messages.
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from rich import live as rich_live
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.progress_bar import ProgressBar
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from sbpair.cli.progress.boards import BoardView, DestinationRow, PhaseRow, PhaseView, QueueRow, together
from sbpair.cli.render.screen import clean, spoken
from sbpair.cli.render.table import BACKLOG, Layout, cut, wrapped

REFRESH_SECONDS = 0.5
NARROW, WIDE = 60, 120
"""From WIDE on, whole paths and whole numbers fit; below NARROW, no notes behind the figures."""

MIN_LINES = 6
"""Below this height, only the queues fit."""

CLOSE_SECONDS = 2.0
BAR_WIDTH, BAR_WIDTH_WIDE, MIN_BAR = 16, 32, 4
GAP, MIN_NAME, MIN_NOTE, MIN_WITH_BAR = 2, 9, 12, 40
MAX_NOTICE_LINES = 3

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
    return not row.note, -row.per_second, -row.sent


def _by_note(row: QueueRow) -> tuple[float, ...]:
    return not row.note, -row.per_second, -(row.remaining or 0)


def _foremost(rows: tuple[Row, ...], limit: int, key: Callable[[Row], tuple[float, ...]]) -> tuple[Row, ...]:
    """Return the first `limit` rows by `key`, in their original order."""
    chosen = sorted(rows, key=key)[: max(0, limit)]
    return tuple(row for row in rows if row in chosen)


def draw_board(view: BoardView, width: int, lines: int) -> RenderableType:
    """Return a view as a drawing."""
    wide = width >= WIDE
    notices = [*view.notices, *(_noted(view) if width < NARROW else ())]
    notices = [line for each in notices for line in wrapped(clean(each), layout=Layout(width))[:MAX_NOTICE_LINES]]
    notices = notices[: max(0, lines - MIN_LINES)]
    parts: list[RenderableType] = []
    if view.queues:
        shown = fit(view, lines - len(notices))
        parts.append(_queues(view, shown, width, wide=wide))
        if shown.destinations or shown.more_destinations:
            parts += [Text(), _destinations(shown, width, wide=wide)]
    parts += [Text(each, "yellow") for each in notices]
    # The terminal echoes Ctrl-C behind this line, so it is short.
    state, effect = ("stopping", "stops at once") if view.is_stopping else ("running", "to stop")
    parts.append(Text(f"{state} {spoken(view.seconds)} - Ctrl-C {effect}", "dim"))
    return Group(*parts)


def _noted(view: BoardView) -> list[str]:
    """Return the foremost notes, for tables without room for them."""
    rows = [(row.destination, row.note) for row in sorted(view.destinations, key=_by_trouble)]
    rows += [(_short(row.queue), row.note) for row in sorted(view.queues, key=_by_note) if not row.idle]
    return [f"{name}: {note}" for name, note in rows if note][:1]


@dataclass(frozen=True, slots=True)
class TableRow:
    """A name, figures, and a note, as text. `bar` is the share that is done."""

    name: str
    figures: tuple[str, ...]
    note: Text = field(default_factory=Text)
    style: str | None = None
    bar: float | None = None


def _table(
    heading: str, figures: Sequence[str], rows: Sequence[TableRow], width: int, drop: Sequence[str] = (), bar: int = 0
) -> Table:
    """Return rows as a table that is no wider than `width`: figures stay, names are cut in the middle.

    Where even short names have no room, the figures of `drop` go. Notes and the bar take the room that is left.
    """
    longest = max(len(heading), *(len(row.name) for row in rows))
    sizes = [max(len(each), *(len(row.figures[at]) for row in rows)) for at, each in enumerate(figures)]
    kept = list(range(len(figures)))
    room = width - sum(sizes) - GAP * len(sizes)
    for at in map(figures.index, drop):
        if room < min(longest, MIN_NAME):
            kept.remove(at)
            room += sizes[at] + GAP
    noted = any(row.note for row in rows)
    with_bar = room - GAP - BAR_WIDTH if bar and room >= MIN_WITH_BAR else room
    name_width = max(1, min(longest, room, max(MIN_NAME, 2 * width // 5) if noted else with_bar))
    rest = room - name_width - GAP
    bar = min(bar, rest) if rest >= MIN_BAR else 0
    noted = noted and rest >= MIN_NOTE
    table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False)
    table.add_column(heading, no_wrap=True, overflow="ellipsis", width=name_width)
    if bar:
        table.add_column("", width=bar)
    for at in kept:
        table.add_column(figures[at], justify="right", no_wrap=True, width=sizes[at])
    if noted:
        table.add_column("", no_wrap=True, overflow="ellipsis", width=rest)
    for row in rows:
        # Text and not str: what came from a service is not markup.
        texts = [Text(row.figures[at]) for at in kept]
        done = Text() if row.bar is None else ProgressBar(total=1.0, completed=row.bar)
        cells = [Text(cut(row.name, name_width)), *([done] if bar else ()), *texts, *([row.note] if noted else ())]
        table.add_row(*cells, style=row.style)
    return table


def _queues(view: BoardView, shown: FittingRows, width: int, *, wide: bool) -> Table:
    received = "RECEIVED" if wide else "RECVD"
    figures = ("LEFT", received, "SENT", "MSG/S", "ETA", "OLDEST", "HELD")
    rows = [_queue_row(row, "dim" if row.idle else None, wide=wide) for row in shown.queues]
    if shown.folded:
        what = "idle" if all(row.idle for row in shown.folded) else "more"
        rows.append(_queue_row(together(f"+ {len(shown.folded)} {what}", shown.folded), "dim", wide=wide))
    rows.append(_queue_row(view.total, "bold", wide=wide))
    return _table(view.heading, figures, rows, width, drop=("HELD", "OLDEST", received, "ETA"))


def _queue_row(row: QueueRow, style: str | None, *, wide: bool) -> TableRow:
    left = "" if row.remaining is None else ("" if row.exact else "~") + number(row.remaining, wide=wide)
    ages = ("" if seconds is None else spoken(seconds) for seconds in (row.eta_seconds, row.oldest_seconds))
    counts = (number(each, wide=wide) for each in (row.received, row.sent))
    figures = (left, *counts, rate(row.per_second), *ages, str(row.held) if row.held else "")
    bad = row.note.startswith(("failed", "next try", "waiting for the "))
    note = Text(clean(row.note), "" if row.note.startswith("done") else "red" if bad else "yellow")
    return TableRow(clean(row.queue if wide else _short(row.queue)), figures, note, style)


def _destinations(shown: FittingRows, width: int, *, wide: bool) -> Table:
    rows = [
        TableRow(
            clean(row.destination),
            (number(row.sent, wide=wide), rate(row.per_second)),
            Text(clean(row.note), "red" if row.dead_letters else "yellow"),
        )
        for row in shown.destinations
    ]
    if shown.more_destinations:
        rows.append(TableRow(f"+ {shown.more_destinations} more", ("", ""), style="dim"))
    return _table("DESTINATION", ("SENT", "MSG/S"), rows, width)


def draw_phase(view: PhaseView, width: int, lines: int) -> RenderableType:
    """Return a view as a drawing."""
    parts: list[RenderableType] = []
    if view.rows:
        parts.append(_phase_rows(view, lines - 3, width))
    # The terminal echoes Ctrl-C behind this line, so it is short.
    phase = " ".join(filter(None, (view.state, view.phase or "start")))
    parts.append(Text(f"{phase} {spoken(view.seconds)} - Ctrl-C to stop", "yellow" if view.state else "dim"))
    return Group(*parts)


def _phase_rows(view: PhaseView, room: int, width: int) -> Table:
    wide = width >= WIDE
    shown = view.rows if len(view.rows) <= room else _foremost(view.rows, room - 1, _by_activity)
    rows = [_phase_row(row, None, wide=wide) for row in shown]
    if folded := tuple(row for row in view.rows if row not in shown):
        rest = replace(view, rows=folded).total
        rows.append(_phase_row(replace(rest, name=f"+ {len(folded)} more"), "dim", wide=wide))
    rows.append(_phase_row(view.total, "bold", wide=wide))
    bar = BAR_WIDTH_WIDE if wide else BAR_WIDTH
    return _table(view.heading, ("DONE", "OF", "MSG/S", "ETA"), rows, width, drop=("OF",), bar=bar)


def _by_activity(row: PhaseRow) -> tuple[float, ...]:
    return -row.per_second, (row.whole or 0) <= row.done, -row.done


def _phase_row(row: PhaseRow, style: str | None, *, wide: bool) -> TableRow:
    whole = "" if row.whole is None else number(row.whole, wide=wide)
    eta = "" if row.eta_seconds is None else spoken(row.eta_seconds)
    # Messages enqueued after the count may also be drained.
    bar = None if row.whole is None else min(row.done, row.whole) / row.whole if row.whole else 1.0
    figures = (number(row.done, wide=wide), whole, rate(row.per_second), eta)
    return TableRow(clean(row.name if wide else _short(row.name)), figures, style=style, bar=bar)


def _short(name: str) -> str:
    at = name.lower().find(BACKLOG)
    return name if at < 0 else "…" + name[at + len(BACKLOG) - 1 :]


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
        # Lines above the drawing stay whole: the terminal wraps them, so that a command can be copied.
        self._console = Console(stderr=True, soft_wrap=True)
        self._size = self._console.size
        self._drawn = _Trimmed("")
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
            self._size = size
            # The terminal has wrapped the lines of the old drawing: erase as many as they take now. To clear the whole
            # screen would put them into the scrollback of some terminals.
            wrapped = sum(max(1, -(-each // max(1, size.width))) for each in self._drawn.line_widths)
            self._live._live_render._shape = (size.width, min(wrapped, size.height))
        self._live.refresh()

    def _drawing(self) -> RenderableType:
        self._drawn = _Trimmed(self._draw(self._sample(), self._console.width, self._console.height - 1))
        return self._drawn


class _Trimmed:
    """A drawing without spaces at the ends of its lines, which a narrower terminal would wrap."""

    def __init__(self, drawing: RenderableType) -> None:
        self.line_widths: list[int] = []
        self._drawing = drawing

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.line_widths = []
        for line in console.render_lines(self._drawing, options.update(no_wrap=False, overflow="fold"), pad=False):
            while line and not line[-1].text.rstrip():
                line.pop()
            if line:
                line[-1] = Segment(line[-1].text.rstrip(), line[-1].style)
            self.line_widths.append(Segment.get_line_length(line))
            yield from line
            yield Segment.line()
