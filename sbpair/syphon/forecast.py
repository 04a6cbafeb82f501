"""Forecast of a syphon run, added up message by message. Pure; memory does not depend on the backlog.

Identity, for each flow and in total: messages = sent + dead_lettered + released + expired + skipped + deferred +
scheduled. `move.route` decides about each message, as in a real run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from sbpair.errors import ExitCode
from sbpair.model import cost
from sbpair.move.message.dead_letters import NotSentReason
from sbpair.move.message.route import OTHERS, DeadLetter, Expire, Facts, Route, TimeToLive, route, router
from sbpair.move.receipt import FilterCounts, MissingDestination, NamedMessage
from sbpair.timespan import TICKS_PER_MS

if TYPE_CHECKING:
    from sbpair.azure.destinations import DestinationEntity
    from sbpair.move.message.renames import Renames
    from sbpair.rules.values import Truth
    from sbpair.syphon.run_limits import EffectiveLimits, EndTiers

OUTCOMES = ("sent", "dead_lettered", "released", "expired", "skipped", "deferred", "scheduled")

MAX_FLOWS = 20_000
MAX_REASONS = 1_000
EXAMPLES = 3
EMPTY_WAITS = 1  # receives that return nothing, for each queue, before a count or peek shows that it is empty


SUMS = ("messages", "bytes", "overdue", "scheduled_in_future", "duplicates", "discarded", "not_evaluated")


@dataclass(slots=True)
class FlowStats:
    """Messages in one queue for one destination; None for messages without a destination.

    `oldest_ms` and `newest_ms` are when messages were enqueued in the backlog, in ms since 1970. `overdue` does not
    depend on the options. `duplicates` repeat another message id; only a replay counts them.
    """

    queue: str
    destination: str | None
    messages: Annotated[int, "All peeked messages; equals the sum of the outcomes"] = 0
    bytes: Annotated[int, "Their bytes"] = 0
    oldest_ms: int | None = None
    newest_ms: int | None = None
    overdue: Annotated[int, "Messages past their time to live if the time in the backlog counts"] = 0
    scheduled_in_future: Annotated[int, "Messages to be scheduled in the primary"] = 0
    duplicates: int = 0
    discarded: Annotated[int, "Messages for a topic of which no subscription takes them"] = 0
    not_evaluated: Annotated[int, "Messages for a topic for which that is not known"] = 0
    outcomes: Counter[str] = field(default_factory=Counter)

    def add(self, facts: Facts, outcome: str) -> None:
        self.messages += 1
        self.bytes += facts.size
        self.outcomes[outcome] += 1
        at = facts.enqueued_at
        if at > 0:
            self.oldest_ms = at if self.oldest_ms is None else min(self.oldest_ms, at)
            self.newest_ms = at if self.newest_ms is None else max(self.newest_ms, at)

    def merge(self, other: FlowStats) -> None:
        for name in (*SUMS, "outcomes"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.oldest_ms = min((at for at in (self.oldest_ms, other.oldest_ms) if at is not None), default=None)
        self.newest_ms = max((at for at in (self.newest_ms, other.newest_ms) if at is not None), default=None)


@dataclass(slots=True)
class DeadLetterGroup:
    """Messages that would be dead-lettered for one reason, the first few by name."""

    reason: Annotated[str, "The reason"]
    description: Annotated[str, "Its description"]
    messages: Annotated[int, "Number of messages"] = 0
    examples: Annotated[list[NamedMessage], "The first messages"] = field(default_factory=list)


class ForecastBuilder:
    """Adds up messages to a forecast, some of which a destination that detects duplicates may know."""

    def __init__(
        self,
        ttl: TimeToLive,
        now_ms: int,
        duplicate_windows: Mapping[str, int] | None = None,
        renames: Renames | None = None,
        default_ttl_ms: int | None = None,
    ) -> None:
        self._default_ttl_ms = default_ttl_ms
        self.default_ttl = 0  # messages that the source would deliver with its default time to live
        self._route = router(ttl, lambda: now_ms, duplicate_windows, renames)
        self.now_ms = now_ms
        self._flows: dict[tuple[str, str | None], FlowStats] = {}
        self._dead_letters: dict[tuple[str, str], DeadLetterGroup] = {}
        self._moved_units = self._turned_away_units = self._destination_credits = 0

    def decide(self, facts: Facts) -> Route:
        """Return the decision of a run, by the message alone."""
        return self._route([facts])[0]

    def add(self, facts: Facts, destination: str | None, outcome: str, *, received: bool = True) -> None:
        """Add a message that would not be sent; unless `received`, it stays in the backlog: deferred, or scheduled."""
        self._flow(facts.queue, destination).add(facts, outcome)
        self._turned_away_units += cost.units(facts.size) if received else 0

    def count_duplicate(self, facts: Facts, destination: str | None) -> None:
        """Count a duplicate, which is also added otherwise."""
        self._flow(facts.queue, destination).duplicates += 1

    def send(self, facts: Facts, destination: str, filters: int = 0, *, taken: Truth = True) -> None:
        """Add a message that would be sent. `taken` is whether a subscription takes it, if it is for a topic."""
        flow = self._flow(facts.queue, destination)
        flow.add(facts, "sent")
        flow.discarded += taken is False
        flow.not_evaluated += taken is None
        flow.overdue += isinstance(route(facts, ttl=TimeToLive.REMAINING, now_ms=self.now_ms), Expire)
        flow.scheduled_in_future += facts.scheduled_at is not None and facts.scheduled_at > self.now_ms
        if self._default_ttl_ms is not None:
            own_ms = facts.ttl_ticks and -(-facts.ttl_ticks // TICKS_PER_MS)
            self.default_ttl += own_ms is None or own_ms >= self._default_ttl_ms
        self._moved_units += cost.units(facts.size)
        self._destination_credits += 1 + filters

    def turn_away(self, facts: Facts, destination: str | None, decision: DeadLetter | Expire) -> None:
        expired = isinstance(decision, Expire)
        self.add(facts, destination, "expired" if expired else "dead_lettered")
        self._flow(facts.queue, destination).overdue += expired
        group = self._group(decision)
        group.messages += 1
        if decision.reason == NotSentReason.DUPLICATE:
            group.description = max(group.description, decision.description)  # the latest time
        if len(group.examples) < EXAMPLES:
            name = NamedMessage(facts.queue, facts.sequence_number, facts.message_id, destination, decision.description)
            group.examples.append(name)

    def flows(self) -> list[FlowStats]:
        return sorted(self._flows.values(), key=lambda flow: (flow.queue, flow.destination or ""))

    def dead_letters(self) -> list[DeadLetterGroup]:
        return sorted(self._dead_letters.values(), key=lambda each: -each.messages)

    def operations(self, queues: int) -> cost.Operations:
        """Return the billed operations of a run over so many queues, without lock renewals."""
        spent = cost.of_units(self._moved_units, self._turned_away_units)
        return spent + cost.Operations(empty_receives=EMPTY_WAITS * queues, management_calls=EMPTY_WAITS * queues)

    def seconds(self, limits: EffectiveLimits, *, in_turn: bool = False) -> float | None:
        """Return the least duration of a run by its limits; None without limits.

        `in_turn` is for a run that receives everything before it sends anything.
        """
        outcomes: Counter[str] = sum((flow.outcomes for flow in self._flows.values()), Counter())
        received = outcomes.total() - outcomes["deferred"] - outcomes["scheduled"]
        sending = ((outcomes["sent"], limits.rate), (self._destination_credits, limits.destination_credits))
        minimum = [amount / each for amount, each in sending if each is not None]
        receiving = [] if limits.source_credits is None else [received / limits.source_credits]
        if in_turn and minimum and receiving:
            return max(minimum) + receiving[0]
        return max(minimum + receiving, default=None)

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
        key: tuple[str, str] = (
            decision.reason,
            "" if decision.reason == NotSentReason.DUPLICATE else decision.description,
        )
        if key not in self._dead_letters and len(self._dead_letters) >= MAX_REASONS:
            key = ("", "for other reasons than those listed")
        return self._dead_letters.setdefault(key, DeadLetterGroup(*key))


def total(flows: Iterable[FlowStats], destination: str | None = None) -> FlowStats:
    sum_of = FlowStats("", destination)
    for flow in flows:
        sum_of.merge(flow)
    return sum_of


@dataclass(frozen=True, slots=True)
class Forecast:
    """The forecast of a run. `seconds` is None if only the network limits it.

    `queues` exist. `entities` are the destinations found. `notes` list failed checks. `where` is what the filter chose.
    `to` is the namespace that a backlog goes to instead of its primary.
    `missing` are the destinations that do not exist, with the messages that a run would dead-letter and leave.
    `left_dead_letters` are those of backlog queues, which a run leaves; None if unknown.
    """

    queues: tuple[str, ...]
    flows: tuple[FlowStats, ...]
    dead_letters: tuple[DeadLetterGroup, ...]
    entities: Mapping[str, DestinationEntity]
    limits: EffectiveLimits
    seconds: float | None
    estimate: cost.Estimate
    tiers: EndTiers
    ttl: TimeToLive
    now_ms: int
    notes: tuple[str, ...] = ()
    where: FilterCounts | None = None
    to: str = ""
    left_dead_letters: int | None = None
    missing: tuple[MissingDestination, ...] = ()

    @property
    def held(self) -> int:
        """How many messages a run would leave, since their destination is missing."""
        return sum(each.held for each in self.missing)

    @property
    def exit_code(self) -> int:
        """3 if a run would dead-letter something, or leave messages of missing destinations."""
        return ExitCode.PARTIAL_OR_FINDINGS if self.dead_letters or self.held else ExitCode.DONE

    def discard_code(self, limit: int | None) -> int:
        """Return 3 if a run would discard more than `limit` messages, and so leaves them; None is no limit."""
        found = total(self.flows).discarded
        return ExitCode.PARTIAL_OR_FINDINGS if limit is not None and found > limit else ExitCode.DONE
