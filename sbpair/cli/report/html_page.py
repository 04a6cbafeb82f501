"""The report as one HTML file without scripts: it loads nothing, and no text of a message can become markup."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sbpair.cli.render.screen import grouped
from sbpair.cli.report.plots import NARROW, WIDE, draw
from sbpair.template import filled

if TYPE_CHECKING:
    from sbpair.cli.report.run_facts import RunReport


def render_html(report: RunReport) -> str:
    """Return the page."""
    drawings = [
        (plot, draw(plot, WIDE, f"w{number}"), draw(plot, NARROW, f"n{number}"))
        for number, plot in enumerate(report.plots)
    ]
    return filled("sbpair.cli.report", "page.html", report=report, drawings=drawings, grouped=grouped)
