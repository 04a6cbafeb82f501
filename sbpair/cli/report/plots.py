"""Curves and rows of a timeline, and its plots as inline SVG.

Figures between two samples are interpolated. Colours and fonts of a plot are those of the page, by CSS variables.

Invariant: a plot holds no text of a message: names are in the page's legend.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby, pairwise
from operator import add
from typing import NamedTuple

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

LEFT, TOP, BOTTOM = 46, 10, 22
MAX_POINTS = {WIDE: 400, NARROW: 160}
SECONDS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200)
DAYS = (1, 2, 5, 7, 14, 30, 60, 120, 365, 730, 3_650)
DURATIONS = (*SECONDS, *(86_400 * days for days in DAYS))
NUMBERS = tuple(digit * 10**power for power in range(-1, 13) for digit in (1, 2, 5))

DAY = 86_400


class _Frame(NamedTuple):
    """A drawing of this size, from a time in ms on, up to `steps` times `step` of the plot's unit."""

    size: tuple[int, int]
    first: int
    span: int
    step: float
    steps: int

    def x(self, at_ms: float) -> float:
        return LEFT + (at_ms - self.first) / self.span * (self.size[0] - LEFT - 8)

    def y(self, value: float) -> float:
        return self.size[1] - BOTTOM - value / (self.step * self.steps) * (self.size[1] - BOTTOM - TOP)

    def line(self, points: Iterable[Point]) -> str:
        return "L".join(f"{self.x(at_ms):.1f} {self.y(value or 0.0):.1f}" for at_ms, value in points)


def draw(plot: Plot, size: tuple[int, int]) -> str:
    """Return an SVG element."""
    curves = [_thinned(each, MAX_POINTS[size]) for each in plot.curves]
    edges = _stacked(curves) if plot.stacked else [each.points for each in curves]
    times = [at_ms for points in edges for at_ms, _ in points]
    most = max((value or 0.0 for points in edges for _, value in points), default=0.0)
    step = next(each for each in (DURATIONS if plot.unit == "seconds" else NUMBERS) if 4 * each >= most)
    frame = _Frame(size, min(times), max(1, max(times) - min(times)), step, int(most // step) + 1)
    shapes = [*_axes(frame, plot.unit)]
    below: Sequence[Point] = ()
    for curve, points in zip(curves, edges, strict=True):
        for known, part in groupby(points, lambda each: each[1] is not None):
            if known:
                shapes += _shapes(frame, curve, [*part], below, alone=len(curves) == 1, stacked=plot.stacked)
        below = points
    box = f"0 0 {size[0]} {size[1]}"
    return f'<svg viewBox="{box}" role="img" aria-label="{plot.title}">{"".join(shapes)}</svg>'


def _axes(frame: _Frame, unit: str) -> Iterator[str]:
    """Yield lines of amounts, and times, with their labels."""
    width, height = frame.size
    for number in range(frame.steps + 1):
        y = frame.y(number * frame.step)
        yield f'<path d="M{LEFT} {y:.1f}H{width}" style="stroke:var(--line)"/>'
        yield _label(LEFT - 6, y + 4, _amount(number * frame.step, unit), "end")
    labels = 4 if frame.size == NARROW else 8
    seconds = next(each for each in DURATIONS if each * labels >= frame.span / 1000)
    for at_s in range(-(-frame.first // (1000 * seconds)) * seconds, (frame.first + frame.span) // 1000 + 1, seconds):
        text = utc(at_s)
        yield _label(frame.x(1000 * at_s), height - 6, text[:10] if seconds >= DAY else text[11:19])


def _shapes(
    frame: _Frame, curve: Curve, points: Sequence[Point], below: Sequence[Point], *, alone: bool, stacked: bool
) -> Iterator[str]:
    """Yield a part of a curve without gaps: its line, and the area under it of a stacked or an only one."""
    tone, dash = f"var(--tone-{curve.tone})", ";stroke-dasharray:4 2" if curve.label == "remaining" else ""
    if stacked or alone:
        floor = below or [(points[0][0], 0.0), (points[-1][0], 0.0)]
        opacity = "" if stacked else ";opacity:.15"
        yield f'<path d="M{frame.line([*points, *reversed(floor)])}Z" style="fill:{tone}{opacity}"/>'
    if not stacked:
        yield f'<path d="M{frame.line(points)}" style="fill:none;stroke:{tone};stroke-width:1.8{dash}"/>'


def _stacked(curves: Sequence[Curve]) -> list[tuple[Point, ...]]:
    """Return the upper edge of each curve, on top of those before it."""
    sums = accumulate(([value or 0.0 for _, value in each.points] for each in curves), lambda a, b: [*map(add, a, b)])
    return [_points((at_ms for at_ms, _ in curves[0].points), each) for each in sums]


def _label(x: float, y: float, text: str, anchor: str = "middle") -> str:
    style = f"fill:var(--muted);font:11px var(--font);text-anchor:{anchor}"
    return f'<text x="{x:.1f}" y="{y:.1f}" style="{style}">{text}</text>'


def _amount(value: float, unit: str) -> str:
    if unit == "seconds":
        return spoken(value)
    size, suffix = next(((size, each) for each, size in (("M", 1e6), ("k", 1e3)) if value >= size), (1, ""))
    return f"{value / size:g}{suffix}"


def _thinned(curve: Curve, max_points: int) -> Curve:
    step = -(-len(curve.points) // max_points)
    kept = [*curve.points[:-1:step], curve.points[-1]] if step > 1 else curve.points
    return Curve(curve.label, tuple(kept), curve.tone)
