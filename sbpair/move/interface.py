"""Interfaces between the mover and an engine: receive from a queue, send, settle."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from sbpair.move.message.route import field_getter

if TYPE_CHECKING:
    from sbpair.amqp.link import Delivery
    from sbpair.amqp.types import Map
    from sbpair.errors import SbpairError
    from sbpair.move.message.decode import Content
    from sbpair.move.message.route import Facts, Send
    from sbpair.runs.journal import Key


class ReceivedMessage(Protocol):
    """A message received under lock. `lock_until` is in seconds of the event loop's clock. The mover sets `key`."""

    facts: Facts
    lock_until: float
    partition_key: str | None
    key: Key

    @property
    def ordinal(self) -> int:
        """Its place in the order of its source."""


class Sendable(ReceivedMessage, Protocol):
    """A received message with content. Undecodable payloads have none, and are never sent."""

    content: Content


@dataclass(slots=True, eq=False)
class KeptMessage:
    """All that is kept of a message that stays in its source: its sequence number, its time, and its lock.

    `enqueued_at` is as in Facts, `lock_until` as in ReceivedMessage.
    """

    number: int
    enqueued_at: int
    lock_until: float
    delivery: Delivery


class RoutedMessage(NamedTuple):
    """A received message with its routing decision. `ordinal` is the message's."""

    message: Sendable
    send: Send
    ordinal: int

    @property
    def partition_key(self) -> str | None:
        """The key that decides on the partition, unless the entity detects duplicates."""
        return self.send.session_id or self.message.partition_key


# For `map`: one call for many messages.
get_facts: Callable[[ReceivedMessage], Facts] = attrgetter("facts")
get_key: Callable[[ReceivedMessage], Key] = attrgetter("key")
get_size: Callable[[ReceivedMessage], int] = attrgetter("facts.size")
get_number: Callable[[ReceivedMessage], int] = attrgetter("facts.sequence_number")
get_ordinal: Callable[[ReceivedMessage], int] = attrgetter("ordinal")
get_lock_until: Callable[[ReceivedMessage], float] = attrgetter("lock_until")
get_message: Callable[[RoutedMessage], ReceivedMessage] = field_getter(RoutedMessage, "message")
get_place: Callable[[RoutedMessage], int] = field_getter(RoutedMessage, "ordinal")


class PeekedHeader(NamedTuple):
    """A peeked message. `enqueued_at` is in ms since 1970.

    An `active` one is received once it is not locked, a `deferred` one never; the third state is scheduled.
    """

    sequence_number: int
    enqueued_at: int
    active: bool
    deferred: bool


Failures: TypeAlias = "list[tuple[ReceivedMessage, SbpairError]]"


class MessageSource(Protocol):
    """Messages received under lock, and the ways to settle them."""

    queue: str

    @property
    def service_ms(self) -> int | None:
        """The service's time in ms since 1970; None until it is known."""

    def interrupt(self) -> None:
        """End a receive that waits."""

    async def stop(self) -> None:
        """Stop prefetching, and release prefetched messages. Never raises."""

    async def complete(self, messages: Sequence[ReceivedMessage]) -> Failures:
        """Complete messages. Return those not confirmed, with the error: MessageLockLost, InDoubt. Never raises."""

    async def release(self, messages: Sequence[ReceivedMessage]) -> Failures:
        """Unlock messages, with their delivery count unchanged. Returns failures as `complete` does."""

    async def dead_letter(self, message: ReceivedMessage, reason: str, description: str) -> None: ...

    async def renew(self, messages: Sequence[Any]) -> None:
        """Renew the locks of received messages, and set each `lock_until`. Raises MessageLockLost if one is lost."""


SendOutcome: TypeAlias = Callable[[], Awaitable[None]]
"""Waits until the destination accepts a whole batch that was sent. Raises InDoubt without an outcome."""


@dataclass(slots=True)
class Batch:
    """`count` encoded messages: the destination accepts all of them, or none.

    `format` is the message-format of `payload`: a batch's, or a single message's. Those that are scheduled by a request
    are its `entries`, and then have the sequence `numbers` of its answer; others have none.
    """

    count: int
    payload: bytes
    format: int = 0
    entries: Sequence[Map] = ()
    numbers: Sequence[int] = ()


class DestinationLink(Protocol):
    """An open link to one destination. `credit` is how many batches may be sent at once."""

    @property
    def credit(self) -> int: ...

    def encode(self, routed: Sequence[RoutedMessage]) -> Batch:
        """Encode as many messages as fit in a batch: the first ones, and at least one, however large."""

    def send(self, batch: Batch) -> SendOutcome:
        """Send a batch. If it raises, as `Destination.ready` does, nothing was sent."""


class Destination(Protocol):
    """The namespace of the destinations. It takes two steps, so that only a batch that was sent can be in doubt.

    Errors, also of SendOutcome: Unavailable if a later try may work; ServiceRefused and EntityMissing if these
    messages will never be accepted; any other if no message would.
    """

    async def ready(self, destination: str) -> DestinationLink:
        """Wait until a message may be sent."""
