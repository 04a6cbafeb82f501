"""What a mover did with every delivery it took, in buckets that must add up. Pure.

The identity: received = sent + already_sent + expired + dead_lettered + released + in_doubt. Each delivery ends in
exactly one bucket, and a receipt that does not balance says so itself.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import asdict, dataclass, field

from sbpair.errors import ExitCode
from sbpair.model.cost import Operations

BUCKETS = ("sent", "already_sent", "expired", "dead_lettered", "released", "in_doubt")

GONE = ("sent", "already_sent", "expired", "dead_lettered")
"""Those whose messages the backlog does not hold any more."""

SPENT = ("received", "sent", "renewals", "empty_receives", "management_calls")
"""What a mover itself spends operations on."""

MAX_LISTED = 1_000
"""How many single messages a receipt names; the counts are exact beyond it."""


@dataclass(frozen=True, slots=True)
class NamedMessage:
    """One message that somebody may want to look at."""

    queue: str
    sequence_number: int
    message_id: str | None
    destination: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class Receipt:
    """Counts are deliveries, except `distinct`, which is messages: a message may be delivered more than once.

    `doubtful` names the messages of which one side did not answer, wherever they ended: each may be in the primary
    twice, or will be after another run.

    `operations` are those that the run asked for and was not refused, answered or not: what has no answer may have been
    billed all the same. Messages count by the size that they have in the backlog.
    """

    received: int = 0
    sent: int = 0
    already_sent: int = 0
    expired: int = 0
    dead_lettered: int = 0
    released: int = 0
    in_doubt: int = 0
    distinct: int = 0
    bytes_sent: int = 0
    queues: dict[str, dict[str, int]] = field(default_factory=dict)
    destinations: dict[str, int] = field(default_factory=dict)
    dead_letters: tuple[NamedMessage, ...] = ()
    doubtful: tuple[NamedMessage, ...] = ()
    operations: Operations = field(default_factory=Operations)

    @property
    def balanced(self) -> bool:
        return self.received == sum(int(getattr(self, bucket)) for bucket in BUCKETS)

    @property
    def left(self) -> int:
        """Messages that went back to the backlog, and did not come again."""
        return self.distinct - self.sent - self.expired - self.dead_lettered

    @property
    def exit_code(self) -> int:
        """0 where all that was taken has arrived; 3 where some of it needs somebody's eyes; 1 where it is wrong."""
        if not self.balanced:
            return ExitCode.BUG
        return ExitCode.PARTIAL_OR_FINDINGS if self.expired or self.dead_lettered or self.left > 0 else ExitCode.DONE

    def document(self) -> dict[str, object]:
        """The receipt as JSON has it."""
        spent = {name: getattr(self.operations, name) for name in SPENT}
        return {
            **asdict(self),
            "operations": {**spent, "by_sbpair": self.operations.by_sbpair},
            "balanced": self.balanced,
        }


class Tally:
    """A receipt in the making."""

    def __init__(self) -> None:
        self._queues: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._destinations: Counter[str] = Counter()
        self._dead_letters: list[NamedMessage] = []
        self._doubtful: list[NamedMessage] = []
        self._repeats = 0
        self._bytes_sent = 0
        self._spent: Counter[str] = Counter()

    def received(self, queue: str, count: int, *, repeats: int = 0) -> None:
        """`repeats` is how many of the messages have been delivered to this run before."""
        self._queues[queue]["received"] += count
        self._repeats += repeats

    def sent(self, queue: str, destination: str, count: int, size: int) -> None:
        """`size` is bytes, of all of them together."""
        self._queues[queue]["sent"] += count
        self._destinations[destination] += count
        self._bytes_sent += size

    def ended(self, queue: str, bucket: str) -> None:
        if bucket not in BUCKETS:
            raise ValueError(f"a receipt has no bucket {bucket!r}")
        self._queues[queue][bucket] += 1

    def dead_lettered(self, named: NamedMessage, *, bucket: str = "dead_lettered") -> None:
        self.ended(named.queue, bucket)
        if len(self._dead_letters) < MAX_LISTED:
            self._dead_letters.append(named)

    def doubtful(self, named: NamedMessage) -> None:
        if len(self._doubtful) < MAX_LISTED:
            self._doubtful.append(named)

    def spent(self, what: str, operations: int) -> None:
        """Billable operations, for one of SPENT."""
        self._spent[what] += operations

    def count(self, queue: str, bucket: str) -> int:
        return self._queues.get(queue, Counter())[bucket]

    def gone(self, queue: str) -> int:
        """How many deliveries of a queue have ended outside of it."""
        counts = self._queues.get(queue, Counter())
        return sum(counts[bucket] for bucket in GONE)

    def sent_to(self) -> dict[str, int]:
        """How many messages each destination has accepted, by its path."""
        return dict(self._destinations)

    def receipt(self) -> Receipt:
        total: Counter[str] = sum(self._queues.values(), Counter())
        return Receipt(
            received=total["received"],
            **{bucket: total[bucket] for bucket in BUCKETS},
            distinct=total["received"] - self._repeats,
            bytes_sent=self._bytes_sent,
            queues={
                queue: {"received": counts["received"], **{bucket: counts[bucket] for bucket in BUCKETS}}
                for queue, counts in sorted(self._queues.items())
            },
            destinations=dict(sorted(self._destinations.items())),
            dead_letters=tuple(self._dead_letters),
            doubtful=tuple(self._doubtful),
            operations=Operations(**self._spent),
        )
