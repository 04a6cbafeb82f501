"""What fails in a drill, and how: on an emulator the namespace itself, against a user's namespaces the client alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sbpair.drill.emulator_process import begin_fault, end_fault

if TYPE_CHECKING:
    from sbpair.failover.simulated_outage import SimulatedOutage
    from sbpair.model.pair import Pair


class EmulatedOutages:
    """Connections to the primary break, and new ones are refused; so do links to one backlog queue."""

    outage: SimulatedOutage | None = None

    def __init__(self, pair: Pair) -> None:
        self._pair = pair
        self._faults: list[str] = []

    async def primary_away(self) -> None:
        await self._begin("namespace-down", self._pair.primary.name)

    async def queue_away(self, path: str) -> None:
        await self._begin("entity-down", self._pair.secondary.name, path)

    async def restore(self) -> None:
        while self._faults:
            await end_fault(self._pair.secondary, self._faults.pop())

    async def _begin(self, kind: str, namespace: str, entity: str | None = None) -> None:
        # The secondary's door answers for both, also while the primary is away.
        self._faults.append(await begin_fault(self._pair.secondary, kind, namespace, entity))


class SimulatedOutages:
    """The client does as if: nobody else notices, and nothing is broken."""

    def __init__(self) -> None:
        from sbpair.failover.simulated_outage import SimulatedOutage

        self.outage: SimulatedOutage | None = SimulatedOutage()

    async def primary_away(self) -> None:
        if self.outage is not None:
            self.outage.begin("primary")

    async def queue_away(self, path: str) -> None:
        if self.outage is not None:
            self.outage.begin("backlog", path)

    async def restore(self) -> None:
        if self.outage is not None:
            self.outage.end()
