"""Curves and rows of a timeline, and its plots as inline SVG, drawn by matplotlib.

Figures between two samples are interpolated. Colours and fonts of a plot are those of the page, by CSS variables.

Invariant: a plot holds no text of a message: names are in the page's legend.
"""

from __future__ import annotations

import io
import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

from sbpair.cli.logs import utc
from sbpair.cli.render.screen import spoken
from sbpair.runs.run_log import MAX_DESTINATIONS, Sample

MIN_SAMPLES = 3
"""With fewer samples, a run has no plots."""

MAX_CURVES = 6
"""How many destinations have a colour of their own; the last colour is that of all others."""

BINS = 150
TABLE_ROWS = 12
OTHERS = "others"
COUNTED = {"received": "received", "sent": "sent", "skipped": "skipped", "expired": "expired"}
COUNTED |= {"dead_lettered": "dead-lettered"}

Point = tuple[int, float | None]
"""A time in ms since 1970, and a value; None interrupts the curve."""


@dataclass(frozen=True, slots=True)
class Curve:
    """One curve of a plot. `tone` is its colour: a number, or a name."""

    label: str
    points: tuple[Point, ...]
    tone: str


@dataclass(frozen=True, slots=True)
class Plot:
    """Curves over time. `unit` is messages, per_second or seconds. `stacked` curves add up.

    `peaks` has the highest values of each curve's label, also of those among the others.
    """

    title: str
    unit: str
    curves: tuple[Curve, ...]
    stacked: bool = False
    peaks: Mapping[str, float] = field(default_factory=dict)


def plots_of(
    start_ms: int, end_ms: int, samples: Sequence[Sample], labels: Mapping[str, str] = COUNTED
) -> tuple[Plot, ...]:
    """Return the plots of a run that has enough samples; none without a value. `labels` name the counts."""
    if len(samples) < MIN_SAMPLES or end_ms <= start_ms:
        return ()
    found = (_progress(start_ms, samples, labels), _throughput(start_ms, end_ms, samples), _age(samples))
    return tuple(plot for plot in found if plot is not None)


def timeline_rows(
    start_ms: int, end_ms: int, samples: Sequence[Sample], labels: Mapping[str, str] = COUNTED
) -> tuple[tuple[str, ...], tuple[tuple[str | int, ...], ...]] | None:
    """Return the columns and rows of a table with a few moments of the run; None without samples."""
    if not samples or end_ms <= start_ms:
        return None
    names = [name for name in COUNTED if any(each.figures.counts.get(name) for each in samples)] or ["sent"]
    counted = {name: _counted(start_ms, samples, name) for name in names}
    number = min(TABLE_ROWS, len(samples))
    depths, ages = any(each.figures.depth is not None for each in samples), _age(samples) is not None
    columns = ("time", *(labels[name] for name in names), "sent a second")
    rows: list[tuple[str | int, ...]] = []
    before_ms, sent = start_ms, _counted(start_ms, samples, "sent")
    for index in range(1, number + 1):
        at_ms = start_ms + (end_ms - start_ms) * index // number
        rate = (value_at(sent, at_ms) - value_at(sent, before_ms)) * 1000 / max(1, at_ms - before_ms)
        last = samples[max(0, bisect_right(samples, at_ms, key=lambda each: each.at_ms) - 1)]
        row: list[str | int] = [utc(at_ms / 1000), *(int(value_at(counted[name], at_ms)) for name in names)]
        row.append(f"{rate:.1f}")
        if depths:
            row.append("-" if last.figures.depth is None else last.figures.depth)
        if ages:
            row.append("-" if last.figures.oldest_ms is None else spoken(max(0, at_ms - last.figures.oldest_ms) / 1000))
        rows.append(tuple(row))
        before_ms = at_ms
    return (*columns, *(["remaining"] if depths else []), *(["oldest"] if ages else [])), tuple(rows)


def value_at(points: Sequence[tuple[int, float]], at_ms: float) -> float:
    """Return the value of a curve at a moment: on the line between its neighbours, or that of the nearer end."""
    index = bisect_right(points, at_ms, key=lambda each: each[0])
    if index == 0:
        return points[0][1]
    before = points[index - 1]
    if index == len(points):
        return before[1]
    after = points[index]
    return before[1] + (after[1] - before[1]) * (at_ms - before[0]) / (after[0] - before[0])


def _counted(start_ms: int, samples: Sequence[Sample], name: str) -> list[tuple[int, float]]:
    """Return a counter over time, which is 0 at the start of the run. It stays as it is where samples lack it."""
    known, value = list[tuple[int, float]](), 0.0
    if any(name in each.figures.counts for each in samples):
        for each in samples:
            value = float(each.figures.counts.get(name, value))
            known.append((each.at_ms, value))
    return _from_start(start_ms, known)


