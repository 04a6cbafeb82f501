"""What a mover needs of whatever talks to the service: take deliveries from a backlog queue, send, settle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from sbpair.move.route import Facts, Send


class Arrival(Protocol):
    """A delivery in our hands. `lock_until` is seconds of the event loop's clock."""

    facts: Facts
    lock_until: float


class Source(Protocol):
    """One backlog queue, received from under lock."""

    queue: str

    def grant(self, credit: int) -> None:
        """Let that many more come."""

    async def take(self, most: int, *, seconds: float) -> Sequence[Arrival]:
        """What has come, waiting up to `seconds` for the first; [] when nothing did. Raises Unavailable."""

    def interrupt(self) -> None:
        """Make a `take` that waits answer now."""

    async def complete(self, arrivals: Sequence[Arrival]) -> None:
        """Raises MessageLockLost or InDoubt."""

    async def release(self, arrivals: Sequence[Arrival]) -> None:
        """Give them back, their delivery count unchanged."""

    async def dead_letter(self, arrival: Arrival, reason: str, description: str) -> None: ...

    async def renew(self, arrivals: Sequence[Arrival]) -> None:
        """Renew locks; sets each one's `lock_until`. Raises MessageLockLost where one is gone."""


class Destination(Protocol):
    """The primary, as far as a lane sends to it."""

    async def send(self, arrival: Arrival, order: Send) -> None:
        """Returns once the primary has accepted. Raises what its refusal means; InDoubt where no answer came."""
