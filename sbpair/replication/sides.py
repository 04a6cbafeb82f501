"""The two sides of a pair, and the shared part of the senders and receivers that have an SDK client for each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from sbpair.errors import BothFailed
from sbpair.failover.failures import describe_error, is_transient
from sbpair.failover.side_connections import ClientFactory, ClientKind, close_quietly

if TYPE_CHECKING:
    from sbpair.failover.steps import Steps
    from sbpair.model.pair import Pair

Side: TypeAlias = Literal["primary", "secondary"]

SIDES: Final[tuple[Side, Side]] = ("primary", "secondary")

SHORTER = "give the queue or topic a shorter name"


class BothSides:
    """A user of an entity in both namespaces. `seconds` limits operations without a limit of their own."""

    _kind: ClientKind
    _noun: str

    def __init__(self, pair: Pair, entity: str, seconds: float) -> None:
        self.pair = pair
        self.entity_name = entity
        self._client_seconds = seconds
        self._factory = ClientFactory(self._kind)
        self._clients: dict[Side, Any] = {}
        self._turn = self._kind.lock()
        self._closed = False

    def _open(self) -> None:
        """Create both clients before both sides are used concurrently. Connects to nothing."""
        if self._closed:
            raise ValueError(f"the {self._noun} has been closed: make another one")
        for side, endpoint in zip(SIDES, (self.pair.primary, self.pair.secondary), strict=True):
            if side not in self._clients:
                self._clients[side] = self._factory.client(endpoint, self._client_seconds)

    def _closing(self) -> Steps[None]:
        self._closed = True
        yield from self._close_sides()
        while self._clients:
            yield from close_quietly(self._clients.popitem()[1])
        yield from self._factory.close()

    def _close_sides(self) -> Steps[None]:
        raise NotImplementedError


def both_failed(text: str, errors: dict[str, Exception], hint: str, in_doubt: tuple[Side, ...] = ()) -> BothFailed:
    """Return the error for both sides. Its message adds the reason of each to `text`."""
    reasons = "; ".join(f"the {side}: {describe_error(error)}" for side, error in errors.items())
    failed = BothFailed(f"{text}: {reasons}", reasons=errors, in_doubt=in_doubt, hint=hint)
    failed.retriable = any(map(is_transient, errors.values()))
    failed.__cause__ = ExceptionGroup("errors of both namespaces", list(errors.values()))
    return failed
