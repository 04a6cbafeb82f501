"""Sources with sessions: one session after the other is locked, and its messages are received and settled in order.

Invariant: the lock of a session belongs to its link. When that ends, all its unsettled messages are unlocked.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from sbpair.errors import MessageLockLost, SbpairError, SessionLockLost, TimedOut, Unreachable
from sbpair.move.raw_source import RawReceivedMessage, RawSource
from sbpair.move.skipped import SkippedMessages

if TYPE_CHECKING:
    from sbpair.amqp.link import Delivery
    from sbpair.amqp.performatives import Outcome
    from sbpair.amqp_client.client import AmqpClient, SessionReceiver
    from sbpair.amqp_client.raw_links import RawReceiver
    from sbpair.move.context import MoveContext
    from sbpair.move.interface import Failures, KeptMessage, ReceivedMessage

log = logging.getLogger(__name__)

RENEW_SECONDS = 2.0
"""How often the locks of parked sessions are renewed: the shortest lock of Service Bus is 5 s."""

GATHER_SECONDS = 0.05
"""How long a receive waits for messages of a session before it asks the service whether there are more."""

_CLOSED = Unreachable("the session's link is closed", hint="the next run goes on")


class SessionsSource(RawSource):
    """A source with sessions, before one is locked: it can be peeked, and gives the next session."""

    @classmethod
    async def _open_receiver(cls, wire: AmqpClient, queue: str) -> RawReceiver:  # noqa: ARG003
        return cast("RawReceiver", None)

    async def next_session(self, seconds: float) -> SessionSource | None:
        """Lock the next session that has messages; None if none is free within `seconds`. Raises Unavailable."""
        try:
            receiver = await self._wire.next_session(self.queue, seconds)
        except TimedOut:
            if self._wire.error is not None:
                raise
            return None
        session = SessionSource(self._wire, receiver, self.queue, lock_seconds=self._lock_seconds)
        session._decoder = self._decoder  # the messages of most sessions are alike
        return session

    @property
    def error(self) -> SbpairError | None:
        return self._wire.error

    @property
    def lost(self) -> Sequence[Delivery]:
        return ()

    def interrupt(self) -> None:
        """Do nothing: no receive waits."""

    async def stop(self) -> None:
        """Do nothing: nothing was received."""

    async def unlock(self, deliveries: Sequence[Delivery]) -> None:
        """Do nothing: the lock of a session ends with its link."""

    async def settle_by_token(self, messages: Sequence[ReceivedMessage], outcome: Outcome) -> Failures:  # noqa: ARG002
        return [(message, _CLOSED) for message in messages]


class SessionSource(SessionsSource):
    """One locked session: an empty receive means that it has no more messages now."""

    _receiver: SessionReceiver

    @property
    def error(self) -> SbpairError | None:
        return self._receiver.error

    @property
    def lost(self) -> Sequence[Delivery]:
        return ()

    def interrupt(self) -> None:
        self._receiver.interrupt()

    async def stop(self) -> None:
        await RawSource.stop(self)

    def close(self) -> None:
        self._receiver.close()

    async def reopen(self) -> bool:
        return False

    async def receive(self, limit: int, *, seconds: float) -> list[RawReceivedMessage]:
        """Receive messages; [] if the session has none now. Raises Unavailable."""
        messages = await super().receive(limit, seconds=min(seconds, GATHER_SECONDS))
        if messages:
            return messages
        await self._receiver.drain()
        return await super().receive(limit, seconds=0.0)

    async def renew(self, messages: Sequence[ReceivedMessage]) -> None:
        try:
            until_ms = await self._wire.renew_session(self._receiver)
        except SessionLockLost as error:
            raise MessageLockLost(error.message, hint=error.hint) from error
        self._clock.sample()
        for message in messages:
            message.lock_until = self._clock.local_time(until_ms)

    async def renew_kept(self, messages: Sequence[KeptMessage]) -> None:
        await self.renew(cast("Sequence[ReceivedMessage]", messages))


class ParkedSessions(SkippedMessages):
    """Sessions with skipped messages, and these. They stay locked until the run ends, or they would come again."""

    def __init__(self, source: SessionsSource) -> None:
        super().__init__(source)
        self._sessions: dict[SessionSource, SkippedMessages] = {}

    def __contains__(self, session: SessionSource) -> bool:
        return session in self._sessions

    def __len__(self) -> int:
        return sum(map(len, self._sessions.values()))

    def skipped_in(self, session: SessionSource) -> SkippedMessages:
        """Return the skipped messages of a session that is moved next: those that were skipped before are known."""
        skipped = SkippedMessages(session)
        skipped.times = self.times
        return skipped

    def park(self, session: SessionSource, skipped: SkippedMessages) -> None:
        """Keep a session, if messages of it were skipped."""
        if len(skipped):
            self._sessions[session] = skipped

    async def keep_locked(self, context: MoveContext) -> None:
        """Renew the locks of sessions until cancelled. One whose lock is lost comes again."""
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            for session in list(self._sessions):
                context.tally.spent("renewals", 1)
                try:
                    await session.renew([])
                except SbpairError as error:
                    log.info("a session of %s is not locked any more: %s", session.queue, error.message)
                    del self._sessions[session]

    async def close(self, context: MoveContext) -> None:
        """Release all skipped messages, and their sessions."""
        sessions, self._sessions = self._sessions, {}
        for session, skipped in sessions.items():
            context.tally.spent("received", await skipped.release_all())
            session.close()
