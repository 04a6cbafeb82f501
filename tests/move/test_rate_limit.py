"""The governor: never faster than it may, slower when the service is busy, and never at a standstill."""

import math
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sbpair.errors import UsageError
from sbpair.move.rate_limit import (
    BURST_SECONDS,
    BUSY_SECONDS,
    HOLD_SECONDS,
    MAX_BUSY_SECONDS,
    MIN_RATE,
    RECOVERY_SECONDS,
    Limit,
    RateLimiter,
    credits_of,
    parse_credits,
    parse_rate,
)

rates = st.floats(0.01, 50_000)
limits = st.none() | rates
SLACK = 1e-6

# What lanes do: wait a while, send a batch of which so much is the largest that is allowed, hear that it is busy.
steps = st.lists(
    st.tuples(st.just("wait"), st.floats(0, 30))
    | st.tuples(st.just("send"), st.floats(0, 1))
    | st.tuples(st.just("busy"), st.just(0.0)),
    max_size=40,
)


def rate_of(pace: RateLimiter, now: float) -> float | None:
    """Return the messages a second that may be sent now, at one credit each; None without a limit."""
    buckets = [pace._source, *(bucket for bucket, _, _ in pace._sending(now, 1.0))]
    return min((each.rate for each in buckets if each is not None), default=None)


def play(pace: RateLimiter, played: list[tuple[str, float]], cost: float) -> list[tuple[float, int]]:
    """When how many left. A lane that reserves does not keep the others from going on."""
    now, left = 0.0, []
    for what, amount in played:
        if what == "wait":
            now += amount
        elif what == "busy":
            pace.on_busy(now)
        else:
            messages = max(1, int(pace.max_batch(now, cost) * amount))
            left.append((now + pace.reserve(now, messages, cost), messages))
    return left


def never_more(left: list[tuple[float, int]], rate: float, each: float = 1.0) -> None:
    """In any stretch of time, no more than the rate yields in it and one burst."""
    left = sorted(left)
    burst = max(1.0, rate * BURST_SECONDS, each)
    for first in range(len(left)):
        total = 0.0
        for at, messages in left[first:]:
            total += messages * each
            assert total <= rate * (at - left[first][0]) + burst + SLACK * total + SLACK


@given(limits, limits, steps, st.integers(1, 50))
@example(2.0, None, [("busy", 0.0), ("wait", 1.0), ("send", 0.0), ("send", 0.0), ("wait", 2.0), ("send", 0.0)], 1)
def test_no_interval_exceeds_a_limit_plus_a_burst(rate, share, played, cost):
    left = play(RateLimiter(0.0, rate=rate, destination=share), played, cost)
    for limit, each in ((rate, 1), (share, cost)):
        if limit is not None:
            never_more(left, limit, each)


@given(limits, limits, steps, st.integers(1, 50), st.integers(1, 10_000))
def test_it_never_comes_to_a_standstill(rate, share, played, cost, messages):
    pace = RateLimiter(0.0, rate=rate, destination=share)
    left = play(pace, played, cost)
    now = sum(amount for what, amount in played if what == "wait")
    # What is owed is what has been let go; nothing makes anybody wait for more than that, a burst, and the pauses.
    slowest = min(rate or MIN_RATE, (share or cost) / cost, MIN_RATE)
    owed = sum(each for _, each in left) + messages + cost
    pauses = sum(MAX_BUSY_SECONDS for what, _ in played if what == "busy")
    assert pace.delay(now, messages, cost) <= pauses + (owed + 1) / slowest
    batch = min(messages, pace.max_batch(now, cost))
    seconds = pace.delay(now, batch, cost)
    assert pace.delay(now + seconds, batch, cost) <= SLACK * (1 + 1 / slowest)


@given(steps)
def test_without_a_limit_and_with_a_calm_service_nothing_waits(played):
    calm = [step for step in played if step[0] != "busy"]
    pace = RateLimiter(0.0)
    now = sum(amount for what, amount in calm if what == "wait")
    play(pace, calm, 1)
    assert pace.delay(now, 100_000) == 0.0
    assert rate_of(pace, now) is None
    assert pace.max_batch(now) >= 100_000


