"""Durations and times: text such as `90s` or `PT1M`, and the service's form, .NET TimeSpans and DateTimes as XML.

A duration is an int of ticks of 100 ns: `timedelta` has microseconds and cannot hold TimeSpan.MaxValue.
"""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from decimal import Decimal
from typing import Final

from sbpair.errors import UsageError

TICKS_PER_MICROSECOND: Final = 10
TICKS_PER_MS: Final = 10_000
TICKS_PER_SECOND: Final = 10_000_000
TICKS_PER_MINUTE: Final = 60 * TICKS_PER_SECOND
TICKS_PER_HOUR: Final = 60 * TICKS_PER_MINUTE
TICKS_PER_DAY: Final = 24 * TICKS_PER_HOUR
MAX_TICKS: Final = 0x7FFF_FFFF_FFFF_FFFF
"""TimeSpan.MaxValue, P10675199DT2H48M5.4775807S: unlimited, to the service."""

_FORM = re.compile(
    r"(?P<sign>-)?P(?:(?P<years>\d{1,9})Y)?(?:(?P<months>\d{1,9})M)?(?:(?P<days>\d{1,9})D)?"
    r"(?P<time>T(?:(?P<hours>\d{1,9})H)?(?:(?P<minutes>\d{1,9})M)?(?:(?P<seconds>\d{1,19})(?:\.(?P<fraction>\d+))?S)?)?",
    re.ASCII,
)
_UNITS = {
    # A TimeSpan has no calendar: XmlConvert uses 365 and 30 days.
    "years": 365 * TICKS_PER_DAY,
    "months": 30 * TICKS_PER_DAY,
    "days": TICKS_PER_DAY,
    "hours": TICKS_PER_HOUR,
    "minutes": TICKS_PER_MINUTE,
    "seconds": TICKS_PER_SECOND,
}


def parse(text: str) -> int:
    """Return the ticks of an XSD duration. Raises ValueError if it is none or exceeds a TimeSpan."""
    match = _FORM.fullmatch(text.strip())
    if match is None or match["time"] == "T" or not any(match[unit] for unit in _UNITS):
        raise ValueError(f"'{text}' is not a duration such as PT1M or P14D")
    ticks = sum(int(match[unit] or 0) * size for unit, size in _UNITS.items())
    ticks += int((match["fraction"] or "")[:7].ljust(7, "0"))
    if match["sign"]:
        ticks = -ticks
    if not -MAX_TICKS - 1 <= ticks <= MAX_TICKS:
        raise ValueError(f"'{text}' is longer than a TimeSpan can be")
    return ticks


def show(ticks: int) -> str:
    """Format ticks as XmlConvert does: days at most, no zero parts, no trailing zeros. `PT1M30S`, `P14D`, `PT0S`."""
    if ticks == 0:
        return "PT0S"
    days, rest = divmod(abs(ticks), TICKS_PER_DAY)
    hours, rest = divmod(rest, TICKS_PER_HOUR)
    minutes, rest = divmod(rest, TICKS_PER_MINUTE)
    seconds, fraction = divmod(rest, TICKS_PER_SECOND)
    text = "-P" if ticks < 0 else "P"
    if days:
        text += f"{days}D"
    if hours or minutes or seconds or fraction:
        text += "T" + (f"{hours}H" if hours else "") + (f"{minutes}M" if minutes else "")
    if fraction:
        text += f"{seconds}.{fraction:07}".rstrip("0") + "S"
    elif seconds:
        text += f"{seconds}S"
    return text


def instant(ms: int) -> str:
    """Format a time as .NET does. 0 stands for DateTime.MinValue, "never"."""
    if ms <= 0:
        return "0001-01-01T00:00:00Z"
    seconds, rest = divmod(ms, 1000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:03}Z"


def utc(seconds: float | None) -> str:
    """Return a time in seconds since 1970 as `2026-11-22T10:15:00Z`; the default is now."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


# The service refuses anything above this, and Python's timedelta, with its six decimals, rounds it up.
TIMESPAN_MAX = "P10675199DT2H48M5.4775807S"
TIMESPAN_MAX_DAYS = 10_675_199
MAX_MS = 253_402_300_799_000
"""The last second of the year 9999 in ms since 1970, the end of a DateTime."""
LAST_EXPIRY_MS = 253_402_214_399_999
"""9999-12-30T23:59:59.999Z in ms since 1970, the latest expiry that .NET clients write."""


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
