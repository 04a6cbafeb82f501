"""Durations: text such as `90s` or `PT1M`, and ticks of 100 ns."""

from __future__ import annotations

import re
from decimal import Decimal

from sbpair.errors import UsageError
from sbpair.timespan import MAX_TICKS, TICKS_PER_DAY, TICKS_PER_SECOND, show

# The service refuses anything above this, and Python's timedelta, with its six decimals, rounds it up.
TIMESPAN_MAX = "P10675199DT2H48M5.4775807S"
TIMESPAN_MAX_DAYS = 10_675_199


def ticks(duration: str) -> int:
    """Return the 100 ns ticks of a duration: `90s`, `1m`, `1.5h`, `1h30m`, `PT1M`, or a bare number of seconds.

    Days are 24 hours; years and months, which have no fixed length, are rejected. Raises UsageError.
    """
    text = duration.strip()
    if number := _BARE_SECONDS.fullmatch(text):
        parts = {"s": number.group(0)}
    else:
        match = _ISO_DURATION.fullmatch(text) or _SPOKEN_DURATION.fullmatch(text)
        parts = {unit: value for unit, value in match.groupdict().items() if value} if match else {}
    if not parts:
        raise UsageError(f"expected a duration such as 90s, got {duration!r}", hint="write 90s, 1m, 1h30m or PT1M")
    return int(sum(Decimal(value) * _UNIT_SECONDS[unit] for unit, value in parts.items()) * TICKS_PER_SECOND)


def iso_duration(count: int) -> str:
    """Return ticks as ISO 8601 text, limited to TimeSpan.MaxValue."""
    return show(count if count < TIMESPAN_MAX_DAYS * TICKS_PER_DAY else MAX_TICKS)


_UNIT_SECONDS = {
    "w": Decimal(604_800),
    "d": Decimal(86_400),
    "h": Decimal(3_600),
    "m": Decimal(60),
    "s": Decimal(1),
    "ms": Decimal("0.001"),
}
_N = r"\d{1,12}(?:\.\d{1,9})?"
_BARE_SECONDS = re.compile(_N, re.ASCII)
_ISO_DURATION = re.compile(
    rf"P(?:(?P<w>{_N})W)?(?:(?P<d>{_N})D)?(?:T(?:(?P<h>{_N})H)?(?:(?P<m>{_N})M)?(?:(?P<s>{_N})S)?)?",
    re.ASCII | re.IGNORECASE,
)
_SPOKEN_DURATION = re.compile(
    rf"(?:(?P<w>{_N})\s*w)?\s*(?:(?P<d>{_N})\s*d)?\s*(?:(?P<h>{_N})\s*h)?\s*(?:(?P<m>{_N})\s*m)?\s*"
    rf"(?:(?P<s>{_N})\s*s)?\s*(?:(?P<ms>{_N})\s*ms)?",
    re.ASCII | re.IGNORECASE,
)
