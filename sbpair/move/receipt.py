"""The receipt of a run: the end of every received delivery, in buckets that must add up. Pure.

Identity: received = sent + already_sent + expired + dead_lettered + released + in_doubt + skipped. Each delivery ends
in exactly one bucket, and `balanced` checks it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Annotated, NamedTuple

from sbpair.errors import ExitCode
from sbpair.model.cost import MoverOperations
from sbpair.model.document import LATER

BUCKETS = ("sent", "already_sent", "expired", "dead_lettered", "released", "in_doubt", "skipped")

GONE = ("sent", "already_sent", "expired", "dead_lettered")
"""Buckets whose messages are no longer in the backlog."""

NOT_SENT = tuple(bucket for bucket in BUCKETS if bucket not in ("sent", "in_doubt"))

SPENT = tuple(each.name for each in fields(MoverOperations))
"""Operations that a mover causes itself."""

MAX_LISTED = 1_000
MAX_DOUBTFUL = 20_000  # several times what a killed run of ten queues leaves
"""How many single messages a receipt names. The counts are exact beyond it."""

MAX_BACKING_OFF = 100
"""How many destinations that took no more a receipt names."""


@dataclass(frozen=True, slots=True)
class NamedMessage:
    """One message that may need attention, and why."""

    queue: Annotated[str, "Backlog queue it came from"]
    sequence_number: Annotated[int, "Its sequence number in that queue", {"minimum": -(2**63)}]
    message_id: Annotated[str | None, "Its message id"]
    destination: Annotated[str | None, "Queue or topic it is for"]
    reason: Annotated[str, "Why it is named"]


@dataclass(frozen=True, slots=True)
class RenumberedMessage:
    """A scheduled or deferred message that has another sequence number now: by the old one nothing finds it."""

    queue: Annotated[str, "Queue it came from"]
    sequence_number: Annotated[int, "Its sequence number there"]
    message_id: Annotated[str | None, "Its message id"]
    new_number: Annotated[int | None, "Its sequence number at the destination; null if unknown"]
    destination: Annotated[str | None, "Queue or topic that has it; null if unknown, or if it was removed", LATER] = (
        None
    )


@dataclass(frozen=True, slots=True)
class BackingOff:
    """A destination that took no more."""

    destination: Annotated[str, "Its path"]
    reason: Annotated[str, "Its last error"]
    hint: Annotated[str, "What to do; may be empty"]
    messages: Annotated[int, "Messages of it that were received, and went back"]


class RampState(StrEnum):
    """Where a ramp is, or was when the run ended. PASSED: the rest goes at full speed. STOPPED: dead letters grew."""

    SENDING = "sending"
    OBSERVING = "observing"
    PASSED = "passed"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class RampStep:
    """One step."""

    total: Annotated[int, "Messages to send since the start of the run"]
    sent: Annotated[int, "Messages sent since then"] = 0
    observed_seconds: Annotated[float, "How long dead letters were observed"] = 0.0
    came_back: Annotated[int, "Moved messages that came back as dead letters"] = 0


@dataclass(frozen=True, slots=True)
class RampRecord:
    """A ramp so far."""

    totals: Annotated[tuple[int, ...], "Totals of all steps: messages sent since the start"]
    observe_seconds: Annotated[float, "How long dead letters are observed after each step"]
    state: Annotated[RampState, "Where the ramp is"] = RampState.SENDING
    steps: Annotated[tuple[RampStep, ...], "Steps that were begun"] = ()
    came_back: Annotated[tuple[NamedMessage, ...], "Moved messages that came back as dead letters, at most 1000"] = ()
    came_back_total: Annotated[int, "All of these; of a topic, a message may come back in each subscription"] = 0
    other_dead_letters: Annotated[int, "Other dead letters that came, also those without a message id to tell"] = 0
    destinations: Annotated[tuple[str, ...], "Destinations whose dead letters these are"] = ()


@dataclass(frozen=True, slots=True)
class FilterCounts:
    """The effect of --where."""

    text: Annotated[str, "The filter"]
    chosen: Annotated[int, "Messages for which it was true"]
    skipped: Annotated[int, "Messages that stay, since it was not true for them"]
    failed: Annotated[int, "Messages among these for which it could not be calculated"]
    first_failure: Annotated[str, "Why it could not be calculated for the first of these; empty for none"]
    remarks: Annotated[tuple[str, ...], "Doubts about its text"]


@dataclass(frozen=True, slots=True)
class DeliveryCounts:
    """Counts of deliveries."""

    received: Annotated[int, "Deliveries, each of which ends in one of the buckets from sent to skipped"] = 0
    sent: Annotated[int, "Accepted by the primary and completed in the backlog"] = 0
    already_sent: Annotated[int, "Accepted by an earlier run, completed without sending"] = 0
    expired: Annotated[int, "Dead-lettered, since past the time to live"] = 0
    dead_lettered: Annotated[int, "Dead-lettered for another reason, such as no destination"] = 0
    released: Annotated[int, "Returned to the backlog"] = 0
    in_doubt: Annotated[int, "Sent, without an answer"] = 0
    skipped: Annotated[int, "Left in the queue, each counted once: not chosen, or refused by a move's destination"] = 0


@dataclass(frozen=True, slots=True)
class Receipt(DeliveryCounts):
    """The receipt of a move. Counts are deliveries, of which a message may have several, unless they say otherwise.

    `doubtful` messages have no outcome from one side, in whichever bucket they ended: each may arrive in the primary
    twice, now or after another run. `stayed` names no messages that stay because of a filter.

    `operations` are those requested and not refused: one without an answer may be billed too. Messages count by their
    size in the backlog.
    """

    locked: Annotated[int, "Messages left, which are locked; not received"] = 0
    distinct: Annotated[int, "Different messages among the deliveries"] = 0
    bytes_sent: Annotated[int, "Bytes of the sent messages"] = 0
    queues: Annotated[
        dict[str, dict[str, int]], "Counts of each backlog queue", {"additionalProperties": DeliveryCounts}
    ] = field(default_factory=dict)
    destinations: Annotated[dict[str, int], "Sent messages of each destination"] = field(default_factory=dict)
    dead_letters: Annotated[tuple[NamedMessage, ...], "Dead-lettered messages, at most 1000"] = ()
    dead_letter_reasons: Annotated[dict[str, int], "All of these, by reason", LATER] = field(default_factory=dict)
    doubtful: Annotated[tuple[NamedMessage, ...], "Possible duplicates, at most 20000"] = ()
    doubtful_total: Annotated[int, "All of these possible duplicates"] = 0
    stayed: Annotated[tuple[NamedMessage, ...], "Skipped messages that stay for their own reasons, at most 1000"] = ()
    renumbered: Annotated[
        tuple[RenumberedMessage, ...], "Scheduled or deferred messages with new numbers, at most 20000", LATER
    ] = ()
    renumbered_total: Annotated[int, "All of these messages", LATER] = 0
    session_states: Annotated[
        dict[str, tuple[int, ...]], "Old numbers that the state of a session has, by session", LATER
    ] = field(default_factory=dict)
    backing_off: Annotated[tuple[BackingOff, ...], "Destinations that took no more at the end, at most 100", LATER] = ()
    backing_off_total: Annotated[int, "All of these destinations", LATER] = 0
    discarded: Annotated[dict[str, int], "Sent messages that no subscription took, by topic", LATER] = field(
        default_factory=dict
    )
    not_evaluated: Annotated[dict[str, int], "Sent messages that no subscription took, perhaps", LATER] = field(
        default_factory=dict
    )
    topics_unchecked: Annotated[str, "Why the rules of topics were not read; may be empty", LATER] = ""
    where: Annotated[FilterCounts | None, "What --where did; null without it", LATER] = None
    default_ttl: Annotated[int, "Deliveries whose time to live is the source's default, or equals it", LATER] = 0
    operations: Annotated[MoverOperations, "Billable operations"] = field(default_factory=MoverOperations)
    ramp: Annotated[RampRecord | None, "The ramp; null without one", LATER] = None

    @property
    def balanced(self) -> Annotated[bool, "Whether the counts add up"]:
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


@dataclass(frozen=True, slots=True)
class MissingDestination:
    """A destination that the primary lacks."""

    destination: Annotated[str, "Its path"]
    dead_lettered: Annotated[int, "Messages dead-lettered for it"]
    held: Annotated[int, "Messages of it that were received, and left in the backlog"]


def default_ttl_note(messages: int, source: str) -> str:
    """Return what to know of messages whose time to live may be the source's default."""
    return (
        f"{messages} of them have the default time to live of {source}, which may be their sender's:"
        " --ttl drop-default leaves it out"
    )


