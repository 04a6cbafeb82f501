"""The status of a pair and the messages of a whole backlog, as JSON, as a table and as one line."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from sbpair.cli.logs import utc
from sbpair.cli.render.screen import Document, clean, grouped, rounded, spoken
from sbpair.cli.render.table import YELLOW, coloured, columns
from sbpair.errors import ExitCode

if TYPE_CHECKING:
    from sbpair.errors import SbpairError
    from sbpair.management.audit_findings import BacklogTotal, QueueStatus
    from sbpair.status import DestinationStatus, OutboxStatus, SideStatus, Status


LEGEND = "~ is at least so many: not all messages were peeked"


def document(status: "Status") -> Document:
    return {
        "time": utc(None),
        "primary": _side(status.primary),
        "secondary": _side(status.secondary),
        "backlog": total_document(status.total),
        "queues": list(map(_queue, status.queues)),
        "entities": [_entity(each) for each in status.entities],
        "outbox": _outbox(status.outbox),
        "skipped": [{"name": name, "reason": reason} for name, reason in status.unseen],
    }


def table(status: "Status") -> Iterator[str]:
    rows: list[tuple[object, ...]] = [("WHAT", "NAME", "STATE", "MESSAGES", "OLDEST", "NOTE")]
    for what, side in (("primary", status.primary), ("secondary", status.secondary)):
        rows.append((what, side.endpoint.name, _health(side), "", "", side.error.message if side.error else ""))
    rows += map(_queue_row, status.queues)
    rows += map(_entity_row, status.entities)
    if status.outbox is not None:
        path = str(status.outbox.path)
        kept = [("outbox", path, "waiting", count, spoken(age), name) for name, count, age in status.outbox.waiting]
        rows += kept or [("outbox", path, "empty", 0, "", "")]
    yield from columns(rows)
    total = status.total
    yield ""
    if any(each.waiting and not each.exact for each in status.entities) or not (total.exact or total.messages is None):
        yield LEGEND
    yield total_line(total)


def line(status: "Status") -> str:
    """Return the status in one line, with what is not up."""
    sides = [f"{side.endpoint.name} {_health(side)}" for side in (status.primary, status.secondary)]
    poor = [f"{each.link.entity} {each.link.health}" for each in status.entities if each.link.error]
    return clean(f"{utc(None)} {', '.join((*sides, *poor))}: ") + total_line(status.total)


def _queue(queue: "QueueStatus") -> Document:
    known = {name: value for name, value in asdict(queue).items() if name not in ("path", "missing")}
    return {"name": queue.path, **known, "oldest_seconds": rounded(queue.oldest_seconds)}


def _queue_row(queue: "QueueStatus") -> tuple[object, ...]:
    unknown = "missing" if queue.missing else "?"
    state = unknown if queue.messages is None else "waiting" if queue.messages else "empty"
    if queue.dead_letters:
        state += f", {queue.dead_letters} dead-lettered"
    oldest = "" if queue.oldest_seconds is None else spoken(queue.oldest_seconds)
    note = "; ".join(filter(None, (f"{queue.scheduled} scheduled" if queue.scheduled else "", queue.note)))
    messages = "" if queue.messages is None else sampled(queue.messages, exact=queue.exact)
    return ("backlog", queue.path, state, messages, oldest, note)


def _entity_row(entity: "DestinationStatus") -> tuple[object, ...]:
    waiting = sampled(entity.waiting, exact=entity.exact) if entity.waiting else "" if entity.exact else "?"
    reason = entity.link.error.message if entity.link.error else entity.note
    return ("entity", entity.link.entity, str(entity.link.health), waiting, "", reason)


def _outbox(outbox: "OutboxStatus | None") -> Document | None:
    if outbox is None:
        return None
    entities = [
        {"name": name, "messages": messages, "oldest_seconds": rounded(age)} for name, messages, age in outbox.waiting
    ]
    return {"path": str(outbox.path), "messages": sum(count for _, count, _ in outbox.waiting), "entities": entities}


def _side(side: "SideStatus") -> Document:
    return {"namespace": side.endpoint.name, "health": _health(side), **answered(side.seconds, side.error)}


def _entity(entity: "DestinationStatus") -> Document:
    link = entity.link
    found = {"name": link.entity, "health": str(link.health), "waiting": entity.waiting, "exact": entity.exact}
    return {**found, **answered(link.seconds, link.error), "note": entity.note}


def _health(side: "SideStatus") -> str:
    if side.error is None:
        return "up"
    return "refused" if side.error.exit_code == ExitCode.ACCESS else "down"


def answered(seconds: float, error: "SbpairError | None") -> Document:
    """Return when an answer came, and why it is a failure, as JSON."""
    return {"seconds": round(seconds, 3), "reason": error.message if error else "", "hint": error.hint if error else ""}


def sampled(number: int, *, exact: bool) -> int | str:
    """Return a number for a cell, with a `~` if it is that of a sample."""
    return number if exact else f"~{number}"


def total_document(total: "BacklogTotal") -> Document:
    """Return the messages of a whole backlog as JSON."""
    return {**asdict(total), "oldest_seconds": rounded(total.oldest_seconds)}


def total_line(total: "BacklogTotal") -> str:
    """Return the messages of a whole backlog as `8 000 waiting, 1 058 dead-lettered, oldest 2h`."""
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
