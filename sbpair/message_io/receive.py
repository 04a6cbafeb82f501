"""Receiving for a command: messages of one entity, each shown and then completed.

Invariant: no message is removed before it has been shown. Messages still held at the end are given back.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from sbpair.amqp_client.client import AmqpClient, connect
from sbpair.azure.credentials import signed_in
from sbpair.azure.data_plane import translate_data_errors
from sbpair.errors import MessageLockLost, SbpairError, Unavailable, UnreadableMessage
from sbpair.management.calls import shielded
from sbpair.message_io.message_fields import body_of
from sbpair.message_io.message_json import ReceiveCounts, Received, render_peeked, render_received
from sbpair.model.pair import Endpoint, Pair
from sbpair.move.message.route import BACKLOG
from sbpair.move.peek.peeker import read_peeked
from sbpair.move.raw_source import RawReceivedMessage, RawSource, peek_queue
from sbpair.replication.events import DuplicateCompleted, OnEvent, ReplicationEvent
from sbpair.replication.keys import DAY_SECONDS
from sbpair.replication.receivers import MEMORY, AsyncDedupReceiver, checked_source

if TYPE_CHECKING:
    from pathlib import Path

    from azure.servicebus import ServiceBusReceivedMessage

    from sbpair.model.pair import Side

MAX_HELD = 10
MAX_COUNTED = 1_000


@dataclass(frozen=True, slots=True)
class DedupSettings:
    """The key of copies, and where and for how many seconds keys are remembered."""

    key: str = "id"
    store: str | Path = MEMORY
    window_seconds: float = DAY_SECONDS


Show = Callable[[Received], None]

ReceiveSource: TypeAlias = "_OneSource | _BothSources"


async def receive_messages(
    place: Endpoint | Pair,
    entity: str,
    *,
    counts: ReceiveCounts,
    show: Show,
    subscription: str | None = None,
    side: str = "primary",
    dedup: DedupSettings | None = None,
    limit: int,
    wait_seconds: float,
    on_event: OnEvent | None = None,
) -> None:
    """Show and complete up to `limit` messages, until none arrives for `wait_seconds`. Keeps `counts` current.

    Receives from one namespace, which is shown as `side`, or the first copies of both sides of a Pair by `dedup`:
    `entity` is the path to receive from, or the entity of both sides, with its `subscription`.
    Raises UsageError, EntityMissing, AccessError and Unavailable, and the errors of `show`: that message is not
    completed.
    """

    def listener(event: ReplicationEvent) -> None:
        counts.duplicates += isinstance(event, DuplicateCompleted)
        if on_event is not None:
            on_event(event)

    async with _opened(place, entity, subscription, side, dedup, listener) as source:
        left = limit
        while left > 0 and (found := await source.receive(min(left, MAX_HELD), wait_seconds)):
            left -= len(found)
            await _show_and_complete(source, found, counts, show)
    if left > 0:
        # An empty receive proves nothing: locked messages are not delivered.
        path = checked_source(entity, subscription) if isinstance(place, Pair) else entity
        for endpoint in (place.primary, place.secondary) if isinstance(place, Pair) else (place,):
            counts.locked += await _count_active(endpoint, path)


async def _count_active(endpoint: Endpoint, path: str) -> int:
    """Return how many messages of an entity are neither deferred nor scheduled, counting not far beyond MAX_COUNTED."""
    active = counted = 0
    with suppress(SbpairError):
        async with signed_in(connect, endpoint) as client, aclosing(peek_queue(client, path)) as pages:
            async for page in pages:
                active += sum(each.active for each in page)
                counted += len(page)
                if counted > MAX_COUNTED:
                    break
            return active
    return 0


async def _show_and_complete(
    source: ReceiveSource,
    found: Sequence[Any],
    counts: ReceiveCounts,
    show: Show,
) -> None:
    held = list(found)
    try:
        while held:
            show(await source.render(held[0]))
            await shielded(_completed(source, held.pop(0), counts))
    finally:
        with suppress(SbpairError):
            await source.give_back(held)


async def _completed(source: ReceiveSource, message: Any, counts: ReceiveCounts) -> None:
    try:
        await source.complete(message)
        counts.received += 1
    except (MessageLockLost, Unavailable):
        counts.not_removed += 1


@asynccontextmanager
async def _opened(
    place: Endpoint | Pair,
    entity: str,
    subscription: str | None,
    side: str,
    dedup: DedupSettings | None,
    on_event: OnEvent,
) -> AsyncIterator[ReceiveSource]:
    if isinstance(place, Endpoint):
        async with signed_in(connect, place) as client:
            source = await RawSource.open(client, entity, keeps_payload=True, lock_seconds=None)
            try:
                yield _OneSource(source, side)
            finally:
                await source.stop()
        return
    dedup = dedup or DedupSettings()
    async with (
        AsyncExitStack() as opened,
        AsyncDedupReceiver(
            place,
            entity,
            subscription_name=subscription,
            key=dedup.key,
            store=dedup.store,
            window_seconds=dedup.window_seconds,
            on_event=on_event,
        ) as deduplicating,
    ):
        yield _BothSources(deduplicating, place, checked_source(entity, subscription), opened)


class _OneSource:
    """One namespace. What is given back keeps its delivery count."""

    def __init__(self, source: RawSource, side: str) -> None:
        self._source, self._side = source, side

    async def render(self, message: RawReceivedMessage) -> Received:
        return render_received(self._side, message)

    async def receive(self, limit: int, seconds: float) -> Sequence[RawReceivedMessage]:
        self._source.grant(limit)
        return await self._source.receive(limit, seconds=seconds)

    async def complete(self, message: RawReceivedMessage) -> None:
        for _, error in await self._source.complete([message]):
            raise error

    async def give_back(self, messages: Sequence[RawReceivedMessage]) -> None:
        await self._source.release(messages)


class _BothSources:
    """Both namespaces, by the SDK: the delivery count of what is given back rises by one."""

    def __init__(self, receiver: AsyncDedupReceiver, pair: Pair, path: str, opened: AsyncExitStack) -> None:
        self._receiver, self._pair, self._path, self._opened = receiver, pair, path, opened
        self._clients: dict[Side, AmqpClient] = {}

    async def render(self, message: ServiceBusReceivedMessage) -> Received:
        """Peek the message while it is locked: the SDK does not keep the types of its values."""
        side, number = self._receiver.side_of(message), message.sequence_number or 0
        client = self._clients.get(side)
        if client is None or client.error is not None:
            endpoint = self._pair.primary if side == "primary" else self._pair.secondary
            client = self._clients[side] = await self._opened.enter_async_context(signed_in(connect, endpoint))
        for payload in await client.peek(self._path, number, 1):
            peeked = read_peeked(self._path, payload, BACKLOG)
            if peeked.facts.sequence_number == number:
                return render_peeked(side, peeked, body_of(peeked.sections))
        raise UnreadableMessage(
            f"message {number} of {self._path!r} in the {side} is gone", hint="another receiver has it, or it expired"
        )

    async def receive(self, limit: int, seconds: float) -> Sequence[ServiceBusReceivedMessage]:
        with translate_data_errors(f"receiving from {self._receiver.entity_name!r}"):
            return await self._receiver.receive_messages(limit, seconds)

    async def complete(self, message: ServiceBusReceivedMessage) -> None:
        with self._settling():
            await self._receiver.complete_message(message)

    async def give_back(self, messages: Sequence[ServiceBusReceivedMessage]) -> None:
        for message in messages:
            with suppress(SbpairError), self._settling():
                await self._receiver.abandon_message(message)

    def _settling(self) -> AbstractContextManager[None]:
        return translate_data_errors(f"settling in {self._receiver.entity_name!r}")
