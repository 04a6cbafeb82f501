"""`sbpair runs list` and `show`: print the records of earlier runs."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from sbpair.cli.commands.runs_control import cancel_run, pause_run, resume_run
from sbpair.cli.commands.runs_report import report_run
from sbpair.cli.completion import runs as runs_of_pair
from sbpair.cli.logs import utc
from sbpair.cli.options.common import NAMESPACE, STATE, PairSelection, argument
from sbpair.cli.options.reach import open_runs
from sbpair.cli.render.receipt import (
    backing_off_lines,
    breakdown,
    discard_lines,
    filter_lines,
    proof_lines,
    stayed_lines,
)
from sbpair.cli.render.screen import Screen, clean, spoken
from sbpair.cli.render.table import columns, wrapped
from sbpair.move.receipt import BUCKETS

if TYPE_CHECKING:
    from sbpair.runs.run_log import RunRecord

SCHEMA = "sbpair/runs/1"
FACTS = ("id", "command", "archive", "started", "ended", "took", "outcome", "exit_code", "error")
SHOWN = (*FACTS, "received", *BUCKETS, "locked")


def group() -> None:
    """Show and report earlier runs; pause, resume and cancel running ones.

    Each machine keeps the latest 200 runs of a pair.

    Examples:
      sbpair runs list
      sbpair runs show 261122
      sbpair runs pause 261122

    See also: sbpair help runs
    """


def list_runs(
    *, namespace: str | None = NAMESPACE, state: Path | None = STATE, connection: PairSelection, screen: Screen
) -> int:
    """List the syphons, moves and replays of a pair, or the moves of a namespace, the latest first.

    OUTCOME is running, paused, done, partial (exit code 3), stopped, failed or crashed; IN DOUBT counts messages sent
    without an answer.

    Examples:
      sbpair runs list
      sbpair runs list --pair orders -o json
      sbpair runs list --namespace archive
    """
    from sbpair.runs.run_log import all_runs

    with open_runs(connection, screen, namespace, state) as kept:
        found = all_runs(kept) if kept else []
    entries, rows = [], []
    for run in found:
        with run.reading():
            entries.append(_entry(run))
            rows.append(_row(run))
    heading = ("RUN", "KIND", "COMMAND", "STARTED", "TOOK", "OUTCOME", "RECEIVED", "SENT", "IN DOUBT")
    table = columns([heading, *rows], optional=("STARTED", "COMMAND", "KIND")) if found else []
    screen.result(SCHEMA, {"runs": entries}, table, entries)
    return 0


def show_run(
    *,
    run_id: str = argument("ID", "Id of the run, or its beginning", complete=runs_of_pair),
    namespace: str | None = NAMESPACE,
    state: Path | None = STATE,
    connection: PairSelection,
    screen: Screen,
) -> int:
    """Show the receipt of one run and each message it left in doubt.

    A message in doubt was sent without an answer: its destination may have it, and may get it twice. The receipt of a
    crashed run is a few seconds older than its end.

    Examples:
      sbpair runs show 261122-101500
      sbpair runs show 261122-101500 -o json
    """
    from sbpair.runs.run_log import find_run

    with open_runs(connection, screen, namespace, state) as kept:
        run = find_run(kept, run_id)
    doubtful = [{key: value for key, value in asdict(doubt).items() if key != "run"} for doubt in run.doubts]
    receipt = {key: value for key, value in (run.receipt or {}).items() if key != "archive"}
    with run.reading():
        found = {**_entry(run), "receipt": receipt or None, "doubtful": doubtful}
        screen.result(SCHEMA, {"runs": [found]}, _page(run), [found])
    return 0


SUBCOMMANDS = {
    "list": list_runs,
    "show": show_run,
    "report": report_run,
    "pause": pause_run,
    "resume": resume_run,
    "cancel": cancel_run,
}


def _entry(run: "RunRecord") -> dict[str, object]:
    return {
        "id": run.id,
        "kind": run.kind,
        "command": run.command,
        "archive": (run.receipt or {}).get("archive"),
        "started": utc(run.started_ms / 1000),
        "ended": None if run.ended_ms is None else utc(run.ended_ms / 1000),
        "outcome": run.outcome,
        "exit_code": run.exit_code,
        "error": run.error,
        "in_doubt": _in_doubt(run),
    }


def _in_doubt(run: "RunRecord") -> int:
    """Return the messages sent without an answer, of which a replay's proof has the number."""
    return len(run.doubts) or int(str((run.receipt or {}).get("doubtful_total", 0)))


def _row(run: "RunRecord") -> list[object]:
    receipt = run.receipt or {}
    received, sent = ("archived", "acknowledged") if run.kind == "replay" else ("received", "sent")
    command = run.command.removeprefix(f"{run.kind} ")
    counts = [receipt.get(received) or receipt.get("received", ""), receipt.get(sent, ""), _in_doubt(run)]
    return [run.id, run.kind, command, utc(run.started_ms / 1000), _took(run), run.outcome, *counts]


def _page(run: "RunRecord") -> Iterator[str]:
    receipt = run.receipt or {}
    replayed = run.kind == "replay"
    facts = {**({} if replayed else receipt), **_entry(run), "took": _took(run)}
    shown = [(name.replace("_", " "), str(facts[name])) for name in SHOWN if facts.get(name) not in (None, "")]
    yield from columns(shown)
    if not replayed:
        yield from filter_lines(receipt)
        yield from breakdown(receipt)
        yield from stayed_lines(receipt)
        yield from backing_off_lines(receipt)
        yield from discard_lines(receipt)
    elif "run" in receipt:
        yield ""
        yield from proof_lines(receipt)
    for doubt in run.doubts:
        name = doubt.message_id or doubt.sequence_number
        yield from wrapped(clean(f"in doubt: {name} of {doubt.queue} to {doubt.destination}"))


def _took(run: "RunRecord") -> str:
    return "" if run.ended_ms is None else spoken((run.ended_ms - run.started_ms) / 1000)
