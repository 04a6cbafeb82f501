"""Which keys have been dealt with of late: the bounds, the store's face, and one in memory. Pure but for the memory.

The law: what is outside of the window was never seen; a key that is marked anew is the latest.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from sbpair.errors import UsageError

DAY_SECONDS = 86_400.0
KEYS = 1_000_000


class KeyStatus(IntEnum):
    """What is known of a key. DOUBT: one was to be completed, and nobody can say whether it was."""

    NEW = 0
    DOUBT = 1
    DONE = 2


@dataclass(frozen=True, slots=True)
class Window:
    """The last `count` keys, and none older than `seconds`; None is no such bound. Raises UsageError."""

    seconds: float | None = DAY_SECONDS
    count: int | None = KEYS

    def __post_init__(self) -> None:
        if self.seconds is None and self.count is None:
            raise UsageError("the window has no bound", hint="bound it by seconds, by a count of keys, or by both")
        if self.seconds is not None and not (self.seconds > 0 and math.isfinite(self.seconds)):
            raise UsageError(
                f"the window is {self.seconds:g} s", hint="it must be more than nothing; None is no bound in time"
            )
        if self.count is not None and self.count < 1:
            raise UsageError(f"the window is {self.count} keys", hint="it must hold 1 at least; None is no bound")


class Store(Protocol):
    """Where keys are remembered. `now` is in seconds since 1970; a clock that is set back makes nothing older."""

    def standing(self, key: str, now: float) -> KeyStatus: ...

    def mark(self, key: str, standing: KeyStatus, now: float) -> None:
        """Returns once it is remembered. Raises MachineLacks where it cannot be."""

    def close(self) -> None: ...


class Memory:
    """For as long as the process lives; about 200 bytes a key."""

    def __init__(self, window: Window) -> None:
        self._window = window
        self._seen: OrderedDict[str, tuple[float, KeyStatus]] = OrderedDict()

    def standing(self, key: str, now: float) -> KeyStatus:
        at, standing = self._seen.get(key, (now, KeyStatus.NEW))
        return KeyStatus.NEW if _is_past(self._window, at, now) else standing

    def mark(self, key: str, standing: KeyStatus, now: float) -> None:
        self._seen[key] = now, standing
        self._seen.move_to_end(key)
        while self._is_too_much(now):
            self._seen.popitem(last=False)

    def close(self) -> None:
        self._seen.clear()

    def _is_too_much(self, now: float) -> bool:
        if self._window.count is not None and len(self._seen) > self._window.count:
            return True
        oldest, _ = next(iter(self._seen.values()))
        return _is_past(self._window, oldest, now)


def _is_past(window: Window, at: float, now: float) -> bool:
    return window.seconds is not None and now - at >= window.seconds
