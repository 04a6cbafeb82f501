"""The outcomes of many actions as data, and the exit code that follows from them.

Pure: an expected failure of one item among many is a ReportItem, not an exception.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Generic, TypeVar

from sbpair.errors import ExitCode
from sbpair.model.document import OMITTED, SPREAD

Detail = TypeVar("Detail")


class Outcome(StrEnum):
    """The outcome of an item. The values are part of the JSON contracts."""

    CREATED = "created"
    WOULD_CREATE = "would_create"
    EXISTING = "existing"
    DRIFTED = "drifted"
    FAILED = "failed"
    NOT_TRIED = "not_tried"
    MISSING = "missing"
    EXTRA = "extra"
    OK = "ok"
    FOREIGN = "foreign"
    WOULD_REMOVE = "would_remove"
    REMOVED = "removed"
    KEPT = "kept"
    GONE = "gone"
    NOTE = "note"
    UNKNOWN = "unknown"


class AuditFinding(StrEnum):
    """A kind of finding that an audit may fail on."""

    MISSING = "missing"
    EXTRA = "extra"
    DRIFT = "drift"
    MIRROR = "mirror"
    IDLE = "idle"
    FOREIGN = "foreign"
    MESSAGES = "messages"
    DEAD_LETTERS = "dead-letters"
    FULL = "full"
    LIMITED = "limited"
    DESTINATIONS = "destinations"
    DUPLICATES = "duplicates"
    UNSEEN = "unseen"
    NO_MOVER = "no-mover"


FAIL_ON = frozenset({AuditFinding.MISSING, AuditFinding.EXTRA, AuditFinding.DRIFT, AuditFinding.MIRROR})
"""The findings that an audit fails on by default."""


@dataclass(frozen=True, slots=True)
class ReportItem(Generic[Detail]):
    """One item and its outcome.

    `reason` is one line for people, empty if the outcome needs none. `exit_code` is the failure's own, of
    `sbpair.errors`, and 0 otherwise.
    """

    name: Annotated[str, "Its path or name", {"examples": ["contoso/x-servicebus-transfer/0"]}]
    outcome: Outcome
    reason: Annotated[str, "Why the outcome is what it is", OMITTED] = ""
    detail: Annotated[Detail | None, SPREAD] = None
    exit_code: int = ExitCode.DONE


@dataclass(frozen=True, slots=True)
class Report(Generic[Detail]):
    """The items of one run, in the order in which they should be read."""

    items: tuple[ReportItem[Detail], ...] = ()

    def __iter__(self) -> Iterator[ReportItem[Detail]]:
        return iter(self.items)

    def lists(self, outcomes: Iterable[Outcome]) -> dict[Outcome, list[ReportItem[Detail]]]:
        """Return the items of each outcome."""
        return {each: self.of(each) for each in outcomes}

    def of(self, *outcomes: Outcome) -> list[ReportItem[Detail]]:
        return [item for item in self.items if item.outcome in outcomes]

    def exit_code_for(self, findings: Collection[Outcome] = ()) -> int:
        """Return 3 if an item failed or its outcome is one of `findings`, else 0.

        If all items failed with one code, return that code, which is more specific: such as 6 for an unreachable
        namespace.
        """
        failed = self.of(Outcome.FAILED)
        codes = {item.exit_code for item in failed}
        if failed and len(failed) == len(self.items) and len(codes) == 1:
            return codes.pop() or ExitCode.PARTIAL_OR_FINDINGS
        return ExitCode.PARTIAL_OR_FINDINGS if failed or self.of(*findings) else ExitCode.DONE
