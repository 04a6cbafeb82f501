"""The report as one HTML file without scripts, which loads nothing; and as GitHub-flavoured Markdown, for tickets.

Invariant: no text of a message can become markup. In Markdown it stands in code, where none is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from sbpair.cli.render.screen import grouped
from sbpair.cli.report.plots import NARROW, WIDE, draw
from sbpair.template import filled

if TYPE_CHECKING:
    from sbpair.cli.report.run_facts import RunReport, Table


def render_html(report: RunReport) -> str:
    """Return the page."""
    drawings = [
        (plot, draw(plot, WIDE, f"w{number}"), draw(plot, NARROW, f"n{number}"))
        for number, plot in enumerate(report.plots)
    ]
    return filled("sbpair.cli.report", "page.html", report=report, drawings=drawings, grouped=grouped)


_MARKS = {"good": "✅", "open": "⏳", "bad": "❌"}
_UNSAFE = set("`|\\")
_PLAIN = re.compile(r"[A-Za-z0-9 .,;:()'%/+-]*")
_LINK = re.compile(r"://|www\.", re.IGNORECASE)


def render_markdown(report: RunReport) -> str:
    """Return the text of the report."""
    return "\n".join(_lines(report)).rstrip("\n") + "\n"


def code(text: str) -> str:
    """Return a text as code: no markup, link or mention. Some characters need HTML, in which every mark is a number."""
    if not text:
        return "-"
    if text == text.strip() and not _UNSAFE & set(text):
        return f"`{text}`"
    return f"<code>{''.join(each if each.isalnum() else f'&#{ord(each)};' for each in text)}</code>"


def prose(text: str) -> str:
    """Return a sentence as it is if nothing in it could be markup, else as code."""
    return text if _PLAIN.fullmatch(text) and not _LINK.search(text) else code(text)


def _lines(report: RunReport) -> Iterator[str]:
    yield f"# {code(report.title)}: {report.outcome}"
    yield ""
    yield f"Run {code(report.run)} {code(report.subtitle) if report.subtitle else ''}".rstrip()
    yield ""
    yield f"{report.when}."
    for _tone, text in report.alerts:
        yield ""
        yield f"> {prose(text)}"
    if report.identity is not None:
        (name, number), parts = report.identity.whole, report.identity.parts
        yield ""
        terms = " + ".join(f"{grouped(each)} {part}" for part, each in parts)
        yield f"**{grouped(number)} {name} = {terms}**"
        yield ""
        yield f"{_MARKS[report.identity.verdict]} {report.identity.text}"
    if report.timeline is not None:
        yield from ("", "## Timeline")
        yield from _table(report.timeline)
    for section in report.sections:
        yield from ("", f"## {section.title}")
        for note in section.notes:
            yield from ("", prose(note))
        for table in section.tables:
            yield from _table(table)
        for command in section.commands:
            yield from ("", "```sh", command, "```")
    yield from ("", report.footer)


def _table(table: Table) -> Iterator[str]:
    if not table.rows:
        return
    yield ""
    yield _row(table.columns)
    yield _row("---:" if each else "---" for each in table.numeric)
    for row in table.rows:
        yield _row(grouped(cell) if isinstance(cell, int) else code(cell) for cell in row)
    if table.more:
        yield from ("", f"and {grouped(table.more)} more")


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


RENDERERS = {"html": render_html, "markdown": render_markdown}
