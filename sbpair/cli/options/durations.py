"""Durations in options."""

from sbpair.cli.render.screen import clean
from sbpair.errors import UsageError
from sbpair.model.durations import TICKS_PER_SECOND, ticks

DEFAULT_HINT = "leave it out for the default"


def seconds_of(
    option: str, text: str, *, minimum: float = 0.0, limit: float | None = None, hint: str = DEFAULT_HINT
) -> float:
    """Return the seconds of `90s`, `1m` or `PT1M`. Raises UsageError if `text` is no duration or out of bounds."""
    try:
        seconds = ticks(text) / TICKS_PER_SECOND
    except UsageError as error:
        raise UsageError(f"{option}: {error.message}", hint=error.hint) from None
    if seconds < minimum or (limit is not None and seconds > limit):
        bounds = f"from {minimum:g} s" if limit is None else f"from {minimum:g} s to {limit:g} s"
        raise UsageError(f"{option} is {clean(text)}, and must be {bounds}", hint=hint)
    return seconds


def positive_seconds_of(
    option: str, text: str, *, limit: float | None = None, hint: str = "write a duration, as in 30s"
) -> float:
    """Return the seconds of a duration. Raises UsageError if it is 0, too."""
    seconds = seconds_of(option, text, limit=limit, hint=hint)
    if not seconds:
        raise UsageError(f"{option} must be greater than 0", hint=hint)
    return seconds