@given(rates, st.integers(1, 20))
def test_two_largest_batches_may_be_sent_after_a_pause(rate, cost):
    pace = RateLimiter(0.0, destination=rate)
    limit = pace.max_batch(100.0, cost)
    assert limit >= 1
    if limit > 1:
        assert pace.reserve(100.0, limit, cost) == 0.0
        assert pace.reserve(100.0, limit, cost) == 0.0
    # And one that is larger, or dearer than the whole burst, is not kept for ever.
    assert pace.delay(1_000.0 / rate + 200.0, 10 * limit, cost) == 0.0


@given(st.floats(1, 10_000), st.integers(1, 20))
def test_lanes_that_ask_at_the_same_time_are_served_one_after_the_other(rate, lanes):
    pace = RateLimiter(0.0, rate=rate)
    waits = [pace.reserve(0.0, pace.max_batch(0.0)) for _ in range(lanes)]
    assert waits == sorted(waits)
    for earlier, later in pairwise(each for each in waits if each > 0):
        assert later - earlier == pytest.approx(pace.max_batch(0.0) / rate)


def test_a_steady_sender_gets_all_of_its_rate():
    pace, now = RateLimiter(0.0, rate=500.0), 0.0
    sent = 0
    while now < 60.0:
        now += pace.reserve(now, 50) + 0.003  # a loop is always a little late
        sent += 50
    assert 500 * 60 * 0.99 <= sent <= 500 * 60 + 500 * BURST_SECONDS


# Credits


def test_filters_count():
    pace = RateLimiter(0.0, destination=500.0)
    assert (pace.max_batch(0.0, 1), pace.max_batch(0.0, 5), pace.max_batch(0.0, 1_000)) == (50, 10, 1)
    pace.count_sent(0.0, 20, 5)
    assert pace.delay(0.0, 10, 5) == pytest.approx(0.1)
    assert pace.delay(0.0, 10, 1) == pytest.approx(0.02)


def test_the_two_namespaces_have_budgets_of_their_own():
    pace = RateLimiter(0.0, destination=500.0, source=100.0)
    assert (pace.receivable(0.0), rate_of(pace, 0.0)) == (20, 100.0)
    pace.received(0.0, 30)
    assert (pace.receivable(0.0), pace.delay(0.0, 50)) == (0, 0.0)
    assert pace.receive_delay(0.0) == pytest.approx(0.11)
    assert pace.receivable(0.2) == 10
    assert (RateLimiter(0.0).receivable(0.0), RateLimiter(0.0).receive_delay(0.0)) == (1_000_000, 0.0)


# A busy service


def going(rate: float) -> RateLimiter:
    """A pace that has been kept up for ten seconds, without a limit."""
    pace = RateLimiter(0.0)
    for second in range(10):
        pace.count_sent(float(second), int(rate))
    return pace


def test_server_busy_pauses_halves_the_rate_and_recovers():
    pace = going(800)
    pace.on_busy(9.5)
    assert pace.pause_seconds(9.5) == pace.delay(9.5, 1) == BUSY_SECONDS
    assert rate_of(pace, 11.5) == 400
    seen = [rate_of(pace, 11.5 + second) for second in range(60)]
    assert all(later - earlier == pytest.approx(400 / RECOVERY_SECONDS) for earlier, later in pairwise(seen))
    assert rate_of(pace, 11.5 + RECOVERY_SECONDS) == pytest.approx(800)


def test_what_many_lanes_hear_at_once_counts_once():
    pace = going(800)
    for _ in range(50):
        pace.on_busy(9.5)
        pace.on_busy(10.0)
    assert rate_of(pace, 12.0) == pytest.approx(400, rel=0.05)
    assert pace.pause_seconds(9.5) == BUSY_SECONDS


def test_repeated_server_busy_pauses_grow_to_a_limit():
    pace, now, pauses, limits = going(800), 9.5, [], []
    for _ in range(12):
        pace.on_busy(now)
        pauses.append(pace.pause_seconds(now))
        limits.append(rate_of(pace, now))
        now += pace.pause_seconds(now)
    assert pauses[:5] == [2.0, 4.0, 8.0, 10.0, 10.0]
    assert limits[0] == 400
    assert limits[-1] == MIN_RATE
    now += 60.0
    pace.on_busy(now)
    assert pace.pause_seconds(now) == BUSY_SECONDS


@given(st.floats(0.01, 1) | st.floats(1, 50_000), st.lists(st.floats(0, 20), max_size=20))
def test_a_rate_that_was_slowed_down_comes_back(rate, busy_after):
    pace, now = RateLimiter(0.0, rate=rate), 0.0
    for seconds in busy_after:
        now += seconds
        pace.on_busy(now)
        assert min(rate, MIN_RATE) <= rate_of(pace, now) <= rate
    assert rate_of(pace, now + MAX_BUSY_SECONDS + rate / 10) == rate


