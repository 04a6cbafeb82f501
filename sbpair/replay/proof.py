"""The proof of a run: archived = acknowledged + expired + quarantined + deduplicated."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sbpair.errors import ExitCode
from sbpair.replay.archive_layout import DEDUPLICATED, EXPIRED, LEDGER, QUARANTINE

if TYPE_CHECKING:
    from sbpair.replay.ledger import Key
    from sbpair.replay.run import ReplayRun

MAX_REASONS = 1_000
"""Upper bound on reasons listed."""

MAX_NAMED = 20_000
"""Upper bound on doubtful messages listed: as many as a dozen killed tasks hold."""

BUCKETS = {LEDGER: "acknowledged", EXPIRED: "expired", QUARANTINE: "quarantined", DEDUPLICATED: "deduplicated"}
COUNTS = ("archived", *BUCKETS.values(), "unsent")


@dataclass(frozen=True)
class Proof:
    """Counts of messages. `copies` are rows beyond the first of a message; `unsent` have no outcome yet.

    `contradictions` have two different outcomes, and `unknown` one without being in a segment. `doubtful` lists
    messages that may be in the primary twice, at most MAX_NAMED of `doubtful_total`. `unreadable` are files that would
    name more of them: files that are not synced may be cut short by a loss of power. `remaining_in_queues` counts by
    queue the messages that were in the backlog when the run began, and still were when it was drained.
    """

    archived: int = 0
    acknowledged: int = 0
    expired: int = 0
    quarantined: int = 0
    deduplicated: int = 0
    unsent: int = 0
    copies: int = 0
    contradictions: int = 0
    unknown: int = 0
    segments: int = 0
    queues: dict[str, dict[str, int]] = field(default_factory=dict)
    destinations: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, int] = field(default_factory=dict)
    doubtful: list[dict[str, object]] = field(default_factory=list)
    doubtful_total: int = 0
    unreadable: list[str] = field(default_factory=list)
    remaining_in_queues: dict[str, int] = field(default_factory=dict)

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
        numbers = ("archived", "acknowledged", "expired", "quarantined", "deduplicated", "unsent", "copies")
        found: dict[str, Any] = {"mode": run.options.mode.value, **{name: getattr(self, name) for name in numbers}}
        queues = self.queues
        if run.direct:
            found |= {"archived": None, "unsent": None, "received": self.archived, "in_doubt": self.unsent}
            names = {"archived": "received", "unsent": "in_doubt"}
            queues = {queue: {names.get(name, name): n for name, n in each.items()} for queue, each in queues.items()}
        return {
            **found,
            "balanced": self.balanced,
            **{name: getattr(self, name) for name in ("contradictions", "unknown", "segments")},
            "queues": queues,
            **{name: getattr(self, name) for name in ("destinations", "reasons", "doubtful", "doubtful_total")},
            **{name: getattr(self, name) for name in ("remaining_in_queues", "unreadable")},
        }


class ProofBuilder:
    """The counts of a proof while files are read."""

    def __init__(self, run: ReplayRun, unreadable: list[str]) -> None:
        self.queues: dict[str, Counter[str]] = {queue: Counter() for queue in run.queues}
        self.destinations: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.copies = self.contradictions = self.unknown = 0
        self.unreadable = unreadable
        self._named: dict[tuple[object, ...], dict[str, object]] = {}
        self._doubtful_total = 0

    def add_doubtful(self, key: Key, destination: str | None) -> None:
        """Count a message that may be in the primary twice, and list it if there is room."""
        queue, number, _, message_id = key
        named = {"queue": queue, "sequence_number": number, "message_id": message_id, "destination": destination}
        if tuple(named.values()) in self._named:
            return
        self._doubtful_total += 1
        if len(self._named) < MAX_NAMED:
            self._named[tuple(named.values())] = named

    def build(self, segments: int, remaining_in_queues: dict[str, int]) -> Proof:
        """Return the proof."""
        return Proof(
            **{name: sum(counts[name] for counts in self.queues.values()) for name in COUNTS},
            copies=self.copies,
            contradictions=self.contradictions,
            unknown=self.unknown,
            segments=segments,
            queues={queue: {name: counts[name] for name in COUNTS} for queue, counts in self.queues.items()},
            destinations=dict(sorted(self.destinations.items())),
            reasons=dict(self.reasons.most_common(MAX_REASONS)),
            doubtful=list(self._named.values()),
            doubtful_total=self._doubtful_total,
            unreadable=self.unreadable,
            remaining_in_queues=remaining_in_queues,
        )
