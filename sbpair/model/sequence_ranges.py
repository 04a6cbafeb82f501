"""Sequence numbers as a user writes them: `4711,4720-4730`. Pure."""

from __future__ import annotations

from bisect import bisect_right
from typing import Final, NamedTuple, Self

from sbpair.errors import UsageError

MAX_SEQUENCE: Final = 2**63 - 1
HINT: Final = "write numbers and ranges, as in --sequence 4711,4720-4730"
_MAX_DIGITS: Final = 19
_SHOWN: Final = 30


class SequenceRanges(NamedTuple):
    """Sequence numbers as ranges: the first numbers, rising, and the last number of each. No two ranges overlap."""

    firsts: tuple[int, ...]
    lasts: tuple[int, ...]

    @classmethod
    def read(cls, text: str) -> Self:
        """Return the ranges of a text, in which they may overlap. Raises UsageError."""
        merged: list[list[int]] = []
        for first, last in sorted(map(_range, text.split(","))):
            if merged and first <= merged[-1][1]:
                merged[-1][1] = max(last, merged[-1][1])
            else:
                merged.append([first, last])
        return cls(tuple(first for first, _ in merged), tuple(last for _, last in merged))

    def find(self, number: int) -> int | None:
        """Return the index of the range that has a number."""
        at = bisect_right(self.firsts, number) - 1
        return at if at >= 0 and number <= self.lasts[at] else None

    def texts(self) -> list[str]:
        pairs = zip(self.firsts, self.lasts, strict=True)
        return [str(first) if first == last else f"{first}-{last}" for first, last in pairs]

    def __str__(self) -> str:
        return ",".join(self.texts())


def _range(text: str) -> tuple[int, int]:
    first, dash, last = text.partition("-")
    low = _number(first, text)
    high = _number(last, text) if dash else low
    if high < low:
        raise UsageError(f"--sequence: the range {text.strip()} ends before it begins", hint=f"write {high}-{low}")
    return low, high


def _number(text: str, part: str) -> int:
    word, shown = text.strip(), part.strip()[:_SHOWN]
    if not (word.isascii() and word.isdecimal()):
        what = f"{shown!r} is not a sequence number or a range" if shown else "a sequence number is missing"
        raise UsageError(f"--sequence: {what}", hint=HINT)
    if len(word.lstrip("0")) > _MAX_DIGITS or int(word) > MAX_SEQUENCE:
        hint = "sbpair peek shows the sequence numbers of messages"
        raise UsageError(f"--sequence: {shown} is greater than the largest number, {MAX_SEQUENCE}", hint=hint)
    return int(word)
