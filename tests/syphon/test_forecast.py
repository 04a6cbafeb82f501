"""A forecast adds up, decides as a run does, and does not grow with the backlog."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbpair.model.cost import Operations
from sbpair.move.message.route import OTHERS, DeadLetter, Expire, Facts, Send, TimeToLive, missing, route
from sbpair.syphon import forecast
from sbpair.syphon.forecast import EMPTY_WAITS, EXAMPLES, OUTCOMES, ForecastBuilder, total
from sbpair.syphon.run_limits import EffectiveLimits
from tests.kit.costs import moved, turned_away

NOW = 2_000_000_000_000

facts = st.builds(
    Facts,
    queue=st.sampled_from(["q/0", "q/1"]),
    sequence_number=st.integers(1, 10**6),
    enqueued_at=st.integers(NOW - 10_000, NOW),
    message_id=st.none() | st.just("m"),
    path=st.sampled_from([None, "orders", "ORDERS", "billing/invoices", "no such"]),
    ttl_ticks=st.none() | st.integers(1, 100_000_000),
    scheduled_at=st.none() | st.integers(NOW - 20_000, NOW + 20_000),
    size=st.integers(1, 300_000),
)


def feed(sums: ForecastBuilder, message: Facts, state: str | None = None) -> str:
    """As a preview does, of a primary in which everything is there."""
    decision = sums.decide(message)
    destination = None if isinstance(decision, DeadLetter) else (message.path or "").strip("/")
    if state is not None:
        sums.add(message, destination, state, received=False)
        return state
    if isinstance(decision, Send):
        sums.send(message, destination, filters=2)
        return "sent"
    sums.turn_away(message, destination, decision)
    return "expired" if isinstance(decision, Expire) else "dead_lettered"


@given(st.lists(st.tuples(facts, st.sampled_from([None, None, "deferred", "scheduled"]))), st.sampled_from(TimeToLive))
def test_every_message_has_one_fate_and_what_a_run_would_spend_on_it(messages, ttl):
    sums = ForecastBuilder(ttl, NOW)
    fates = [feed(sums, message, state) for message, state in messages]
    whole = total(sums.flows())
    assert whole.messages == len(messages) == sum(whole.outcomes[fate] for fate in OUTCOMES)
    assert Counter(fates) == +whole.outcomes
    assert whole.bytes == sum(message.size for message, _ in messages)
    times = [message.enqueued_at for message, _ in messages]
    assert (whole.oldest_ms, whole.newest_ms) == (min(times, default=None), max(times, default=None))
    for flow in sums.flows():
        assert flow.messages == sum(flow.outcomes.values())
        assert (flow.destination or "").lower() in ("", "orders", "billing/invoices")
    costs = {"sent": moved, "dead_lettered": turned_away, "expired": turned_away}
    spent = [costs[fate](message.size) for (message, _), fate in zip(messages, fates, strict=True) if fate in costs]
    idle = Operations(empty_receives=3 * EMPTY_WAITS, management_calls=3 * EMPTY_WAITS)
    assert sums.operations(3) == sum(spent, idle)
    groups = sums.dead_letters()
    assert sum(each.messages for each in groups) == whole.outcomes["dead_lettered"] + whole.outcomes["expired"]
    assert all(len(each.examples) == min(EXAMPLES, each.messages) for each in groups)


@given(st.lists(facts))
def test_overdue_counts_what_ttl_remaining_would_expire(messages):
    original, remaining = ForecastBuilder(TimeToLive.ORIGINAL, NOW), ForecastBuilder(TimeToLive.REMAINING, NOW)
    for message in messages:
        feed(original, message)
        feed(remaining, message)
    expired = total(remaining.flows()).outcomes["expired"]
    assert total(original.flows()).overdue == total(remaining.flows()).overdue == expired
    assert total(original.flows()).outcomes["expired"] == 0
    assert expired == sum(isinstance(route(each, ttl=TimeToLive.REMAINING, now_ms=NOW), Expire) for each in messages)


MESSAGE = Facts("q/0", 1, NOW - 1, "m", "orders", size=100)


@pytest.mark.parametrize(
    ("limits", "seconds"),
    [
        (EffectiveLimits(), None),
        (EffectiveLimits(rate=2.0), 5.0),
        (EffectiveLimits(destination_credits=10.0), 3.0),
        (EffectiveLimits(source_credits=2.5), 4.8),
        (EffectiveLimits(2.0, 2.5, 10.0), 5.0),
    ],
)
def test_the_time_is_that_of_the_tightest_limit(limits, seconds):
    sums = ForecastBuilder(TimeToLive.ORIGINAL, NOW)
    for _ in range(10):
        feed(sums, MESSAGE)  # with two filters: three credits each
    for _ in range(2):
        feed(sums, MESSAGE._replace(path=None))  # taken, and not sent
    feed(sums, MESSAGE, "deferred")
    assert sums.seconds(limits) == seconds


def test_what_is_scheduled_for_later_is_told():
    sums = ForecastBuilder(TimeToLive.ORIGINAL, NOW)
    for at in (NOW - 1, NOW, NOW + 1, None):
        feed(sums, MESSAGE._replace(scheduled_at=at))
    assert total(sums.flows()).scheduled_in_future == 1


def test_it_does_not_grow_with_the_backlog(monkeypatch):
    monkeypatch.setattr(forecast, "MAX_FLOWS", 50)
    monkeypatch.setattr(forecast, "MAX_REASONS", 20)
    sums = ForecastBuilder(TimeToLive.ORIGINAL, NOW)
    for number in range(1_000):
        message = MESSAGE._replace(queue=f"q/{number % 3}", path=f"d{number}", sequence_number=number)
        sums.send(message, message.path)
        sums.turn_away(message, message.path, missing(f"d{number}"))
    flows, doomed = sums.flows(), sums.dead_letters()
    assert len(flows) <= 50 + 3
    assert {flow.queue for flow in flows if flow.destination == OTHERS} == {"q/0", "q/1", "q/2"}
    assert len(doomed) == 20 + 1
    assert sum(len(each.examples) for each in doomed) <= 21 * EXAMPLES
    # And nothing is left out of the sums.
    assert total(flows).messages == 2_000
    assert total(flows).bytes == 2_000 * MESSAGE.size
    assert sum(each.messages for each in doomed) == 1_000
