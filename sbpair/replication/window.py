"""The keys of completed messages: limits, the interface of a store, and a store in memory.

Invariant: a key outside of the window counts as never seen. Marking a key again makes it the latest.
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
    """The status of a key. DOUBT: a completion was started and never answered."""

    NEW = 0
    DOUBT = 1
    DONE = 2


@dataclass(frozen=True, slots=True)
class Window:
    """The last `count` keys, none older than `seconds`. None means no such limit. Raises UsageError."""

    seconds: float | None = DAY_SECONDS
    count: int | None = KEYS

    def __post_init__(self) -> None:
        if self.seconds is None and self.count is None:
            raise UsageError("the window has no limit", hint="set window_seconds, window_count, or both")
        if self.seconds is not None and not (self.seconds > 0 and math.isfinite(self.seconds)):
            raise UsageError(
                f"expected a window of more than 0 s, got {self.seconds:g} s", hint="None means no limit in time"
            )
        if self.count is not None and self.count < 1:
            raise UsageError(f"expected a window of at least 1 key, got {self.count}", hint="None means no limit")


class Store(Protocol):
    """Stores keys. `now` is in seconds since 1970; setting the clock back makes no key older."""

    def status(self, key: str, now: float) -> KeyStatus: ...

    def mark(self, key: str, status: KeyStatus, now: float) -> None:
        """Return once the status is stored. Raises MachineLacks if that fails."""

    def close(self) -> None: ...


class MemoryStore:
    """A store for the life of the process, with about 200 bytes per key."""

    def __init__(self, window: Window) -> None:
        self._window = window
        self._seen: OrderedDict[str, tuple[float, KeyStatus]] = OrderedDict()

    def status(self, key: str, now: float) -> KeyStatus:
        at, status = self._seen.get(key, (now, KeyStatus.NEW))
        return KeyStatus.NEW if _is_past(self._window, at, now) else status

    def mark(self, key: str, status: KeyStatus, now: float) -> None:
        self._seen[key] = now, status
        self._seen.move_to_end(key)
        while self._is_over_limit(now):
            self._seen.popitem(last=False)

    def close(self) -> None:
        self._seen.clear()

    def _is_over_limit(self, now: float) -> bool:
        if self._window.count is not None and len(self._seen) > self._window.count:
            return True
        oldest, _ = next(iter(self._seen.values()))
        return _is_past(self._window, oldest, now)


def _is_past(window: Window, at: float, now: float) -> bool:
    return window.seconds is not None and now - at >= window.seconds
