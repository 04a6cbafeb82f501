"""What a test needs of the emulator: to start one in its own process and loop, to break it, to move its time.

async with Emulator([("contoso", 0)]) as emulator:
    connect(emulator.namespaces["contoso"].connection_string)
    outage = emulator.faults.namespace_down("contoso")
    emulator.advance(60_000)
    emulator.faults.end(outage)
"""

from __future__ import annotations

from sbpair.emulator.clock import ManualClock
from sbpair.emulator.faults.active import Faults
from sbpair.emulator.faults.kinds import Fault
from sbpair.emulator.options import EmulatorOptions
from sbpair.emulator.server import Emulator

__all__ = ["Emulator", "EmulatorOptions", "Fault", "Faults", "ManualClock"]
