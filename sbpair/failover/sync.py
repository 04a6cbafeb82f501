"""The paired client for programs that block. Invariant: this module decides nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sbpair.failover import base
from sbpair.failover.background_syphon import BackgroundSyphon
from sbpair.failover.pinger import PingerThread
from sbpair.failover.side_connections import SyncClosable
from sbpair.failover.steps import blocking, drive

if TYPE_CHECKING:
    from sbpair.failover.sdk_messages import Messages


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
    _pinger: PingerThread | None = None

    def close(self) -> None:
        """Stop its syphon and its pings, and close its senders. Messages in the outbox stay in its file."""
        if self._syphon is not None:
            self._syphon.stop()
        self._closed = True
        if self._pinger is not None:
            self._pinger.stop()
        for sender in self._senders:
            sender.close()
        self._close_outbox()
        drive(self.sdk_clients.close())

    def _wake_pinger(self) -> None:
        if self._closed:
            return
        if self._pinger is None:
            self._pinger = PingerThread(self._make_pinger)
        self._pinger.wake()
