"""Rate limits that all workers of a run share. Pure: it gets the time as an argument, and never waits.

A sender calls `reserve` for the seconds to wait, waits, and sends. A reservation counts at once, so concurrent senders
are served in turn. After the wait, `pause_seconds` returns whether the service has asked to slow down meanwhile. All
times are seconds of one monotonic clock.
"""

from __future__ import annotations

import math
import re

from sbpair.errors import UsageError

NAMESPACE_CREDITS = 1_000.0
"""Credits a second of a Standard namespace: a message in or out is one, and so is each filter that looks at it."""

DEFAULT_SHARE = 0.5
"""How much of a Standard namespace a run takes, unless told otherwise: the rest is for those who work there."""

RECEIVE_CREDITS = 1
"""What a message costs in the backlog's namespace.

Only the receive is on the service's published list. Should its completion cost a credit as well, which nobody outside
knows, the namespace will say that it is busy, and the run slows down.
"""

BURST_SECONDS = 0.2
"""After a rest, what a budget yields in so many seconds may go at once; a batch may be half of that."""

BUSY_SECONDS, MAX_BUSY_SECONDS = 2.0, 10.0
"""How long nothing is sent after the service said that it is busy: its advice, and what its SDKs wait for if it goes on
saying so."""

MIN_RATE = 1.0
"""Messages a second below which a busy service does not slow a run down."""

RECOVERY_SECONDS = 30.0
"""In how long a pace that was halved is back where it was, if the service stays calm."""

MIN_RECOVERY = 10.0
"""Messages a second by which the pace recovers in each second at least: a slow moment must not make a slow hour."""


class TokenBucket:
    """So much a second, and a little at once. What is spent beyond is owed, and has to be waited for."""

    def __init__(self, rate: float, now: float) -> None:
        self.rate = rate
        self._at = now
        self._level = self.burst

    @property
    def burst(self) -> float:
        """The most that may be spent at once after a rest."""
        return max(1.0, self.rate * BURST_SECONDS)

    def delay(self, now: float, amount: float) -> float:
        """Seconds until `amount` may be spent. What is more than a burst has to wait for a whole one."""
        return max(0.0, self._at - now) + max(0.0, min(amount, self.burst) - self.level(now)) / self.rate

    def spend(self, now: float, amount: float) -> None:
        self._level = self.level(now) - amount
        self._at = max(self._at, now)

    def freeze(self, now: float, until: float) -> None:
        """Nothing more comes together, and nothing may be spent, until then: what was saved up would go all at once."""
        self.spend(now, 0)
        self._at = max(self._at, until)

    def turn(self, now: float, rate: float) -> None:
        """Go on at another rate; what has come together so far stays, up to the new burst."""
        self.spend(now, 0)
        self.rate = rate
        self._level = min(self._level, self.burst)

    def level(self, now: float) -> float:
        """What may be spent at this moment; negative where something is owed."""
        return min(self.burst, self._level + max(0.0, now - self._at) * self.rate)


class RateLimiter:
    """`rate` is messages a second; `primary` and `secondary` are credits a second of the two namespaces.

    Each is None where there is no such limit. A message costs as many credits of the primary as its sender says: one,
    and one for each filter of its destination's subscriptions.
    """

    def __init__(
        self, now: float, *, rate: float | None = None, primary: float | None = None, secondary: float | None = None
    ) -> None:
        self._rate = None if rate is None else TokenBucket(rate, now)
        self._primary = None if primary is None else TokenBucket(primary, now)
        self._secondary = None if secondary is None else TokenBucket(secondary, now)
        self._throttle = _AdaptiveLimit(now)

    # Messages into the primary.

    def max_batch(self, now: float, cost_each: float = 1.0) -> int:
        """The largest batch that is worth forming: half of what may leave at once, so that waiting loses no time."""
        budgets = self._sending(now, cost_each)
        return max(1, min((int(each.burst / cost / 2) for each, cost in budgets), default=_UNLIMITED))

    def delay(self, now: float, messages: int, cost_each: float = 1.0) -> float:
        """Seconds to wait before a batch of so many messages may leave."""
        return max((budget.delay(now, messages * cost) for budget, cost in self._sending(now, cost_each)), default=0.0)

    def count_sent(self, now: float, messages: int, cost_each: float = 1.0) -> None:
        """Count messages that leave."""
        for budget, cost in self._sending(now, cost_each):
            budget.spend(now, messages * cost)
        self._throttle.count(now, messages)

    def reserve(self, now: float, messages: int, cost_each: float = 1.0) -> float:
        """`delay` and `count_sent` at once: the batch leaves after so many seconds, and is counted already."""
        seconds = self.delay(now, messages, cost_each)
        self.count_sent(now, messages, cost_each)
        return seconds

    # Messages out of the backlog.

    def receivable(self, now: float) -> int:
        """How many messages may be asked for at this moment."""
        if self._secondary is None:
            return _UNLIMITED
        return max(0, int(self._secondary.level(now) / RECEIVE_CREDITS))

    def receive_delay(self, now: float) -> float:
        """Seconds until a message may be asked for."""
        return 0.0 if self._secondary is None else self._secondary.delay(now, RECEIVE_CREDITS)

    def received(self, now: float, messages: int) -> None:
        """Count messages that came."""
        if self._secondary is not None:
            self._secondary.spend(now, messages * RECEIVE_CREDITS)

    # The service.

    def on_busy(self, now: float) -> None:
        """The service asks to slow down: half the pace, after a while of nothing."""
        self._throttle.on_busy(now)
        for budget, _ in self._sending(now, 1.0):
            budget.freeze(now, now + self.pause_seconds(now))

    def pause_seconds(self, now: float) -> float:
        """Seconds for which nothing may leave at all."""
        return self._throttle.pause_seconds(now)

    def limit(self, now: float) -> float | None:
        """Messages a second that may leave at this moment, if each costs one credit; None where nothing limits them."""
        budgets = [budget for budget, _ in self._sending(now, 1.0)]
        return min((each.rate for each in (*budgets, self._secondary) if each is not None), default=None)

    def _sending(self, now: float, cost_each: float) -> list[tuple[TokenBucket, float]]:
        found = ((self._rate, 1.0), (self._primary, cost_each), (self._throttle.budget(now), 1.0))
        return [(budget, cost) for budget, cost in found if budget is not None]


