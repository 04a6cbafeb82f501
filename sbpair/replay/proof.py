"""The proof of a run as data: how many messages had which outcome. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from sbpair.errors import ExitCode

if TYPE_CHECKING:
    from sbpair.replay.run import ReplayRun


@dataclass(frozen=True, slots=True)
class Proof:
    """Counts of messages. For a direct run, `archived` is the number received, and `unsent` the number in doubt.

    `doubtful` lists messages that may be in the primary twice, and `unreadable` files that would name more of them:
    files that are not synced may be cut short by a loss of power. `remaining_in_queues` were in the backlog when the
    run began, and still were when it was drained.
    """

    archived: Annotated[int, "Archived messages; null in direct mode"] = 0
    acknowledged: Annotated[int, "Messages accepted by the primary"] = 0
    expired: Annotated[int, "Messages past their time to live, kept in the archive"] = 0
    quarantined: Annotated[int, "Messages without a destination, kept in the archive"] = 0
    deduplicated: Annotated[int, "Messages not sent since another has the same id"] = 0
    unsent: Annotated[int, "Messages still to be sent; null in direct mode"] = 0
    copies: Annotated[int, "Archived copies beyond the first of each message"] = 0
    contradictions: Annotated[int, "Messages with more than one outcome"] = 0
    unknown: Annotated[int, "Outcomes of messages that were not archived"] = 0
    segments: Annotated[int, "Files of messages"] = 0
    queues: Annotated[dict[str, dict[str, int]], "Counts of each queue, by outcome"] = field(default_factory=dict)
    destinations: Annotated[dict[str, int], "Accepted messages of each destination"] = field(default_factory=dict)
    reasons: Annotated[dict[str, int], "Messages that were not sent, by reason"] = field(default_factory=dict)
    doubtful: list[dict[str, object]] = field(default_factory=list)
    doubtful_total: Annotated[int, "Number of possible duplicates"] = 0
    remaining_in_queues: Annotated[dict[str, int], "Messages left in each queue"] = field(default_factory=dict)
    locked: Annotated[int, "Messages among these that another receiver or a killed task had locked"] = 0
    unreadable: Annotated[list[str], "Paths of files that cannot be read"] = field(default_factory=list)

    @property
    def balanced(self) -> bool:
        ended = self.acknowledged + self.expired + self.quarantined + self.deduplicated
        return self.archived == ended and not (self.contradictions or self.unknown)

    @property
    def exit_code(self) -> int:
        """DONE if everything was sent, PARTIAL_OR_FINDINGS if something was not, BUG if the files disagree."""
        if self.contradictions or self.unknown:
            return ExitCode.BUG
        unfinished = self.unsent or self.expired or self.quarantined or self.remaining_in_queues
        return ExitCode.PARTIAL_OR_FINDINGS if unfinished else ExitCode.DONE

    def document(self, run: ReplayRun) -> dict[str, Any]:
        """Return the JSON contract. A direct run has "received" and "in_doubt" instead of "archived" and "unsent"."""
        found = {"mode": run.options.mode.value, **asdict(self), "balanced": self.balanced}
        if run.direct:
            names = {"archived": "received", "unsent": "in_doubt"}
            found |= {name: found[counted] for counted, name in names.items()} | dict.fromkeys(names)
            found["queues"] = {
                queue: {names.get(name, name): count for name, count in each.items()}
                for queue, each in self.queues.items()
            }
        return found
