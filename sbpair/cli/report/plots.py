"""Plots of a report as inline SVG, drawn by matplotlib. Colours and fonts are those of the page, by CSS variables.

Invariant: a plot holds no text of a message: names are in the page's legend.
"""

from __future__ import annotations

import io
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from sbpair.cli.render.screen import spoken

if TYPE_CHECKING:
    from sbpair.cli.report.series import Curve, Plot

WIDE, NARROW = (860, 250), (350, 230)
"""Width and height in pixels, for screens and paper, and for phones."""

INK, GRID = "#a10001", "#a10002"
TONES = {**{str(number): f"#a2000{number}" for number in range(8)}, "bad": "#a20009"}
VARIABLES = {INK: "--muted", GRID: "--line", **{color: f"--tone-{tone}" for tone, color in TONES.items()}}
"""Colours that stand for CSS variables."""

MAX_POINTS = {WIDE: 400, NARROW: 160}
DURATIONS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200, 86_400)
DAYS = (2, 5, 7, 14, 30, 60, 120, 365, 730, 3_650)
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
    from sbpair.cli.report.series import Curve

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
        axes.yaxis.set_major_locator(MultipleLocator(_duration_step(top)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: spoken(value)))
    else:
        axes.yaxis.set_major_locator(MaxNLocator(4, integer=top >= MIN_INTEGER))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _brief(value)))


def _duration_step(seconds: float) -> int:
    steps = (*DURATIONS, *(86_400 * days for days in DAYS))
    return next((step for step in steps if seconds / step <= MIN_INTEGER), steps[-1])


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