def _from_start(start_ms: int, known: list[tuple[int, float]]) -> list[tuple[int, float]]:
    return known if known and known[0][0] <= start_ms else [(start_ms, 0.0), *known]


def _progress(start_ms: int, samples: Sequence[Sample], labels: Mapping[str, str]) -> Plot:
    tones = {"received": "0", "sent": "1", "skipped": "3", "expired": "4", "dead_lettered": "bad"}
    curves = [
        Curve(label, tuple(_counted(start_ms, samples, name)), tones[name])
        for name, label in labels.items()
        if name in ("received", "sent") or any(each.figures.counts.get(name) for each in samples)
    ]
    curves = [each for each in curves if len(each.points) > 1]
    depth = tuple((each.at_ms, each.figures.depth) for each in samples)
    if any(value is not None for _, value in depth):
        curves.append(Curve("remaining", depth, "2"))
    return Plot("Messages", "messages", tuple(curves))


def _throughput(start_ms: int, end_ms: int, samples: Sequence[Sample]) -> Plot | None:
    """Return the messages a second that each destination accepted, or all together if the destinations are unknown."""
    known = _sent_to(samples)
    if not known:
        known["all"] = _counted(start_ms, samples, "sent")
    bins = min(BINS, max(2, len(samples)))
    rates = {name: _rates(start_ms, end_ms, _from_start(start_ms, points), bins) for name, points in known.items()}
    order = sorted(rates, key=lambda name: (-known[name][-1][1], name))
    if not any(known[name][-1][1] for name in order):
        return None
    middles = [start_ms + (end_ms - start_ms) * (2 * index + 1) // (2 * bins) for index in range(bins)]
    shown = order if len(order) <= MAX_CURVES + 1 else order[:MAX_CURVES]
    curves = [Curve(name, _points(middles, rates[name]), str(index)) for index, name in enumerate(shown, 1)]
    if rest := order[len(shown) :]:
        sums = [sum(values) for values in zip(*(rates[name] for name in rest), strict=True)]
        curves.append(Curve(OTHERS, _points(middles, sums), str(MAX_CURVES + 1)))
    peaks = {name: max(values) for name, values in rates.items()}
    return Plot("Throughput by destination", "per_second", tuple(curves), stacked=True, peaks=peaks)


def _sent_to(samples: Sequence[Sample]) -> dict[str, list[tuple[int, float]]]:
    """Return the messages sent to each destination over time, from the last sample that shows it had none."""
    known: dict[str, list[tuple[int, float]]] = {}
    before: Sample | None = None
    for each in samples:
        for name, number in each.figures.destinations.items():
            if name not in known:
                # A sample with as many as it may have does not show that another destination had none.
                whole = before is not None and len(before.figures.destinations) < MAX_DESTINATIONS
                known[name] = [(before.at_ms, 0.0)] if before is not None and whole else []
            known[name].append((each.at_ms, float(number)))
        before = each
    return known


def _points(times: Iterable[int], values: Iterable[float]) -> tuple[Point, ...]:
    return tuple(zip(times, values, strict=True))


def _rates(start_ms: int, end_ms: int, points: Sequence[tuple[int, float]], bins: int) -> list[float]:
    edges = [value_at(points, start_ms + (end_ms - start_ms) * index / bins) for index in range(bins + 1)]
    seconds = (end_ms - start_ms) / 1000 / bins
    return [max(0.0, after - before) / seconds for before, after in pairwise(edges)]


def ages_of(samples: Sequence[Sample]) -> tuple[Point, ...]:
    """Return the seconds that the oldest message has waited, over time."""
    return tuple(
        (each.at_ms, None if each.figures.oldest_ms is None else max(0, each.at_ms - each.figures.oldest_ms) / 1000)
        for each in samples
    )


def _age(samples: Sequence[Sample]) -> Plot | None:
    points = ages_of(samples)
    known = any(value is not None for _, value in points)
    return Plot("Age of the oldest message", "seconds", (Curve("age", points, "5"),)) if known else None


WIDE, NARROW = (860, 250), (350, 230)
"""Width and height in pixels, for screens and paper, and for phones."""

INK, GRID = "#a10001", "#a10002"
TONES = {**{str(number): f"#a2000{number}" for number in range(8)}, "bad": "#a20009"}
VARIABLES = {INK: "--muted", GRID: "--line", **{color: f"--tone-{tone}" for tone, color in TONES.items()}}
"""Colours that stand for CSS variables."""

MAX_POINTS = {WIDE: 400, NARROW: 160}
SECONDS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200)
DAYS = (1, 2, 5, 7, 14, 30, 60, 120, 365, 730, 3_650)
DURATIONS = (*SECONDS, *(86_400 * days for days in DAYS))
PIXELS_PER_INCH = 72
MIN_INTEGER = 4
NO_METADATA: Any = dict.fromkeys(("Date", "Creator", "Format", "Type"))

