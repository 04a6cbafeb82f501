"""The receipt of a run: the end of every received delivery, in buckets that must add up. Pure.

Identity: received = sent + already_sent + expired + dead_lettered + released + in_doubt + skipped. Each delivery ends
in exactly one bucket, and `balanced` checks it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from sbpair.errors import ExitCode
from sbpair.model.cost import Operations

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sbpair.move.filter import FilterCounts, MessageFilter

BUCKETS = ("sent", "already_sent", "expired", "dead_lettered", "released", "in_doubt", "skipped")

GONE = ("sent", "already_sent", "expired", "dead_lettered")
"""Buckets whose messages are no longer in the backlog."""

NOT_SENT = tuple(bucket for bucket in BUCKETS if bucket not in ("sent", "in_doubt"))

SPENT = ("received", "sent", "renewals", "empty_receives", "management_calls")
"""Operations that a mover causes itself."""

MAX_LISTED = 1_000
"""How many single messages a receipt names. The counts are exact beyond it."""

MAX_BACKING_OFF = 100
"""How many destinations that took no more a receipt names."""


@dataclass(frozen=True, slots=True)
class NamedMessage:
    """One message that may need attention, and why."""

    queue: str
    sequence_number: int
    message_id: str | None
    destination: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class BackingOff:
    """A destination that took no more: its last error, the remedy, and how many received messages of it went back."""

    destination: str
    reason: str
    hint: str
    messages: int


class RampState(StrEnum):
    """Where a ramp is, or was when the run ended. PASSED: the rest goes at full speed. STOPPED: dead letters grew."""

    SENDING = "sending"
    OBSERVING = "observing"
    PASSED = "passed"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class RampStep:
    """One step. `total` and `sent` are messages since the start of the run: as wanted, and as it was."""

    total: int
    sent: int = 0
    observed_seconds: float = 0.0
    came_back: int = 0


@dataclass(frozen=True, slots=True)
class RampRecord:
    """A ramp so far. `totals` are all its steps, `steps` those begun.

    `came_back` names moved messages that came back as dead letters. `other_dead_letters` came meanwhile, too: of other
    senders, or without a message id to tell. `destinations` are those that either came from.
    """

    totals: tuple[int, ...]
    observe_seconds: float
    state: RampState = RampState.SENDING
    steps: tuple[RampStep, ...] = ()
    came_back: tuple[NamedMessage, ...] = ()
    came_back_total: int = 0
    other_dead_letters: int = 0
    destinations: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Receipt:
    """Counts are deliveries, except `distinct`, which counts messages: a message may be delivered more than once.

    `skipped` messages stay in the backlog, as wanted. A message that is skipped is counted once, however often it is
    received. `stayed` names those that stay for another reason than a filter. `where` is what the filter did, if any.

    `dead_letter_reasons` counts dead-lettered and expired messages, also those that `dead_letters` does not name.

    `doubtful` names the messages without an outcome from one side, in whichever bucket they ended: each may arrive in
    the primary twice, now or after another run.

    `backing_off` names destinations that took no more when the run ended, those with most messages first.
    `backing_off_total` counts them all.

    `discarded` counts sent messages that no subscription of their topic took, and `not_evaluated` those for which that
    could not be calculated. `topics_unchecked` is why the rules of topics were not read; "" if they were.

    `operations` are those requested and not refused: one without an answer may be billed too. Messages count by their
    size in the backlog.
    """

    received: int = 0
    sent: int = 0
    already_sent: int = 0
    expired: int = 0
    dead_lettered: int = 0
    released: int = 0
    in_doubt: int = 0
    skipped: int = 0
    locked: int = 0
    distinct: int = 0
    bytes_sent: int = 0
    queues: dict[str, dict[str, int]] = field(default_factory=dict)
    destinations: dict[str, int] = field(default_factory=dict)
    dead_letters: tuple[NamedMessage, ...] = ()
    dead_letter_reasons: dict[str, int] = field(default_factory=dict)
    doubtful: tuple[NamedMessage, ...] = ()
    stayed: tuple[NamedMessage, ...] = ()
    backing_off: tuple[BackingOff, ...] = ()
    backing_off_total: int = 0
    discarded: dict[str, int] = field(default_factory=dict)
    not_evaluated: dict[str, int] = field(default_factory=dict)
    topics_unchecked: str = ""
    where: FilterCounts | None = None
    operations: Operations = field(default_factory=Operations)
    ramp: RampRecord | None = None

    @property
    def balanced(self) -> bool:
        return self.received == sum(int(getattr(self, bucket)) for bucket in BUCKETS)

    @property
    def remaining(self) -> int:
        """Messages that went back to the backlog and were not delivered again, except skipped ones."""
        return self.distinct - self.sent - self.expired - self.dead_lettered - self.skipped

    @property
    def exit_code(self) -> int:
        """0 if every received message has arrived; 3 if some need attention; 1 if the counts do not add up."""
        if not self.balanced:
            return ExitCode.BUG
        findings = self.expired or self.dead_lettered or self.locked or self.stayed or self.remaining > 0
        return ExitCode.PARTIAL_OR_FINDINGS if findings else ExitCode.DONE

    def document(self) -> dict[str, object]:
        spent = {name: getattr(self.operations, name) for name in SPENT}
        return {
            **asdict(self),
            "operations": {**spent, "by_sbpair": self.operations.by_sbpair},
            "balanced": self.balanced,
        }


class TallyCounts(NamedTuple):
    """Copies of a run's counts: by queue and bucket, and by destination, dead-letter reason and kind of operation."""

    queues: dict[str, dict[str, int]]
    destinations: dict[str, int]
    reasons: dict[str, int]
    spent: dict[str, int]
    bytes_sent: int


