"""The connection to a namespace that stands behind a client's: its socket, its claims, and a session for each session.

Invariant: it is opened when a link first needs it, and again after it was lost. Nothing is read from its socket while
the client does not read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from sbpair.amqp.session import Disposed
from sbpair.amqp_client.client import AmqpClient, connect
from sbpair.amqp_client.stream import Stream
from sbpair.azure.credentials import signed_in
from sbpair.errors import SbpairError, Unreachable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sbpair.amqp.link import Delivery, LinkSession
    from sbpair.amqp.session import Session
    from sbpair.model.pair import Endpoint

Spawn: TypeAlias = Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]]

_link_of: Final = attrgetter("link")


class Twin:
    """The context of a link in the upstream connection, which stands for a link of the client."""

    def on_event(self, event: Any) -> None:
        """Take LinkAttached, LinkDetached, CreditChanged, DrainAnswered or WindowOpened."""

    def on_deliveries(self, deliveries: list[Delivery]) -> None:
        """Take messages from the namespace."""

    def on_disposed(self, deliveries: list[Any], state: Any, *, settled: bool) -> None:
        """Take the namespace's state of deliveries: Sent were sent to it, each Delivery was received from it."""

    def on_lost(self, error: SbpairError) -> None:
        """Take the loss of the connection."""


class UpstreamStream(Stream):
    """The socket of an upstream connection.

    `after_read` is called after each read, and `set_blocked` when the namespace stops reading, or goes on.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        container_id: str,
        *,
        after_read: Callable[[], None],
        set_blocked: Callable[[bool], None],
    ) -> None:
        super().__init__(endpoint, container_id)
        self._after_read, self._set_blocked = after_read, set_blocked
        self._holding = False

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._after_read()
        self.flush()

    def on_disposed(self, event: Disposed) -> None:
        for link, group in groupby(event.deliveries, _link_of):
            deliveries = list(group)
            if isinstance(link.context, Twin):
                link.context.on_disposed(deliveries, event.state, settled=event.settled)
            else:
                super().on_disposed(Disposed(event.session, deliveries, event.state, event.settled))

    def pause_writing(self) -> None:
        super().pause_writing()
        self._set_blocked(True)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._set_blocked(False)

    def hold(self, *, holding: bool) -> None:
        """Stop reading, or go on."""
        self._holding = holding
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading() if holding else self._transport.resume_reading()

    def _tick(self) -> None:
        if self._holding:
            # Its silence is ours.
            self.connection.last_received = self._loop.time()
        super()._tick()


class Upstream:
    """Opens the connection when needed. `endpoint()` is asked for each one: of a lost primary, it is the secondary."""

    def __init__(
        self,
        endpoint: Callable[[], Endpoint],
        after_read: Callable[[], None],
        set_blocked: Callable[[bool], None],
        spawn: Spawn,
    ) -> None:
        self._endpoint, self._spawn = endpoint, spawn
        self._after_read, self._set_blocked = after_read, set_blocked
        self._opening: asyncio.Future[AmqpClient] | None = None
        self._stream: UpstreamStream | None = None
        self._sessions: dict[LinkSession, Session] = {}
        self._ended = asyncio.Event()
        self._held = self._closed = False

    async def client(self) -> AmqpClient:
        """Return the open connection. Raises Unavailable, AccessError, UsageError if none can be opened."""
        if self._closed:
            raise Unreachable("the client has ended its connection")
        if self._opening is None:
            self._ended = asyncio.Event()
            self._opening = asyncio.get_running_loop().create_future()
            # Not of interest once all that wait for it were cancelled.
            self._opening.add_done_callback(lambda opening: opening.cancelled() or opening.exception())
            self._spawn(self._serve(self._opening, self._ended), "an upstream connection")
        return await asyncio.shield(self._opening)

    async def _serve(self, opening: asyncio.Future[AmqpClient], ended: asyncio.Event) -> None:
        endpoint = self._endpoint()
        make = partial(connect, make=self._make_stream)
        try:
            async with signed_in(make, endpoint) as client:
                opening.set_result(client)
                self.hold(holding=self._held)
                await ended.wait()
                self._forget(opening)
        except SbpairError as error:
            if not opening.done():
                opening.set_exception(error)
        finally:
            if not opening.done():
                opening.set_exception(Unreachable(f"the connection to {endpoint.name} was not opened"))
            self._forget(opening)

    def _forget(self, opening: asyncio.Future[AmqpClient]) -> None:
        if self._opening is opening:
            self._opening = self._stream = None
            self._sessions = {}

    def _make_stream(self, endpoint: Endpoint, container_id: str) -> UpstreamStream:
        self._stream = stream = UpstreamStream(
            endpoint, container_id, after_read=self._after_read, set_blocked=self._set_blocked
        )
        ended = self._ended
        stream.when_lost[lambda error: self._on_lost(error, ended)] = None
        return stream

    def _on_lost(self, error: SbpairError, ended: asyncio.Event) -> None:
        ended.set()
        if self._ended is not ended:
            return
        self._opening = self._stream = None
        self._set_blocked(False)
        sessions, self._sessions = self._sessions, {}
        for twin in _twins(sessions.values()):
            twin.on_lost(error)

    def session(self, client: AmqpClient, theirs: LinkSession) -> Session:
        """Return the session that stands for one of the client's. Raises Unavailable."""
        session = self._sessions.get(theirs)
        if session is None or not session.usable:
            session = self._sessions[theirs] = client.begin()
        return session

    def end_session(self, theirs: LinkSession) -> None:
        session = self._sessions.pop(theirs, None)
        if session is not None:
            session.end()
            self.flush()

    def forget_claims(self, entities: Iterable[str]) -> None:
        """Forget claims, so that the next links to these entities sign in again: a token was refused."""
        if self._opening is not None and self._opening.done() and self._opening.exception() is None:
            for entity in entities:
                self._opening.result().forget_claim(entity)

    def flush(self) -> None:
        if self._stream is not None:
            self._stream.flush()

    def hold(self, *, holding: bool) -> None:
        """Stop reading from the namespace while the client does not read."""
        self._held = holding
        if self._stream is not None:
            self._stream.hold(holding=holding)

    def break_off(self, error: SbpairError) -> None:
        """End the connection at once, as if it were lost: the next use opens another one."""
        if self._stream is not None:
            self._stream.abort(error)

    def break_blocked(self, error: SbpairError) -> None:
        """End the connection if the namespace does not read: the client would not be read meanwhile."""
        if self._stream is not None and not self._stream.is_writable:
            self._stream.abort(error)

    def close(self) -> None:
        """End the connection for good; its twins are closed already."""
        self._closed = True
        self._ended.set()


def _twins(sessions: Iterable[Session]) -> list[Twin]:
    links = [link for session in sessions for link in session.links]
    return [link.context for link in links if isinstance(link.context, Twin)]
