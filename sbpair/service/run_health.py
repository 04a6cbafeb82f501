"""The health of a run, from its events: whether it should be restarted, and whether it does its work.

Invariant: health has no secret, and reading it costs a few comparisons.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from sbpair.move import events
from sbpair.move.away_sides import AwaySides

if TYPE_CHECKING:
    from sbpair.move.live_run import LiveRun


class RunHealth(NamedTuple):
    """`is_live`: a restart would not help. `is_ready`: it moves messages, or was paused. `state` is why, in words."""

    is_live: bool
    is_ready: bool
    state: str


class HealthMonitor:
    """Takes the events of a run. `stopping` is set by its owner."""

    def __init__(self, live: LiveRun) -> None:
        self.stopping = False
        self._live = live
        self._away = AwaySides()
        self._connected = self._paused = False

    def take(self, event: events.SyphonEvent) -> None:
        """Take one event in."""
        match event:
            case events.QueueOpened() | events.QueueDone() | events.QueueFailed():
                self._away.take(event)
                self._connected = self._connected or isinstance(event, events.QueueOpened)
            case events.RunPaused() | events.RunResumed():
                self._paused = isinstance(event, events.RunPaused)

    def read(self) -> RunHealth:
        """Return the health of this moment. Call it in the run's event loop: a loop that is blocked has none."""
        stuck = self._live.stuck_queues()
        if stuck:
            return RunHealth(is_live=False, is_ready=False, state=f"stuck: {', '.join(stuck[:3])}")
        if self.stopping:
            return RunHealth(is_live=True, is_ready=False, state="stopping")
        if self._away.names:
            return RunHealth(is_live=True, is_ready=False, state=f"{' and '.join(sorted(self._away.names))} away")
        if not self._connected:
            return RunHealth(is_live=True, is_ready=False, state="connecting")
        if not self._live.has_lease():
            return RunHealth(is_live=True, is_ready=False, state="the lease is not confirmed")
        return RunHealth(is_live=True, is_ready=True, state="paused" if self._paused else "moving")

    def counts(self) -> str:
        """Return the counts so far, in words."""
        total: dict[str, int] = {}
        for queue in self._live.tally.counts().queues.values():
            for bucket, count in queue.items():
                total[bucket] = total.get(bucket, 0) + count
        names = ("received", "sent", "dead_lettered", "expired", "in_doubt")
        return ", ".join(
            f"{total.get(name, 0)} {name.replace('_', ' ')}" for name in names if name in names[:2] or total.get(name)
        )
