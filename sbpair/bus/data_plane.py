"""Receiving and sending with azure-servicebus: one queue or destination each, over a connection of its own.

Thin: it asks, bounds and translates errors. The law: nothing is tried twice here, since a mover knows better what has
happened already; and the SDK's objects belong to one lane.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from azure.servicebus import ServiceBusMessageState
from azure.servicebus.exceptions import MessageSizeExceededError

from sbpair.bus.credentials import token_credential
from sbpair.bus.data_client import aio_client, signed
from sbpair.bus.data_errors import UNDECODABLE, WIRE_HINT, is_answer, translated
from sbpair.errors import EngineLacks, InDoubt, SbpairError, ServiceRefused, TimedOut

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from azure.core.credentials_async import AsyncTokenCredential
    from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver, ServiceBusSender

    from sbpair.bus.data_client import Signed
    from sbpair.bus.decoded import Batch, Outgoing, Received
    from sbpair.model import Endpoint

OPEN_SECONDS = 30.0
CLOSE_SECONDS = 10.0

AT_ONCE_SECONDS = 0.05
"""A receive that ends sooner without a message has not waited for one."""

ANSWER_SECONDS = 60.0
"""How long a send may take: a time-out must exceed 15 s, or a partition has no time to move."""

log = logging.getLogger(__name__)


@asynccontextmanager
async def open_client(endpoint: Endpoint) -> AsyncIterator[ServiceBusClient]:
    """The SDK's client. Nothing is connected before something is received or sent. Raises MachineLacks."""
    async with AsyncExitStack() as stack:
        credential: Signed | AsyncTokenCredential | None = signed(endpoint)
        if credential is None:
            credential = await stack.enter_async_context(token_credential(endpoint.credential))
        client = aio_client(endpoint, credential, None)
        stack.push_async_callback(_closed, client)
        yield client


@asynccontextmanager
async def open_receiver(endpoint: Endpoint, queue: str) -> AsyncIterator[QueueReceiver]:
    """Receive from a queue under lock. Raises EntityMissing, AccessError, Unavailable."""
    async with open_client(endpoint) as client:
        # Without prefetch the credit is what is asked for, and no more than that is ever locked.
        receiver = client.get_queue_receiver(queue, prefetch_count=0)
        try:
            await _opened(receiver, f"receiving from {queue!r}")
            yield QueueReceiver(receiver, queue)
        finally:
            await _closed(receiver)


@asynccontextmanager
async def open_sender(endpoint: Endpoint, destination: str) -> AsyncIterator[DestinationSender]:
    """Send to a queue or topic. Raises EntityMissing, AccessError, Unavailable."""
    async with open_client(endpoint) as client:
        sender = client.get_queue_sender(destination)
        try:
            await _opened(sender, f"sending to {destination!r}")
            yield DestinationSender(sender, destination)
        finally:
            await _closed(sender)


class QueueReceiver:
    """One queue, received from under lock. To be had from `open_receiver`."""

    def __init__(self, receiver: ServiceBusReceiver, queue: str) -> None:
        self._receiver = receiver
        self._queue = queue

    async def receive(self, most: int, seconds: float) -> Sequence[Received]:
        """Up to so many messages; [] where none came within `seconds`. Raises EngineLacks for an unreadable one."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        with translated(f"receiving from {self._queue!r}"):
            messages = await self._receiver.receive_messages(most, max_wait_time=seconds)
        if not messages and loop.time() < started + AT_ONCE_SECONDS < started + seconds:
            # It says nothing at all of some messages that it cannot read, and never receives again.
            raise EngineLacks(f"receiving from {self._queue!r}: the SDK has stopped to receive", hint=WIRE_HINT)
        return messages

    async def complete(self, message: Received) -> None:
        with self._settling():
            await self._receiver.complete_message(message)

    async def abandon(self, message: Received) -> None:
        """Give it back, as far as the SDK can: its delivery count rises."""
        with self._settling():
            await self._receiver.abandon_message(message)

    async def dead_letter(self, message: Received, reason: str, description: str) -> None:
        with self._settling():
            await self._receiver.dead_letter_message(message, reason=reason, error_description=description)

    async def renew(self, message: Received) -> int:
        """When the lock runs out now, in ms since 1970. Raises MessageLockLost."""
        with translated(f"renewing a lock in {self._queue!r}"):
            return int((await self._receiver.renew_message_lock(message)).timestamp() * 1000)

    async def peek(self, start: int, most: int) -> list[tuple[int, Received, bool]]:
        """Messages from a sequence number on: (number, message, whether somebody has put it aside)."""
        with translated(f"peeking in {self._queue!r}"):
            # The SDK takes 0 for "where the last look ended".
            found = await self._receiver.peek_messages(most, sequence_number=max(1, start))
        return [(each.sequence_number or 0, each, each.state is ServiceBusMessageState.DEFERRED) for each in found]

    def _settling(self) -> AbstractContextManager[None]:
        return translated(f"settling in {self._queue!r}")


class DestinationSender:
    """One queue or topic, sent to by one coroutine at a time. To be had from `open_sender`."""

    def __init__(self, sender: ServiceBusSender, destination: str) -> None:
        self._sender = sender
        self._doing = f"sending to {destination!r}"
        self._turn = asyncio.Lock()

    async def batch(self) -> Batch:
        """An empty one, as large as the destination takes."""
        with translated(self._doing):
            return await self._sender.create_message_batch()

    async def send(self, what: Batch | Outgoing, seconds: float = ANSWER_SECONDS) -> None:
        """Returns once the service has accepted all of it. Raises InDoubt where it has not said so, nor refused it."""
        async with self._turn:
            try:
                async with asyncio.timeout(seconds):
                    with translated(self._doing):
                        await self._sender.send_messages(what, timeout=seconds)
            except TimeoutError as error:
                raise InDoubt(f"{self._doing}: no answer came within {seconds:g} s") from error
            except SbpairError as error:
                if is_answer(error.__cause__) and not isinstance(error, TimedOut):
                    raise
                raise InDoubt(f"{self._doing}: no answer came ({error.message})", hint=error.hint) from error


def added(batch: Batch, message: Outgoing) -> bool:
    """Add a message to a batch; False where it does not fit. Raises ServiceRefused for what has no encoding."""
    try:
        batch.add_message(message)
    except MessageSizeExceededError:
        return False
    except UNDECODABLE as error:
        raise ServiceRefused("the SDK cannot encode it", condition="amqp:not-implemented", hint=WIRE_HINT) from error
    return True


async def _opened(handler: ServiceBusReceiver | ServiceBusSender, doing: str) -> None:
    try:
        async with asyncio.timeout(OPEN_SECONDS):
            with translated(doing):
                await handler.__aenter__()
    except TimeoutError as error:
        raise TimedOut(f"{doing}: no link within {OPEN_SECONDS:g} s", hint="a retry may help") from error


async def _closed(handler: ServiceBusReceiver | ServiceBusSender | ServiceBusClient) -> None:
    """Close what may be broken: what goes wrong then concerns nobody any more."""
    try:
        async with asyncio.timeout(CLOSE_SECONDS):
            await handler.close()
    except Exception as error:  # noqa: BLE001  the SDK raises what it likes, and nobody waits for this
        log.info("closing a connection of the SDK: %s", type(error).__name__)
