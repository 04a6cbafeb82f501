"""Topics that discard: messages that no subscription takes stay in the backlog, and the forecast counts them."""

from types import SimpleNamespace
from typing import Any

import pytest

from sbpair import errors
from sbpair.amqp.types import Int
from sbpair.amqp_server.shared_access import AccessRight
from sbpair.emulator.entities.description import SubscriptionDescription
from sbpair.emulator.entities.rules import SqlAction, SubscriptionRule
from sbpair.management import auditing
from sbpair.management.audit_findings import AuditFinding
from sbpair.move import events, topic_guard
from sbpair.move.receipt import Tally
from sbpair.move.topic_guard import REREAD_SECONDS, TopicGuard
from sbpair.rules.filters import (
    CorrelationRuleFilter,
    FalseRuleFilter,
    SqlRuleFilter,
    SubscriptionFilters,
    TopicFilters,
    TrueRuleFilter,
)
from sbpair.rules.values import from_amqp, read_typed
from sbpair.status import read_status
from sbpair.syphon.preview import make_forecast
from sbpair.syphon.run_request import syphon_request
from tests.kit.moves import ids
from tests.kit.moves import peeked as held_in
from tests.kit.waiting import until
from tests.move.test_raw_destination import routed
from tests.syphon.worlds import World, names, world

MESSAGES = 10
FORWARDED = SubscriptionDescription(forward_to="orders")
STRICT = SubscriptionDescription(dead_lettering_on_filter_evaluation_exceptions=False)
DISABLED = SubscriptionDescription(status="Disabled")

Subscriptions = dict[str, tuple[list[Any], SubscriptionDescription | None]]


def sql(text: str, **parameters: int) -> SqlRuleFilter:
    return SqlRuleFilter(text, tuple((f"@{name}", read_typed("int", str(value))) for name, value in parameters.items()))


def number_is(value: int) -> CorrelationRuleFilter:
    return CorrelationRuleFilter(properties=(("Number", from_amqp(Int(value))),))


def topic(w: World, subscriptions: Subscriptions) -> Any:
    """Create the topic `events` with these subscriptions, each with its filters."""
    made = w.primary.create_topic("events")
    for name, (filters, description) in subscriptions.items():
        subscription = made.create_subscription(name, description)
        action = SqlAction("SET seen = 1") if name == "changed" else None
        subscription.set_rules([SubscriptionRule(f"r{at}", each, action) for at, each in enumerate(filters)])
    return made


def one(*filters: Any, **more: Any) -> Subscriptions:
    return {"s": (list(filters), more.get("description"))}


CASES: dict[str, tuple[Subscriptions, set[int], int]] = {
    "no subscription": ({}, set(range(MESSAGES)), 0),
    "no rule": (one(), set(range(MESSAGES)), 0),
    "all": (one(TrueRuleFilter()), set(), 0),
    "all, changed": ({"changed": ([TrueRuleFilter()], None)}, set(), 0),
    "none": (one(FalseRuleFilter()), set(range(MESSAGES)), 0),
    "all in SQL": (one(sql("1=1")), set(), 0),
    "SQL": (one(sql("number < 3")), set(range(3, MESSAGES)), 0),
    "SQL with a parameter": (one(sql("number < @limit", limit=3)), set(range(3, MESSAGES)), 0),
    "SQL of its own id": (one(sql("sys.MessageId IN ('m1', 'm2')")), set(range(MESSAGES)) - {1, 2}, 0),
    "correlation": (one(number_is(4)), set(range(MESSAGES)) - {4}, 0),
    "correlation by id": (one(CorrelationRuleFilter(message_id="m4")), set(range(MESSAGES)) - {4}, 0),
    "two rules": (one(number_is(4), sql("number > 7")), set(range(MESSAGES)) - {4, 8, 9}, 0),
    "two subscriptions": (
        {"s": ([number_is(4)], None), "t": ([sql("number > 7")], None)},
        set(range(MESSAGES)) - {4, 8, 9},
        0,
    ),
    "disabled": (one(TrueRuleFilter(), description=DISABLED), set(), 0),
    "forwarded": (one(TrueRuleFilter(), description=FORWARDED), set(), 0),
    "a rule that fails": (one(sql("number > 'x'")), set(), 0),
    "a rule that fails, without dead letters": (one(sql("number > 'x'"), description=STRICT), set(range(MESSAGES)), 0),
    "an alias, which is cut out": (one(sql("EXISTS([x-ms-path])")), set(range(MESSAGES)), 0),
    "a session, which is restored": (one(sql("sys.SessionId = 's'")), set(), 0),
    "a schedule, which is restored": (one(sql("sys.ScheduledEnqueueTimeUtc IS NOT NULL")), set(), 0),
    "no delivery so far": (one(sql("sys.DeliveryCount = 0")), set(), 0),
    "the number in the topic": (one(sql("sys.SequenceNumber > 0")), set(), MESSAGES),
    "a number or a property": (one(sql("sys.SequenceNumber > 0"), sql("number < 3")), set(), MESSAGES - 3),
}


