"""The paired clients for programs that block and for asyncio programs. Invariant: this module decides nothing."""

# ruff: noqa: ASYNC109  the SDK's senders have their time-outs as arguments

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self

from sbpair.failover import base
from sbpair.failover.background import AsyncBackgroundSyphon, BackgroundSyphon, LoopThread
from sbpair.failover.side_connections import AsyncClosable, SyncClosable
from sbpair.failover.steps import GRACE_SECONDS, ReusableTimeout, Steps, awaiting, blocking, drive, drive_async

if TYPE_CHECKING:
    from sbpair.failover.sdk_messages import Messages

STOP_SECONDS = 15.0


class PairedSender(base.SenderBase, SyncClosable):
    """Sends to one queue or topic of the primary, or to the backlog, with the methods of a ServiceBusSender.

    Threads may share it. They take turns, because an SDK sender is for one thread.
    """

    def send_messages(self, message: Messages, *, timeout: float | None = None) -> None:
        """Send one message, several, or a batch. Returns once a side, or the outbox, has accepted all of it.

        Raises the SDK's errors, and UsageError for a message that already has `x-ms-path` or another alias.
        """
        send, seconds = self._failover_send, self._seconds(timeout)
        with self._turn:
            sender = send.fast_path(message)
            if sender is None:
                return drive(send.send(message, seconds))
            since = self._client.now()
            try:
                sender.send_messages(message, timeout=seconds * send.share)
            except BaseException as error:  # noqa: BLE001  the steps decide, an interrupt included
                drive(send.send(message, seconds, since=since, failed=error))
            else:
                send.count_sent(1)
            return None

    create_message_batch = blocking(base.SenderBase._create_message_batch)
    schedule_messages = blocking(base.SenderBase._schedule_messages)
    cancel_scheduled_messages = blocking(base.SenderBase._cancel_scheduled_messages)


class PairedClient(base.ClientBase[PairedSender, BackgroundSyphon], SyncClosable):
    __doc__ = base.ClientBase.__doc__
    _sender_class = PairedSender
    _syphon_class = BackgroundSyphon
    _pinger_thread: LoopThread | None = None

    def close(self) -> None:
        """Stop its syphon and its pings, and close its senders. Messages in the outbox stay in its file."""
        if self._syphon is not None:
            self._syphon.stop()
        self._closed = True
        if self._pinger_thread is not None:
            self._pinger_thread.end(STOP_SECONDS)
        for sender in self._senders:
            sender.close()
        self._close_outbox()
        drive(self.sdk_clients.close())

    def _wake_pinger(self) -> None:
        if self._closed:
            return
        if self._pinger_thread is None:
            self._pinger_thread = LoopThread("sbpair pinger", self._pinger.run())
        self._pinger_thread.call(self._pinger.wake)


class AsyncPairedSender(base.SenderBase, AsyncClosable):
    """Sends to one queue or topic of the primary, or to the backlog, with the methods of a ServiceBusSender.

    Tasks may share it. They take turns, because an SDK sender is for one task.
    """

    def __init__(self, client: AsyncPairedClient, entity: str, topic: bool) -> None:
        super().__init__(client, entity, topic)
        self._timeout = ReusableTimeout()

    async def send_messages(self, message: Messages, *, timeout: float | None = None) -> None:
        """Send one message, several, or a batch. Returns once a side, or the outbox, has accepted all of it.

        Raises the SDK's errors, and UsageError for a message that already has `x-ms-path` or another alias.
        """
        send, seconds = self._failover_send, self._seconds(timeout)
        async with self._turn:
            sender = send.fast_path(message)
            if sender is None:
                return await drive_async(send.send(message, seconds))
            since, left = self._client.now(), seconds * send.share
            try:
                with self._timeout.limit(left + GRACE_SECONDS):
                    await sender.send_messages(message, timeout=left)
            except BaseException as error:  # noqa: BLE001  the steps decide, a cancellation included
                await drive_async(send.send(message, seconds, since=since, failed=error))
            else:
                send.count_sent(1)
            return None

    create_message_batch = awaiting(base.SenderBase._create_message_batch)
    schedule_messages = awaiting(base.SenderBase._schedule_messages)
    cancel_scheduled_messages = awaiting(base.SenderBase._cancel_scheduled_messages)

    def _closing(self) -> Steps[None]:
        self._timeout.cancel()
        return super()._closing()


class AsyncPairedClient(base.ClientBase[AsyncPairedSender, AsyncBackgroundSyphon], AsyncClosable):
    __doc__ = base.ClientBase.__doc__
    _sender_class = AsyncPairedSender
    _syphon_class = AsyncBackgroundSyphon
    _pinger_task: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """Stop its syphon and its pings, and close its senders. Messages in the outbox stay in its file."""
        if self._syphon is not None:
            await self._syphon.stop()
        self._closed = True
        if self._pinger_task is not None:
            self._pinger_task.cancel()
            await asyncio.wait((self._pinger_task,))
        for sender in self._senders:
            await sender.close()
        self._close_outbox()
        await drive_async(self.sdk_clients.close())

    async def __aenter__(self) -> Self:
        self._start_late_pinger()
        return self

    def _wake_pinger(self) -> None:
        if self._closed:
            return
        if self._pinger_task is None:
            try:
                loop = asyncio.get_running_loop()
            except RuntimeError:
                # The client was created before the loop. The pinger starts with `async with` or the first sender.
                return
            self._pinger_task = loop.create_task(self._pinger.run(), name="sbpair pinger")
        self._pinger.wake()

    def _start_late_pinger(self) -> None:
        if self._pinger_task is None and self.failover_state.next_due() is not None:
            self._wake_pinger()

    def _get_sender(self, entity: str, *, topic: bool) -> AsyncPairedSender:
        self._start_late_pinger()
        return super()._get_sender(entity, topic=topic)
