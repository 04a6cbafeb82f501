"""The messages of a whole backlog in one line and as JSON, and numbers that are only a sample."""

from dataclasses import asdict
from typing import TYPE_CHECKING

from sbpair.cli.render.screen import Document, grouped, rounded, spoken
from sbpair.cli.render.table import YELLOW, coloured

if TYPE_CHECKING:
    from sbpair.management.backlog_status import BacklogTotal

LEGEND = "~ is at least so many: not all messages were peeked"


def sampled(number: int, *, exact: bool) -> int | str:
    """Return a number for a cell, with a `~` if it is that of a sample."""
    return number if exact else f"~{number}"


def document(total: "BacklogTotal") -> Document:
    """Return the total as JSON."""
    return {**asdict(total), "oldest_seconds": rounded(total.oldest_seconds)}


def line(total: "BacklogTotal") -> str:
    """Return the total as `8 000 waiting, 1 058 dead-lettered, oldest 2h`."""
    if total.messages is None:
        return "the backlog is unknown"
    dead = "dead letters unknown" if total.dead_letters is None else f"{grouped(total.dead_letters)} dead-lettered"
    parts = [
        f"{'' if total.exact else '~'}{grouped(total.messages)} waiting",
        coloured(dead, YELLOW if total.dead_letters else None),
        f"{grouped(total.scheduled)} scheduled" if total.scheduled else "",
        f"oldest {spoken(total.oldest_seconds)}" if total.oldest_seconds is not None else "",
    ]
    return ", ".join(filter(None, parts))
