"""The forecast of `sbpair syphon --dry-run` and `sbpair replay plan` as JSON and text."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from decimal import Decimal
from itertools import chain
from typing import TYPE_CHECKING

from sbpair.cli.render.receipt import filter_lines
from sbpair.cli.render.screen import Screen, clean, plural, size, some, spoken
from sbpair.cli.render.table import columns, limited, wrapped
from sbpair.model.document import encoded
from sbpair.move.message.route import OTHERS
from sbpair.syphon.forecast import SUMS, FlowStats, total

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sbpair.syphon.forecast import DeadLetterGroup, Forecast
    from sbpair.syphon.run_request import RampPlan

FLOWS_SHOWN = 40
REASONS_SHOWN = 20


@dataclass(frozen=True, slots=True)
class ForecastWording:
    """The words of a command for the ends of a move and for the outcomes of messages, each with its meaning.

    `dead_letters` is the key of undeliverable messages, and `renamed` the word for their outcome. `again` is
    whether it counts duplicates.
    """

    schema: str
    summary: str
    meanings: "Mapping[str, str]"
    dead_letters: str
    renamed: str = "dead_lettered"
    again: bool = False
    ends: tuple[str, str] = ("primary", "secondary")

    @property
    def outcomes(self) -> dict[str, str]:
        """The word for each outcome."""
        return {"dead_lettered" if word == self.renamed else word: word for word in self.meanings}


_SENT = {"sent": "Messages that would be sent"}
_EXPIRED = {"expired": "Messages past their time to live"}
_STAYING = {"deferred": "Deferred messages, which stay", "scheduled": "Scheduled messages, which stay"}
_NOT_CHOSEN = {**_EXPIRED, "skipped": "Messages that a run would leave, since not chosen", **_STAYING}
SYPHON = ForecastWording(
    "sbpair/syphon-preview/1",
    "The preview of sbpair syphon --dry-run.",
    {
        **_SENT,
        "dead_lettered": "Messages that would be dead-lettered",
        "released": "Messages that a run would leave, since their destination is missing",
        **_NOT_CHOSEN,
    },
    "dead_letters",
)
MOVE = ForecastWording(
    "sbpair/move-preview/1",
    "The preview of sbpair move and redrive with --dry-run. Expired messages stay.",
    {**_SENT, "refused": "Messages that would stay, since their destination would refuse them", **_NOT_CHOSEN},
    "refused_messages",
    renamed="refused",
    ends=("destination", "source"),
)
REPLAY = ForecastWording(
    "sbpair/replay-plan/1",
    "The preview of sbpair replay plan.",
    {
        **_SENT,
        "already_sent": "Messages that the syphon's journal records as accepted",
        "deduplicated": "Messages that repeat an id, with --dedup message-id",
        **_EXPIRED,
        "quarantined": "Messages that would be quarantined",
        "unsent": "Messages that --destination excludes, or whose destination is missing",
        **_STAYING,
    },
    "unroutable",
    renamed="quarantined",
    again=True,
)


def print_forecast(
    screen: Screen,
    found: "Forecast",
    words: ForecastWording,
    notes: Iterable[str],
    max_discard: int | None,
    ramp: "RampPlan | None" = None,
) -> int:
    """Print a forecast, the steps of a ramp, and `notes`; return the exit code."""
    forecast = replace(found, notes=(*found.notes, *notes, *_discard_notes(found, max_discard)))
    steps = [] if ramp is None else _ramp_steps(forecast, ramp)
    document = _document(forecast, words)
    if ramp is not None:
        document["ramp"] = {**asdict(ramp), "steps": steps, "seconds": len(steps) * ramp.observe_seconds}
    lines = () if ramp is None else _ramp_lines(forecast, ramp, steps)
    screen.result(words.schema, document, chain(_table(forecast, words), lines))
    for note in forecast.notes:
        screen.warn(note)
    return max(forecast.exit_code, forecast.discard_code(max_discard))


def _document(forecast: "Forecast", words: ForecastWording) -> dict[str, object]:

    def sums(flow: FlowStats) -> dict[str, object]:
        return _sums(flow, forecast.now_ms, words)

    primary, secondary = words.ends
    by_queue: dict[str, list[FlowStats]] = {queue: [] for queue in forecast.queues}
    by_destination: defaultdict[str, list[FlowStats]] = defaultdict(list)
    for flow in forecast.flows:
        by_queue[flow.queue].append(flow)
        if flow.destination is not None:
            by_destination[flow.destination].append(flow)
    return {
        **sums(total(forecast.flows)),
        "queues": [{"queue": name, **sums(total(flows))} for name, flows in by_queue.items()],
        "destinations": [
            {"destination": name, "found": _found(forecast, name), **sums(total(flows))}
            for name, flows in sorted(by_destination.items())
        ],
        "flows": [{"queue": flow.queue, "destination": flow.destination, **sums(flow)} for flow in forecast.flows],
        words.dead_letters: [asdict(each) for each in forecast.dead_letters],
        **({} if words.again else {"where": forecast.where and asdict(forecast.where)}),
        **({} if words.again else {"to": forecast.to or None}),
        "ttl": str(forecast.ttl),
        "tiers": {primary: forecast.tiers.destination, secondary: forecast.tiers.source},
        "limits": {
            "rate": forecast.limits.rate,
            f"{primary}_credits": forecast.limits.destination_credits,
            f"{secondary}_credits": forecast.limits.source_credits,
        },
        "seconds": None if forecast.seconds is None else round(forecast.seconds, 3),
        "operations": encoded(forecast.estimate.operations),
        "cost": {
            "by_sbpair": encoded(forecast.estimate.by_sbpair),
            "delivered": encoded(forecast.estimate.delivered),
            "currency": forecast.estimate.currency,
            "dated": forecast.estimate.dated,
        },
        "notes": list(forecast.notes),
    }


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


def _sums(flow: FlowStats, now_ms: int, words: ForecastWording) -> dict[str, object]:
    return {
        **{name: getattr(flow, name) for name in SUMS if name != "duplicates" or words.again},
        **{shown: flow.outcomes[fate] for fate, shown in words.outcomes.items()},
        "oldest_seconds": _age(flow.oldest_ms, now_ms),
        "newest_seconds": _age(flow.newest_ms, now_ms),
    }


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


def _found(forecast: "Forecast", destination: str) -> dict[str, object] | None:
    entity = forecast.entities.get(destination)
    return None if entity is None else {"topic": entity.is_topic, "filters": entity.filters}


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


def amount(money: Decimal) -> str:
    """Return an amount with two decimals; a small amount is not 0."""
    return "under 0.01" if 0 < money < Decimal("0.01") else f"{money:.2f}"
