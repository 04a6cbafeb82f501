"""What fails in a drill, and how: on an emulator the namespace itself, against a user's namespaces the client alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sbpair.drill.service import begin_fault, end_fault

if TYPE_CHECKING:
    from sbpair.model import Pair
    from sbpair.sender.outage import Outage


class Emulated:
    """Connections to the primary break, and new ones are refused; so do links to one backlog queue."""

    outage: Outage | None = None

    def __init__(self, pair: Pair) -> None:
        self._pair = pair
        self._faults: list[str] = []

    async def primary_away(self) -> None:
        await self._begin("namespace-down", self._pair.primary.name)

    async def queue_away(self, path: str) -> None:
        await self._begin("entity-down", self._pair.secondary.name, path)

    async def mend(self) -> None:
        while self._faults:
            await end_fault(self._pair.secondary, self._faults.pop())

    async def _begin(self, kind: str, namespace: str, entity: str | None = None) -> None:
        # The secondary's door answers for both, also while the primary is away.
        self._faults.append(await begin_fault(self._pair.secondary, kind, namespace, entity))


class Rehearsed:
    """The client does as if: nobody else notices, and nothing is broken."""

    def __init__(self) -> None:
        from sbpair.sender.outage import Outage

        self.outage: Outage | None = Outage()

    async def primary_away(self) -> None:
        if self.outage is not None:
            self.outage.begin("primary")

    async def queue_away(self, path: str) -> None:
        if self.outage is not None:
            self.outage.begin("backlog", path)

    async def mend(self) -> None:
        if self.outage is not None:
            self.outage.end()
