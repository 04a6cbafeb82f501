"""`sbpair runs`: the records of earlier runs, their reports, and requests to running ones in other processes."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sbpair import __version__
from sbpair.cli.completion import live_runs, paused_runs, unpaused_runs
from sbpair.cli.completion import runs as runs_of_pair
from sbpair.cli.logs import utc
from sbpair.cli.next_command import next_command, recalled, with_options
from sbpair.cli.options.common import Output, RunSelection, argument, option
from sbpair.cli.options.entity_addresses import reach_of
from sbpair.cli.render.receipt import SYPHON, MoveWording, next_commands, proof_lines, receipt_table, warnings_of
from sbpair.cli.render.screen import Document, Screen, clean, plural, size, spoken
from sbpair.cli.render.table import columns, wrapped
from sbpair.cli.render.waiting import report_waiting, waiting_line
from sbpair.errors import ExitCode, MachineLacks, SbpairError, UsageError
from sbpair.model.document import encoded
from sbpair.operating_system.files import replaced_file
from sbpair.runs.run_record import LIVE, RunOutcome
from sbpair.runs.waiting import waiting_runs

if TYPE_CHECKING:
    from sbpair.cli.report.run_report import RunReport
    from sbpair.replay.archive import Archive, ArchiveFiles
    from sbpair.runs.database import RunDatabase, StateOwner
    from sbpair.runs.message_search import RecordedMessage
    from sbpair.runs.run_record import RunRecord

Found = TypeVar("Found")

STDOUT = "-"
FACTS = ("id", "command", "archive", "started", "ended", "took", "outcome", "exit_code", "error")
HEADING = (
    *("RUN", "KIND", "COMMAND", "STARTED", "TOOK", "OUTCOME"),
    *("RECEIVED", "SENT", "DEAD", "LEFT", "IN DOUBT", "DOUBTFUL"),
)


def group() -> None:
    """Show and report earlier runs; pause, resume and cancel running ones.

    Each machine keeps the latest 200 runs of a pair.

    Examples:
      sbpair runs list
      sbpair runs show 261122
      sbpair runs pause 261122

    See also: sbpair help runs
    """


def list_runs(*, connection: RunSelection, screen: Screen) -> int:
    """List the syphons, moves and replays of a pair, or the moves of a namespace, the latest first.

    OUTCOME is running, paused, done, partial (exit code 3), stopped, failed or crashed. DEAD counts dead-lettered and
    expired messages, LEFT those left over at the end (? if it is not known), IN DOUBT those sent without an answer and
    not settled since, DOUBTFUL all that may be there twice. Below, stderr names replays with messages in their archive,
    and paused runs, with the command that goes on.

    Examples:
      sbpair runs list
      sbpair runs list --pair orders -o json
      sbpair runs list --namespace archive
    """
    from sbpair.cli.results.runs import RunList, listed_run
    from sbpair.runs.run_log import all_runs

    with _open_runs(connection, screen) as kept:
        found = all_runs(kept) if kept else []
    entries, rows = [], []
    for run in found:
        with run.reading():
            entries.append(listed := listed_run(run))
            rows.append(_row(encoded(listed), run.seconds))
    table = columns([HEADING, *rows], optional=("STARTED", "COMMAND", "TOOK", "KIND")) if found else []
    screen.show(RunList(entries), table)
    report_waiting(screen, waiting_runs(found))
    return 0


def show_run(
    *,
    run_id: str = argument("ID", "Id of the run, or its beginning", complete=runs_of_pair),
    connection: RunSelection,
    screen: Screen,
) -> int:
    """Show the receipt of one run, and each message that may be there twice.

    A message in doubt was sent without an answer: its destination may have it, and may get it twice. A later run
    settles it: then it is named no more as in doubt, and still as a possible duplicate. The receipt of a crashed run is
    a few seconds older than its end.

    Examples:
      sbpair runs show 261122-101500
      sbpair runs show 261122-101500 -o json
    """
    from sbpair.cli.results.runs import RunDetails, RunList, listed_run
    from sbpair.runs.run_log import find_run

    with _open_runs(connection, screen) as kept:
        run = find_run(kept, run_id)
    with run.reading():
        known = run.receipt or {}
        # A replay that has not ended has counts in place of a receipt.
        is_whole = run.kind != "replay" or "run" in known
        receipt = {key: value for key, value in known.items() if key != "archive" and is_whole}
        listed = listed_run(run, RunDetails(receipt or None, run.doubtful()))
        screen.show(RunList([listed]), _page(run, encoded(listed), receipt))
    return 0


def report_run(
    *,
    run_id: str = argument("ID", "Id of the run, or its beginning", complete=runs_of_pair),
    html: str | None = option("--html FILE", "Write one self-contained page; - for stdout"),
    markdown: str | None = option("--markdown FILE", "Write Markdown for a ticket; - for stdout"),
    connection: RunSelection,
    screen: Screen,
) -> int:
    """Write a report of one run: receipt, timeline, dead letters, options and cost.

    A running run is reported so far. An existing file is replaced. The page has no scripts, loads nothing, and prints
    well. A replay's report has checksums of its archive, if it can be read. Reports hold ids, names of entities and
    hosts, but neither bodies nor secrets.

    Examples:
      sbpair runs report 261122-101500 --html report.html
      sbpair runs report 261122-101500 --markdown -

    Exit codes: 0 written; 2 no such run; 7 a file cannot be written

    See also: sbpair help runs
    """
    wanted = {name: file for name, file in (("html", html), ("markdown", markdown)) if file is not None}
    _check(wanted, screen)
    owner = _owner(connection, screen)
    with ExitStack() as stack:
        targets = {name: stack.enter_context(replaced_file(file)) for name, file in wanted.items() if file != STDOUT}
        report, texts = rendered_report(owner, run_id, wanted)
        for name, target in targets.items():
            target.write_text(texts[name], "utf-8")
    if STDOUT in wanted.values():
        [name] = [name for name, file in wanted.items() if file == STDOUT]
        screen.write(texts[name].rstrip("\n"))
        return 0
    from sbpair.cli.results.runs import ReportFile, WrittenReport

    written = [ReportFile(name, file, len(texts[name].encode())) for name, file in wanted.items()]
    rows = [(each.path, each.format, size(each.bytes)) for each in written]
    result = WrittenReport(report.run, RunOutcome(report.outcome), written)
    screen.show(result, columns([("FILE", "FORMAT", "SIZE"), *rows]))
    return 0


def pause_run(
    *,
    run_id: str = argument("ID", "Id of the run, or its beginning", complete=unpaused_runs),
    connection: RunSelection,
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
    return _request("pause", run_id, _open_runs(connection, screen), screen)


def resume_run(
    *,
    run_id: str = argument("ID", "Id of the run, or its beginning", complete=paused_runs),
    connection: RunSelection,
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
    return _request("resume", run_id, _open_runs(connection, screen), screen)


def cancel_run(
    *,
    run_id: str = argument("ID", "Id of the run, or its beginning", complete=live_runs),
    connection: RunSelection,
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
    return _request("cancel", run_id, _open_runs(connection, screen), screen)


def find_message(
    *,
    name: str = argument("MESSAGE-ID|SEQUENCE", "Message id as its sender gave it, or sequence number in its source"),
    connection: RunSelection,
    screen: Screen,
) -> int:
    """Find one message in the records of this machine.

    Searches the journal and the receipts of the runs of a pair, or of a namespace, the archives of its replays, and the
    files in which they kept messages. Nothing else is contacted.

    Not recorded: a message that a syphon or a move has moved without incident. The journal forgets a message once its
    source has confirmed its removal, and the receipt has its count only. A receipt names at most 1000 dead letters and
    20000 possible duplicates. Runs of other machines are not searched.

    Examples:
      sbpair runs find order-4711
      sbpair runs find 4711 --namespace archive -o json

    Exit codes: 0 found; 3 nothing is recorded of it; 4 the state is that of another pair

    See also: sbpair help runs
    """
    if not name:
        raise UsageError("the message id is empty", hint="write a message id, or a sequence number")
    from sbpair.cli.results.runs import FoundMessage
    from sbpair.runs.message_search import find_kept, find_recorded, kept_files
    from sbpair.runs.run_log import all_runs

    owner = _owner(connection, screen)
    with owner.open_if_any() or nullcontext() as kept:
        runs = all_runs(kept) if kept else []
        found = list(find_recorded(kept, runs, name)) if kept else []
    unread: list[str] = []
    for run in (each for each in runs if each.archive):
        answer = _in_archive(run, partial(_archived, run=run, name=name))
        if isinstance(answer, str):
            unread.append(f"the archive of run {run.id}: {answer}")
        else:
            found += answer
    for path, run in kept_files(runs).items():
        try:
            found += find_kept(path, run, name)
        except MachineLacks as error:
            unread.append(error.message)
    screen.show(FoundMessage(name, found, unread), _found_table(found))
    for each in unread:
        screen.warn(f"not searched: {each}")
    if any(each.in_doubt for each in found):
        screen.say("in doubt: its destination may have it, and a run that receives it again sends it again")
    if found:
        return ExitCode.DONE
    searched = f"{plural(len(runs), 'run')} of {owner.directory}"
    screen.say(f"nothing is recorded of {clean(name)} by {searched}; a message moved without incident is only counted")
    return ExitCode.PARTIAL_OR_FINDINGS


SUBCOMMANDS = {
    "list": list_runs,
    "show": show_run,
    "find": find_message,
    "report": report_run,
    "pause": pause_run,
    "resume": resume_run,
    "cancel": cancel_run,
}


def _owner(selection: RunSelection, screen: Screen) -> "StateOwner":
    return reach_of(selection, screen, state=selection.state).owner()


def _open_runs(selection: RunSelection, screen: Screen) -> "AbstractContextManager[RunDatabase | None]":
    """Open the state with the runs of a pair or a namespace; None if it does not exist."""
    owner = _owner(selection, screen)
    kept = owner.open_if_any()
    if kept is None:
        screen.say(f"no runs yet: {owner.directory} has no state")
    return kept or nullcontext()


def _archived(archive: "Archive", *, run: "RunRecord", name: str) -> "list[RecordedMessage]":
    from sbpair.replay.archive_search import find_archived

    return list(find_archived(archive, run, name))


def _found_table(found: "Sequence[RecordedMessage]") -> list[str]:
    rows = []
    for each in found:
        known, at = each.message, "" if each.at_ms is None else utc(each.at_ms / 1000)
        doubt = "yes" if each.in_doubt else "no"
        named = (known.queue, known.sequence_number, known.message_id or "-", known.destination)
        rows.append((each.record, known.run, at, *named, doubt, each.outcome))
    heading = ("RECORD", "RUN", "TIME", "FROM", "SEQUENCE", "ID", "TO", "DOUBT", "ENDED")
    return columns([heading, *rows], optional=("RECORD", "SEQUENCE")) if rows else []


def _row(run: dict[str, Any], seconds: float | None) -> list[object]:
    left, took = run["remaining"], "" if seconds is None else spoken(seconds)
    remaining = left and (left["messages"] if left["exact"] else f"≥{left['messages']}" if left["messages"] else "?")
    command = run["command"].removeprefix(f"{run['kind']} ")
    shown = (run["received"], run["sent"], run["undeliverable"], remaining)
    counts = ("" if each is None else each for each in shown)
    doubts = (run["in_doubt"], run["doubtful_total"])
    return [run["id"], run["kind"], command, run["started"], took, run["outcome"], *counts, *doubts]


def _page(run: "RunRecord", document: Mapping[str, Any], receipt: Document) -> Iterator[str]:
    facts = {**document, "took": "" if run.seconds is None else spoken(run.seconds)}
    shown = [(name.replace("_", " "), str(facts[name])) for name in FACTS if facts[name] not in (None, "")]
    doubts = [("still in doubt", document["in_doubt"]), ("possible duplicates", document["doubtful_total"])]
    yield from columns([*shown, *doubts])
    for each in waiting_runs([run]):
        yield from wrapped(waiting_line(each))
    if run.kind != "replay":
        yield from _moved(run, {**receipt, "doubtful": document["doubtful"]})
    elif receipt:
        yield ""
        yield from proof_lines(receipt)
    for doubt in document["doubtful"]:
        if doubt["in_doubt"]:
            name = doubt["message_id"] or doubt["sequence_number"]
            yield from wrapped(clean(f"in doubt: {name} of {doubt['queue']} to {doubt['destination']}"))


def _moved(run: "RunRecord", receipt: Document) -> Iterator[str]:
    """Yield the receipt of a move as it was printed at its end. A crashed one goes on as a stopped one does."""
    is_cut, line = run.outcome == "crashed", str(run.settings.get("command_line") or f"sbpair {run.command}")
    with recalled(line) as words:
        source = {"syphon": SYPHON.source, "redrive": "the dead letters"}.get(run.kind, " ".join(words[1:2]))
        wording = MoveWording(words, source, routed=run.kind == "redrive")
        ended = {**receipt, **({"stopped": True} if is_cut else {})}
        mode = "" if "keep" in run.settings else f"--{run.settings.get('mode', 'once')}"
        commands = next_commands(ended, mode, wording)
        warnings = [with_options(text) for text in warnings_of(receipt, wording)]
    yield ""
    yield from receipt_table(receipt, commands if run.ended_ms or is_cut else {}, wording)
    for text in warnings:
        yield from wrapped(clean(text))


def _request(action: str, run_id: str, opening: "AbstractContextManager[RunDatabase | None]", screen: Screen) -> int:
    from sbpair.cli.results.runs import ControlAnswer
    from sbpair.runs import control

    wanted = control.WANTED[action]
    began = time.monotonic()
    with opening as kept:
        before, run = control.request(kept, run_id, wanted, control.WAIT_SECONDS[wanted])
    confirmed, seconds = control.is_confirmed(run, wanted), time.monotonic() - began
    screen.show(ControlAnswer(run.id, action, run.outcome, confirmed, seconds), [f"{run.id} {run.outcome}"])
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


def _check(wanted: dict[str, str], screen: Screen) -> None:
    """Raise UsageError for options that do not go together."""
    if not wanted:
        raise UsageError("expected --html FILE or --markdown FILE", hint="write - for stdout")
    if STDOUT in wanted.values() and (screen.output is not Output.TABLE or len(wanted) > 1):
        other = "two reports" if len(wanted) > 1 else f"--output {screen.output}"
        raise UsageError(f"{other} cannot share stdout with a report", hint="give the path of a file instead of -")
    if len(wanted) > 1 and len({Path(file).absolute() for file in wanted.values()}) == 1:
        raise UsageError("--html and --markdown name the same file", hint="give each a file of its own")


def rendered_report(owner: "StateOwner", run_id: str, formats: Iterable[str]) -> "tuple[RunReport, dict[str, str]]":
    from sbpair.cli.report.run_report import RENDERERS, report_of
    from sbpair.runs.run_log import find_run, timeline_of

    with owner.open_if_any() or nullcontext() as kept:
        run = find_run(kept, run_id)
        samples = timeline_of(kept, run.id) if kept else []
    now_ms = int(time.time() * 1000)
    archive = _files_of(run)
    with run.reading():
        report = report_of(run, samples, now_ms=now_ms, version=__version__, archive=archive)
        return report, {name: RENDERERS[name](report) for name in formats}


def _files_of(run: "RunRecord") -> "ArchiveFiles | str | None":
    """Return the files of a replay's archive, or why they cannot be read; None for other runs."""

    def read(archive: "Archive") -> "ArchiveFiles":
        from sbpair.replay.archive import files_of

        return files_of(archive)

    return _in_archive(run, read) if run.archive else None


def _in_archive(run: "RunRecord", read: "Callable[[Archive], Found]") -> "Found | str":
    """Return what `read` returns of the archive of a replay, or why it cannot be read."""
    from sbpair.replay.spark import is_installed

    if not is_installed("pyarrow"):
        return "pyarrow is not installed"
    from sbpair.replay.archive import RUN_FILE, Archive

    try:
        archive = Archive(str(run.archive), run.id)
        return read(archive) if archive.exists(RUN_FILE) else "it is not there"
    except (SbpairError, OSError) as error:
        return error.message if isinstance(error, SbpairError) else str(error)