@pytest.mark.parametrize("case", CASES)
async def test_forecast_and_run_know_what_a_topic_discards(case: str) -> None:
    subscriptions, discarded, unknown = CASES[case]
    async with world(1) as w:
        made = topic(w, subscriptions)
        w.strand(*range(MESSAGES), to="events", session_id="s", scheduled_at=1_000)
        [flow] = (await make_forecast(syphon_request(w.pair, once=True))).flows
        assert (flow.outcomes["sent"], flow.discarded, flow.not_evaluated) == (MESSAGES, len(discarded), unknown)
        held = await w.run()
        first = min(discarded, default=MESSAGES)
        assert (held.receipt.sent, held.exit_code) == (first, 3 if discarded else 0)
        assert held.receipt.discarded == {}
        assert ids(w.backlog()) == names(*range(first, MESSAGES))
        assert held_in(w.backlog(), dead=True) == []
        if not discarded:
            assert held.receipt.not_evaluated == ({"events": unknown} if unknown else {})
            return
        [left] = held.receipt.backing_off
        assert (left.destination, left.messages) == ("events", MESSAGES - first)
        assert "--allow-discard" in left.hint
        sent = (await w.run(max_discard=None)).receipt
        assert (sent.sent, sent.discarded) == (MESSAGES - first, {"events": len(discarded)})
        kept = {each.message_id for s in made.subscriptions for each in map(read_properties, held_in(s))}
        assert kept == set(names(*set(range(MESSAGES)) - discarded))


def read_properties(stored: Any) -> Any:
    return stored.sections.read_properties()


