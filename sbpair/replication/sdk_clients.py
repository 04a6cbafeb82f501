"""The SDK clients for both namespaces of a pair, one each, created when first needed and closed together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sbpair.failover.side_connections import ClientFactory, ClientKind, close_quietly
from sbpair.replication.roles import SIDES, Side

if TYPE_CHECKING:
    from sbpair.failover.steps import Steps
    from sbpair.model.pair import Pair

SHORTER = "give the queue or topic a shorter name"


class SdkClients:
    """`seconds` limits operations without a limit of their own."""

    def __init__(self, pair: Pair, kind: ClientKind, seconds: float) -> None:
        self._pair = pair
        self._factory = ClientFactory(kind)
        self._seconds = seconds
        self._clients: dict[Side, Any] = {}

    def open(self) -> None:
        """Create both clients before both sides are used concurrently. Connects to nothing."""
        for side, endpoint in zip(SIDES, (self._pair.primary, self._pair.secondary), strict=True):
            if side not in self._clients:
                self._clients[side] = self._factory.client(endpoint, self._seconds)

    def sender(self, side: Side, entity: str) -> Any:
        """Return an SDK sender. Queues and topics are sent to alike."""
        return self._clients[side].get_queue_sender(entity)

    def receiver(self, side: Side, path: str, settle_seconds: float) -> Any:
        """Return an SDK receiver in peek-lock mode. Queues and subscriptions are received from alike, by path."""
        # Without prefetch, only requested messages are locked.
        return self._clients[side].get_queue_receiver(path, prefetch_count=0, timeout=settle_seconds)

    def close(self) -> Steps[None]:
        while self._clients:
            _, client = self._clients.popitem()
            yield from close_quietly(client)
        yield from self._factory.close()
