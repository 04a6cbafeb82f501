"""`sbpair status`: runs `sbpair.status` and prints the result."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from sbpair.cli.command_loop import run
from sbpair.cli.commands.ping import answered
from sbpair.cli.options.common import Count, Display, PairSelection, argument, option, options
from sbpair.cli.options.values import entity_names, seconds_of, selected_pair
from sbpair.cli.render.screen import Document, Screen, rounded, spoken
from sbpair.cli.render.table import columns

if TYPE_CHECKING:
    from sbpair.status import DestinationStatus, OutboxStatus, QueueStatus, SideStatus, Status

SCHEMA = "sbpair/status/1"


@options
def command(
    *,
    entities: Annotated[
        list[str] | None, argument("[QUEUE|TOPIC…]", "More queues and topics of the primary to check")
    ] = None,
    timeout: Annotated[str, option("--timeout DURATION", "Time limit of each answer")] = "10s",
    outbox: Annotated[Path | None, option("--outbox FILE", "Also count the messages of this outbox file")] = None,
    count: Count = None,
    connection: PairSelection,
    display: Display,
) -> int:
    """Show the health of both namespaces and the size of the backlog.

    Sends and locks nothing. Checks each destination of the backlog by opening a link. Counts with Manage on the
    secondary; with Listen only, it peeks. status cannot see whether an application has failed over; a growing backlog
    is the sign.

    Examples:
      sbpair status
      sbpair status orders -o json

    Exit codes: 0 all are up; 6 a namespace or entity is down; 3 one is broken and none down; 5 access denied
    """
    screen = Screen(display)
    seconds = seconds_of("--timeout", timeout, minimum=1, limit=600)
    pair = selected_pair(connection, screen, count=count)
    names = entity_names(entities or ())
    from sbpair import status

    found = run(lambda _stop: status.read_status(pair, names, outbox=outbox, seconds=seconds))
    screen.result(SCHEMA, _document(found), _table(found))
    for name, reason in found.unseen:
        screen.warn(f"skipped {name}: {reason}")
    return found.exit_code


def _document(status: "Status") -> Document:
    return {
        "primary": _side(status.primary),
        "secondary": _side(status.secondary),
        "backlog": _backlog(status.queues),
        "queues": [
            {
                "name": each.path,
                "messages": each.messages,
                "exact": each.exact,
                "dead_letters": each.dead_letters,
                "oldest_seconds": rounded(each.oldest_seconds),
                "note": each.note,
            }
            for each in status.queues
        ],
        "entities": [_entity(each) for each in status.entities],
        "outbox": _outbox(status.outbox),
        "skipped": [{"name": name, "reason": reason} for name, reason in status.unseen],
    }


def _table(status: "Status") -> Iterator[str]:
    rows: list[tuple[object, ...]] = [("WHAT", "NAME", "STATE", "MESSAGES", "DEAD", "OLDEST", "NOTE")]
    for what, side in (("primary", status.primary), ("secondary", status.secondary)):
        rows.append((what, side.endpoint.name, _health(side), "", "", "", side.error.message if side.error else ""))
    rows += [_queue_row(each) for each in status.queues]
    for each in status.entities:
        reason = each.link.error.message if each.link.error else ""
        rows.append(("entity", each.link.entity, str(each.link.health), each.waiting or "", "", "", reason))
    if status.outbox is not None:
        path = str(status.outbox.path)
        kept = [("outbox", path, "waiting", count, "", spoken(age), name) for name, count, age in status.outbox.waiting]
        rows += kept or [("outbox", path, "empty", 0, "", "", "")]
    yield from columns(rows)


def _queue_row(queue: "QueueStatus") -> tuple[object, ...]:
    state = "?" if queue.messages is None else "waiting" if queue.messages else "empty"
    oldest = "" if queue.oldest_seconds is None else spoken(queue.oldest_seconds)
    more = "" if queue.exact or queue.messages is None else "at least; peeking stopped there"
    note = "; ".join(filter(None, (queue.note, more)))
    messages = "" if queue.messages is None else queue.messages
    return ("backlog", queue.path, state, messages, queue.dead_letters or "", oldest, note)


def _backlog(queues: "tuple[QueueStatus, ...]") -> Document:
    counted = [each.messages for each in queues if each.messages is not None]
    dead = [each.dead_letters for each in queues if each.dead_letters is not None]
    ages = [each.oldest_seconds for each in queues if each.oldest_seconds is not None]
    return {
        "messages": sum(counted) if counted else None,
        "exact": len(counted) == len(queues) and all(each.exact for each in queues),
        "dead_letters": sum(dead) if dead else None,
        "oldest_seconds": rounded(max(ages, default=None)),
    }


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
    found = {"name": link.entity, "health": str(link.health), "waiting": entity.waiting}
    return {**found, **answered(link.seconds, link.error)}


def _health(side: "SideStatus") -> str:
    return "up" if side.answers else "down"
