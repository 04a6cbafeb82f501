"""Rate limits that all workers of a run share. Pure: it gets the time as an argument, and never waits.

A sender calls `reserve` for the seconds to wait, waits, and sends. A reservation counts at once, so concurrent senders
are served in turn. After the wait, `pause_seconds` returns whether the service has asked to slow down meanwhile. All
times are seconds of one monotonic clock.
"""

from __future__ import annotations

import math
import re
from operator import itemgetter
from typing import Annotated, NamedTuple

from sbpair.errors import UsageError

NAMESPACE_CREDITS = 1_000.0
"""Credits a second of a Standard namespace. A message in or out costs one, and so does each filter it is tested by."""

DEFAULT_SHARE = 0.5
"""Share of a Standard namespace that a run uses by default: the rest is for its applications."""

RECEIVE_CREDITS = 1
"""Credits per message in the backlog's namespace.

The service's published list has only the receive. If a completion costs a credit too, the namespace answers that it is
busy, and the run slows down.
"""

BURST_SECONDS = 0.2
"""After a pause, the amount of so many seconds may be spent at once. A batch may be half of that."""

BUSY_SECONDS, MAX_BUSY_SECONDS = 2.0, 10.0
"""How long nothing is sent after a server-busy error: the service's advice, and the SDKs' wait if it persists."""

MIN_RATE = 1.0
"""Messages a second below which server-busy errors do not slow a run down."""

RECOVERY_SECONDS = 30.0
"""How long a halved rate takes to recover, without a server-busy error."""

MIN_RECOVERY = 10.0
"""The least recovery of the rate in each second, in messages a second: a slow start must not last."""


HOLD_SECONDS = 2.0
"""How long after a wait for it a limit still counts as at work."""

MIN_LIMITED_SECONDS = 1.0
"""A receipt names a limit that the run waited for at least so long."""


class Limit(NamedTuple):
    """A limit at work."""

    per_second: Annotated[float, "Messages a second"]
    by: Annotated[str, "Option or cause that sets it", {"examples": ["--credits 50%"]}]

    def __str__(self) -> str:
        digits = 0 if self.per_second >= 9.95 else 1 if self.per_second >= 0.95 else 3
        return f"limited to {self.per_second:.{digits}f} messages/s by {self.by}"


class TokenBucket:
    """A rate per second, and a small burst. Spending more than the level leaves a debt to wait for.

    `spent` is the sum of all that was spent.
    """

    def __init__(self, rate: float, now: float) -> None:
        self.rate = rate
        self.spent = 0.0
        self._at = now
        self._level = self.burst

    @property
    def burst(self) -> float:
        """The most that may be spent at once after a pause."""
        return max(1.0, self.rate * BURST_SECONDS)

    def delay(self, now: float, amount: float) -> float:
        """Return the seconds until `amount` may be spent. An amount above the burst waits for a whole burst."""
        return max(0.0, self._at - now) + max(0.0, min(amount, self.burst) - self.level(now)) / self.rate

    def spend(self, now: float, amount: float) -> None:
        self._level = self.level(now) - amount
        self._at = max(self._at, now)
        self.spent += amount

    def freeze(self, now: float, until: float) -> None:
        """Block spending until then, and add nothing to the level: it would be spent in one burst."""
        self.spend(now, 0)
        self._at = max(self._at, until)

    def change_rate(self, now: float, rate: float) -> None:
        """Continue at another rate. The level stays, up to the new burst."""
        self.spend(now, 0)
        self.rate = rate
        self._level = min(self._level, self.burst)

    def level(self, now: float) -> float:
        """Return the amount that may be spent now; negative for a debt."""
        return min(self.burst, self._level + max(0.0, now - self._at) * self.rate)


