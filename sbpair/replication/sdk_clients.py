"""The SDK's clients for both namespaces of a pair, one each, made when they are first needed and closed together."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from sbpair.azure.data_client import signed
from sbpair.failover.side_connections import closed
from sbpair.replication.roles import SIDES, Side

if TYPE_CHECKING:
    from sbpair.failover.steps import Steps
    from sbpair.model.pair import Endpoint, Pair


class ClientKind(NamedTuple):
    """What sync and async clients are made of: (endpoint, credential, seconds) -> client, an identity, and a lock."""

    client: Callable[[Endpoint, Any, float], Any]
    identity: Callable[[], Any]
    lock: Callable[[], Any]


class SdkClients:
    """`seconds` bound what has no bound of its own."""

    def __init__(self, pair: Pair, kind: ClientKind, seconds: float) -> None:
        self._endpoints: dict[Side, Endpoint] = {"primary": pair.primary, "secondary": pair.secondary}
        self._kind = kind
        self._seconds = seconds
        self._clients: dict[Side, Any] = {}
        self._identity: Any = None

    def open(self) -> None:
        """Have both clients, before both sides use them at the same time. Connects to nothing."""
        for side in SIDES:
            if side not in self._clients:
                endpoint = self._endpoints[side]
                self._clients[side] = self._kind.client(endpoint, signed(endpoint) or self._signed_in(), self._seconds)

    def sender(self, side: Side, entity: str) -> Any:
        """The SDK's sender: queues and topics are sent to alike."""
        return self._clients[side].get_queue_sender(entity)

    def receiver(self, side: Side, path: str, settle_seconds: float) -> Any:
        """The SDK's receiver, under lock: queues and subscriptions are received from alike, by their paths."""
        # Without prefetch nothing is locked that nobody has asked for.
        return self._clients[side].get_queue_receiver(path, prefetch_count=0, timeout=settle_seconds)

    def close(self) -> Steps[None]:
        while self._clients:
            _, client = self._clients.popitem()
            yield from closed(client)
        if self._identity is not None:
            identity, self._identity = self._identity, None
            yield from closed(identity)

    def _signed_in(self) -> Any:
        if self._identity is None:
            self._identity = self._kind.identity()
        return self._identity
