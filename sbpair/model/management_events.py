"""The events of management calls, for a program that shows their progress."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Listed:
    """Event: the backlog queues of a namespace were read."""

    namespace: str
    queues: int


@dataclass(frozen=True, slots=True)
class Retrying:
    """Event: something failed for now, and is retried after `wait_seconds`."""

    what: str
    attempt: int
    wait_seconds: float
    reason: str


@dataclass(frozen=True, slots=True)
class QueueProvisioned:
    """Event: one queue of `total` is done. `outcome` is a value of `report.Outcome`."""

    path: str
    outcome: str
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class SecondSample:
    """Event: all messages are peeked, and the queues are counted again in `seconds`."""

    seconds: float


ControlEvent = Listed | Retrying | QueueProvisioned | SecondSample
