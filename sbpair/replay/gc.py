"""Removal of a run's messages, once each is proved to have an outcome.

Invariant: only proved files are removed; files that appear later stay. Messages never sent are removed on request. The
removal is recorded first, and from then on no resume sends from the run. Segments are removed before the ledger: a run
without its ledger alone would send everything again.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sbpair.errors import StateRefused, Unsafe
from sbpair.replay.archive_layout import DRAINED_FILE, NOT_SENT, RECEIPT_FILE, REMOVABLE, REMOVED_FILE, SEGMENTS
from sbpair.replay.run import load_run
from sbpair.replay.verify import verify

if TYPE_CHECKING:
    from sbpair.replay.archive import Archive
    from sbpair.replay.proof import Proof


@dataclass(frozen=True, slots=True)
class GarbageCollection:
    """The files to remove: paths by directory, and bytes. `kept` counts the messages that were not sent and stay."""

    places: dict[str, tuple[str, ...]]
    bytes: int
    kept: int

    @property
    def files(self) -> int:
        return sum(map(len, self.places.values()))


def plan_gc(archive: Archive, *, unsent: bool) -> GarbageCollection:
    """Return the files to remove; with `unsent`, also messages never sent. Raises Unsafe, StateRefused."""
    run = load_run(archive)
    # Before the proof: a file written later is in neither, or in the proof alone.
    sizes = {place: archive.sizes(place) for place in (*REMOVABLE, *(NOT_SENT if unsent else ()))}
    if not archive.exists(DRAINED_FILE) or not archive.exists(RECEIPT_FILE):
        raise _refused(archive, "has not ended: it may be running")
    if archive.exists(REMOVED_FILE):
        proved = archive.read_json(REMOVED_FILE).get("segments", [*sizes[SEGMENTS]])
        if not isinstance(proved, list):
            raise archive.broken(REMOVED_FILE, "it does not list the segments to remove")
        known = frozenset(map(str, proved))
        sizes[SEGMENTS] = {path: size for path, size in sizes[SEGMENTS].items() if path in known}
    else:
        _check(archive, verify(archive, run), unsent=unsent)
    kept = 0
    for path in (path for place in NOT_SENT for path in archive.files(place) if not unsent):
        with suppress(StateRefused):  # a loss of power has cut it short, which the proof has accepted
            kept += archive.row_count(path)
    places = {place: tuple(paths) for place, paths in sizes.items()}
    return GarbageCollection(places, sum(sum(paths.values()) for paths in sizes.values()), kept)


def remove_messages(archive: Archive, planned: GarbageCollection) -> None:
    """Remove the files. An interrupted removal is finished by the next. Raises Unsafe if the run was resumed."""
    removal = {"places": list(planned.places), "segments": list(planned.places[SEGMENTS])}
    archive.write_json(REMOVED_FILE, {"at_ms": int(time.time() * 1000), **removal})
    # A resume removes the receipt, and then checks for this file: one of the two sees the other.
    if not archive.exists(RECEIPT_FILE):
        archive.remove(REMOVED_FILE)
        raise _refused(archive, "was resumed")
    for place, paths in planned.places.items():
        archive.delete(place, paths)


def _check(archive: Archive, proof: Proof, *, unsent: bool) -> None:
    """Check the files, and the receipt that a run writes last: a run that is still going on has none."""
    if proof.unsent:
        raise _refused(archive, f"has {proof.unsent} unsent messages")
    if not proof.balanced:
        raise Unsafe(
            f"the files of run {archive.run} contradict each other; nothing was removed",
            hint=f"please report this, with the output of sbpair replay verify {archive.run}",
        )
    if archive.read_json(RECEIPT_FILE).get("balanced") is not True:
        raise _refused(archive, "was not proved when it ended: it may be running")
    if proof.deduplicated and not unsent:
        raise Unsafe(
            f"run {archive.run} did not send {proof.deduplicated} duplicates by message id,"
            " and only the segments have their bodies",
            hint="--include-unsent removes them too, and expired and quarantined messages",
        )


def _refused(archive: Archive, why: str) -> Unsafe:
    return Unsafe(
        f"run {archive.run} {why}; nothing was removed",
        hint=f"add --all to send unselected messages, too; continue with sbpair replay resume {archive.run}",
    )
