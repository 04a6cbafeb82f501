"""Peeked messages, and dead letters by their reason: as JSON, as a table, and their number in words."""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import MAXYEAR, UTC, datetime
from typing import TYPE_CHECKING

from sbpair.cli.render.screen import Document, Screen, clean, grouped, plural, size, spoken
from sbpair.cli.render.table import LEGEND, filled_columns, sampled
from sbpair.model.document import encoded

if TYPE_CHECKING:
    from sbpair.cli.results.messages import PeekedMessages, ReceivedMessages, ShownDeadLetters
    from sbpair.message_io.peek import DeadLetterCount, PeekResult

BODY_SHOWN = 60
XMLNS = re.compile(r' xmlns(:[\w.-]+)?="[^"]*"')
DEAD_LETTERED = ("dead_letter_reason", "dead_letter_description")
ALWAYS = ("SEQUENCE", "ENQUEUED", "ID", "SIZE")


def print_peeked(
    screen: Screen, found: "PeekResult", result: "PeekedMessages | ReceivedMessages | ShownDeadLetters"
) -> None:
    """Print the result that has peeked messages."""
    screen.show(result, message_table(list(map(encoded, result.messages))))
    warn_of_hidden(screen, found)


def warn_of_hidden(screen: Screen, found: "PeekResult") -> None:
    for queue in found.hidden:
        screen.warn(f"{queue} has an unreadable message: those after it are not shown")


def message_table(entries: Sequence[Document]) -> list[str]:
    """Return a table without empty columns, and without a side that is the same for all."""
    return filled_columns(list(map(_cells, entries)), varying="FROM", always=ALWAYS, optional=["SIZE"])


def shown_line(result: "PeekResult", total: int | None, *, start: int = 0, where: bool = False) -> str:
    """Return how many messages were shown, and whether there are more. `where` is whether a filter chose them."""
    shown, matching = result.count, " that match" if where else ""
    if result.complete:
        since = f"{matching}{f' from {start} on' if start else ''}"
        return f"showed all {plural(shown, 'message')}{since}" if shown else f"no messages{since}"
    if total is not None and total > shown:
        return f"showed {shown} of about {grouped(total)} messages"
    return f"showed the first {shown}{matching}{f' from {start} on' if start else ''}; there may be more"


def enqueued(entry: Document) -> str:
    """Return when a message was enqueued, as `2026-11-22T10:15:00Z`."""
    return f"{str(entry['enqueued_at'])[:19]}Z" if entry["enqueued_at"] else ""


def when(moment: object, now: datetime) -> str:
    """Return a time in UTC, on this machine's clock, and from now: `2026-12-01 01:00Z, 02:00 here, in 3h`."""
    if not moment:
        return ""
    at = datetime.fromisoformat(str(moment))
    here = at.astimezone() if at.year < MAXYEAR else at
    day = "" if here.date() == at.date() else f"{here:%Y-%m-%d} "
    local = f", {day}{here:%H:%M} here" if here.utcoffset() else ""
    seconds = (at - now).total_seconds()
    far = f"in {spoken(seconds)}" if seconds >= 0 else f"{spoken(-seconds)} ago"
    return f"{at:%Y-%m-%d %H:%M}Z{local}, {far}"


def body_text(entry: Document) -> str:
    """Return the beginning of a body, on one line; of XML of .NET without its namespaces."""
    if "body_base64" in entry and "body_text" not in entry:
        encoded = str(entry["body_base64"])
        return f"({plural(len(encoded) * 3 // 4 - encoded.count('='), 'byte')}, not text)"
    body = entry.get("body", "")
    if "body_text" in entry:
        body = XMLNS.sub("", str(entry["body_text"]))
    text = clean(body if isinstance(body, str) else json.dumps(body))
    return text if len(text) <= BODY_SHOWN else f"{text[: BODY_SHOWN - 1]}…"


def _cells(entry: Document) -> dict[str, object]:
    return {
        "QUEUE": entry.get("queue") or "",
        "SEQUENCE": entry["sequence_number"],
        "ENQUEUED": enqueued(entry),
        "FROM": entry.get("from") or "",
        "STATE": "" if entry["state"] == "active" else entry["state"],
        "DESTINATION": entry["destination"] or "",
        "SCHEDULED": when(entry["scheduled_at"], datetime.now(UTC)),
        "EXPIRES": when(entry["expires_at"], datetime.now(UTC)),
        "ID": entry["message_id"] or "-",
        "SIZE": size(int(str(entry["size"]))),
        "REASON": ": ".join(str(entry[key]) for key in DEAD_LETTERED if entry[key]),
        "BODY": body_text(entry),
    }


def cells(groups: "Iterable[DeadLetterCount]") -> "Iterator[tuple[DeadLetterCount, str, int | str, str]]":
    """Yield each group with its reason, its number and the age of its oldest."""
    from sbpair.move.message.dead_letters import NO_REASON

    for each in groups:
        oldest = "" if each.oldest_seconds is None else spoken(each.oldest_seconds)
        yield each, each.reason or NO_REASON, sampled(each.messages, exact=each.exact), oldest


def say_number(
    screen: Screen,
    groups: "Sequence[DeadLetterCount]",
    way: str,
    none: str = "no dead letters",
    *,
    chosen: bool = False,
) -> None:
    """Print how many dead letters there are, or match a filter, and what to do about them; `none` if none is there."""
    total, exact = sum(each.messages for each in groups), all(each.exact for each in groups)
    if not exact:
        screen.say(f"{LEGEND}; --max N peeks more")
    if not groups:
        screen.say("no dead letter matches" if chosen else none)
        return
    number = f"{'' if exact else 'at least '}{grouped(total)} dead letter{'' if total == 1 else 's'}"
    matching = (" matches" if total == 1 else " match") if chosen else ""
    screen.say(f"{number}{matching}; {way}")
