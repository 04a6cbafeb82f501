"""The phase of a replay as bars in a live table."""

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from sbpair.cli.progress.live_table import WIDE, number, rate
from sbpair.cli.progress.phase_board import PhaseRow, PhaseView
from sbpair.cli.render.screen import clean, spoken

BAR_WIDTH, BAR_WIDTH_WIDE = 16, 32


def draw(view: PhaseView, width: int, lines: int) -> RenderableType:
    """Return a view as a drawing."""
    parts: list[RenderableType] = []
    if view.rows:
        parts.append(_rows(view, lines - 3, wide=width >= WIDE))
    # The terminal echoes Ctrl-C behind this line, so it is short.
    parts.append(Text(f"{view.phase or 'start'} {spoken(view.seconds)} - Ctrl-C to stop", "dim"))
    return Group(*parts)


def _rows(view: PhaseView, room: int, *, wide: bool) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(view.heading, no_wrap=True, overflow="ellipsis", min_width=5)
    table.add_column("", width=BAR_WIDTH_WIDE if wide else BAR_WIDTH)
    for heading in ("DONE", "OF", "MSG/S", "ETA"):
        table.add_column(heading, justify="right", no_wrap=True)
    shown = _foremost(view.rows, room)
    for row in shown:
        table.add_row(*_cells(row, wide=wide))
    folded = [row for row in view.rows if row not in shown]
    if folded:
        table.add_row(*_cells(_together(folded), wide=wide), style="dim")
    table.add_row(*_cells(view.total, wide=wide), style="bold")
    return table


def _foremost(rows: tuple[PhaseRow, ...], room: int) -> tuple[PhaseRow, ...]:
    """Return the rows that fit, in their order; active ones have priority, then unfinished ones."""
    if len(rows) <= room:
        return rows
    chosen = sorted(rows, key=lambda row: (-row.per_second, (row.whole or 0) <= row.done, -row.done))
    kept = set(chosen[: max(0, room - 1)])
    return tuple(row for row in rows if row in kept)


def _together(rows: list[PhaseRow]) -> PhaseRow:
    total = PhaseView("", "", tuple(rows), 0.0).total
    return PhaseRow(f"+ {len(rows)} more", total.done, total.whole, total.per_second)


def _cells(row: PhaseRow, *, wide: bool) -> list[RenderableType]:
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
