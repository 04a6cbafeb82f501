"""Messages that wait: the line that leads a status, and runs with work left, each with the command that goes on."""

import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from sbpair.cli.logs import utc
from sbpair.cli.next_command import next_command, without_password
from sbpair.cli.render.screen import Screen, grouped, plural, spoken
from sbpair.cli.render.table import columns
from sbpair.model.document import TIME
from sbpair.runs.waiting import INTERRUPTED, PAUSED, WaitingRun

if TYPE_CHECKING:
    from sbpair.management.audit_findings import BacklogTotal
    from sbpair.runs.active_mover import ActiveMover

HEADING = ("RUN", "STATE", "MESSAGES", "NOTE")


@dataclass(frozen=True, slots=True)
class WaitingEntry:
    """The work that is left of a run."""

    run: Annotated[str, "Id of the run"]
    state: Annotated[str, "Its state", {"enum": ["running", PAUSED, INTERRUPTED]}]
    archive: Annotated[str, "Archive of a replay; empty for another run, whose messages are in their source"]
    messages: Annotated[int | None, "Messages in its archive, about so many unless exact; null if unknown"]
    exact: Annotated[bool, "Whether messages is exact"]
    counted: Annotated[str | None, "When they were counted, in UTC; null for now", TIME]
    note: Annotated[str, "Remark, such as why the archive could not be read; may be empty"]
    command: Annotated[str, "Command that goes on with it; empty for a running run"]


def waiting_entry(found: WaitingRun) -> WaitingEntry:
    """Return what is printed of a run with work left."""
    exact = found.exact and found.messages is not None
    count = (found.messages, exact, _counted(found) or None)
    return WaitingEntry(found.run, found.state, without_password(found.archive), *count, found.note, _command(found))


def stranded_line(
    messages: int | None, oldest_at: float | None, now: float, more: Iterable[str], *, exact: bool = True, to: str = ""
) -> str:
    """Return the messages that wait, as `1 204 messages stranded since 02:10 UTC (51m) for 6 queues; primary up; …`.

    Times are in seconds since 1970. `to` is for what they are, and `more` follows.
    """
    if messages is None or not (messages or exact):
        return "; ".join(["how many messages are stranded is unknown", *filter(None, more)])
    if not messages:
        return "; ".join(["no messages stranded", *filter(None, more)])
    since = ""
    if oldest_at is not None:
        at, seconds = time.localtime(oldest_at), max(0.0, now - oldest_at)
        day = "" if at[:3] == time.localtime(now)[:3] else "%d %b "
        minutes = seconds - (seconds % 60 if seconds >= 60 else 0)
        since = f" since {time.strftime(f'{day}%H:%M %Z', at)} ({spoken(minutes)})"
    text = f"{'' if exact else 'at least '}{grouped(messages)} message{'' if messages == 1 else 's'} stranded{since}"
    return "; ".join([f"{text} for {to}" if to else text, *filter(None, more)])


def left_dead(dead_letters: int | None) -> str:
    """Return the dead letters of backlog queues in words; "" for none, or if they are unknown."""
    return f"{plural(dead_letters, 'dead letter')} in backlog queues" if dead_letters else ""


def is_movable(total: "BacklogTotal", runs: Iterable[WaitingRun]) -> bool:
    """Return whether messages wait in backlog queues, or in the archives of interrupted runs."""
    return (total.messages or 0) > total.elsewhere or any(each.state == INTERRUPTED and each.messages for each in runs)


def mover_step(mover: "ActiveMover", health: str, runs: Collection[WaitingRun] = (), *, lost: bool = False) -> str:
    """Return the mover of stranded messages, or the command that moves them, at once or once the primary is up.

    `health` is that of the primary: up, refused or down. `lost` is whether it is declared lost. `runs` have work left:
    the mover may be a paused one among them.
    """
    if lost:
        return "declared lost, so that nothing moves them there: see sbpair help runbook"
    paused = next((each for each in runs if each.state == PAUSED and each.run in mover.holder), None)
    if paused is not None:
        return f"run {paused.run} is paused, and nothing moves them: run {_command(paused)}"
    if mover.moving:
        return f"{mover} moves them"
    nothing = "nothing moves them" if mover.moving is False else "nothing on this machine moves them"
    if health == "refused":
        return f"{nothing}: first find out why the namespace refuses the credential, with {next_command('doctor')}"
    # An interrupted run knows what it has sent.
    interrupted = [_command(each) for each in runs if each.state == INTERRUPTED]
    [command, *_] = interrupted or [next_command("syphon", "--once" if health == "up" else "--watch")]
    return f"{nothing}: {'' if health == 'up' else 'to move them once it is up, '}run {command}"


def waiting_table(runs: Collection[WaitingRun]) -> Iterator[str]:
    """Return the table of runs with work left; nothing without any."""
    if runs:
        yield ""
        yield from columns([HEADING, *map(_row, runs)], optional=("NOTE",))


def report_waiting(screen: Screen, runs: Collection[WaitingRun]) -> None:
    """Warn of interrupted runs, and say which others have work left, on stderr."""
    for each in runs:
        (screen.warn if each.state == INTERRUPTED else screen.say)(waiting_line(each))


def waiting_line(found: WaitingRun) -> str:
    """Return what waits in a run, with the command that goes on with it at the end."""
    if found.archive and found.messages is None:
        waits = f"how many messages wait in run {found.run} is not known"
    elif found.holds_messages:
        as_of = f" at {_counted(found)}" if _counted(found) else ""
        waits = f"{_messages(found)} messages wait in run {found.run}{as_of}"
    else:
        waits = f"run {found.run} {'was' if found.state == INTERRUPTED else 'is'} {found.state}"
    note = f" ({found.note})" if found.note else ""
    return f"{waits}{note}: {_command(found) or found.state}"


def _command(found: WaitingRun) -> str:
    """Return the command that goes on with a run; empty for a running one."""
    if found.state == INTERRUPTED:
        return next_command("replay resume", found.run, "--archive", without_password(found.archive))
    return next_command("runs resume", found.run) if found.state == PAUSED else ""


def _row(found: WaitingRun) -> tuple[object, ...]:
    counted = f"counted at {_counted(found)}" if _counted(found) else ""
    note = "; ".join(filter(None, (counted, found.note)))
    return (found.run, found.state, _messages(found), note)


def _messages(found: WaitingRun) -> str:
    if not found.archive:
        return ""
    return "?" if found.messages is None else f"{'' if found.exact else '~'}{grouped(found.messages)}"


def _counted(found: WaitingRun) -> str:
    return "" if found.counted_ms is None or not found.holds_messages else utc(found.counted_ms / 1000)
