"""Curves and rows of a timeline, for plots and tables. Pure: figures between two samples are interpolated."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from sbpair.cli.logs import utc
from sbpair.cli.render.screen import spoken
from sbpair.runs.run_log import MAX_DESTINATIONS

if TYPE_CHECKING:
    from sbpair.runs.run_log import Sample

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
    times = _times(start_ms, end_ms, min(TABLE_ROWS, len(samples)))
    depths, ages = any(each.figures.depth is not None for each in samples), _age(samples) is not None
    columns = ("time", *(labels[name] for name in names), "sent a second")
    rows: list[tuple[str | int, ...]] = []
    before_ms = start_ms
    for at_ms in times:
        sent = _counted(start_ms, samples, "sent")
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


def _times(start_ms: int, end_ms: int, number: int) -> list[int]:
    return [start_ms + (end_ms - start_ms) * (index + 1) // number for index in range(number)]


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


def _age(samples: Sequence[Sample]) -> Plot | None:
    points = tuple(
        (each.at_ms, None if each.figures.oldest_ms is None else max(0, each.at_ms - each.figures.oldest_ms) / 1000)
        for each in samples
    )
    known = any(value is not None for _, value in points)
    return Plot("Age of the oldest message", "seconds", (Curve("age", points, "5"),)) if known else None
