"""What a mover needs of whatever talks to the service: take deliveries from a backlog queue, send, settle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from sbpair.errors import SbpairError
    from sbpair.move.route import Facts, Send


class Arrival(Protocol):
    """A delivery in our hands. `lock_until` is seconds of the event loop's clock."""

    facts: Facts
    lock_until: float


class Source(Protocol):
    """One backlog queue, received from under lock."""

    queue: str

    @property
    def error(self) -> SbpairError | None:
        """Why nothing more will come, and nothing can be settled any more; None while that is not so."""

    def grant(self, most: int) -> None:
        """Let there be at most that many deliveries that nobody has taken."""

    async def take(self, most: int, *, seconds: float) -> Sequence[Arrival]:
        """What has come, waiting up to `seconds` for the first; [] when nothing did. Raises Unavailable."""

    def interrupt(self) -> None:
        """Make a `take` that waits answer now."""

    async def stop(self) -> None:
        """Let nothing more come, and give back what has come and nobody took. Raises nothing."""

    async def complete(self, arrivals: Sequence[Arrival]) -> None:
        """Raises MessageLockLost or InDoubt."""

    async def release(self, arrivals: Sequence[Arrival]) -> None:
        """Give them back, their delivery count unchanged."""

    async def dead_letter(self, arrival: Arrival, reason: str, description: str) -> None: ...

    async def renew(self, arrivals: Sequence[Arrival]) -> None:
        """Renew locks; sets each one's `lock_until`. Raises MessageLockLost where one is gone."""


class Destination(Protocol):
    """The primary, as far as a lane sends to it. Two steps, so that what has not left is never in doubt.

    Both raise Unavailable where it may work a little later; ServiceRefused and EntityMissing where this message will
    never get there; anything else where no message would.
    """

    async def ready(self, destination: str) -> None:
        """Wait until a message may leave: then the next `send` there lets it leave at once."""

    async def send(self, arrival: Arrival, order: Send) -> None:
        """Returns once the primary has accepted. Raises InDoubt where no answer came."""
