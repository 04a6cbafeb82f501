"""Durations as options say them."""

from sbpair.cli.render.screen import clean
from sbpair.errors import UsageError
from sbpair.model.durations import TICKS_PER_SECOND, ticks


def seconds_of(option: str, text: str, *, minimum: float = 0.0, limit: float | None = None) -> float:
    """The seconds of `90s`, `1m` or `PT1M`. Raises UsageError for what is none, and for what is out of bounds."""
    try:
        seconds = ticks(text) / TICKS_PER_SECOND
    except UsageError as error:
        raise UsageError(f"{option}: {error.message}", hint=error.hint) from None
    if seconds < minimum or (limit is not None and seconds > limit):
        bounds = f"from {minimum:g} s" if limit is None else f"from {minimum:g} s to {limit:g} s"
        raise UsageError(f"{option} is {clean(text)}, and must be {bounds}", hint="leave it out for the default")
    return seconds
