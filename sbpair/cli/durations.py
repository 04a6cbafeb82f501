"""Durations as options say them."""

from sbpair.cli.output import clean
from sbpair.errors import UsageError
from sbpair.model import TICKS_PER_SECOND, ticks


def seconds_of(option: str, text: str, *, least: float = 0.0, most: float | None = None) -> float:
    """The seconds of `90s`, `1m` or `PT1M`. Raises UsageError for what is none, and for what is out of bounds."""
    try:
        seconds = ticks(text) / TICKS_PER_SECOND
    except UsageError as error:
        raise UsageError(f"{option}: {error.message}", hint=error.hint) from None
    if seconds < least or (most is not None and seconds > most):
        bounds = f"from {least:g} s" if most is None else f"from {least:g} s to {most:g} s"
        raise UsageError(f"{option} is {clean(text)}, and must be {bounds}", hint="leave it out for the default")
    return seconds
