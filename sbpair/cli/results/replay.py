"""Results of `sbpair replay`."""

from typing import Annotated

from sbpair.model.document import SPREAD, document
from sbpair.replay.outcomes import ReplayReceipt, ReplaySummary


@document(
    "sbpair/replay/1",
    summary="The proof of a replay. In archive mode archived = acknowledged + expired + quarantined + deduplicated +"
    " unsent; in direct mode received = acknowledged + expired + quarantined + in_doubt.",
)
class ProvedReplay:
    """The proof of a replay."""

    receipt: Annotated[ReplayReceipt, SPREAD]


@document("sbpair/replay-list/1", "runs")
class ReplayList:
    """The replays of an archive, the latest first. JSON Lines have one run each."""

    runs: Annotated[list[ReplaySummary], "Runs"]


@document("sbpair/replay-stop/1")
class ReplayStop:
    """The answer of sbpair replay stop."""

    run: Annotated[str, "Id of the run"]
    requested: Annotated[bool, "Whether it was asked to stop; false for a run that has finished"]


@document("sbpair/replay-gc/1")
class RemovedMessages:
    """The messages that sbpair replay gc deletes."""

    run: Annotated[str, "Id of the run"]
    removed: Annotated[bool, "Whether they were deleted"]
    files: Annotated[int, "Files"]
    bytes: Annotated[int, "Their bytes"]
    kept: Annotated[int, "Expired and quarantined messages that stay"]


@document("sbpair/replay-submit/1")
class SubmitCommand:
    """The command that --print-submit prints."""

    command: Annotated[list[str], "Words of the command"]
    environment: Annotated[list[str], "Variables that it and the workers need"]
