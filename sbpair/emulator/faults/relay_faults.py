"""Faults of the relay: the kinds, and the points at which the relay asks for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from sbpair.emulator.faults.kinds import Fault, FaultContext


class RelayFaultPoints:
    """The active faults of a namespace's hybrid connections. Paths are in lower case; "" means all."""

    def __init__(self) -> None:
        self._active: list[tuple[Fault, Iterator[bool]]] = []

    def hit(self, kind: str, path: str) -> Fault | None:
        """Return the fault of this kind that acts on an entity now, and count the hit."""
        for fault, hits in self._active:
            if fault.kind == kind and fault.path in ("", path) and next(hits, False):
                return fault
        return None

    @contextmanager
    def acting(self, fault: Fault) -> Iterator[None]:
        entry = (fault, fault.hits())
        self._active.append(entry)
        try:
            yield
        finally:
            self._active.remove(entry)


RESTART_CODE: Final = 1011
RESTART_REASON: Final = "ConnectionLost: InternalServerError: NameRenewalFailed"


def relay_fault(context: FaultContext, fault: Fault) -> Iterator[None]:
    """Begin a fault that acts at a fault point of the relay."""
    with context.namespace.fault_points.relay.acting(fault):
        yield


def relay_down(context: FaultContext, fault: Fault) -> Iterator[None]:
    """Drop the listeners, and refuse senders and listeners with `status`, or else end their connections."""
    with context.namespace.fault_points.relay.acting(fault):
        _drop(context, fault, aborting=True)
        yield


def relay_drop_listeners(context: FaultContext, fault: Fault) -> Iterator[None]:
    """Close the control channels once, as the service does each day."""
    _drop(context, fault, aborting=False)
    yield


def _drop(context: FaultContext, fault: Fault, *, aborting: bool) -> None:
    for entity in context.namespace.hybrid_connections.all():
        if fault.path in ("", entity.key):
            for listener in list(entity.listeners):
                if aborting:
                    listener.abort()
                else:
                    listener.close(RESTART_CODE, RESTART_REASON)
