"""The emulator for tests: start it in the test's process, inject faults, move its clock.

`Emulator` runs in the test's own event loop, and `EmulatorThread` in a thread, for programs that block. `plugin` has
the fixtures for pytest. The names are imported when they are first used. `sbpair help emulator` has examples.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sbpair.public_names import lazy_names

if TYPE_CHECKING:
    from sbpair.emulator.clock import ManualClock as ManualClock
    from sbpair.emulator.clock import SystemClock as SystemClock
    from sbpair.emulator.entities.description import QueueDescription as QueueDescription
    from sbpair.emulator.entities.description import SubscriptionDescription as SubscriptionDescription
    from sbpair.emulator.entities.description import TopicDescription as TopicDescription
    from sbpair.emulator.faults.fault_kinds import Faults as Faults
    from sbpair.emulator.faults.fault_points import Fault as Fault
    from sbpair.emulator.server import Emulator as Emulator
    from sbpair.emulator.server import EmulatorOptions as EmulatorOptions
    from sbpair.emulator.server import RequestedNamespace as RequestedNamespace
    from sbpair.testing.emulator_thread import EmulatedNamespace as EmulatedNamespace
    from sbpair.testing.emulator_thread import EmulatedPair as EmulatedPair
    from sbpair.testing.emulator_thread import EmulatorThread as EmulatorThread

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "sbpair.emulator.clock": "ManualClock, SystemClock",
        "sbpair.emulator.entities.description": "QueueDescription, SubscriptionDescription, TopicDescription",
        "sbpair.emulator.faults.fault_kinds": "Faults",
        "sbpair.emulator.faults.fault_points": "Fault",
        "sbpair.emulator.server": "Emulator, EmulatorOptions, RequestedNamespace",
        "sbpair.testing.emulator_thread": "EmulatedNamespace, EmulatedPair, EmulatorThread",
    },
)
__all__ = list(__dir__())