class KeptRecord(NamedTuple):
    """Removed messages, and the file that has them."""

    file: Annotated[str | None, "The file; null if the messages were not kept"]
    messages: Annotated[int, "Messages that this run has written to it"]
    bytes: Annotated[int, "Its size"]
    earlier: Annotated[int, "Further removed messages, which an earlier run had kept", LATER] = 0


class Tally:
    """Counts the ends of deliveries while a run moves. `filter_counts` adds to skipped messages what a filter did."""

    def __init__(self) -> None:
        self.filter_counts: Callable[[int], FilterCounts] | None = None
        self.ramp: RampRecord | None = None
        self.discarded: Counter[str] = Counter()
        self.not_evaluated: Counter[str] = Counter()
        self.topics_unchecked = ""
        self.default_ttl = 0
        self._queues: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._destinations: Counter[str] = Counter()
        self._dead_letters: list[NamedMessage] = []
        self._reasons: Counter[str] = Counter()
        self._doubtful: list[NamedMessage] = []
        self._doubtful_total = 0
        self._renumbered: list[RenumberedMessage] = []
        self._renumbered_total = 0
        self._session_states: dict[str, tuple[int, ...]] = {}
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
        self._doubtful_total += 1
        if len(self._doubtful) < MAX_DOUBTFUL:
            self._doubtful.append(named)

    def doubtful_beyond(self, messages: int) -> None:
        """Count further messages in doubt that are not named."""
        self._doubtful_total += messages

    def renumbered(self, message: RenumberedMessage) -> None:
        self._renumbered_total += 1
        if len(self._renumbered) < MAX_DOUBTFUL:
            self._renumbered.append(message)

    def mentioned(self, session_id: str, numbers: Collection[int]) -> None:
        """Name old numbers that the state of a session has."""
        if numbers and len(self._session_states) < MAX_LISTED:
            found = {*self._session_states.get(session_id, ()), *numbers}
            self._session_states[session_id] = tuple(sorted(found))

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

    def totals(self) -> dict[str, int]:
        """Return the received deliveries and those of each bucket, of all queues. May be called from another thread."""
        queues = list(self._queues.values())
        return {name: sum(counts[name] for counts in queues) for name in ("received", *BUCKETS)}

    def receipt(self) -> Receipt:
        """Return the receipt of this moment. May be called from another thread: each copy is taken at once."""
        total = self.totals()
        backing_off = _by_destination(self._backing_off)
        return Receipt(
            **total,
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
            doubtful_total=self._doubtful_total,
            stayed=tuple(self._stayed),
            renumbered=tuple(self._renumbered),
            renumbered_total=self._renumbered_total,
            session_states=dict(self._session_states),
            backing_off=tuple(backing_off[:MAX_BACKING_OFF]),
            backing_off_total=len(backing_off),
            discarded=dict(sorted(self.discarded.items())),
            not_evaluated=dict(sorted(self.not_evaluated.items())),
            topics_unchecked=self.topics_unchecked,
            default_ttl=self.default_ttl,
            where=self.filter_counts and self.filter_counts(total["skipped"] - self._stayed_total),
            operations=MoverOperations(**self._spent),
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
