"""The emulator for tests: start it in the test's own process and event loop, inject faults, move its clock.

The names are imported when they are first used. `sbpair help emulator` has examples.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sbpair import lazy_names

# ruff: noqa: PLC0414  the alias makes a name public for type checkers
if TYPE_CHECKING:
    from sbpair.emulator.clock import ManualClock as ManualClock
    from sbpair.emulator.clock import SystemClock as SystemClock
    from sbpair.emulator.entities.description import QueueDescription as QueueDescription
    from sbpair.emulator.entities.description import SubscriptionDescription as SubscriptionDescription
    from sbpair.emulator.entities.description import TopicDescription as TopicDescription
    from sbpair.emulator.faults.active import Faults as Faults
    from sbpair.emulator.faults.kinds import Fault as Fault
    from sbpair.emulator.server import Emulator as Emulator
    from sbpair.emulator.server import EmulatorOptions as EmulatorOptions
    from sbpair.emulator.server import RequestedNamespace as RequestedNamespace

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "sbpair.emulator.clock": "ManualClock, SystemClock",
        "sbpair.emulator.entities.description": "QueueDescription, SubscriptionDescription, TopicDescription",
        "sbpair.emulator.faults.active": "Faults",
        "sbpair.emulator.faults.kinds": "Fault",
        "sbpair.emulator.server": "Emulator, EmulatorOptions, RequestedNamespace",
    },
)
__all__ = list(__dir__())
