"""`sbpair runs pause`, `resume` and `cancel`: requests to a run in another process, and its confirmation."""

import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from sbpair.cli.completion import live_runs, paused_runs, unpaused_runs
from sbpair.cli.next_command import next_command
from sbpair.cli.options.common import NAMESPACE, STATE, PairSelection, argument
from sbpair.cli.options.reach import open_runs
from sbpair.cli.render.screen import Screen, spoken
from sbpair.errors import ExitCode

if TYPE_CHECKING:
    from sbpair.runs.database import RunDatabase

SCHEMA = "sbpair/runs-control/1"


def pause_run(
    *,
    run_id: str = argument("ID", "Id of the run, or its beginning", complete=unpaused_runs),
    namespace: str | None = NAMESPACE,
    state: Path | None = STATE,
    connection: PairSelection,
    screen: Screen,
) -> int:
    """Pause a running syphon, move, redrive or replay from another terminal.

    Within two seconds the run receives and sends nothing more, and its messages go back with their delivery counts
    unchanged. It keeps its connections and its lease. The pause lasts until resume or cancel, also after this terminal
    has gone; it ends with the run. A run that waits for the outcome of a send, or writes a segment, confirms later.

    Examples:
      sbpair runs pause 261122-101500
      sbpair runs pause 261122 -o json

    Exit codes: 0 paused; 2 no such run, or it is not running; 3 not confirmed in time

    See also: sbpair help runs
    """
    return _request("pause", run_id, open_runs(connection, screen, namespace, state), screen)


def resume_run(
    *,
    run_id: str = argument("ID", "Id of the run, or its beginning", complete=paused_runs),
    namespace: str | None = NAMESPACE,
    state: Path | None = STATE,
    connection: PairSelection,
    screen: Screen,
) -> int:
    """Let a paused run go on.

    A stopped or crashed run cannot go on: start it again. Of a replay, that is sbpair replay resume.

    Examples:
      sbpair runs resume 261122-101500
      sbpair runs resume 261122 --namespace archive

    Exit codes: 0 running; 2 no such run, or it is not running; 3 not confirmed in time

    See also: sbpair help runs
    """
    return _request("resume", run_id, open_runs(connection, screen, namespace, state), screen)


def cancel_run(
    *,
    run_id: str = argument("ID", "Id of the run, or its beginning", complete=live_runs),
    namespace: str | None = NAMESPACE,
    state: Path | None = STATE,
    connection: PairSelection,
    screen: Screen,
) -> int:
    """Stop a running or paused run as Ctrl-C in its terminal does.

    Pending sends finish, held messages go back, and the run prints its receipt. Waits up to a minute for its end.

    Examples:
      sbpair runs cancel 261122-101500
      sbpair runs cancel 261122 --pair orders

    Exit codes: 0 ended; 2 no such run, or it is not running; 3 not confirmed in time

    See also: sbpair help runs
    """
    return _request("cancel", run_id, open_runs(connection, screen, namespace, state), screen)


def _request(action: str, run_id: str, opening: "AbstractContextManager[RunDatabase | None]", screen: Screen) -> int:
    from sbpair.runs import control
    from sbpair.runs.run_log import LIVE

    wanted = control.WANTED[action]
    began = time.monotonic()
    with opening as kept:
        before, run = control.request(kept, run_id, wanted, control.WAIT_SECONDS[wanted])
    confirmed, seconds = control.is_confirmed(run, wanted), time.monotonic() - began
    document = {"run": run.id, "request": action, "outcome": run.outcome.value, "confirmed": confirmed}
    screen.result(SCHEMA, {**document, "seconds": round(seconds, 3)}, [f"{run.id} {run.outcome}"])
    if confirmed and wanted is control.Wanted.PAUSED:
        go_on, stop = next_command("runs resume", run.id), next_command("runs cancel", run.id)
        screen.say(f"it keeps its lease and holds no message; to go on: {go_on}; to stop: {stop}")
    if confirmed and before.outcome == run.outcome:
        screen.say(f"it was {run.outcome} before")
    if confirmed:
        return ExitCode.DONE
    if run.outcome not in LIVE:
        screen.warn(f"it ended before it was to {action}")
    elif seconds < control.WAIT_SECONDS[wanted]:
        screen.warn("another request has replaced this one")
    else:
        screen.warn(
            f"no confirmation within {spoken(seconds)}: it waits for pending sends, or is in a step that it ends first;"
            f" the request stays; see {next_command('runs show', run.id)}"
        )
    return ExitCode.PARTIAL_OR_FINDINGS