class RateLimiter:
    """`rate` is messages a second; `source` and `destination` are credits a second of each namespace; None is no limit.

    The sender passes a message's cost in credits of the destination: one, and one for each filter of its destination's
    subscriptions.
    """

    def __init__(
        self, now: float, *, rate: float | None = None, source: float | None = None, destination: float | None = None
    ) -> None:
        self._rate = None if rate is None else TokenBucket(rate, now)
        self._source = None if source is None else TokenBucket(source, now)
        self._destination = None if destination is None else TokenBucket(destination, now)
        self._throttle = _AdaptiveLimit(now)
        self._limits: dict[str, Limit] = {}
        self._waited: dict[str, float] = {}
        self._ends: dict[str, float] = {}
        self._wait_ends = -math.inf

    # Messages into the destination.

    def max_batch(self, now: float, cost_each: float = 1.0) -> int:
        """Return the largest useful batch: half of a burst, so that a wait loses no time."""
        buckets = self._sending(now, cost_each)
        return max(1, min((int(each.burst / cost / 2) for each, cost, _ in buckets), default=_UNLIMITED))

    def delay(self, now: float, messages: int, cost_each: float = 1.0) -> float:
        """Return the seconds to wait before so many messages may be sent."""
        return self._longest_wait(now, messages, cost_each)[0]

    def count_sent(self, now: float, messages: int, cost_each: float = 1.0) -> None:
        for bucket, cost, _ in self._sending(now, cost_each):
            bucket.spend(now, messages * cost)
        self._throttle.count(now, messages)

    def reserve(self, now: float, messages: int, cost_each: float = 1.0) -> float:
        """Return the `delay` of a batch, and count it as sent then: what limits less gains nothing by the wait."""
        seconds, limit = self._longest_wait(now, messages, cost_each)
        self._count_wait(now, seconds, limit)
        self.count_sent(now + seconds, messages, cost_each)
        return seconds

    # Messages out of the source.

    def receivable(self, now: float) -> int:
        """Return how many messages may be received now."""
        if self._source is None:
            return _UNLIMITED
        return max(0, int(self._source.level(now) / RECEIVE_CREDITS))

    def receive_delay(self, now: float) -> float:
        """Return the seconds until a message may be received."""
        if self._source is None:
            return 0.0
        seconds = self._source.delay(now, RECEIVE_CREDITS)
        self._count_wait(now, seconds, Limit(self._source.rate / RECEIVE_CREDITS, _credits_option(self._source)))
        return seconds

    def received(self, now: float, messages: int) -> None:
        if self._source is not None:
            self._source.spend(now, messages * RECEIVE_CREDITS)

    # The service.

    def on_busy(self, now: float) -> None:
        """Pause after a server-busy error, then continue at half the rate."""
        self._throttle.on_busy(now)
        for bucket, _, _ in self._sending(now, 1.0):
            bucket.freeze(now, now + self.pause_seconds(now))

    def pause_seconds(self, now: float) -> float:
        """Return the seconds for which nothing may be sent."""
        return self._throttle.pause_seconds(now)

    def credits_spent(self) -> dict[str, float]:
        """Return the credits spent in each namespace whose credits are limited, by its side."""
        buckets = {"primary": self._destination, "secondary": self._source}
        return {side: bucket.spent for side, bucket in buckets.items() if bucket is not None}

    # The limit at work.

    def limit(self, now: float) -> Limit | None:
        """Return the limit that slows the run down now, if any: the lowest of those that it waits for."""
        found = (self._limits[by] for by, ends in self._ends.items() if now < ends + HOLD_SECONDS)
        return min(found, default=None)

    def main_limit(self) -> Limit | None:
        """Return the limit that the run waited for longest, if it did for long."""
        by, seconds = max(self._waited.items(), key=itemgetter(1), default=("", 0.0))
        return self._limits[by] if seconds >= MIN_LIMITED_SECONDS else None

    def _count_wait(self, now: float, seconds: float, limit: Limit | None) -> None:
        if limit is None or seconds <= 0.0:
            return
        self._limits[limit.by], self._ends[limit.by] = limit, now + seconds
        ends = max(self._wait_ends, now + seconds)
        self._waited[limit.by] = self._waited.get(limit.by, 0.0) + ends - max(self._wait_ends, now)
        self._wait_ends = ends

    def _longest_wait(self, now: float, messages: int, cost_each: float) -> tuple[float, Limit | None]:
        waits = [
            (bucket.delay(now, messages * cost), Limit(bucket.rate / cost, by))
            for bucket, cost, by in self._sending(now, cost_each)
        ]
        return max(waits, key=itemgetter(0), default=(0.0, None))

    def _sending(self, now: float, cost_each: float) -> list[tuple[TokenBucket, float, str]]:
        found = (
            (self._rate, 1.0, "--rate"),
            (self._destination, cost_each, _credits_option(self._destination)),
            (self._throttle.bucket(now), 1.0, "throttling"),
        )
        return [(bucket, cost, by) for bucket, cost, by in found if bucket is not None]


def _credits_option(bucket: TokenBucket | None) -> str:
    return "" if bucket is None else f"--credits {bucket.rate / NAMESPACE_CREDITS * 100:g}%"