class _AdaptiveLimit:
    """A limit that the service sets by being busy: halved each time, and growing by and by while it is calm."""

    def __init__(self, now: float) -> None:
        self._budget: TokenBucket | None = None
        self._halved = self._growth = 0.0
        self._calm_from = now
        self._in_a_row = 0
        self._second, self._counted, self._counted_before = math.floor(now), 0, 0

    def count(self, now: float, messages: int) -> None:
        self._turn_the_second(now)
        self._counted += messages

    def on_busy(self, now: float) -> None:
        if self.pause_seconds(now):
            return  # the rest of what was on its way when the first answer came
        self._in_a_row = self._in_a_row + 1 if self._budget and now - self._calm_from < MAX_BUSY_SECONDS else 0
        going = self._going(now)
        if self._budget is not None:
            going = min(going, self._rate(now))
        self._halved = max(MIN_RATE, going / 2)
        self._growth = max(MIN_RECOVERY, self._halved / RECOVERY_SECONDS)
        self._calm_from = now + min(MAX_BUSY_SECONDS, BUSY_SECONDS * 2**self._in_a_row)
        if self._budget is None:
            self._budget = TokenBucket(self._halved, now)
        self._budget.turn(now, self._halved)

    def pause_seconds(self, now: float) -> float:
        return max(0.0, self._calm_from - now) if self._budget is not None else 0.0

    def budget(self, now: float) -> TokenBucket | None:
        if self._budget is not None:
            self._budget.turn(now, self._rate(now))
        return self._budget

    def _rate(self, now: float) -> float:
        return self._halved + max(0.0, now - self._calm_from) * self._growth

    def _going(self, now: float) -> float:
        """Messages a second of late."""
        self._turn_the_second(now)
        return float(max(self._counted, self._counted_before))

    def _turn_the_second(self, now: float) -> None:
        second = math.floor(now)
        if second > self._second:
            self._counted_before = self._counted if second == self._second + 1 else 0
            self._second, self._counted = second, 0


_UNLIMITED = 1_000_000


# What is asked for ------------------------------------------------------------------------------

_RATE = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)\s*(?:/\s*(s|m|h))?", re.ASCII)
_PER = {"s": 1.0, "m": 60.0, "h": 3600.0}
_RATE_HINT = "write 500 or 500/s, 30/m, 100/h: messages a second, a minute, an hour"

_PERCENT = re.compile(r"(\d{1,3}(?:\.\d{1,6})?)\s*%", re.ASCII)
_SHARE = re.compile(r"0?\.\d{1,6}", re.ASCII)
_WHOLE = re.compile(r"\d{1,9}", re.ASCII)
_CREDITS_HINT = "write 50% or 0.5 for a share of a Standard namespace, 500 for credits a second, or none for no limit"


def read_rate(text: str) -> float:
    """Messages a second of `500`, `500/s`, `30/m` or `100/h`. Raises UsageError."""
    match = _RATE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"--rate is {text[:40]!r}, and that is no number of messages a time", hint=_RATE_HINT)
    rate = float(match[1]) / _PER[match[2] or "s"]
    if not rate:
        raise UsageError("--rate is 0, and nothing would ever move", hint=_RATE_HINT)
    return rate


def read_credits(text: str) -> float:
    """Credits a second of `50%`, `0.5`, `500` or `none`, which is infinity. Raises UsageError.

    A whole number is credits, and a share is less than 1 or has a percent sign: `1` is one credit.
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
        raise UsageError(f"--credits is {asked[:40]!r}, and that is neither a share nor credits", hint=_CREDITS_HINT)
    if not 0 < credits_a_second <= NAMESPACE_CREDITS:
        limit = f"{NAMESPACE_CREDITS:.0f} credits a second"
        raise UsageError(f"--credits is {asked}, and a Standard namespace has {limit}", hint=_CREDITS_HINT)
    return credits_a_second


def credits_of(asked: float | None, tier: str | None) -> float | None:
    """Credits a second that a run may spend in a namespace; None where there is no limit.

    What was asked for holds whatever the tier. By itself a Premium namespace, which has messaging units and no credits,
    sets no limit; every other one, and one whose tier is not known, gives half of what Standard has.
    """
    if asked is not None:
        return None if math.isinf(asked) else asked
    return None if tier is not None and tier.lower() == "premium" else DEFAULT_SHARE * NAMESPACE_CREDITS
