"""The phases of a drill: the events that announce them, and waits for what ends them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sbpair.errors import TimedOut

EmitPhase = Callable[[str, str], object]


@dataclass(frozen=True, slots=True)
class DrillPhase:
    """Event: a phase begins, or a client has an event ("sender", "relay"). `seconds` counts from the start."""

    name: str
    text: str
    seconds: float = 0.0


class Timeline:
    """Emits phases, and records them."""

    def __init__(self, on_event: Callable[[Any], object]) -> None:
        self._on_event = on_event
        self._started = time.monotonic()
        self.phases: list[DrillPhase] = []

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    def __call__(self, name: str, text: str) -> None:
        self.phases.append(DrillPhase(name, text, round(self.seconds, 3)))
        self._on_event(self.phases[-1])


class Awaited:
    """A state that is waited for. Each change of it sets `changed`."""

    changed: asyncio.Event
    max_phase_seconds: float

    async def until(self, what: str, shown: Callable[[], bool]) -> None:
        """Wait until `shown` returns True. Raises TimedOut."""
        try:
            async with asyncio.timeout(self.max_phase_seconds):
                while not shown():
                    self.changed.clear()
                    await self.changed.wait()
        except TimeoutError:
            raise TimedOut(
                f"the drill waited {self.max_phase_seconds:g} s for {what}", hint="run sbpair doctor"
            ) from None
