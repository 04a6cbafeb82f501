"""Results of `--dry-run` of moves, and of `sbpair replay plan`: a forecast in the words of each command."""

from typing import Annotated, Generic, NamedTuple, TypeVar

from sbpair.model.cost import Estimate, Operations
from sbpair.model.document import SPREAD, UNLESS_NONE, document
from sbpair.move.message.route import TimeToLive
from sbpair.move.receipt import FilterCounts
from sbpair.syphon.forecast import DeadLetterGroup, FlowStats
from sbpair.syphon.run_limits import EffectiveLimits, EndTiers

Fates = TypeVar("Fates")
Tiers = TypeVar("Tiers")
Limits = TypeVar("Limits")

Sent = Annotated[int, "Messages that would be sent"]
Expired = Annotated[int, "Messages past their time to live"]
Skipped = Annotated[int, "Messages that a run would leave, since not chosen"]
Deferred = Annotated[int, "Deferred messages, which stay"]
Scheduled = Annotated[int, "Scheduled messages, which stay"]


class SyphonFates(NamedTuple):
    """The outcomes of messages in a syphon."""

    sent: Sent
    dead_lettered: Annotated[int, "Messages that would be dead-lettered"]
    released: Annotated[int, "Messages that a run would leave, since their destination is missing"]
    expired: Expired
    skipped: Skipped
    deferred: Deferred
    scheduled: Scheduled


class MoveFates(NamedTuple):
    """The outcomes of messages in a move."""

    sent: Sent
    refused: Annotated[int, "Messages that would stay, since their destination would refuse them"]
    expired: Expired
    skipped: Skipped
    deferred: Deferred
    scheduled: Scheduled


class ReplayFates(NamedTuple):
    """The outcomes of messages in a replay, and `duplicates` among them."""

    sent: Sent
    already_sent: Annotated[int, "Messages that the syphon's journal records as accepted"]
    deduplicated: Annotated[int, "Messages that repeat an id, with --dedup message-id"]
    expired: Expired
    quarantined: Annotated[int, "Messages that would be quarantined"]
    unsent: Annotated[int, "Messages that --destination excludes, or whose destination is missing"]
    deferred: Deferred
    scheduled: Scheduled
    duplicates: Annotated[int, "Messages that repeat the id of another for one destination; also counted above"]


class ForecastSums(NamedTuple, Generic[Fates]):
    """The messages of some flows."""

    stats: Annotated[FlowStats, SPREAD]
    fates: Annotated[Fates, SPREAD]
    oldest_seconds: Annotated[float | None, "Age of the oldest message"]
    newest_seconds: Annotated[float | None, "Age of the newest message"]


class QueueForecast(NamedTuple, Generic[Fates]):
    """A backlog queue."""

    queue: Annotated[str, "Its path"]
    sums: Annotated[ForecastSums[Fates], SPREAD]


class FoundDestination(NamedTuple):
    """A destination that exists."""

    topic: Annotated[bool, "Whether it is a topic"]
    filters: Annotated[int, "Filters a message meets there"]


class DestinationForecast(NamedTuple, Generic[Fates]):
    """A destination."""

    destination: Annotated[str, "Its path"]
    found: Annotated[FoundDestination | None, "The destination in the primary; null if unknown or missing"]
    sums: Annotated[ForecastSums[Fates], SPREAD]


class FlowForecast(NamedTuple, Generic[Fates]):
    """The messages of a queue for a destination."""

    queue: Annotated[str, "Backlog queue"]
    destination: Annotated[str | None, "Destination; null if none, * for others"]
    sums: Annotated[ForecastSums[Fates], SPREAD]


class PairTiers(NamedTuple):
    """The tiers of a pair."""

    primary: Annotated[str | None, "Primary"]
    secondary: Annotated[str | None, "Secondary"]


class PairLimits(NamedTuple):
    """The limits of a run."""

    rate: Annotated[float | None, "Messages a second"]
    primary_credits: Annotated[float | None, "Credits a second of the primary"]
    secondary_credits: Annotated[float | None, "Credits a second of the secondary"]


class ForecastFigures(NamedTuple, Generic[Fates, Tiers, Limits]):
    """The figures of a forecast."""

    sums: Annotated[ForecastSums[Fates], SPREAD]
    queues: Annotated[list[QueueForecast[Fates]], "By backlog queue"]
    destinations: Annotated[list[DestinationForecast[Fates]], "By destination"]
    flows: Annotated[list[FlowForecast[Fates]], "By queue and destination"]
    ttl: Annotated[TimeToLive, "Rule of the time to live"]
    tiers: Annotated[Tiers, "Tiers of the namespaces; null if unknown"]
    limits: Annotated[Limits, "Limits of the run; null is no limit"]
    seconds: Annotated[float | None, "Lower bound of the duration; null if nothing limits it"]
    operations: Annotated[Operations, "Billable operations of the run"]
    cost: Annotated[Estimate, "Cost of the operations"]
    notes: Annotated[tuple[str, ...], "Remarks"]


class RampPreview(NamedTuple):
    """The ramp of a run."""

    totals: Annotated[tuple[int, ...], "Totals of all steps: messages sent since the start"]
    observe_seconds: Annotated[float, "How long dead letters would be observed after each step"]
    steps: Annotated[list[int], "After how many messages dead letters would be observed"]

    @property
    def seconds(self) -> Annotated[float, "How long the observations would take together"]:
        return len(self.steps) * self.observe_seconds


class ForecastTerms(NamedTuple):
    """The filter, the destination and the ramp of a move."""

    where: Annotated[FilterCounts | None, "What --where did; null without it"]
    to: Annotated[str | None, "Namespace that the backlog goes to, or went to; null for its primary"]
    ramp: Annotated[RampPreview | None, "The ramp, if one is wanted", UNLESS_NONE]


DEAD_LETTERS = "Messages that would not be delivered, by reason"


@document("sbpair/syphon-preview/1")
class SyphonPreview:
    """The preview of sbpair syphon --dry-run."""

    figures: Annotated[ForecastFigures[SyphonFates, PairTiers, PairLimits], SPREAD]
    dead_letters: Annotated[tuple[DeadLetterGroup, ...], DEAD_LETTERS]
    terms: Annotated[ForecastTerms, SPREAD]


@document("sbpair/move-preview/1")
class MovePreview:
    """The preview of sbpair move and redrive with --dry-run. Expired messages stay."""

    figures: Annotated[ForecastFigures[MoveFates, EndTiers, EffectiveLimits], SPREAD]
    refused_messages: Annotated[tuple[DeadLetterGroup, ...], DEAD_LETTERS]
    terms: Annotated[ForecastTerms, SPREAD]


@document("sbpair/replay-plan/1")
class ReplayPlan:
    """The preview of sbpair replay plan."""

    figures: Annotated[ForecastFigures[ReplayFates, PairTiers, PairLimits], SPREAD]
    unroutable: Annotated[tuple[DeadLetterGroup, ...], DEAD_LETTERS]
