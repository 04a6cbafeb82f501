"""Results of `sbpair runs`."""

from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

from sbpair.cli.render.waiting import WaitingEntry, waiting_entry
from sbpair.model.document import SPREAD, document
from sbpair.move.receipt import Receipt
from sbpair.replay.outcomes import ReplayReceipt
from sbpair.runs.message_search import RecordedMessage
from sbpair.runs.run_record import DoubtfulMessage, RunOutcome, RunRecord
from sbpair.runs.waiting import waiting_runs
from sbpair.syphon.run_result import SyphonResult


class RecordedReceipt(NamedTuple):
    """The receipt of a move, of one that has not ended without its end."""

    result: Annotated[SyphonResult | None, SPREAD]
    receipt: Annotated[Receipt, SPREAD]


class RunDetails(NamedTuple):
    """The receipt and the doubts of a run."""

    receipt: Annotated[
        Mapping[str, Any] | None,
        "Receipt of a move, or proof of a replay; null without one",
        {"stored": RecordedReceipt | ReplayReceipt | None},
    ]
    doubtful: Annotated[list[DoubtfulMessage], "Messages that may be there twice"]


class ListedRun(NamedTuple):
    """A run."""

    run: Annotated[RunRecord, SPREAD]
    waiting: Annotated[WaitingEntry | None, "The work that is left of a replay or a paused run; null for none"]
    details: Annotated[RunDetails | None, SPREAD] = None


def listed_run(run: RunRecord, details: RunDetails | None = None) -> ListedRun:
    """Return what is printed of a run. Encode it within `reading`."""
    return ListedRun(run, next(map(waiting_entry, waiting_runs([run])), None), details)


@document("sbpair/runs/1", "runs")
class RunList:
    """Earlier runs; receipt and doubtful are present with sbpair runs show. JSON Lines have one run each."""

    runs: Annotated[list[ListedRun], "Runs, the latest first"]


class ReportFile(NamedTuple):
    """A file."""

    format: Annotated[str, "Its format", {"enum": ["html", "markdown"]}]
    path: Annotated[str, "Its path, as given"]
    bytes: Annotated[int, "Its size"]


@document("sbpair/runs-report/1")
class WrittenReport:
    """The files that sbpair runs report has written."""

    run: Annotated[str, "Id of the run"]
    outcome: Annotated[RunOutcome, "How it ended, or the state of a live run"]
    files: Annotated[list[ReportFile], "Files"]


@document("sbpair/runs-control/1")
class ControlAnswer:
    """The answer of a run to sbpair runs pause, resume or cancel."""

    run: Annotated[str, "Id of the run"]
    request: Annotated[str, "The request", {"enum": ["pause", "resume", "cancel"]}]
    outcome: Annotated[RunOutcome, "How it ended, or the state of a live run"]
    confirmed: Annotated[bool, "Whether the run is as requested now"]
    seconds: Annotated[float, "Time until the answer"]


@document("sbpair/runs-find/1", "records")
class FoundMessage:
    """The records of one message. JSON Lines have one record each."""

    name: Annotated[str, "Message id or sequence number, as typed"]
    records: Annotated[list[RecordedMessage], "Records of the journal, receipts, archives and kept files"]
    unread: Annotated[list[str], "Archives that were not searched, and why"]
