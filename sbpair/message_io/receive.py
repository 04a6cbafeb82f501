"""Receiving as a command does it: messages of one entity, each shown and then completed, or only looked at.

The law: nothing is removed that has not been shown, and what is in hand when this ends is given back.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from sbpair.azure.data_errors import translate_data_errors
from sbpair.azure.data_plane import open_receiver
from sbpair.errors import MessageLockLost, SbpairError, Unavailable
from sbpair.message_io.render import described
from sbpair.replication.aio import AsyncDedupReceiver
from sbpair.replication.events import DuplicateCompleted
from sbpair.replication.key import KeyRule
from sbpair.replication.replication_base import MEMORY, checked_source
from sbpair.replication.roles import SIDES
from sbpair.replication.window import DAY_SECONDS

if TYPE_CHECKING:
    from pathlib import Path

    from azure.servicebus import ServiceBusReceivedMessage

    from sbpair.azure.data_plane import QueueReceiver
    from sbpair.model.pair import Pair
    from sbpair.replication.events import ReplicationEvent
    from sbpair.replication.replication_base import OnEvent
    from sbpair.replication.roles import Side

AT_ONCE = 10
"""How many messages are in hand at most."""

PEEKED_AT_ONCE = 100


@dataclass(frozen=True, slots=True)
class DedupSettings:
    """By what copies are known, and where and for how long (seconds) that is remembered."""

    key: str = "id"
    store: str | Path = MEMORY
    window_seconds: float = DAY_SECONDS


@dataclass(slots=True)
class Counted:
    """How many were shown and removed; shown and not removed, so that they come again; further copies removed."""

    received: int = 0
    kept: int = 0
    duplicates: int = 0


Show = Callable[["Side", dict[str, object]], None]
"""Is told where a message is from, and what it says of itself as `described` has it."""


class ReceiveSource(Protocol):
    async def receive(self, limit: int, seconds: float) -> Sequence[ServiceBusReceivedMessage]: ...
    async def complete(self, message: ServiceBusReceivedMessage) -> None: ...
    async def abandon(self, message: ServiceBusReceivedMessage) -> None: ...
    def side_of(self, message: ServiceBusReceivedMessage) -> Side: ...


async def run(
    pair: Pair,
    entity: str,
    *,
    counted: Counted,
    show: Show,
    subscription: str | None = None,
    dedup: DedupSettings | None = None,
    limit: int,
    wait_seconds: float,
    on_event: OnEvent | None = None,
) -> None:
    """Show and complete up to `most` messages, until none has come for so long. `counted` is true at any moment.

    Of the primary, or the first copies of both sides. Raises UsageError, EntityMissing, AccessError and Unavailable;
    and what `show` raises, of which the message is not completed.
    """

    def told(event: ReplicationEvent) -> None:
        counted.duplicates += isinstance(event, DuplicateCompleted)
        if on_event is not None:
            on_event(event)

    async with _opened(pair, entity, subscription, dedup, told) as source:
        left = limit
        while left > 0 and (found := await source.receive(min(left, AT_ONCE), wait_seconds)):
            left -= len(found)
            await _dealt_with(source, found, counted, show)


async def peek(
    pair: Pair,
    entity: str,
    *,
    counted: Counted,
    show: Show,
    subscription: str | None = None,
    dedup: DedupSettings | None = None,
    limit: int,
) -> None:
    """Show up to `most` messages and leave them where they are: nothing is locked, and no delivery counted."""
    path, seen = checked_source(entity, subscription), set[str]()
    rule = KeyRule(dedup.key) if dedup else None
    for side in SIDES if dedup else SIDES[:1]:
        endpoint = pair.primary if side == "primary" else pair.secondary
        async with open_receiver(endpoint, path) as receiver:
            async for message in _peeked(receiver):
                if counted.received >= limit:
                    return
                key = rule.of(message) if rule else None
                if key is not None and key in seen:
                    counted.duplicates += 1
                    continue
                seen.update((key,) if key is not None else ())
                show(side, described(message))
                counted.received += 1


async def _peeked(receiver: QueueReceiver) -> AsyncIterator[ServiceBusReceivedMessage]:
    start = 1
    while found := await receiver.peek(start, PEEKED_AT_ONCE):
        start = (found[-1].sequence_number or 0) + 1
        for message in found:
            yield message


async def _dealt_with(
    source: ReceiveSource, found: Sequence[ServiceBusReceivedMessage], counted: Counted, show: Show
) -> None:
    held = list(found)
    try:
        while held:
            show(source.side_of(held[0]), described(held[0]))
            await _to_its_end(_completed(source, held.pop(0), counted))
    finally:
        for message in held:
            with suppress(SbpairError):
                await source.abandon(message)


async def _completed(source: ReceiveSource, message: ServiceBusReceivedMessage, counted: Counted) -> None:
    try:
        await source.complete(message)
        counted.received += 1
    except (MessageLockLost, Unavailable):
        counted.kept += 1


async def _to_its_end(settling: Awaitable[None]) -> None:
    """A settlement that has begun is waited for, whoever wants to stop: it is over soon, and known then."""
    task = asyncio.ensure_future(settling)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await task
        raise


@asynccontextmanager
async def _opened(
    pair: Pair, entity: str, subscription: str | None, dedup: DedupSettings | None, on_event: OnEvent
) -> AsyncIterator[ReceiveSource]:
    if dedup is None:
        async with open_receiver(pair.primary, checked_source(entity, subscription)) as receiver:
            yield _Primary(receiver)
        return
    async with AsyncDedupReceiver(
        pair,
        entity,
        subscription_name=subscription,
        key=dedup.key,
        store=dedup.store,
        window_seconds=dedup.window_seconds,
        on_event=on_event,
    ) as both:
        yield _Both(both)


class _Primary:
    def __init__(self, receiver: QueueReceiver) -> None:
        self.receive = receiver.receive
        self.complete = receiver.complete
        self.abandon = receiver.abandon

    def side_of(self, _message: ServiceBusReceivedMessage) -> Side:
        return "primary"


class _Both:
    def __init__(self, receiver: AsyncDedupReceiver) -> None:
        self._receiver = receiver
        self.side_of = receiver.side_of

    async def receive(self, limit: int, seconds: float) -> Sequence[ServiceBusReceivedMessage]:
        with translate_data_errors(f"receiving from {self._receiver.entity_name!r}"):
            return await self._receiver.receive_messages(limit, seconds)

    async def complete(self, message: ServiceBusReceivedMessage) -> None:
        with self._settling():
            await self._receiver.complete_message(message)

    async def abandon(self, message: ServiceBusReceivedMessage) -> None:
        with self._settling():
            await self._receiver.abandon_message(message)

    def _settling(self) -> AbstractContextManager[None]:
        return translate_data_errors(f"settling in {self._receiver.entity_name!r}")
