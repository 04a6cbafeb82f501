"""Taking away what a run no longer needs: its messages, once it has been proved that each has come to its end.

The law: only what is proved goes, file by file: what has come since then stays. What was not sent is nowhere else, and
goes only where that was said. That it goes is written down first, and from then on nobody sends from it. The segments
go before the ledger: a run that has lost its ledger alone would send everything again.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from sbpair.errors import StateRefused, Unsafe
from sbpair.replay.archive import (
    DEDUPLICATED,
    DOUBTFUL,
    DRAINED,
    EXPIRED,
    LEDGER,
    PROVED,
    QUARANTINE,
    SEGMENTS,
    SENDING,
    SWEPT,
    Archive,
)
from sbpair.replay.run import load
from sbpair.replay.verify import Proof, verify

UNSENT = (EXPIRED, QUARANTINE)
ALWAYS = (SEGMENTS, DEDUPLICATED, LEDGER, DOUBTFUL, SENDING)


@dataclass(frozen=True, slots=True)
class GarbageCollection:
    """What would go: the paths below each place, and bytes. `kept` is how many messages stay that were not sent."""

    places: dict[str, tuple[str, ...]]
    bytes: int
    kept: int

    @property
    def files(self) -> int:
        return sum(map(len, self.places.values()))


def plan(archive: Archive, *, unsent: bool) -> GarbageCollection:
    """What may be taken away; with `unsent`, what was not sent as well. Raises Unsafe where nothing may."""
    run = load(archive)
    # Before the proof: a file that comes later is in neither, or in the proof alone.
    sizes = {place: archive.sizes(place) for place in (*ALWAYS, *(UNSENT if unsent else ()))}
    if not archive.exists(DRAINED) or not archive.exists(PROVED):
        raise _refused(archive, "has not come to its end: it may be running")
    if archive.exists(SWEPT):
        proved = archive.read_json(SWEPT).get("segments", [*sizes[SEGMENTS]])
        if not isinstance(proved, list):
            raise archive.broken(SWEPT, "it does not say what is taken away")
        known = frozenset(map(str, proved))
        sizes[SEGMENTS] = {path: size for path, size in sizes[SEGMENTS].items() if path in known}
    else:
        _check(archive, verify(archive, run), unsent=unsent)
    kept = 0 if unsent else sum(_rows(archive, path) for place in UNSENT for path in archive.files(place))
    places = {place: tuple(paths) for place, paths in sizes.items()}
    return GarbageCollection(places, sum(sum(paths.values()) for paths in sizes.values()), kept)


def _rows(archive: Archive, path: str) -> int:
    """None where a loss of power has cut it short: the proof knows whether that may be."""
    try:
        return archive.rows(path)
    except StateRefused:
        return 0


def sweep(archive: Archive, planned: GarbageCollection) -> None:
    """Take it away. What is cut short is finished by the next one. Raises Unsafe where the run goes on again."""
    said = {"places": list(planned.places), "segments": list(planned.places[SEGMENTS])}
    archive.write_json(SWEPT, {"at_ms": int(time.time() * 1000), **said})
    # A resume makes the run unproved, and then looks for this: one of us sees the other.
    if not archive.exists(PROVED):
        archive.remove(SWEPT)
        raise _refused(archive, "goes on again")
    for place, paths in planned.places.items():
        archive.delete(place, paths)


def _check(archive: Archive, proof: Proof, *, unsent: bool) -> None:
    """By its files, and by what a run writes at its very end: so none that still goes on, on whatever machine."""
    if proof.unsent:
        raise _refused(archive, f"has {proof.unsent} messages left to send")
    if not proof.balanced:
        raise Unsafe(
            f"the files of run {archive.run} contradict each other, and nothing of them is taken away",
            hint="sbpair replay verify says where; please report this",
        )
    if archive.read_json(PROVED).get("balanced") is not True:
        raise _refused(archive, "was not proved when it ended: it may be running")
    if proof.deduplicated and not unsent:
        raise Unsafe(
            f"run {archive.run} did not send {proof.deduplicated} messages that repeat another one's id,"
            " and their bodies are in the segments alone",
            hint="--include-unsent takes them away as well, with what was expired and quarantined",
        )


def _refused(archive: Archive, why: str) -> Unsafe:
    return Unsafe(
        f"run {archive.run} {why}; nothing was taken away",
        hint=f"'sbpair replay resume {archive.run}' goes on with it, and with --all sends what was not chosen",
    )
