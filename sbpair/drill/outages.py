"""Outages of a drill: of an emulated namespace, or simulated in the client for a user's namespaces."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, TypeAlias

from sbpair.drill.emulator_process import emulator_control

if TYPE_CHECKING:
    from sbpair.model.pair import Pair


class EmulatedOutages:
    """Breaks connections to the primary, or links to one backlog queue, and refuses new ones."""

    outage = None

    def __init__(self, pair: Pair) -> None:
        self._pair = pair
        self._faults: list[str] = []

    async def stop_primary(self) -> None:
        await self._begin({"kind": "namespace-down", "namespace": self._pair.primary.name})

    async def stop_queue(self, path: str) -> None:
        await self._begin({"kind": "entity-down", "namespace": self._pair.secondary.name, "entity": path})

    async def restore(self) -> None:
        while self._faults:
            await emulator_control(self._pair.secondary, "DELETE", f"faults/{self._faults.pop()}")

    async def _begin(self, fault: dict[str, str]) -> None:
        # The secondary's port controls both, also while the primary is down.
        answer = await emulator_control(self._pair.secondary, "POST", "faults", fault)
        self._faults.append(str(json.loads(answer)["id"]))


class SimulatedOutages:
    """Simulates outages in this client; no other client is affected."""

    def __init__(self) -> None:
        from sbpair.failover.simulated_outage import SimulatedOutage

        self.outage = SimulatedOutage()

    async def stop_primary(self) -> None:
        self.outage.begin("primary")

    async def stop_queue(self, path: str) -> None:
        self.outage.begin("backlog", path)

    async def restore(self) -> None:
        self.outage.end()


Outages: TypeAlias = EmulatedOutages | SimulatedOutages
