"""The timeline of a run: its figures every few seconds, thinned so that a long run keeps few.

Invariant: a run has at most MAX_SAMPLES. Times in which nothing changes have none, except for their two ends.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from sbpair.runs.database import RunDatabase

MAX_SAMPLES = 2_000
"""At this number the timeline is divided into a quarter as many parts; each keeps its first and its last sample."""

SPACING_MS = 2_000
"""The time between two samples at first."""

MAX_DESTINATIONS = 12
"""How many destinations a sample has at most: those with the most messages so far."""

_INSERT = "INSERT OR REPLACE INTO samples VALUES (?, ?, ?)"
_THIN = """DELETE FROM samples WHERE run = ?1
AND at_ms NOT IN (SELECT min(at_ms) FROM samples WHERE run = ?1 GROUP BY at_ms / ?2)
AND at_ms NOT IN (SELECT max(at_ms) FROM samples WHERE run = ?1 GROUP BY at_ms / ?2)"""


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of a run at a moment, all since its start. `counts` are messages by bucket.

    `destinations` has the messages that each has accepted. `depth` is how many messages the sources have, `oldest_ms`
    when the oldest of them was enqueued, in ms since 1970; None if unknown.
    """

    counts: Mapping[str, int]
    destinations: Mapping[str, int] = field(default_factory=dict)
    depth: int | None = None
    oldest_ms: int | None = None

    def encode(self) -> str:
        largest = sorted(self.destinations.items(), key=lambda each: (-each[1], each[0]))[:MAX_DESTINATIONS]
        return json.dumps(asdict(replace(self, destinations=dict(largest))), separators=(",", ":"))


class Sample(NamedTuple):
    """Figures and their time, in ms since 1970."""

    at_ms: int
    figures: Figures


class _Encoded(NamedTuple):
    at_ms: int
    figures: str


class TimelineWriter:
    """Writes the samples of one run. That of a resumed run goes on where it stopped. Raises MachineLacks."""

    def __init__(self, state: RunDatabase, run: str, max_samples: int = MAX_SAMPLES) -> None:
        self._state, self._run, self._max_samples = state, run, max_samples
        self._spacing_ms = SPACING_MS
        [[self._count]] = state.read("SELECT count(*) FROM samples WHERE run = ?", (run,))
        self._written: _Encoded | None = None
        self._seen: _Encoded | None = None

    def add(self, at_ms: int, figures: Figures, *, last: bool = False) -> None:
        """Take the figures of this moment; write them if it is time, and they have changed or are the last."""
        now, before, written = _Encoded(at_ms, figures.encode()), self._seen, self._written
        self._seen = now
        if written is not None:
            early = at_ms - written.at_ms < self._spacing_ms
            if not last and (early or now.figures == written.figures):
                return
            if before and before.figures == written.figures and before.at_ms - written.at_ms >= self._spacing_ms:
                self._write(before)  # the end of a time without changes
        self._write(now)

    def _write(self, sample: _Encoded) -> None:
        if self._count >= self._max_samples:
            self._thin()
        self._state.write((_INSERT, [(self._run, *sample)]))
        self._written = sample
        self._count += 1

    def _thin(self) -> None:
        [[first, last]] = self._state.read("SELECT min(at_ms), max(at_ms) FROM samples WHERE run = ?", (self._run,))
        # One part more than divides evenly, as the first may begin before the first sample.
        part_ms = max(2 * self._spacing_ms, -(-4 * (last - first) // (self._max_samples - 4)))
        self._state.write((_THIN, [(self._run, part_ms)]))
        [[self._count]] = self._state.read("SELECT count(*) FROM samples WHERE run = ?", (self._run,))
        self._spacing_ms = part_ms // 2


def timeline_of(state: RunDatabase, run: str) -> list[Sample]:
    """Return the samples of a run, the earliest first."""
    rows = state.read("SELECT at_ms, figures FROM samples WHERE run = ? ORDER BY at_ms", (run,))
    with state.decoding():
        return [Sample(at_ms, Figures(**json.loads(figures))) for at_ms, figures in rows]
