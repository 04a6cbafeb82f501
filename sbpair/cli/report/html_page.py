"""The report as one HTML file without scripts: it loads nothing, and no text of a message can become markup."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING

from sbpair.cli.render.screen import grouped
from sbpair.cli.report.plots import NARROW, WIDE, draw

if TYPE_CHECKING:
    from sbpair.cli.report.run_facts import RunReport


def render_html(report: RunReport) -> str:
    """Return the page."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    folder = files("sbpair.cli.report")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["grouped"] = grouped
    template = environment.from_string((folder / "page.html.j2").read_text("utf-8"))
    # These are sbpair's own: the sheet, and drawings that hold no text of a message.
    sheet = Markup((folder / "page.css").read_text("utf-8"))  # noqa: S704
    drawings = [
        (plot, Markup(draw(plot, WIDE, f"w{number}")), Markup(draw(plot, NARROW, f"n{number}")))  # noqa: S704
        for number, plot in enumerate(report.plots)
    ]
    return template.render(report=report, sheet=sheet, drawings=drawings)
