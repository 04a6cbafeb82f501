"""What became of many things done at once, as data, and the exit code that follows from it.

Pure: an expected failure of one item among many is an Item here, not an exception.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

DONE = 0
PARTIAL_OR_FINDINGS = 3

Detail = TypeVar("Detail")


class Outcome(StrEnum):
    """What happened to an item, or what was found. The values are part of the JSON contracts."""

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


@dataclass(frozen=True, slots=True)
class ReportItem(Generic[Detail]):
    """One thing and what became of it.

    `reason` is one line for people, empty where the outcome says it all. `exit_code` is the failure's own, of
    `sbpair.errors`, and 0 for everything else.
    """

    name: str
    outcome: Outcome
    reason: str = ""
    detail: Detail | None = None
    exit_code: int = DONE


@dataclass(frozen=True, slots=True)
class Report(Generic[Detail]):
    """The items of one run, in the order in which they should be read."""

    items: tuple[ReportItem[Detail], ...] = ()

    def __iter__(self) -> Iterator[ReportItem[Detail]]:
        return iter(self.items)

    def of(self, *outcomes: Outcome) -> list[ReportItem[Detail]]:
        return [item for item in self.items if item.outcome in outcomes]


def exit_code(report: Report[Detail], findings: Collection[Outcome]) -> int:
    """0, or 3 where an item failed or is one of `findings`.

    Where nothing but failures of one kind happened, their own code says more than "partial": 6, say, for a
    namespace that went away.
    """
    failed = report.of(Outcome.FAILED)
    codes = {item.exit_code for item in failed}
    if failed and len(failed) == len(report.items) and len(codes) == 1:
        return codes.pop() or PARTIAL_OR_FINDINGS
    if failed or report.of(*findings):
        return PARTIAL_OR_FINDINGS
    return DONE
