"""The record of a run, and all that follows from it: outcome, counts, doubts and the work that is left. Pure.

Invariant: tables, documents, the page and reports derive nothing themselves, so that they agree with the receipt.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Annotated, Any

from sbpair.errors import ExitCode, StateRefused
from sbpair.model.document import SPREAD, TIME
from sbpair.runs.journal import Doubt

UNANSWERED = "sent without an answer"

MOVED = (ExitCode.DONE, ExitCode.PARTIAL_OR_FINDINGS)
"""Exit codes of a run that finished, even if not with every message."""


class RunOutcome(StrEnum):
    """How a run ended, or the state of a live one. The values are part of the JSON contract."""

    RUNNING = "running"
    PAUSED = "paused"
    DONE = "done"
    PARTIAL = "partial"
    STOPPED = "stopped"
    FAILED = "failed"
    CRASHED = "crashed"


LIVE = (RunOutcome.RUNNING, RunOutcome.PAUSED)
"""Outcomes of a run that has not ended."""


def outcome_of(exit_code: int, *, stopped: bool) -> RunOutcome:
    """Return the outcome of a run that ended with this exit code. `stopped` marks a requested stop."""
    ends: dict[int, RunOutcome] = {ExitCode.DONE: RunOutcome.DONE, ExitCode.PARTIAL_OR_FINDINGS: RunOutcome.PARTIAL}
    return RunOutcome.STOPPED if stopped else ends.get(exit_code, RunOutcome.FAILED)


@dataclass(frozen=True, slots=True)
class RemainingMessages:
    """Messages in the backlog queues at the end of a run."""

    messages: Annotated[int, "Number of messages"]
    exact: Annotated[bool, "Whether they were counted; otherwise there are at least so many"]


@dataclass(frozen=True, slots=True)
class RunCounts:
    """The counts of a run, of whichever kind, by its receipt and its journal."""

    received: Annotated[int | None, "Received messages, of a replay archived ones; null without figures"]
    sent: Annotated[int | None, "Messages that their destination accepted; null without figures"]
    undeliverable: Annotated[
        int | None,
        "Dead-lettered and expired messages; of a replay, expired and quarantined ones; null without figures",
    ]
    stayed: Annotated[int, "Messages left where they were on purpose: a filter, a choice or a rule skipped them"]
    remaining: Annotated[
        RemainingMessages | None,
        "Messages left over at its end besides these: in its source, and in the archive of a replay; null if the run"
        " emptied both, or has not ended; at least 0 if it is not known",
    ]
    in_doubt: Annotated[
        int, "Messages sent without an answer, and not settled since; the bucket of the receipt stays as the run ended"
    ]
    doubtful_total: Annotated[int, "All messages that may be there twice: a later settlement removes none of them"]


@dataclass(frozen=True, slots=True)
class DoubtfulMessage:
    """A message that may be there twice."""

    queue: Annotated[str, "Queue that it came from"]
    sequence_number: Annotated[int, "Its sequence number there", {"minimum": -(2**63)}]
    message_id: Annotated[str | None, "Its message id; null for none"]
    destination: Annotated[str | None, "Its destination; null for none"]
    namespace: Annotated[str, "Namespace of the destination; may be empty"] = ""
    reason: Annotated[str, "Why it may be there twice"] = UNANSWERED
    in_doubt: Annotated[bool, "Whether it was sent without an answer, and not settled since"] = False


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One run. Times are ms since 1970; `ended_ms` and `exit_code` are None for a live or crashed one.

    `error` is why it failed, `receipt` the last one it wrote; that of a replay is its proof, with its `archive`.
    `settings` are the options in force, without secrets; {} for a run of an earlier version. `doubts` are the messages
    that it left in doubt, each with whether it was settled since.
    """

    id: Annotated[str, "Id of the run"]
    command: Annotated[str, "Command that ran, with its mode"]
    started_ms: Annotated[int, "Start, in UTC", TIME, {"name": "started"}]
    ended_ms: Annotated[int | None, "End, in UTC; null for a running or crashed run", TIME, {"name": "ended"}]
    outcome: Annotated[RunOutcome, "How it ended, or the state of a live run"]
    exit_code: Annotated[int | None, "Exit code; null for a running or crashed run"]
    error: Annotated[str, "Error; empty for none"]
    receipt: dict[str, Any] | None
    settings: dict[str, object]
    doubts: Mapping[Doubt, bool]

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Raise StateRefused where the receipt, the settings or the samples hold values that sbpair does not write."""
        try:
            yield
        except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
            raise StateRefused(
                f"the record of run {self.id} cannot be read: {type(error).__name__}, {error}",
                hint="if no other program has changed the state, report this as a bug",
            ) from error

    @property
    def kind(self) -> Annotated[str, "Command", {"enum": ["syphon", "move", "redrive", "remove", "receive", "replay"]}]:
        """The command without its options: `syphon` or `replay`."""
        return self.command.split()[0]

    @property
    def archive(self) -> Annotated[str | None, "Archive of a replay"]:
        return (self.receipt or {}).get("archive")

    @property
    def seconds(self) -> float | None:
        """How long the run took, of a resumed one since it was resumed; None if it has not ended."""
        if self.ended_ms is None:
            return None
        return float((self.receipt or {}).get("seconds", (self.ended_ms - self.started_ms) / 1000))

    @property
    def counts(self) -> Annotated[RunCounts, SPREAD]:
        known, is_replay = self.receipt or {}, self.kind == "replay"
        named = known.get("doubtful", ())
        refused = known.get("quarantined" if is_replay else "dead_lettered")
        total, more = known.get("doubtful_total", len(named)), len(self.doubtful()) - len(named)
        return RunCounts(
            known.get("archived") or known.get("received") if is_replay else known.get("received"),
            known.get("acknowledged" if is_replay else "sent"),
            None if refused is None else known.get("expired", 0) + refused,
            known.get("excluded" if is_replay else "skipped", 0),
            self._remaining(),
            known.get("in_doubt") or 0 if is_replay else sum(not settled for settled in self.doubts.values()),
            total + (more if total == len(named) else 0),
        )

    def _remaining(self) -> RemainingMessages | None:
        known = self.receipt or {}
        if "run" not in known:  # it has not ended, or without its last receipt
            is_unknown = self.outcome not in LIVE and not (self.outcome is RunOutcome.FAILED and not known)
            return RemainingMessages(0, exact=False) if is_unknown else None
        if self.kind == "replay":
            left = left_unsent(known) + sum(known.get("remaining_in_queues", {}).values())
            return RemainingMessages(left, exact=True) if left else None
        return RemainingMessages(**known["remaining"]) if known.get("remaining") else None

    def doubtful(self) -> list[DoubtfulMessage]:
        """Return the messages that may be there twice: those that the receipt names, and then others of the journal."""
        journal = {
            _message(known := asdict(each)): known | {"in_doubt": not settled} for each, settled in self.doubts.items()
        }
        named = [{**journal.pop(_message(each), {}), **each} for each in (self.receipt or {}).get("doubtful", ())]
        names = {each.name for each in fields(DoubtfulMessage)}
        return [
            DoubtfulMessage(**{name: each[name] for name in names & each.keys()})
            for each in (*named, *journal.values())
        ]


def _message(named: Mapping[str, Any]) -> tuple[object, ...]:
    return named["queue"].lower(), named["sequence_number"], named["message_id"]


def left_unsent(receipt: Mapping[str, Any]) -> int:
    """Return how many archived messages a receipt leaves to a resume: no selection left them out.

    Raises TypeError for a receipt that sbpair does not write.
    """
    return max(0, (receipt.get("unsent") or 0) - (receipt.get("excluded") or 0))


def is_finished(receipt: Mapping[str, Any] | None) -> bool:
    """Return whether a replay has nothing to resume: it has a receipt, and no selected message without an outcome.

    A direct run archives no messages. Only a resume reads its ledger, so that a stopped one is not finished: a message
    that a killed task has sent is still in the backlog.
    """
    if not receipt:
        return False
    return not receipt.get("stopped") if receipt.get("mode") == "direct" else not left_unsent(receipt)


def may_wait(receipt: Mapping[str, Any] | None) -> bool:
    """Return whether an archive may have messages of an ended replay, by the receipt in its record."""
    # Until its end, the record has the archive and counts; of a run that was refused at its start, nothing.
    if not receipt:
        return False
    return "run" not in receipt or not is_finished(receipt)
