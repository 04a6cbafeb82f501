"""The emulator for tests: start it in the test's own process and event loop, inject faults, move its clock.

The names are imported when they are first used. `sbpair help emulator` has examples.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sbpair import lazy_names

if TYPE_CHECKING:
    from sbpair.emulator.clock import ManualClock, SystemClock
    from sbpair.emulator.entities.description import QueueDescription, SubscriptionDescription, TopicDescription
    from sbpair.emulator.faults.active import Faults
    from sbpair.emulator.faults.kinds import Fault
    from sbpair.emulator.options import EmulatorOptions, RequestedNamespace
    from sbpair.emulator.server import Emulator

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

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "sbpair.emulator.clock": "ManualClock, SystemClock",
        "sbpair.emulator.entities.description": "QueueDescription, SubscriptionDescription, TopicDescription",
        "sbpair.emulator.faults.active": "Faults",
        "sbpair.emulator.faults.kinds": "Fault",
        "sbpair.emulator.options": "EmulatorOptions, RequestedNamespace",
        "sbpair.emulator.server": "Emulator",
    },
)
