"""The emulator for tests: start it in the test's own process and event loop, inject faults, move its clock.

The names are imported when they are first used. `sbpair help emulator` has examples.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sbpair.emulator.testing import (
        Emulator,
        EmulatorOptions,
        Fault,
        Faults,
        ManualClock,
        QueueDescription,
        RequestedNamespace,
        SubscriptionDescription,
        SystemClock,
        TopicDescription,
    )

__all__ = [
    "Emulator",
    "EmulatorOptions",
    "Fault",
    "Faults",
    "ManualClock",
    "QueueDescription",
    "RequestedNamespace",
    "SubscriptionDescription",
    "SystemClock",
    "TopicDescription",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from sbpair.emulator import testing

    return getattr(testing, name)


def __dir__() -> list[str]:
    return sorted(__all__)
