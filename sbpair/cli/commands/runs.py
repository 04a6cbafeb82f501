"""`sbpair runs list` and `sbpair runs show`: what is kept of earlier runs, into output."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sbpair.cli.help import Command, CommandGroup
from sbpair.cli.options.common import Display, PairSelection, StateDirectory, options
from sbpair.cli.options.pairs import profile
from sbpair.cli.render.receipt import breakdown
from sbpair.cli.render.screen import Document, Screen, clean, columns
from sbpair.move.receipt import BUCKETS

if TYPE_CHECKING:
    from sbpair.runs.database import RunDatabase
    from sbpair.runs.run_log import RunRecord

SCHEMA = "sbpair/runs/1"
SHOWN = (
    *("id", "command", "started", "ended", "took", "outcome", "exit_code", "error"),
    *("received", *BUCKETS),
)

app = typer.Typer(cls=CommandGroup, add_completion=False, rich_markup_mode=None)


@app.callback()
def runs() -> None:
    """Show the runs that moved messages of a pair, and what they left in doubt.

    The latest 200 of each pair are kept, on the machine that they ran on.
    """


@app.command("list", cls=Command)
@options
def list_runs(*, state: StateDirectory = None, connection: PairSelection, display: Display) -> int:
    """List the runs of a pair, the latest first.

    A run has the outcome "running", "done", "stopped", "failed" or "crashed"; "in_doubt" is how many messages it sent
    without ever seeing an answer.

    JSON; a time that is not known, as the end of a run that crashed, is null:

      {"schema": "sbpair/runs/1", "runs": [{"id": "", "command": "", "started": "", "ended": "",
       "outcome": "", "exit_code": 0, "error": "", "in_doubt": 0}]}

    Exit codes: 0 also where there was none yet; 4 the state is another pair's, or broken.
    """
    screen = Screen(display)
    from sbpair.runs.run_log import all_runs

    with ExitStack() as stack:
        kept = _kept(stack, state, connection, screen)
        found = all_runs(kept) if kept else []
    entries = [entry(run) for run in found]
    lines = [{"schema": SCHEMA, **each} for each in entries]
    screen.result({"schema": SCHEMA, "runs": entries}, lines, table(found))
    return 0


@app.command("show", cls=Command)
@options
def show_run(
    *,
    run_id: Annotated[str, typer.Argument(metavar="ID", help="The run's id, or how it begins")],
    state: StateDirectory = None,
    connection: PairSelection,
    display: Display,
) -> int:
    """Show one run: its receipt, and every message that it left in doubt.

    The receipt of a run that crashed is a few seconds older than its end. "doubtful" names the messages that it sent
    without seeing an answer: the primary may have them, and may have them twice once they are sent again.

    JSON:

      {"schema": "sbpair/runs/1", "runs": [{"id": "", "command": "", "started": "", "ended": "",
       "outcome": "", "exit_code": 0, "error": "", "in_doubt": 0, "receipt": {},
       "doubtful": [{"queue": "", "sequence_number": 0, "message_id": "", "destination": ""}]}]}

    Exit codes: 0 shown; 2 there is no such run, or more than one; 4 the state is another pair's, or broken.
    """
    screen = Screen(display)
    from sbpair.runs.run_log import find_run

    with ExitStack() as stack:
        run = find_run(_kept(stack, state, connection, screen), run_id)
    told = full(run)
    screen.result({"schema": SCHEMA, "runs": [told]}, [{"schema": SCHEMA, **told}], page(run))
    return 0


def entry(run: "RunRecord") -> dict[str, object]:
    """One run of the JSON contract."""
    return {
        "id": run.id,
        "command": run.command,
        "started": _time(run.started_ms),
        "ended": None if run.ended_ms is None else _time(run.ended_ms),
        "outcome": run.outcome,
        "exit_code": run.exit_code,
        "error": run.error,
        "in_doubt": len(run.doubts),
    }


def full(run: "RunRecord") -> Document:
    """The same, with all that is known."""
    doubtful = [{key: value for key, value in asdict(doubt).items() if key != "run"} for doubt in run.doubts]
    return {**entry(run), "receipt": run.receipt, "doubtful": doubtful}


def table(runs: "list[RunRecord]") -> list[str]:
    """Runs for people, a line each."""
    if not runs:
        return []
    heading = ("RUN", "COMMAND", "STARTED", "TOOK", "OUTCOME", "RECEIVED", "SENT", "IN DOUBT")
    return columns([heading, *(_row(run) for run in runs)])


def _row(run: "RunRecord") -> list[object]:
    receipt = run.receipt or {}
    counts = [receipt.get("received", ""), receipt.get("sent", ""), len(run.doubts)]
    return [run.id, run.command, _time(run.started_ms), _took(run), run.outcome, *counts]


def page(run: "RunRecord") -> Iterator[str]:
    """One run for people."""
    facts = {**entry(run), **(run.receipt or {}), "took": _took(run), "in_doubt": len(run.doubts)}
    shown = [(name.replace("_", " "), str(facts[name])) for name in SHOWN if facts.get(name) not in (None, "")]
    yield from columns(shown)
    yield from breakdown(run.receipt or {})
    for doubt in run.doubts:
        name = doubt.message_id or doubt.sequence_number
        yield clean(f"in doubt: {name} of {doubt.queue} to {doubt.destination}")


def _kept(stack: ExitStack, state: Path | None, connection: PairSelection, screen: Screen) -> "RunDatabase | None":
    from sbpair.runs.database import state_if_any

    found = profile(connection, screen, state=state)
    kept = state_if_any(found.state_directory, found.pair)
    if kept is None:
        screen.say(f"there was no run yet: {found.state_directory} has no state")
        return None
    return stack.enter_context(kept)


def _time(ms: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(ms / 1000))


def _took(run: "RunRecord") -> str:
    return "" if run.ended_ms is None else f"{(run.ended_ms - run.started_ms) / 1000:.1f} s"
