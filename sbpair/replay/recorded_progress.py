"""The timeline and the settings of a replay, as the record of its run has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sbpair.replay.progress import Event, OnEvent, PhaseProgress
from sbpair.runs.run_log import Figures

if TYPE_CHECKING:
    from sbpair.replay.run import ReplayRun
    from sbpair.runs.run_log import RunEntry


class ReplayTimeline:
    """Samples the progress that the driver reports, and passes each event on."""

    def __init__(self, entry: RunEntry, on_event: OnEvent) -> None:
        self._entry, self._on_event = entry, on_event
        self._counts: dict[str, int] = {}
        self._destinations: dict[str, int] = {}

    def __call__(self, event: Event) -> None:
        """Take one event."""
        if isinstance(event, PhaseProgress):
            self._counts["received" if event.phase == "drain" else "sent"] = event.messages
            if event.phase == "send":
                self._destinations = event.by
            self._sample()
        self._on_event(event)

    def end(self) -> None:
        """Write the last figures, if there are any."""
        if self._counts:
            self._sample(last=True)

    def _sample(self, *, last: bool = False) -> None:
        self._entry.sample(Figures(dict(self._counts), self._destinations), last=last)


def run_settings(run: ReplayRun) -> dict[str, object]:
    """Return the options of a replay, without secrets."""
    options = run.options
    return {
        "mode": options.mode.value,
        "order": "session" if options.ordered else "none",
        "ttl": options.ttl.value,
        "dedup": options.dedup.value,
        "rate": options.rate,
        "allow_missing": options.allow_missing,
        "max_discard": "all" if options.max_discard is None else options.max_discard,
        "queues": len(run.queues),
        "shards": run.shards,
        "destinations": ", ".join(options.selection.destinations) or None,
        "where": options.selection.where,
    }
