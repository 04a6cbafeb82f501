"""What a syphon would make of a backlog, added up message by message. Pure; memory does not depend on the backlog.

The identity, of every flow and in total: messages = sent + dead_lettered + expired + deferred + scheduled. What would
happen to a message is decided by `move.route`, as in a real run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sbpair.errors import ExitCode
from sbpair.model import cost
from sbpair.move.message.route import DeadLetter, Expire, Facts, TimeToLive, route
from sbpair.move.peek.destination_lookup import OTHERS
from sbpair.move.receipt import NamedMessage

if TYPE_CHECKING:
    from sbpair.azure.interfaces import DestinationEntity
    from sbpair.move.message.route import Route
    from sbpair.syphon.limits import EffectiveLimits, PairTiers

FATES = ("sent", "dead_lettered", "expired", "deferred", "scheduled")

MAX_FLOWS = 20_000
MAX_REASONS = 1_000
EXAMPLES = 3

EMPTY_WAITS = 2
"""Receives that nothing comes of, for each queue, until a run believes that it is empty."""


@dataclass(slots=True)
class FlowStats:
    """What lies in one queue for one destination; None for what has none.

    `oldest_ms` and `newest_ms` are when messages came into the backlog, in ms since 1970. `overdue` are past their time
    to live if the time in the backlog counts, whatever was asked for; `scheduled_in_future` are to be scheduled in the
    primary; `duplicates` repeat another one's message id, where somebody has counted these.
    """

    queue: str
    destination: str | None
    messages: int = 0
    bytes: int = 0
    oldest_ms: int | None = None
    newest_ms: int | None = None
    overdue: int = 0
    scheduled_in_future: int = 0
    duplicates: int = 0
    fates: Counter[str] = field(default_factory=Counter)

    def add(self, facts: Facts, fate: str) -> None:
        self.messages += 1
        self.bytes += facts.size
        self.fates[fate] += 1
        at = facts.enqueued_at
        if at > 0:
            self.oldest_ms = at if self.oldest_ms is None else min(self.oldest_ms, at)
            self.newest_ms = at if self.newest_ms is None else max(self.newest_ms, at)

    def take_over(self, other: FlowStats) -> None:
        """Add another flow to this one."""
        self.messages += other.messages
        self.bytes += other.bytes
        self.overdue += other.overdue
        self.scheduled_in_future += other.scheduled_in_future
        self.duplicates += other.duplicates
        self.fates += other.fates
        self.oldest_ms = min((at for at in (self.oldest_ms, other.oldest_ms) if at is not None), default=None)
        self.newest_ms = max((at for at in (self.newest_ms, other.newest_ms) if at is not None), default=None)


@dataclass(slots=True)
class DeadLetterGroup:
    """Messages that would be dead-lettered for one reason, the first few by name."""

    reason: str
    description: str
    messages: int = 0
    examples: list[NamedMessage] = field(default_factory=list)


class ForecastBuilder:
    """A forecast in the making."""

    def __init__(self, ttl: TimeToLive, now_ms: int) -> None:
        self._ttl = ttl
        self.now_ms = now_ms
        self._flows: dict[tuple[str, str | None], FlowStats] = {}
        self._doomed: dict[tuple[str, str], DeadLetterGroup] = {}
        self._moved_units = self._turned_away_units = self._primary_credits = 0

    def decide(self, facts: Facts) -> Route:
        """What a run would do, as far as the message itself tells."""
        return route(facts, ttl=self._ttl, now_ms=self.now_ms)

    def stays(self, facts: Facts, destination: str | None, fate: str) -> None:
        """A message that a run would not be given: one that somebody has deferred, or that is not due yet."""
        self._flow(facts.queue, destination).add(facts, fate)

    def count_duplicate(self, facts: Facts, destination: str | None) -> None:
        """A message that is counted otherwise as well, and repeats another one."""
        self._flow(facts.queue, destination).duplicates += 1

    def keep(self, facts: Facts, destination: str | None, fate: str) -> None:
        """A message that would be received and completed, and not sent."""
        self._flow(facts.queue, destination).add(facts, fate)
        self._turned_away_units += cost.units(facts.size)

    def send(self, facts: Facts, destination: str, filters: int = 0) -> None:
        """A message that would be sent."""
        flow = self._flow(facts.queue, destination)
        flow.add(facts, "sent")
        flow.overdue += self._is_overdue(facts)
        flow.scheduled_in_future += facts.scheduled_at is not None and facts.scheduled_at > self.now_ms
        self._moved_units += cost.units(facts.size)
        self._primary_credits += 1 + filters

    def turn_away(self, facts: Facts, destination: str | None, decision: DeadLetter | Expire) -> None:
        """A message that would end in the dead-letter queue."""
        expired = isinstance(decision, Expire)
        flow = self._flow(facts.queue, destination)
        flow.add(facts, "expired" if expired else "dead_lettered")
        flow.overdue += expired
        self._turned_away_units += cost.units(facts.size)
        doomed = self._group(decision)
        doomed.messages += 1
        if len(doomed.examples) < EXAMPLES:
            name = NamedMessage(facts.queue, facts.sequence_number, facts.message_id, destination, decision.description)
            doomed.examples.append(name)

    def flows(self) -> list[FlowStats]:
        return sorted(self._flows.values(), key=lambda flow: (flow.queue, flow.destination or ""))

    def doomed(self) -> list[DeadLetterGroup]:
        return sorted(self._doomed.values(), key=lambda each: -each.messages)

    def operations(self, queues: int) -> cost.Operations:
        """What a run of so many queues is billed for all this, if no lock has to be renewed."""
        spent = cost.of_units(self._moved_units, self._turned_away_units)
        return spent + cost.Operations(empty_receives=EMPTY_WAITS * queues)

    def seconds(self, limits: EffectiveLimits, *, in_turn: bool = False) -> float | None:
        """How long a run takes at least by its limits; None where it has none.

        `in_turn` is for one that receives everything before it sends the first.
        """
        fates: Counter[str] = sum((flow.fates for flow in self._flows.values()), Counter())
        taken = fates.total() - fates["deferred"] - fates["scheduled"]
        sending = ((fates["sent"], limits.rate), (self._primary_credits, limits.primary_credits))
        minimum = [amount / each for amount, each in sending if each is not None]
        receiving = [] if limits.secondary_credits is None else [taken / limits.secondary_credits]
        if in_turn and minimum and receiving:
            return max(minimum) + receiving[0]
        return max(minimum + receiving, default=None)

    def _is_overdue(self, facts: Facts) -> bool:
        late = route(facts, ttl=TimeToLive.REMAINING, now_ms=self.now_ms)
        return isinstance(late, Expire)

    def _flow(self, queue: str, destination: str | None) -> FlowStats:
        # Service Bus compares paths without regard to case.
        key = (queue, destination and destination.lower())
        flow = self._flows.get(key)
        if flow is None:
            if destination is not None and destination != OTHERS and len(self._flows) >= MAX_FLOWS:
                return self._flow(queue, OTHERS)
            flow = self._flows[key] = FlowStats(queue, destination)
        return flow

    def _group(self, decision: DeadLetter | Expire) -> DeadLetterGroup:
        key = (decision.reason, decision.description)
        if key not in self._doomed and len(self._doomed) >= MAX_REASONS:
            key = ("", "for other reasons than those that are named")
        return self._doomed.setdefault(key, DeadLetterGroup(*key))


def total(flows: Iterable[FlowStats], queue: str = "", destination: str | None = None) -> FlowStats:
    """Flows added up."""
    sum_of = FlowStats(queue, destination)
    for flow in flows:
        sum_of.take_over(flow)
    return sum_of


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a run would do now. `seconds` is None where nothing limits it but the way there.

    `queues` are those that there are. `entities` are the destinations that were found; `notes` say what could not be
    asked.
    """

    queues: tuple[str, ...]
    flows: tuple[FlowStats, ...]
    doomed: tuple[DeadLetterGroup, ...]
    entities: Mapping[str, DestinationEntity]
    limits: EffectiveLimits
    seconds: float | None
    estimate: cost.Estimate
    tiers: PairTiers
    ttl: TimeToLive
    now_ms: int
    notes: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """3 where a run would dead-letter something."""
        return ExitCode.PARTIAL_OR_FINDINGS if self.doomed else ExitCode.DONE
