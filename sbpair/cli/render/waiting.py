"""Runs with work left, as commands print them: a table, JSON, and a line with the command that goes on with each."""

from collections.abc import Collection, Iterator

from sbpair.cli.logs import utc
from sbpair.cli.next_command import next_command, without_password
from sbpair.cli.render.screen import Document, Screen, grouped
from sbpair.cli.render.table import columns
from sbpair.runs.waiting import INTERRUPTED, PAUSED, WaitingRun

HEADING = ("RUN", "STATE", "MESSAGES", "NOTE")


def waiting_document(found: WaitingRun) -> Document:
    """Return a run with work left as JSON."""
    return {
        "run": found.run,
        "state": found.state,
        "archive": without_password(found.archive),
        "messages": found.messages,
        "exact": found.exact and found.messages is not None,
        "counted": _counted(found) or None,
        "note": found.note,
        "command": _command(found),
    }


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
