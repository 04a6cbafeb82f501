"""Persistent state of runs: the database, the journal, the list of runs, requests to them, and the leases.

Public names, imported on first use: `sbpair.runs.pause(pair, "261122-101500", state=directory)`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sbpair.public_names import lazy_names

if TYPE_CHECKING:
    from sbpair.runs.control import cancel, pause, resume
    from sbpair.runs.run_record import RunOutcome, RunRecord

__all__ = ["RunOutcome", "RunRecord", "cancel", "pause", "resume"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {"sbpair.runs.control": "cancel, pause, resume", "sbpair.runs.run_record": "RunOutcome, RunRecord"},
)