_COLOR = re.compile("|".join(VARIABLES), re.IGNORECASE)
_FONT = re.compile(r"font: (?:[\w-]+ )*?([\d.]+px)[^;\"]*")
_ID = re.compile(r'(\bid="|url\(#|href="#)')


def draw(plot: Plot, size: tuple[int, int], prefix: str) -> str:
    """Return an SVG element. `prefix` makes its ids different from those of the page's other plots."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    settings: Any = {"svg.fonttype": "none", "svg.hashsalt": prefix, "font.size": 11, "path.simplify": True}
    with mpl.rc_context(settings):
        figure = Figure(figsize=(size[0] / PIXELS_PER_INCH, size[1] / PIXELS_PER_INCH), dpi=PIXELS_PER_INCH)
        axes = figure.add_subplot()
        _draw_curves(axes, plot, MAX_POINTS[size])
        _set_axes(axes, plot, narrow=size == NARROW)
        figure.tight_layout(pad=0.3)
        output = io.StringIO()
        figure.savefig(output, format="svg", transparent=True, metadata=NO_METADATA)
    return _for_page(output.getvalue(), plot.title, prefix)


def _draw_curves(axes: Any, plot: Plot, max_points: int) -> None:
    if plot.stacked:
        times = _times(plot.curves[0])
        rows = [[value or 0.0 for _, value in each.points] for each in plot.curves]
        axes.stackplot(times, *rows, colors=[TONES[each.tone] for each in plot.curves], linewidth=0)
        return
    for each in plot.curves:
        thinned = _thinned(each, max_points)
        values = [float("nan") if value is None else value for _, value in thinned.points]
        style = {"linewidth": 1.8, "solid_joinstyle": "round"}
        if each.label == "remaining":
            style["linestyle"] = (0, (4, 2))
        axes.plot(_times(thinned), values, color=TONES[each.tone], **style)
        if len(plot.curves) == 1:
            axes.fill_between(_times(thinned), values, color=TONES[each.tone], alpha=0.15, linewidth=0)


def _thinned(curve: Curve, max_points: int) -> Curve:
    step = -(-len(curve.points) // max_points)
    kept = [*curve.points[:-1:step], curve.points[-1]] if step > 1 else curve.points
    return Curve(curve.label, tuple(kept), curve.tone)


def _times(curve: Curve) -> list[datetime]:
    return [datetime.fromtimestamp(at_ms / 1000, UTC) for at_ms, _ in curve.points]


def _set_axes(axes: Any, plot: Plot, *, narrow: bool) -> None:
    from matplotlib import dates
    from matplotlib.ticker import FuncFormatter, MaxNLocator, MultipleLocator

    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(GRID)
    axes.tick_params(colors=INK, length=0, pad=5)
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.margins(x=0.01)
    axes.set_ylim(bottom=0)
    dated: Any = dates  # it has no types
    locator = dated.AutoDateLocator(minticks=2, maxticks=4 if narrow else 8)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(dated.ConciseDateFormatter(locator, tz=UTC))
    axes.xaxis.get_offset_text().set_color(INK)
    top = axes.get_ylim()[1]
    if plot.unit == "seconds":
        step = next((each for each in DURATIONS if top / each <= MIN_INTEGER), DURATIONS[-1])
        axes.yaxis.set_major_locator(MultipleLocator(step))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: spoken(value)))
    else:
        axes.yaxis.set_major_locator(MaxNLocator(4, integer=top >= MIN_INTEGER))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _brief(value)))


def _brief(value: float) -> str:
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def _for_page(svg: str, title: str, prefix: str) -> str:
    """Return the SVG element with the page's colours and fonts, ids of its own, and a description."""
    svg = svg[svg.index("<svg") :]
    svg = _COLOR.sub(lambda match: f"var({VARIABLES[match[0].lower()]})", svg)
    svg = _FONT.sub(r"font: \1 var(--font)", svg)
    svg = _ID.sub(rf"\g<1>{prefix}-", svg)
    head, _, rest = svg.partition(">")
    box = re.search(r'viewBox="[^"]*"', head)
    return f'<svg {box[0] if box else ""} role="img" aria-label="{title}" xmlns:xlink="http://www.w3.org/1999/xlink">{rest}'
