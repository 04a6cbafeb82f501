"""The forecast of `sbpair syphon --dry-run` and `sbpair replay plan` as JSON and text."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from sbpair.cli.next_command import way_back
from sbpair.cli.render.receipt import filter_lines
from sbpair.cli.render.screen import Screen, amount, clean, plural, size, some, spoken
from sbpair.cli.render.table import columns, limited, wrapped
from sbpair.cli.results.forecast import (
    DestinationForecast,
    FlowForecast,
    ForecastFigures,
    ForecastSums,
    ForecastTerms,
    FoundDestination,
    MoveFates,
    MovePreview,
    PairLimits,
    PairTiers,
    QueueForecast,
    RampPreview,
    ReplayFates,
    ReplayPlan,
    SyphonFates,
    SyphonPreview,
)
from sbpair.move.message.route import OTHERS
from sbpair.syphon.forecast import FlowStats, total

if TYPE_CHECKING:
    from sbpair.syphon.forecast import DeadLetterGroup, Forecast
    from sbpair.syphon.run_request import RampPlan

FLOWS_SHOWN = 40
REASONS_SHOWN = 20


@dataclass(frozen=True, slots=True)
class ForecastWording:
    """The words of a command for the ends of a move and for the outcomes of messages.

    `renamed` is the word for the outcome of undeliverable messages.
    """

    fates: type[SyphonFates | MoveFates | ReplayFates]
    renamed: str = "dead_lettered"
    ends: tuple[str, str] = ("primary", "secondary")

    @property
    def outcomes(self) -> dict[str, str]:
        """The word for each outcome."""
        words = [each for each in self.fates._fields if each != "duplicates"]
        return {"dead_lettered" if word == self.renamed else word: word for word in words}


SYPHON = ForecastWording(SyphonFates)
MOVE = ForecastWording(MoveFates, "refused", ("destination", "source"))
REPLAY = ForecastWording(ReplayFates, "quarantined")


def print_forecast(
    screen: Screen,
    found: "Forecast",
    words: ForecastWording,
    notes: Iterable[str],
    max_discard: int | None,
    ramp: "RampPlan | None" = None,
) -> int:
    """Print a forecast, the steps of a ramp, and `notes`; return the exit code."""
    left = []
    if found.left_dead_letters:
        number, way = plural(found.left_dead_letters, "dead letter"), way_back(found.left_dead_letters, rehearsal=True)
        left = [f"{number} of the backlog queues would stay: forecast the way back with {way}"]
    forecast = replace(found, notes=(*found.notes, *notes, *left, *_discard_notes(found, max_discard)))
    steps = [] if ramp is None else _ramp_steps(forecast, ramp)
    shown = None if ramp is None else RampPreview(ramp.totals, ramp.observe_seconds, steps)
    lines = () if ramp is None else _ramp_lines(forecast, ramp, steps)
    screen.show(_result(forecast, words, shown), chain(_table(forecast, words), lines))
    for note in forecast.notes:
        screen.warn(note)
    return max(forecast.exit_code, forecast.discard_code(max_discard))


def _result(
    forecast: "Forecast", words: ForecastWording, ramp: RampPreview | None
) -> SyphonPreview | MovePreview | ReplayPlan:
    by_queue: dict[str, list[FlowStats]] = {queue: [] for queue in forecast.queues}
    by_destination: defaultdict[str, list[FlowStats]] = defaultdict(list)
    for flow in forecast.flows:
        by_queue[flow.queue].append(flow)
        if flow.destination is not None:
            by_destination[flow.destination].append(flow)

    def sums(*flows: FlowStats) -> ForecastSums[Any]:
        whole = total(flows)
        counts = {**whole.outcomes, "duplicates": whole.duplicates, words.renamed: whole.outcomes["dead_lettered"]}
        fates = words.fates(*(counts.get(each, 0) for each in words.fates._fields))
        return ForecastSums(whole, fates, *(_age(at, forecast.now_ms) for at in (whole.oldest_ms, whole.newest_ms)))

    def found(destination: str) -> FoundDestination | None:
        entity = forecast.entities.get(destination)
        if entity is None or entity.is_topic is None:
            return None
        return FoundDestination(entity.is_topic, entity.filters or 0)

    tiers, limits = forecast.tiers, forecast.limits
    is_move = words is MOVE
    figures: ForecastFigures[Any, Any, Any] = ForecastFigures(
        sums(*forecast.flows),
        [QueueForecast(name, sums(*flows)) for name, flows in by_queue.items()],
        [DestinationForecast(name, found(name), sums(*flows)) for name, flows in sorted(by_destination.items())],
        [FlowForecast(flow.queue, flow.destination, sums(flow)) for flow in forecast.flows],
        forecast.ttl,
        tiers if is_move else PairTiers(tiers.destination, tiers.source),
        limits if is_move else PairLimits(limits.rate, limits.destination_credits, limits.source_credits),
        forecast.seconds,
        forecast.estimate.operations,
        forecast.estimate,
        forecast.notes,
    )
    if words is REPLAY:
        return ReplayPlan(figures, forecast.dead_letters)
    terms = ForecastTerms(forecast.where, forecast.to or None, ramp)
    return (MovePreview if is_move else SyphonPreview)(figures, forecast.dead_letters, terms)


def _table(forecast: "Forecast", words: ForecastWording) -> Iterator[str]:
    flows, whole = forecast.flows, total(forecast.flows)
    if flows:
        heading = ("QUEUE", "DESTINATION", "MESSAGES", "SIZE", "OLDEST", "NEWEST", "NOTE")
        rows = [_row(forecast, flow, words) for flow in flows]
        yield from limited([heading, *rows], FLOWS_SHOWN, "more lines")
        yield ""
    counted = [(shown.replace("_", " "), whole.outcomes[fate]) for fate, shown in words.outcomes.items()]
    yield from columns([("WOULD BE", "COUNT"), ("peeked", whole.messages), *counted])
    if forecast.where is not None:
        yield from filter_lines({"where": asdict(forecast.where)})
    for line in _remarks(forecast, whole, words):
        yield from wrapped(line)


def _ramp_lines(forecast: "Forecast", ramp: "RampPlan", steps: Sequence[int]) -> Iterator[str]:
    rest = total(forecast.flows).outcomes["sent"] - (steps[-1] if steps else 0)
    after = ", ".join(map(str, steps)) or "0"
    text = f"ramp: observes dead letters for {spoken(ramp.observe_seconds)} after {after} messages"
    then = f"; then {rest} at full speed" if rest else ""
    yield from wrapped(f"{text}, {spoken(len(steps) * ramp.observe_seconds)} in all{then}")


def _ramp_steps(forecast: "Forecast", ramp: "RampPlan") -> list[int]:
    """Return after how many messages the run observes: the last step may be smaller than wanted."""
    whole = total(forecast.flows).outcomes["sent"]
    steps = [min(each, whole) for each in ramp.totals]
    return [each for at, each in enumerate(steps) if each and each not in steps[:at]]


def _remarks(forecast: "Forecast", whole: FlowStats, words: ForecastWording) -> Iterator[str]:
    yield from map(_doomed, forecast.dead_letters[:REASONS_SHOWN])
    if len(forecast.dead_letters) > REASONS_SHOWN:
        yield f"… and {len(forecast.dead_letters) - REASONS_SHOWN} more reasons: --output json has all of them"
    for topic in _discarding_topics(forecast)[:FLOWS_SHOWN]:
        unknown = f"; for {topic.not_evaluated} that is not known" if topic.not_evaluated else ""
        yield clean(f"{topic.discarded} of {topic.messages} for {topic.destination} match no subscription{unknown}")
    if whole.duplicates and not whole.outcomes["deduplicated"]:
        yield f"repeat a message id of the same destination (--dedup message-id): {whole.duplicates}"
    if whole.overdue and not whole.outcomes["expired"]:
        yield f"past their time to live, which starts anew (--ttl remaining would not send them): {whole.overdue}"
    yield _time(forecast, words)
    yield _cost(forecast, words)


def _discarding_topics(forecast: "Forecast") -> "list[FlowStats]":
    """Return the sums of topics of which no subscription takes some messages, or perhaps none does."""
    names = dict.fromkeys(flow.destination for flow in forecast.flows if flow.discarded or flow.not_evaluated)
    return [total((each for each in forecast.flows if each.destination == name), destination=name) for name in names]


def _discard_notes(forecast: "Forecast", limit: int | None) -> Iterator[str]:
    """Yield what a run does not send that may discard `limit` messages; None is no limit."""
    discarded = total(forecast.flows).discarded
    if limit is None or discarded <= limit:
        return
    for each in _discarding_topics(forecast):
        if each.discarded:
            entity = forecast.entities.get(each.destination or "")
            has_none = entity is not None and entity.topic is not None and not entity.topic.subscriptions
            why = "has no subscription" if has_none else f"would discard {plural(each.discarded, 'message')}"
            way = "--allow-discard" if has_none else f"--max-discard {discarded}"
            yield f"{each.destination} {why}: a run leaves its messages; create the subscription, or pass {way}"


def _age(at_ms: int | None, now_ms: int) -> float | None:
    return None if at_ms is None else max(0.0, (now_ms - at_ms) / 1000)


def _row(forecast: "Forecast", flow: FlowStats, words: ForecastWording) -> tuple[object, ...]:
    destination = {None: "(none)", OTHERS: "(others)"}.get(flow.destination, flow.destination)
    ages = (_age(at, forecast.now_ms) for at in (flow.oldest_ms, flow.newest_ms))
    spans = ("" if age is None else spoken(age) for age in ages)
    return (flow.queue, destination, flow.messages, size(flow.bytes), *spans, _note(forecast, flow, words))


def _note(forecast: "Forecast", flow: FlowStats, words: ForecastWording) -> str:
    notes = [
        f"{flow.outcomes[fate]} {shown.replace('_', ' ')}"
        for fate, shown in words.outcomes.items()
        if flow.outcomes[fate] and fate != "sent"
    ]
    if flow.scheduled_in_future:
        notes.append(f"{flow.scheduled_in_future} scheduled in the future")
    entity = forecast.entities.get(flow.destination or "")
    if entity is not None and entity.is_topic:
        notes.append(f"topic, {plural(entity.filters or 0, 'filter')}")
    return ", ".join(notes)


def _doomed(doomed: "DeadLetterGroup") -> str:
    names = [each.message_id or each.sequence_number for each in doomed.examples]
    listed = some(names, len(names), more=doomed.messages > len(names))
    return clean(f"{doomed.reason}: {plural(doomed.messages, 'message')} ({listed}): {doomed.description}")


def _time(forecast: "Forecast", words: ForecastWording) -> str:
    limits, (primary, secondary) = forecast.limits, words.ends
    figures = (
        ("messages a second", limits.rate),
        (f"credits a second in {forecast.to or f'the {primary}'}", limits.destination_credits),
        (f"credits a second in the {secondary}", limits.source_credits),
    )
    limiting = ", ".join(f"{figure:g} {unit}" for unit, figure in figures if figure is not None)
    if forecast.seconds is None:
        return "time: limited only by the network"
    return f"time: at least {spoken(forecast.seconds)}, at {limiting}"


def _cost(forecast: "Forecast", words: ForecastWording) -> str:
    estimate = forecast.estimate
    operations = estimate.operations
    price = "no price in the table"
    if (money := estimate.by_sbpair) is not None:
        price = f"{amount(money.minimum)} to {amount(money.maximum)} {estimate.currency}"
    return (
        f"cost: {operations.by_sbpair} operations of sbpair, {price} at the prices of {estimate.dated};"
        f" {operations.delivered} more of the receivers in {forecast.to or f'the {words.ends[0]}'}"
    )
