"""Durations and times in the service's form: .NET TimeSpans and DateTimes as XML.

A duration is an int of ticks of 100 ns: `timedelta` has microseconds and cannot hold TimeSpan.MaxValue.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

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
