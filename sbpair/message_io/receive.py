"""Receiving from both namespaces for a command: the first copies of messages, each shown and then completed.

Invariant: no message is removed before it has been shown. Messages still held at the end are given back.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack, aclosing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sbpair.amqp_client.client import AmqpClient, connect
from sbpair.azure.credentials import signed_in
from sbpair.azure.data_plane import translate_data_errors
from sbpair.errors import MessageLockLost, SbpairError, Unavailable, UnreadableMessage
from sbpair.management.calls import shielded
from sbpair.message_io.message_fields import body_of
from sbpair.message_io.message_json import ReceiveCounts, Received, render_peeked
from sbpair.move.message.route import BACKLOG
from sbpair.move.peek.peeker import read_peeked
from sbpair.move.raw_source import peek_queue
from sbpair.replication.events import DuplicateCompleted, OnEvent, ReplicationEvent
from sbpair.replication.keys import DAY_SECONDS
from sbpair.replication.receivers import MEMORY, AsyncDedupReceiver, checked_source

if TYPE_CHECKING:
    from pathlib import Path

    from azure.servicebus import ServiceBusReceivedMessage

    from sbpair.model.pair import Endpoint, Pair, Side

MAX_HELD = 10
MAX_COUNTED = 1_000


@dataclass(frozen=True, slots=True)
class DedupSettings:
    """The key of copies, and where and for how many seconds keys are remembered."""

    key: str = "id"
    store: str | Path = MEMORY
    window_seconds: float = DAY_SECONDS


Show = Callable[[Received], None]


async def receive_copies(
    pair: Pair,
    entity: str,
    *,
    counts: ReceiveCounts,
    show: Show,
    subscription: str | None = None,
    dedup: DedupSettings,
    limit: int,
    wait_seconds: float,
    on_event: OnEvent,
) -> None:
    """Show and complete up to `limit` first copies, until none arrives for `wait_seconds`. Keeps `counts` current.

    Raises UsageError, EntityMissing, AccessError and Unavailable, and the errors of `show`: that message is not
    completed.
    """

    def listener(event: ReplicationEvent) -> None:
        counts.duplicates += isinstance(event, DuplicateCompleted)
        on_event(event)

    left, path = limit, checked_source(entity, subscription)
    async with (
        AsyncExitStack() as opened,
        AsyncDedupReceiver(
            pair,
            entity,
            subscription_name=subscription,
            key=dedup.key,
            store=dedup.store,
            window_seconds=dedup.window_seconds,
            on_event=listener,
        ) as receiver,
    ):
        copies = _LockedCopies(receiver, pair, path, opened)
        while left > 0:
            with translate_data_errors(f"receiving from {entity!r}"):
                found = await receiver.receive_messages(min(left, MAX_HELD), wait_seconds)
            if not found:
                break
            left -= len(found)
            await copies.show_and_complete(list(found), counts, show)
    if left > 0:
        # An empty receive proves nothing: locked messages are not delivered.
        for endpoint in (pair.primary, pair.secondary):
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


class _LockedCopies:
    """Messages that the SDK has received from both sides. A message that is given back has one more delivery."""

    def __init__(self, receiver: AsyncDedupReceiver, pair: Pair, path: str, opened: AsyncExitStack) -> None:
        self._receiver, self._pair, self._path, self._opened = receiver, pair, path, opened
        self._clients: dict[Side, AmqpClient] = {}

    async def show_and_complete(self, held: list[ServiceBusReceivedMessage], counts: ReceiveCounts, show: Show) -> None:
        try:
            while held:
                show(await self._rendered(held[0]))
                await shielded(self._completed(held.pop(0), counts))
        finally:
            for message in held:
                with suppress(SbpairError), translate_data_errors(f"settling in {self._receiver.entity_name!r}"):
                    await self._receiver.abandon_message(message)

    async def _rendered(self, message: ServiceBusReceivedMessage) -> Received:
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

    async def _completed(self, message: ServiceBusReceivedMessage, counts: ReceiveCounts) -> None:
        try:
            with translate_data_errors(f"settling in {self._receiver.entity_name!r}"):
                await self._receiver.complete_message(message)
            counts.received += 1
        except (MessageLockLost, Unavailable):
            counts.not_removed += 1
