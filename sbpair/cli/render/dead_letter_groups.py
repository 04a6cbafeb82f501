"""Groups of dead letters of one reason: as JSON, as cells of a table, and their number in words."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from sbpair.cli.render.screen import Document, Screen, grouped, rounded, spoken
from sbpair.cli.render.status import LEGEND, sampled

if TYPE_CHECKING:
    from sbpair.message_io.peek import DeadLetterCount

NO_REASON = "(none)"


def group_document(group: "DeadLetterCount", now: float, *without: str) -> Document:
    """Return a group as JSON. `now` is in seconds since 1970."""
    known = {name: value for name, value in asdict(group).items() if name not in ("oldest_ms", *without)}
    return {**known, "oldest_seconds": rounded(_age(group, now))}


def group_cells(group: "DeadLetterCount", now: float) -> tuple[str, int | str, str]:
    """Return the reason, the number and the age of the oldest."""
    age = _age(group, now)
    return group.reason or NO_REASON, sampled(group.messages, exact=group.exact), "" if age is None else spoken(age)


def say_number(screen: Screen, groups: "Sequence[DeadLetterCount]", way: str, *, chosen: bool = False) -> None:
    """Print how many dead letters there are, or match a filter, and what to do about them."""
    total, exact = sum(each.messages for each in groups), all(each.exact for each in groups)
    if not exact:
        screen.say(f"{LEGEND}; --max N peeks more")
    if not groups:
        screen.say("no dead letter matches" if chosen else "no dead letters")
        return
    number = f"{'' if exact else '~'}{grouped(total)} dead letter{'' if total == 1 else 's'}"
    matching = (" matches" if total == 1 else " match") if chosen else ""
    screen.say(f"{number}{matching}; {way}")


def _age(group: "DeadLetterCount", now: float) -> float | None:
    return max(0.0, now - group.oldest_ms / 1000) if group.oldest_ms > 0 else None