class Destinations:
    """Answers for the topic `events`: each is its filters, or why they cannot be read. Counts what is asked."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[bool] = []

    async def get(self, _path: str, *, again: bool) -> Any:
        self.asked.append(again)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return SimpleNamespace(topic=answer)


FILTERS = TopicFilters((SubscriptionFilters("s", (FalseRuleFilter(),), keeps_failures=True),))
OTHERS = TopicFilters((SubscriptionFilters("s", (number_is(1),), keeps_failures=True),))
NOT_AUTHORIZED, AWAY = errors.NotAuthorized("no claim"), errors.Unreachable("it is away")


@pytest.mark.parametrize(
    ("answers", "later", "found", "asked"),
    [
        ([None], False, None, [False]),
        ([None], True, None, [False]),
        ([FILTERS], False, FILTERS, [False]),
        ([FILTERS, OTHERS], True, OTHERS, [False, True]),
        ([FILTERS, AWAY], True, FILTERS, [False, True]),
        ([FILTERS, NOT_AUTHORIZED], True, FILTERS, [False, True]),
        ([AWAY], False, None, [False]),
        ([errors.EntityMissing("?")], False, None, [False]),
    ],
)
async def test_rules_are_read_once_and_those_of_a_topic_again_later(
    answers: list[Any], later: bool, found: Any, asked: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    destinations, tally, seconds = Destinations(*answers), Tally(), 0.0
    monkeypatch.setattr(topic_guard, "time", SimpleNamespace(monotonic=lambda: seconds))
    guard = TopicGuard(destinations, tally)  # type: ignore[arg-type]
    for name in ("events", "EVENTS"):
        first = await guard.filters(name, again=False)
    assert first == (answers[0] if isinstance(answers[0], TopicFilters) else None)
    seconds = REREAD_SECONDS + later
    assert await guard.filters("events", again=False) == found
    assert destinations.asked == asked
    assert tally.topics_unchecked.startswith({AWAY: "it is away", NOT_AUTHORIZED: "no claim"}.get(answers[-1], ""))
    destinations.answers = [OTHERS]
    # A destination that backs off is asked for again, unless nothing may be asked.
    assert await guard.filters("events", again=True) == (None if answers[-1] is NOT_AUTHORIZED else OTHERS)


def test_a_message_that_is_tried_again_is_counted_once() -> None:
    tally = Tally()
    guard = TopicGuard(Destinations(), tally, 2)  # type: ignore[arg-type]
    messages = [routed(number) for number in range(3)]
    for _ in range(2):
        count, why = guard.admit(FILTERS, messages, 0)
        assert (count, why is None) == (2, False)
    guard.accepted("orders", [messages[2].message.key])
    guard.accepted("events", [each.message.key for each in messages[:count]])
    assert tally.discarded == {"events": 2}
    assert guard.admit(FILTERS, messages[2:], 0)[0] == 0


@pytest.mark.parametrize(("limit", "sent"), [(0, 1), (1, 3), (4, 9), (5, 10)])
async def test_a_run_discards_at_most_what_it_may(limit: int, sent: int) -> None:
    async with world(1) as w:
        topic(w, one(sql("number % 2 = 0")))
        w.strand(*range(MESSAGES), to="events")
        receipt = (await w.run(max_discard=limit)).receipt
        assert (receipt.sent, receipt.discarded.get("events", 0)) == (sent, min(limit, 5))
        assert ids(w.backlog()) == names(*range(sent, MESSAGES))


async def test_a_limit_is_one_for_all_queues_and_topics() -> None:
    async with world(3) as w:
        for name in ("a", "b"):
            w.primary.create_topic(name).create_subscription("s").set_rules([SubscriptionRule("r", FalseRuleFilter())])
        for number in range(60):
            w.strand(number, to="ab"[number % 2], index=number % 3)
        receipt = (await w.run(max_discard=25)).receipt
        assert sum(receipt.discarded.values()) == receipt.sent
        assert 1 <= receipt.sent <= 25
        assert sum(len(held_in(w.backlog(index))) for index in range(3)) == 60 - receipt.sent


async def test_a_watch_goes_on_once_a_subscription_appears() -> None:
    async with world(1) as w:
        made = topic(w, {})
        w.strand(*range(MESSAGES), to="events")
        async with w.watching() as task:
            held = await w.told_of(events.DestinationBackingOff)
            assert "without a subscription" in held.reason
            subscription = made.create_subscription("s")
            await until(lambda: len(held_in(subscription)) == MESSAGES)
        assert task.result().receipt.sent == MESSAGES


async def test_without_manage_the_run_says_once_that_it_cannot_know() -> None:
    async with world(2) as w:
        topic(w, {})
        w.may_only("primary", AccessRight.SEND)
        for index in range(2):
            w.strand(*range(5), to="events", index=index)
        forecast = await make_forecast(syphon_request(w.pair, once=True))
        assert any("subscriptions of topics were not checked" in note for note in forecast.notes)
        receipt = (await w.run()).receipt
        assert (receipt.sent, len(w.of(events.TopicsUnchecked))) == (10, 1)
        assert "Manage" in receipt.topics_unchecked


async def test_audit_and_status_name_topics_that_discard() -> None:
    async with world(1) as w:
        topic(w, one(sql("number < 3")))
        w.strand(*range(MESSAGES), to="events")
        w.strand(*range(3), to="orders")
        found = await auditing.audit(w.pair, max_peek=100, sample_seconds=0)
        named = {each.name: (each.discarded, each.reason) for each in found.destinations}
        assert named == {"events": (7, "7 of 10 match no subscription"), "orders": (0, "")}
        assert AuditFinding.DESTINATIONS in found.findings
        status = await read_status(w.pair)
        notes = {each.link.name: each.note for each in status.entities}
        assert (notes, status.exit_code) == ({"events": "7 of 10 match no subscription", "orders": ""}, 0)
