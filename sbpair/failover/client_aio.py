"""The paired client for programs that await. The law: nothing is decided here."""

# ruff: noqa: ASYNC109  the SDK's senders have their time-outs as arguments

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from sbpair.azure.data_client import aio_client, signed
from sbpair.failover import client_base
from sbpair.failover.pinger import Pinger
from sbpair.failover.reusable_timeout import ReusableTimeout
from sbpair.failover.steps import GRACE_SECONDS, Steps, run_async

if TYPE_CHECKING:
    from azure.core.credentials_async import AsyncTokenCredential
    from azure.identity.aio import DefaultAzureCredential
    from azure.servicebus.aio import ServiceBusClient

    from sbpair.failover.sdk_messages import Messages, SizedBatch
    from sbpair.model.pair import Endpoint

T = TypeVar("T")


class AsyncPairedSender(client_base.SenderBase):
    """Sends to one queue or topic of the primary, or into the backlog while that is away: a ServiceBusSender otherwise.

    Tasks may share it, and take turns: the SDK's own senders are for one task.
    """

    def __init__(self, paired: AsyncFailoverClient, entity: str, topic: bool) -> None:
        super().__init__(paired, entity, topic)
        self._turn = asyncio.Lock()
        self._watch = ReusableTimeout()

    async def send_messages(self, message: Messages, *, timeout: float | None = None) -> None:
        """Send one message, several in one batch, or a batch; returns once a side, or the outbox, has all of it.

        Raises the SDK's errors, and UsageError for a message that has an `x-ms-path` or another alias already.
        """
        exchange, seconds = self._exchange, self._seconds(timeout)
        async with self._turn:
            sender = exchange.straight(message)
            if sender is None:
                return await run_async(exchange.send(message, seconds))
            since, left = self._client.now(), seconds * exchange.share
            try:
                with self._watch.over(left + GRACE_SECONDS):
                    await sender.send_messages(message, timeout=left)
            except BaseException as error:  # noqa: BLE001  the steps decide, a cancellation included
                await run_async(exchange.send(message, seconds, since=since, failed=error))
            else:
                exchange.went(1)
            return None

    async def create_message_batch(self, max_size_in_bytes: int | None = None) -> SizedBatch:
        """An empty batch, as large as the entity takes."""
        return await self._run(None, self._exchange.batch, max_size_in_bytes)

    async def schedule_messages(
        self, messages: Messages, schedule_time_utc: datetime, *, timeout: float | None = None
    ) -> list[int]:
        """Send for later. The numbers are to cancel by; negative ones are of messages in the backlog or the outbox."""
        return await self._run(timeout, self._exchange.schedule, messages, schedule_time_utc)

    async def cancel_scheduled_messages(
        self, sequence_numbers: int | list[int], *, timeout: float | None = None
    ) -> None:
        """Cancel what waits in the primary. Raises UsageError for what waits elsewhere."""
        await self._run(timeout, self._exchange.cancel, sequence_numbers)

    async def close(self) -> None:
        async with self._turn:
            self._watch.end()
            await run_async(self._closing())

    async def __aenter__(self) -> AsyncPairedSender:
        return self

    async def __aexit__(self, *_details: object) -> None:
        await self.close()

    async def _run(self, timeout: float | None, steps: Callable[..., Steps[T]], *about: Any) -> T:
        async with self._turn:
            return await run_async(steps(*about, self._seconds(timeout)))


class AsyncFailoverClient(client_base.ClientBase[AsyncPairedSender]):
    __doc__ = client_base.ClientBase.__doc__
    _pinger: Pinger | None = None
    _pinging: asyncio.Task[None] | None = None
    _identity: DefaultAzureCredential | None = None

    async def close(self) -> None:
        """Close its senders, and ping no more. What is in the outbox stays in its file."""
        self._closed = True
        if self._pinging is not None:
            self._pinging.cancel()
            await asyncio.wait((self._pinging,))
        for sender in self._senders:
            await sender.close()
        self._close_outbox()
        if self._identity is not None:
            await self._identity.close()

    async def __aenter__(self) -> AsyncFailoverClient:
        self._wake_late()
        return self

    async def __aexit__(self, *_details: object) -> None:
        await self.close()

    def sdk_client(self, endpoint: Endpoint) -> ServiceBusClient:
        return aio_client(endpoint, signed(endpoint) or self._signed_in(), self.timeout)

    def _wake(self) -> None:
        if self._closed:
            return
        if self._pinger is None:
            try:
                loop = asyncio.get_running_loop()
            except RuntimeError:
                # The client was made before the loop was: it begins when it is entered, or gives a sender.
                return
            self._pinger = Pinger(self.pair, self.known, self.now, self._deliver, self.outage)
            self._pinging = loop.create_task(self._pinger.run(), name="sbpair pinger")
        self._pinger.wake()

    def _wake_late(self) -> None:
        if self._pinger is None and self.known.next_due() is not None:
            self._wake()

    def _make(self, entity: str, topic: bool) -> AsyncPairedSender:
        self._wake_late()
        return AsyncPairedSender(self, entity, topic)

    def _signed_in(self) -> AsyncTokenCredential:
        if self._identity is None:
            from azure.identity.aio import DefaultAzureCredential

            self._identity = DefaultAzureCredential()
        return self._identity
