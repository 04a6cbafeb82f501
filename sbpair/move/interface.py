"""What a mover needs of whatever talks to the service: take deliveries from a backlog queue, send, settle."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    from sbpair.errors import SbpairError
    from sbpair.model.message_key import Key
    from sbpair.move.message.route import Facts, Send


class ReceivedMessage(Protocol):
    """A delivery in our hands. `lock_until` is seconds of the event loop's clock; `key` is the mover's to set."""

    facts: Facts
    lock_until: float
    partition_key: str | None
    key: Key

    @property
    def ordinal(self) -> int:
        """Its place among those of its source."""


class RoutedMessage(NamedTuple):
    """A delivery, and where its message is to go. `turn` is the delivery's."""

    message: ReceivedMessage
    send: Send
    ordinal: int


# For `map`: what is done for every message is done by calls for many of them.
get_facts: Callable[[ReceivedMessage], Facts] = attrgetter("facts")
get_key: Callable[[ReceivedMessage], Key] = attrgetter("key")
get_size: Callable[[ReceivedMessage], int] = attrgetter("facts.size")
get_lock_until: Callable[[RoutedMessage], float] = attrgetter("message.lock_until")
get_message: Callable[[RoutedMessage], ReceivedMessage] = attrgetter("message")
get_ordinal: Callable[[ReceivedMessage | RoutedMessage], int] = attrgetter("ordinal")


class PeekedHeader(NamedTuple):
    """A message that was looked at where it lies. `enqueued_at` is in ms since 1970; `deferred` ones never come."""

    sequence_number: int
    enqueued_at: int
    deferred: bool


Failures: TypeAlias = "list[tuple[ReceivedMessage, SbpairError]]"


class SideConnection(Protocol):
    """One side of a pair, as a lane is connected to it."""

    @property
    def broken(self) -> SbpairError | None:
        """Why there is no connection at this moment; None where there is one."""

    async def wait_lost(self) -> None:
        """Wait until the connection that there is has gone."""

    def abort(self, error: SbpairError) -> None:
        """End the connection at once, and make none any more: whoever waits for an answer is told this error."""


class MessageSource(SideConnection, Protocol):
    """One backlog queue, received from under lock."""

    queue: str

    @property
    def clock_ahead_ms(self) -> int:
        """By how much the service's clock is before ours, as far as the first lock tells; 0 before it."""

    @property
    def service_ms(self) -> int | None:
        """What time it is by the service's clock, in ms since 1970; None where that is not known yet."""

    @property
    def error(self) -> SbpairError | None:
        """Why nothing more will come, and nothing can be settled any more; None while that is not so."""

    def grant(self, limit: int) -> None:
        """Let there be at most that many deliveries that nobody has taken."""

    async def receive(self, limit: int, *, seconds: float) -> Sequence[ReceivedMessage]:
        """What has come, waiting up to `seconds` for the first; [] when nothing did. Raises Unavailable."""

    async def reopen(self) -> bool:
        """Where the service has let go of the link because it was not used: open it again, over the same connection.

        False where that is not why it is gone. Whatever was taken and not settled is lost with the old link.
        """

    def interrupt(self) -> None:
        """Make a `receive` that waits answer now."""

    async def stop(self) -> None:
        """Let nothing more come until the next `grant`; give back what came and nobody took. Raises nothing."""

    async def complete(self, arrivals: Sequence[ReceivedMessage]) -> Failures:
        """Which of them were not confirmed, and why: MessageLockLost, InDoubt. Raises nothing."""

    async def release(self, arrivals: Sequence[ReceivedMessage]) -> Failures:
        """Give them back, their delivery count unchanged; answers as `complete` does."""

    async def dead_letter(self, arrival: ReceivedMessage, reason: str, description: str) -> None: ...

    async def renew(self, arrivals: Sequence[ReceivedMessage]) -> None:
        """Renew locks; sets each one's `lock_until`. Raises MessageLockLost where one is gone."""

    def peek_pages(self) -> AsyncIterator[list[PeekedHeader]]:
        """All messages of the queue, looked at without locking them."""


class PendingOutcome(Protocol):
    """What the primary has still to say to a parcel."""

    async def outcome(self) -> None:
        """Returns once the primary has accepted all of it. Raises InDoubt where no answer came."""


class Batch(Protocol):
    """Messages that leave together: the primary takes all of them, or none. `count` says how many there are."""

    count: int


class DestinationLink(Protocol):
    """The way to one destination, open at this moment. `credit` is how many parcels may leave at once."""

    @property
    def credit(self) -> int: ...

    def encode(self, orders: Sequence[RoutedMessage]) -> Batch:
        """As many of these, from the first on, as may leave together; the first by itself, however large it is."""

    def send(self, parcel: Batch) -> PendingOutcome:
        """Let it leave now. Raises as `Destination.ready` does, where it has not left."""


class Destination(Protocol):
    """The primary, as far as a lane sends to it. Two steps, so that what has not left is never in doubt.

    What is raised, here and by an Answer: Unavailable where it may work a little later; ServiceRefused and
    EntityMissing where these messages will never get there; anything else where no message would.
    """

    async def ready(self, destination: str) -> DestinationLink:
        """Wait until a message may leave."""


class Primary(SideConnection, Destination, Protocol):
    """The primary's side of a lane, from its first connection to its last."""

    async def check(self) -> None:
        """See that it is there, if that is still to be done. Raises AccessError, Unavailable."""

    async def close(self) -> None: ...
