"""The names that `sbpair.testing` exports."""

from __future__ import annotations

from sbpair.emulator.clock import ManualClock, SystemClock
from sbpair.emulator.entities.description import QueueDescription
from sbpair.emulator.entities.namespace_tiers import RequestedNamespace
from sbpair.emulator.entities.topic_description import SubscriptionDescription, TopicDescription
from sbpair.emulator.faults.active import Faults
from sbpair.emulator.faults.kinds import Fault
from sbpair.emulator.options import EmulatorOptions
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
