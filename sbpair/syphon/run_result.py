"""The result of a run: its receipt, how it ended, and its exit code. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

from sbpair.errors import ExitCode, SbpairError
from sbpair.model.document import LATER, SPREAD, UNLESS_NONE
from sbpair.move.rate_limit import Limit
from sbpair.move.receipt import KeptRecord, MissingDestination, Receipt
from sbpair.runs.run_record import RemainingMessages

STOPPING = (ExitCode.UNSAFE, ExitCode.ACCESS, ExitCode.MACHINE, ExitCode.UNAVAILABLE)
"""Exit codes of errors that no message caused, the gravest first: a lost lease, a refused key, a full disk, a lost
side."""


class QueueFailure(NamedTuple):
    """A worker that could not go on."""

    queue: Annotated[str, "Its path"]
    error: SbpairError

    @property
    def reason(self) -> Annotated[str, "Why it failed"]:
        return self.error.message

    @property
    def hint(self) -> Annotated[str, "What to do about it; may be empty", LATER]:
        return self.error.hint


@dataclass(frozen=True, slots=True)
class SyphonResult:
    """A run that has ended, as it is recorded. `run` is its id in `sbpair runs show`.

    `stopped` is whether the run was asked to end, `hurried` whether it did so without a wait for pending sends, `once`
    whether it would have ended by itself. `remaining` is None for a run that emptied the backlog.
    `limit` slowed the run down most. `to` is the namespace that a backlog went to instead of its primary.
    """

    receipt: Annotated[Receipt, SPREAD]
    failures: Annotated[tuple[QueueFailure, ...], "Queues that failed"]
    seconds: Annotated[float, "Duration of the run"]
    stopped: Annotated[bool, "Whether a signal ended the run"]
    run: Annotated[str, "Id of the run"] = ""
    hurried: bool = False
    missing_destinations: Annotated[tuple[MissingDestination, ...], "Destinations that the primary lacks"] = ()
    remaining: Annotated[RemainingMessages | None, "Messages at the end; null if the run emptied it"] = None
    limit: Annotated[Limit | None, "The limit that the run waited for longest; null if none slowed it down"] = None
    to: Annotated[str | None, "Namespace that the backlog went to; null for its primary"] = None
    once: bool = False
    kept: Annotated[KeptRecord | None, "Removed messages, and where they are", UNLESS_NONE] = None

    @property
    def exit_code(self) -> int:
        """The receipt's; that of a failure if nothing was moved, or if the failure stopped the run.

        A stop ends a watch in order, and interrupts a run that would have ended by itself, or that does not wait.
        """
        receipt = self.receipt
        if self.hurried and receipt.balanced:
            return ExitCode.INTERRUPTED
        if not self.failures and self.stopped and receipt.balanced:
            held = any(each.held for each in self.missing_destinations)
            found = receipt.dead_lettered or receipt.expired or held
            return ExitCode.INTERRUPTED if self.once else ExitCode.PARTIAL_OR_FINDINGS if found else ExitCode.DONE
        if not self.failures:
            return receipt.exit_code
        codes = {error.exit_code for _, error in self.failures}
        worst = next((code for code in STOPPING if code in codes), min(codes))
        return worst if worst in STOPPING or not receipt.sent else ExitCode.PARTIAL_OR_FINDINGS