class Tally:
    """Counts the ends of deliveries while a run moves. `where` is the filter that chooses messages."""

    def __init__(self, where: MessageFilter | None = None) -> None:
        self.ramp: RampRecord | None = None
        self.discarded: Counter[str] = Counter()
        self.not_evaluated: Counter[str] = Counter()
        self.topics_unchecked = ""
        self._where = where
        self._queues: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._destinations: Counter[str] = Counter()
        self._dead_letters: list[NamedMessage] = []
        self._reasons: Counter[str] = Counter()
        self._doubtful: list[NamedMessage] = []
        self._stayed: list[NamedMessage] = []
        self._stayed_total = 0
        self._backing_off: dict[str, Sequence[BackingOff]] = {}
        self._locked: dict[str, int] = {}
        self._repeats = 0
        self._bytes_sent = 0
        self._spent: Counter[str] = Counter()

    def received(self, queue: str, count: int, *, repeats: int = 0) -> None:
        """Count received messages. `repeats` of them were delivered to this run before."""
        self._queues[queue]["received"] += count
        self._repeats += repeats

    def sent(self, queue: str, destination: str, count: int, size: int) -> None:
        """Count accepted messages, of `size` bytes in total."""
        self._queues[queue]["sent"] += count
        self._destinations[destination] += count
        self._bytes_sent += size

    def ended(self, queue: str, bucket: str, count: int = 1) -> None:
        if bucket not in BUCKETS:
            raise ValueError(f"a receipt has no bucket {bucket!r}")
        self._queues[queue][bucket] += count

    def dead_lettered(self, named: NamedMessage, reason: str, *, bucket: str = "dead_lettered") -> None:
        """Count a dead-lettered message. `reason` is one of few, that of `named` may differ for each message."""
        self.ended(named.queue, bucket)
        self._reasons[reason] += 1
        if len(self._dead_letters) < MAX_LISTED:
            self._dead_letters.append(named)

    def doubtful(self, named: NamedMessage) -> None:
        if len(self._doubtful) < MAX_LISTED:
            self._doubtful.append(named)

    def stayed(self, named: NamedMessage) -> None:
        """Name a skipped message that stays for another reason than a filter."""
        self._stayed_total += 1
        if len(self._stayed) < MAX_LISTED:
            self._stayed.append(named)

    def backing_off(self, queue: str, found: Sequence[BackingOff]) -> None:
        """Set which destinations took no more of a queue's messages."""
        self._backing_off[queue] = found

    @property
    def skipped(self) -> int:
        """Messages that were skipped in all queues."""
        return sum(counts["skipped"] for counts in self._queues.values())

    def spent(self, what: str, operations: int) -> None:
        """Count billable operations of a kind in SPENT."""
        self._spent[what] += operations

    def locked(self, queue: str, count: int) -> None:
        """Set how many messages of a queue are left locked."""
        self._locked[queue] = count

    def count(self, queue: str, bucket: str) -> int:
        return self._queues.get(queue, Counter())[bucket]

    @property
    def may_arrive(self) -> int:
        """Deliveries that were sent, are in doubt, or may still be sent."""
        return sum(counts["received"] - sum(counts[bucket] for bucket in NOT_SENT) for counts in self._queues.values())

    def gone(self, queue: str) -> int:
        """Return how many deliveries of a queue ended outside of it."""
        counts = self._queues.get(queue, Counter())
        return sum(counts[bucket] for bucket in GONE)

    def sent_to(self) -> dict[str, int]:
        """Return how many messages each destination has accepted, by path."""
        return dict(self._destinations)

    def counts(self) -> TallyCounts:
        """Return the counts of this moment. May be called from another thread: each copy is taken at once."""
        queues = {queue: dict(counts) for queue, counts in list(self._queues.items())}
        return TallyCounts(queues, dict(self._destinations), dict(self._reasons), dict(self._spent), self._bytes_sent)

    def receipt(self) -> Receipt:
        total: Counter[str] = sum(self._queues.values(), Counter())
        backing_off = _by_destination(self._backing_off)
        return Receipt(
            **{name: total[name] for name in ("received", *BUCKETS)},
            locked=sum(self._locked.values()),
            distinct=total["received"] - self._repeats,
            bytes_sent=self._bytes_sent,
            queues={
                queue: {name: counts[name] for name in ("received", *BUCKETS)}
                for queue, counts in sorted(self._queues.items())
            },
            destinations=dict(sorted(self._destinations.items())),
            dead_letters=tuple(self._dead_letters),
            dead_letter_reasons=dict(sorted(self._reasons.items())),
            doubtful=tuple(self._doubtful),
            stayed=tuple(self._stayed),
            backing_off=tuple(backing_off[:MAX_BACKING_OFF]),
            backing_off_total=len(backing_off),
            discarded=dict(sorted(self.discarded.items())),
            not_evaluated=dict(sorted(self.not_evaluated.items())),
            topics_unchecked=self.topics_unchecked,
            where=None if self._where is None else self._where.counts(total["skipped"] - self._stayed_total),
            operations=Operations(**self._spent),
            ramp=self.ramp,
        )


def _by_destination(by_queue: Mapping[str, Sequence[BackingOff]]) -> list[BackingOff]:
    """Return one entry for each destination, in any spelling, with the messages of all queues."""
    found: dict[str, BackingOff] = {}
    for _, entries in sorted(by_queue.items()):
        for each in entries:
            name = each.destination.lower()
            before = found.get(name)
            found[name] = each if before is None else replace(before, messages=before.messages + each.messages)
    return sorted(found.values(), key=lambda each: (-each.messages, each.destination))
