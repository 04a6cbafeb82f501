"""Outages for rehearsals: sends to a side that is unavailable by simulation are refused before anything is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from azure.servicebus.exceptions import ServiceBusConnectionError

from sbpair.azure.data_plane import translate_data_errors

if TYPE_CHECKING:
    from sbpair.failover.shared_state import SendSide


class SimulatedOutage:
    """The sides, queues and topics that are unavailable at the moment. Any thread may change them.

    outage = SimulatedOutage()
    with PairedClient(pair, outage=outage) as client:
        outage.begin("primary")
        ...
        outage.end()
    """

    def __init__(self) -> None:
        self._unavailable: frozenset[tuple[SendSide, str]] = frozenset()

    def begin(self, side: SendSide, path: str = "") -> None:
        """Make a side unavailable, or one queue or topic of it."""
        self._unavailable |= {(side, path.lower())}

    def end(self) -> None:
        """Make everything available again."""
        self._unavailable = frozenset()

    @property
    def active(self) -> bool:
        return bool(self._unavailable)

    def check(self, side: SendSide, path: str) -> None:
        """Raise ServiceBusConnectionError if the path is unavailable."""
        if not self._unavailable.isdisjoint({(side, ""), (side, path.lower())}):
            raise ServiceBusConnectionError(message=f"simulated outage: {path} cannot be reached")

    def check_ping(self, side: SendSide, path: str) -> None:
        """Raise Unreachable if the path is unavailable: pings and probes raise sbpair's own errors."""
        with translate_data_errors(f"reaching {path!r}"):
            self.check(side, path)
