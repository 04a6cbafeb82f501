"""Records of one message in a state directory: its journal, the receipts of its runs, and the files of kept messages.

Invariant: nothing is changed. A message whose source has confirmed its removal is in no journal any more, and receipts
name only those that need attention: of any other message, the counts of its run are all that is left.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

from sbpair.errors import MachineLacks
from sbpair.model.document import SPREAD, TIME
from sbpair.runs.journal import ACCEPTED, DOUBTFUL, NAMED, SENDING, TWICE, Doubt, find_flights
from sbpair.runs.run_record import LIVE, UNANSWERED, RunRecord

if TYPE_CHECKING:
    from sbpair.runs.database import RunDatabase

JOURNALED = {
    SENDING: UNANSWERED,
    ACCEPTED: "accepted; its source may still have it, and no run sends it again",
    DOUBTFUL: UNANSWERED,
    NAMED: f"{UNANSWERED}, and ended by a later send or settlement",
    TWICE: "accepted, and by another namespace, too",
}
LISTED = {
    "dead_letters": "dead-lettered",
    "stayed": "stayed in its source",
    "doubtful": "may be there twice",
    "renumbered": "moved",
}
"""The lists of a receipt that name messages, and how these ended."""


class RecordedMessage(NamedTuple):
    """A record of a message."""

    record: Annotated[Literal["journal", "receipt", "archive", "kept"], "Kind of record"]
    message: Annotated[Doubt, SPREAD]
    at_ms: Annotated[int | None, "When it was sent, or its run ended or began; null if unknown", TIME, {"name": "time"}]
    outcome: Annotated[str, "How it ended, in words"]
    in_doubt: Annotated[bool, "Whether it was sent without an answer, and not settled since"] = False
    enqueued_ms: Annotated[int | None, "When it was enqueued; null if unknown", TIME, {"name": "enqueued_at"}] = None


def find_recorded(state: RunDatabase, runs: Sequence[RunRecord], name: str) -> Iterator[RecordedMessage]:
    """Iterate over the records of the journal, and then of the receipts of `runs`, by message id or sequence number."""
    live, journaled = {run.id for run in runs if run.outcome in LIVE}, set[tuple[str, int]]()
    for known, enqueued_ms, sent_ms, batch in find_flights(state, name):
        journaled.add((known.run, known.sequence_number))
        is_sending = batch == SENDING and known.run in live
        outcome = "being sent" if is_sending else JOURNALED.get(batch, "unknown")
        in_doubt = batch in (SENDING, DOUBTFUL) and not is_sending
        yield RecordedMessage("journal", known, sent_ms or None, outcome, in_doubt, enqueued_ms)
    for run in runs:
        with run.reading():
            named = [each for each in _named(run, name) if (run.id, each.message.sequence_number) not in journaled]
        yield from named


def _named(run: RunRecord, name: str) -> Iterator[RecordedMessage]:
    receipt = run.receipt or {}
    kinds = LISTED | ({"renumbered": "removed"} if "keep" in run.settings else {})
    lists = {kind: receipt.get(key, ()) for key, kind in kinds.items()}
    lists["came back as a dead letter"] = (receipt.get("ramp") or {}).get("came_back", ())
    for kind, each in ((kind, each) for kind, listed in lists.items() for each in listed):
        number, message_id = each["sequence_number"], each["message_id"]
        new = each.get("new_number")
        if name in (message_id, str(number), str(new or "")):
            to = each.get("destination") or "", each.get("namespace", "")
            outcome = ": ".join(filter(None, (kind, each.get("reason") or (new and f"its new number is {new}"))))
            message = Doubt(run.id, each["queue"], number, message_id, *to)
            yield RecordedMessage("receipt", message, run.ended_ms or run.started_ms, outcome)


def kept_files(runs: Sequence[RunRecord]) -> dict[Path, RunRecord]:
    """Return the files of removed messages, each with the first run that wrote to it.

    A run that removed nothing leaves no file.
    """
    keeping = [(Path(str(run.settings["keep"])), run) for run in runs if run.settings.get("keep", "none") != "none"]
    return {
        path: run for path, run in keeping if (run.receipt or {}).get("kept", {}).get("messages", 1) or path.exists()
    }


def find_kept(path: Path, run: RunRecord, name: str) -> Iterator[RecordedMessage]:
    """Iterate over the messages of a file with this id or sequence number. Raises MachineLacks."""
    at_ms, queue = run.ended_ms or run.started_ms, str(run.settings.get("source", ""))
    try:
        with path.open("rb") as file:
            for line in file:
                with suppress(ValueError, KeyError, TypeError):  # a line that a kill cut short, or of another program
                    each = json.loads(line)
                    number, message_id = each["sequence_number"], each["message_id"]
                    if name in (message_id, str(number)):
                        message = Doubt(run.id, queue, number, message_id, "")
                        yield RecordedMessage("kept", message, at_ms, f"kept in {path} before its removal")
    except OSError as error:
        hint = "check that it is there, and its permissions"
        raise MachineLacks(f"{path} cannot be read: {error.strerror}", hint=hint) from error