# What is asked for


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("500", 500),
        ("500/s", 500),
        (" 30 / m ", 0.5),
        ("36/h", 0.01),
        ("0.5", 0.5),
        ("1000000", 1e6),
        ("1/h", 1 / 3600),
    ],
)
def test_a_rate_as_people_write_it(text, rate):
    assert parse_rate(text) == rate


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0/s",
        "500/d",
        "500 per second",
        "1e3",
        "500/",
        "/s",
        "nan",
        "inf",
        "5,0",
        "\u0665",
        "1" * 99,
    ],
)
def test_a_wrong_rate_raises_a_usage_error(text):
    with pytest.raises(UsageError, match=r"^--rate(:| must) ") as caught:
        parse_rate(text)
    assert (caught.value.exit_code, caught.value.message.count("\n")) == (2, 0)
    assert len(caught.value.message) < 120


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("50%", 500),
        ("0.5", 500),
        (".25", 250),
        ("500", 500),
        ("1", 1),
        ("100%", 1_000),
        ("1000", 1_000),
        (" 5 % ", 50),
        ("0.1%", 1),
        ("none", math.inf),
        ("None", math.inf),
    ],
)
def test_credits_as_people_write_them(text, expected):
    assert parse_credits(text) == pytest.approx(expected)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0%",
        "0.0",
        "-5",
        "1001",
        "1.0",
        "1.5",
        "half",
        "50 percent",
        "5%%",
        "nan",
        "inf",
        "1e2",
        "\u0665%",
    ],
)
def test_wrong_credits_raise_a_usage_error(text):
    with pytest.raises(UsageError, match=r"^--credits(:| is) ") as caught:
        parse_credits(text)
    assert (caught.value.exit_code, caught.value.message.count("\n")) == (2, 0)


@pytest.mark.parametrize(
    ("asked", "tier", "expected"),
    [
        (None, "Standard", 500),
        (None, "Basic", 500),
        (None, None, 500),
        (None, "Premium", None),
        (200, "Standard", 200),
        (200, "Premium", 200),
        (200, None, 200),
        (math.inf, "Standard", None),
        (math.inf, None, None),
    ],
)
def test_default_credits_are_half_of_standard_and_none_on_premium(asked, tier, expected):
    assert credits_of(asked, tier) == expected


def test_the_limit_at_work_is_the_one_that_a_send_waits_for():
    limiter = RateLimiter(0.0, rate=100.0, destination=500.0, source=500.0)
    assert (limiter.limit(0.0), limiter.main_limit()) == (None, None)
    limiter.reserve(0.0, 120)
    assert limiter.limit(0.0) is None
    seconds = limiter.reserve(0.0, 10)
    assert str(limiter.limit(0.0)) == "limited to 100 messages/s by --rate"
    assert limiter.limit(seconds + HOLD_SECONDS) is None
    assert limiter.main_limit() == Limit(100.0, "--rate")


def test_credits_count_by_their_cost_and_throttling_by_its_rate():
    limiter = RateLimiter(0.0, destination=500.0)
    limiter.reserve(0.0, 250, 2.0)
    limiter.reserve(0.0, 250, 2.0)
    assert str(limiter.limit(0.0)) == "limited to 250 messages/s by --credits 50%"
    limiter = RateLimiter(0.0, source=333.0)
    limiter.received(0.0, 400)
    limiter.receive_delay(0.0)
    assert str(limiter.limit(0.0)) == "limited to 333 messages/s by --credits 33.3%"
    limiter = RateLimiter(0.0, rate=200.0, source=500.0)
    limiter.reserve(0.0, 100)
    limiter.reserve(0.0, 100)
    limiter.received(0.0, 500)
    limiter.receive_delay(0.0)
    assert limiter.limit(0.0).by == "--rate"
    limiter = RateLimiter(0.0)
    limiter.count_sent(0.0, 400)
    limiter.on_busy(0.5)
    limiter.reserve(0.5, 100)
    assert limiter.limit(0.5).by == "throttling"


def test_a_short_wait_is_not_named_in_the_receipt():
    limiter = RateLimiter(0.0, rate=100.0)
    limiter.reserve(0.0, 20)
    limiter.reserve(0.0, 20)
    assert limiter.limit(0.0) is not None
    assert limiter.main_limit() is None
