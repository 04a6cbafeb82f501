"""Interfaces between the mover and an engine: receive from a backlog queue, send, settle."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    from sbpair.errors import SbpairError
    from sbpair.model.message_key import Key
    from sbpair.move.message.route import Facts, Send


class ReceivedMessage(Protocol):
    """A message received under lock. `lock_until` is in seconds of the event loop's clock. The mover sets `key`."""

    facts: Facts
    lock_until: float
    partition_key: str | None
    key: Key

    @property
    def ordinal(self) -> int:
        """Its place in the order of its source."""


class RoutedMessage(NamedTuple):
    """A received message with its routing decision. `ordinal` is the message's."""

    message: ReceivedMessage
    send: Send
    ordinal: int


# For `map`: one call for many messages.
get_facts: Callable[[ReceivedMessage], Facts] = attrgetter("facts")
get_key: Callable[[ReceivedMessage], Key] = attrgetter("key")
get_size: Callable[[ReceivedMessage], int] = attrgetter("facts.size")
get_lock_until: Callable[[RoutedMessage], float] = attrgetter("message.lock_until")
get_message: Callable[[RoutedMessage], ReceivedMessage] = attrgetter("message")
get_ordinal: Callable[[ReceivedMessage | RoutedMessage], int] = attrgetter("ordinal")


class PeekedHeader(NamedTuple):
    """A peeked message. `enqueued_at` is in ms since 1970; a `deferred` one is never received."""

    sequence_number: int
    enqueued_at: int
    deferred: bool


Failures: TypeAlias = "list[tuple[ReceivedMessage, SbpairError]]"


class SideConnection(Protocol):
    """The connection of a worker to one side of a pair."""

    @property
    def broken(self) -> SbpairError | None:
        """Why the connection is lost; None while connected."""

    async def wait_lost(self) -> None:
        """Wait until the connection is lost."""

    def abort(self, error: SbpairError) -> None:
        """End the connection for good: pending calls raise `error`."""


class MessageSource(SideConnection, Protocol):
    """One backlog queue: receives messages under lock, and settles them."""

    queue: str

    @property
    def clock_ahead_ms(self) -> int:
        """How far the service's clock is ahead of the local one, by the first lock; 0 before it."""

    @property
    def service_ms(self) -> int | None:
        """The service's time in ms since 1970; None until it is known."""

    @property
    def error(self) -> SbpairError | None:
        """Why no more messages can be received or settled; None while they can."""

    def grant(self, limit: int) -> None:
        """Prefetch at most so many messages."""

    async def receive(self, limit: int, *, seconds: float) -> Sequence[ReceivedMessage]:
        """Receive messages, waiting up to `seconds` for the first; [] without any. Raises Unavailable."""

    async def reopen(self) -> bool:
        """Open the link again over the same connection, if the service closed it as unused.

        Return False if it was closed for another reason. The locks of unsettled messages are lost with the old link.
        """

    def interrupt(self) -> None:
        """End a `receive` that waits."""

    async def stop(self) -> None:
        """Stop prefetching until the next `grant`, and release prefetched messages. Never raises."""

    async def complete(self, messages: Sequence[ReceivedMessage]) -> Failures:
        """Complete messages. Return those not confirmed, with the error: MessageLockLost, InDoubt. Never raises."""

    async def release(self, messages: Sequence[ReceivedMessage]) -> Failures:
        """Unlock messages, with their delivery count unchanged. Returns failures as `complete` does."""

    async def dead_letter(self, message: ReceivedMessage, reason: str, description: str) -> None: ...

    async def renew(self, messages: Sequence[ReceivedMessage]) -> None:
        """Renew locks, and set each `lock_until`. Raises MessageLockLost if one is lost."""

    def peek_pages(self) -> AsyncIterator[list[PeekedHeader]]:
        """Peek all messages of the queue, page by page."""


class PendingOutcome(Protocol):
    """The outcome of a batch that was sent."""

    async def outcome(self) -> None:
        """Wait until the primary accepts the whole batch. Raises InDoubt without an outcome."""


class Batch(Protocol):
    """`count` encoded messages: the primary accepts all of them, or none."""

    count: int


class DestinationLink(Protocol):
    """An open link to one destination. `credit` is how many batches may be sent at once."""

    @property
    def credit(self) -> int: ...

    def encode(self, routed: Sequence[RoutedMessage]) -> Batch:
        """Encode as many messages as fit in a batch: the first ones, and at least one, however large."""

    def send(self, batch: Batch) -> PendingOutcome:
        """Send a batch. If it raises, as `Destination.ready` does, nothing was sent."""


class Destination(Protocol):
    """The primary as a destination. It takes two steps, so that only a batch that was sent can be in doubt.

    Errors, also of PendingOutcome: Unavailable if a later try may work; ServiceRefused and EntityMissing if these
    messages will never be accepted; any other if no message would.
    """

    async def ready(self, destination: str) -> DestinationLink:
        """Wait until a message may be sent."""


class Primary(SideConnection, Destination, Protocol):
    """The primary's side of a worker. It reconnects by itself."""

    async def check(self) -> None:
        """Connect, unless connected. Raises AccessError, Unavailable."""

    async def close(self) -> None: ...
