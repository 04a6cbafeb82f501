"""Outages of a drill: of an emulated namespace, or simulated in the client for a user's namespaces."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sbpair.drill.emulator_process import begin_fault, end_fault

if TYPE_CHECKING:
    from sbpair.failover.simulated_outage import SimulatedOutage
    from sbpair.model.pair import Pair


class EmulatedOutages:
    """Breaks connections to the primary, or links to one backlog queue, and refuses new ones."""

    outage: SimulatedOutage | None = None

    def __init__(self, pair: Pair) -> None:
        self._pair = pair
        self._faults: list[str] = []

    async def stop_primary(self) -> None:
        await self._begin("namespace-down", self._pair.primary.name)

    async def stop_queue(self, path: str) -> None:
        await self._begin("entity-down", self._pair.secondary.name, path)

    async def restore(self) -> None:
        while self._faults:
            await end_fault(self._pair.secondary, self._faults.pop())

    async def _begin(self, kind: str, namespace: str, entity: str | None = None) -> None:
        # The secondary's port controls both, also while the primary is down.
        self._faults.append(await begin_fault(self._pair.secondary, kind, namespace, entity))


class SimulatedOutages:
    """Simulates outages in this client; no other client is affected."""

    def __init__(self) -> None:
        from sbpair.failover.simulated_outage import SimulatedOutage

        self.outage: SimulatedOutage | None = SimulatedOutage()

    async def stop_primary(self) -> None:
        if self.outage is not None:
            self.outage.begin("primary")

    async def stop_queue(self, path: str) -> None:
        if self.outage is not None:
            self.outage.begin("backlog", path)

    async def restore(self) -> None:
        if self.outage is not None:
            self.outage.end()