class _AdaptiveLimit:
    """The limit from server-busy errors: each one halves the rate, which then recovers gradually."""

    def __init__(self, now: float) -> None:
        self._bucket: TokenBucket | None = None
        self._halved = self._growth = 0.0
        self._calm_from = now
        self._in_a_row = 0
        self._second, self._counted, self._counted_before = math.floor(now), 0, 0

    def count(self, now: float, messages: int) -> None:
        self._roll_second(now)
        self._counted += messages

    def on_busy(self, now: float) -> None:
        if self.pause_seconds(now):
            return  # a send that was pending when the first error came
        self._in_a_row = self._in_a_row + 1 if self._bucket and now - self._calm_from < MAX_BUSY_SECONDS else 0
        self._roll_second(now)
        rate = float(max(self._counted, self._counted_before))
        if self._bucket is not None:
            rate = min(rate, self._rate(now))
        self._halved = max(MIN_RATE, rate / 2)
        self._growth = max(MIN_RECOVERY, self._halved / RECOVERY_SECONDS)
        self._calm_from = now + min(MAX_BUSY_SECONDS, BUSY_SECONDS * 2**self._in_a_row)
        if self._bucket is None:
            self._bucket = TokenBucket(self._halved, now)
        self._bucket.change_rate(now, self._halved)

    def pause_seconds(self, now: float) -> float:
        return max(0.0, self._calm_from - now) if self._bucket is not None else 0.0

    def bucket(self, now: float) -> TokenBucket | None:
        if self._bucket is not None:
            self._bucket.change_rate(now, self._rate(now))
        return self._bucket

    def _rate(self, now: float) -> float:
        return self._halved + max(0.0, now - self._calm_from) * self._growth

    def _roll_second(self, now: float) -> None:
        second = math.floor(now)
        if second > self._second:
            self._counted_before = self._counted if second == self._second + 1 else 0
            self._second, self._counted = second, 0


_UNLIMITED = 1_000_000


# The options --rate and --credits.

_RATE = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)\s*(?:/\s*(s|m|h))?", re.ASCII)
_PER = {"s": 1.0, "m": 60.0, "h": 3600.0}
_RATE_HINT = "500 or 500/s, 30/m, 100/h are messages a second, a minute, an hour"

_PERCENT = re.compile(r"(\d{1,3}(?:\.\d{1,6})?)\s*%", re.ASCII)
_SHARE = re.compile(r"0?\.\d{1,6}", re.ASCII)
_WHOLE = re.compile(r"\d{1,9}", re.ASCII)
_CREDITS_HINT = "50% or 0.5 is a share of a Standard namespace, 500 is credits a second, none is no limit"


def parse_rate(text: str) -> float:
    """Parse `500`, `500/s`, `30/m` or `100/h` to messages a second. Raises UsageError."""
    match = _RATE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"--rate: expected a rate such as 500/s, got {text[:40]!r}", hint=_RATE_HINT)
    rate = float(match[1]) / _PER[match[2] or "s"]
    if not rate:
        raise UsageError("--rate must be greater than 0", hint=_RATE_HINT)
    return rate


def parse_credits(text: str) -> float:
    """Parse `50%`, `0.5`, `500` or `none` (infinity) to credits a second. Raises UsageError.

    A whole number is credits: `1` is one credit. A share is less than 1, or has a percent sign.
    """
    asked = text.strip()
    if asked.lower() == "none":
        return math.inf
    if match := _PERCENT.fullmatch(asked):
        credits_a_second = float(match[1]) / 100 * NAMESPACE_CREDITS
    elif _SHARE.fullmatch(asked):
        credits_a_second = float(asked) * NAMESPACE_CREDITS
    elif _WHOLE.fullmatch(asked):
        credits_a_second = float(asked)
    else:
        raise UsageError(
            f"--credits: expected a share such as 50% or credits a second, got {asked[:40]!r}", hint=_CREDITS_HINT
        )
    if not 0 < credits_a_second <= NAMESPACE_CREDITS:
        limit = f"{NAMESPACE_CREDITS:.0f} credits a second"
        raise UsageError(f"--credits is {asked}, but a Standard namespace has {limit}", hint=_CREDITS_HINT)
    return credits_a_second


def credits_of(asked: float | None, tier: str | None) -> float | None:
    """Return the credits a second that a run may spend in a namespace; None for no limit.

    `asked` applies to every tier. Without it, a Premium namespace sets no limit, since it has messaging units and no
    credits. Every other namespace, and one of unknown tier, allows DEFAULT_SHARE of Standard's credits.
    """
    if asked is not None:
        return None if math.isinf(asked) else asked
    return None if tier is not None and tier.lower() == "premium" else DEFAULT_SHARE * NAMESPACE_CREDITS
