"""One client's AMQP connection, between its socket and the endpoints of its links.

Invariant: a misbehaving peer harms its own connection only. Everything read at once is answered in one write. Output
beyond OUTPUT_HIGH stops deliveries. Output beyond MAX_OUTPUT stops reading from the peer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias, cast

from sbpair.amqp.connection import Connection, ConnectionClosed, ConnectionOpened, Event
from sbpair.amqp.link import (
    CreditChanged,
    Delivery,
    Link,
    LinkAttaching,
    LinkDetached,
    Sent,
    StatefulDelivery,
    terminus_address,
)
from sbpair.amqp.sasl import SaslServer
from sbpair.amqp.session import Disposed, DrainAnswered, SessionEnded, WindowOpened
from sbpair.amqp_server.refusals import ArgumentInvalid, EntityFull, LinkStolen, ServiceError, amqp_error

if TYPE_CHECKING:
    from sbpair.amqp.link import LinkSession
    from sbpair.amqp.performatives import Open
    from sbpair.amqp_server.claims import Claims
    from sbpair.amqp_server.shared_access import AccessRight

logger = logging.getLogger(__name__)

MAX_READ: Final = 131_072
"""Bytes of one read. asyncio's default is twice that, too much for a core's cache."""

CLOSE_SECONDS: Final = 5.0
"""Time for the peer to read the last output."""

OUTPUT_HIGH: Final = 262_144
MAX_OUTPUT: Final = 4_194_304
MAX_LINKS: Final = 10_000
CREDIT: Final = 1_000
"""Messages that a client may send before it needs new credit, which it gets at half of this."""

Handlers: TypeAlias = dict[type, Callable[[Any, Any], None]]


class LinkEndpoint:
    """The `context` of a link. It stays open while any of `rights`, if it needs some, is granted on `path`.

    The path is "" for no entity.
    """

    ended_peacefully = False
    """Whether the peer ended the link without an error; set before `on_detached`."""

    def __init__(self, owner: ServerConnection, link: Any, path: str, rights: tuple[AccessRight, ...]) -> None:
        self.path = path
        self.rights = rights
        self._owner = owner
        self._link = link
        self._output = owner.output

    @property
    def session(self) -> LinkSession:
        return cast("LinkSession", self._link.session)

    @property
    def is_work(self) -> bool:
        """Whether the link keeps its connection open: one to `$cbs` does not."""
        return bool(self.path)

    def check_rights(self) -> None:
        """Raise Unauthenticated or Unauthorized if the client may not use the link any more."""
        if self.rights:
            self._owner.claims.require(self.rights, self.path)

    def check_open(self) -> None:
        """Raise ServiceError if such a link could no longer be opened. Nodes are always open."""

    def receive(self, delivery: Delivery) -> None:
        """Take a delivery that the peer sent."""

    def flush(self) -> None:
        """Send the dispositions of all that was received in a run of frames, and grant new credit."""
        self.grant()

    def grant(self) -> None:
        """Give new credit when half of it is used."""
        if self._link.IS_RECEIVER and self._link.is_open and self._link.credit <= CREDIT // 2:
            self._link.grant(CREDIT)

    def dispose(self, delivery: Delivery | Sent, state: Any, *, settled: bool = True) -> None:
        """Send the state of one delivery."""
        receiver = self._link.IS_RECEIVER
        self._link.session.dispose(delivery.id, delivery.id, state, receiver=receiver, settled=settled)

    def pull(self) -> None:
        """Send as far as the peer takes messages."""

    def settle(self, deliveries: list[Sent], state: Any, *, settled: bool) -> None:
        """Take the peer's state of deliveries that were sent unsettled; `flush` follows."""

    def has_unanswered(self) -> bool:
        """Return whether requests wait until the peer reads: nothing more is read before."""
        return False

    def on_flow(self) -> None:
        """React to a change of the credit for sending."""

    def on_detached(self) -> None:
        """Stop."""


def address_of(link: Link) -> str:
    """Return the address that a client attaches to: the target it sends to, or the source it receives from."""
    address = terminus_address(link.remote.target if link.IS_RECEIVER else link.remote.source)
    if not address:
        raise ArgumentInvalid("A link needs an address.")
    return address


class AnsweringTransport(asyncio.Transport):
    """A transport that itself answers the peer, such as one over WebSocket, which answers pings."""

    def drop(self) -> None:
        """Close without a word to the peer."""

    def hold(self) -> None:
        """Stop answering until `release`."""

    def release(self) -> None:
        """Answer what came since `hold`."""


class ConnectionOutput:
    """The writer of one connection. `blocked`: the peer does not read. `divert` takes each piece while it is set.

    `may_write` is called before each write. It returns False if what the output acknowledges cannot be stored: then the
    connection breaks, and nothing is written.
    """

    def __init__(self, connection: Connection, transport: asyncio.Transport, may_write: Callable[[], bool]) -> None:
        self.blocked = False
        self.transport = transport
        self.divert: Callable[[bytes | None], None] | None = None
        self._connection = connection
        self._may_write = may_write
        self._loop = asyncio.get_running_loop()
        self._unwritten = 0
        self._flush_due = False
        self._to_pull: dict[LinkEndpoint, None] = {}
        transport.set_write_buffer_limits(OUTPUT_HIGH)

    def count(self, size: int) -> None:
        """Count `size` bytes of pending output; write all of it if it is much."""
        self._unwritten += size
        if self._unwritten >= OUTPUT_HIGH:
            self.flush()

    def flush(self) -> None:
        self._flush_due = False
        self._unwritten = 0
        out = self._connection.take()
        if out and not self._may_write():
            self.transport.abort()
        if self.transport.is_closing():
            # Nothing more can be sent.
            self.blocked = True
            return
        if not out:
            return
        self._connection.wrote(self._loop.time())
        self.send(out)
        if self.blocked and self.transport.get_write_buffer_size() > MAX_OUTPUT:
            self.transport.pause_reading()

    def send(self, piece: bytes | None) -> None:
        """Write a piece of output, or close for None."""
        if self.divert is not None:
            self.divert(piece)
        elif piece is None:
            self.transport.close()
        else:
            self.transport.write(piece)

    def flush_soon(self) -> None:
        """Write the pending output at the end of this turn of the event loop."""
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self.flush)

    def pull_soon(self, outgoing: LinkEndpoint) -> None:
        """Call `outgoing.pull` again after other connections had their turn."""
        if not self._to_pull:
            self._loop.call_soon(self._pull_all)
        self._to_pull[outgoing] = None

    def forget(self, outgoing: LinkEndpoint) -> None:
        """Cancel `pull_soon`: the link is closed."""
        self._to_pull.pop(outgoing, None)

    def _pull_all(self) -> None:
        outgoing, self._to_pull = self._to_pull, {}
        for link in outgoing:
            link.pull()
        if outgoing:
            self.flush()


class ServerConnection(asyncio.Protocol):
    """One client's connection. `peer` is the client's `open`; `on_opened` is called when it has come.

    A subclass opens links (`open_link`) and may handle further events (`HANDLERS`, by the type of event).
    """

    output: ConnectionOutput
    peer: Open

    def __init__(
        self,
        container_id: str,
        claims: Claims,
        on_opened: Callable[[], None] = lambda: None,
        may_write: Callable[[], bool] = lambda: True,
    ) -> None:
        self.claims = claims
        self._container_id = container_id
        self._announce_open = on_opened
        self._may_write = may_write
        self._to_flush: dict[LinkEndpoint, None] = {}
        self._deadline: asyncio.TimerHandle | None = None
        self._heartbeat: asyncio.TimerHandle | None = None
        self._released = False
        self._links_opened = 0

    # The socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast("asyncio.Transport", transport)
        transport.max_size = MAX_READ  # type: ignore[attr-defined]
        self._loop = asyncio.get_running_loop()
        sasl = SaslServer(self.claims.check_key)
        self._connection = Connection(sasl, container_id=self._container_id, now=self._loop.time())
        self.output = ConnectionOutput(self._connection, transport, self._may_write)
        self._set_heartbeat()

    def data_received(self, data: bytes) -> None:
        self.process(data)

    def process(self, data: bytes) -> None:
        """Take bytes of the peer, and answer its frames in their order."""
        to_flush = self._to_flush
        for events in self._connection.receive_in_turn(data, self._loop.time()):
            for event in events:
                if type(event) is Delivery:
                    endpoint = event.link.context
                    if endpoint is not None:
                        to_flush[endpoint] = None
                        endpoint.receive(event)
                else:
                    self._handle(event)
            self.flush_endpoints()
        self.output.flush()

    def flush_endpoints(self) -> None:
        """Do now what waits for the end of a run of frames, so that it comes before what follows."""
        endpoints = list(self._to_flush)
        self._to_flush.clear()
        for endpoint in endpoints:
            endpoint.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self.release(peacefully=False)
        if self._deadline is not None:
            self._deadline.cancel()

    def pause_writing(self) -> None:
        self.output.blocked = True

    def resume_writing(self) -> None:
        self.output.blocked = False
        endpoints = [link.context for link in self.links if link.context is not None]
        for endpoint in sorted(endpoints, key=LinkEndpoint.has_unanswered, reverse=True):
            endpoint.pull()
        self.output.flush()
        if not any(endpoint.has_unanswered() for endpoint in endpoints):
            self.output.transport.resume_reading()

    # Time

    def _set_heartbeat(self) -> None:
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        deadline = self._connection.deadline()
        self._heartbeat = self._loop.call_at(deadline, self._on_heartbeat) if deadline != float("inf") else None

    def _on_heartbeat(self) -> None:
        for event in self._connection.tick(self._loop.time()):
            self._handle(event)
        self.output.flush()
        if not self._released:
            self._set_heartbeat()

    # Links

    def open_link(self, link: Link) -> LinkEndpoint:
        """Accept a link, now or later, and return its endpoint. Raises ServiceError to refuse it."""
        raise NotImplementedError

    @property
    def links(self) -> list[Link]:
        return [link for session in self._connection.sessions for link in session.links]

    def close_link(self, link: Link, error: ServiceError) -> None:
        link.close(amqp_error(error))
        self.release_link(link, peacefully=False)
        self.output.flush_soon()

    def release_link(self, link: Link, *, peacefully: bool) -> None:
        endpoint, link.context = link.context, None
        if endpoint is not None:
            self.output.forget(endpoint)
            endpoint.ended_peacefully = peacefully
            endpoint.on_detached()

    def end_session(self, session: LinkSession, *, peacefully: bool) -> None:
        for link in session.links:
            self.release_link(link, peacefully=peacefully)

    def pull(self, session: LinkSession) -> None:
        for link in session.links:
            if not link.IS_RECEIVER and link.context is not None:
                link.context.pull()

    # Events

    def _handle(self, event: Event) -> None:
        handler = self.HANDLERS.get(type(event))
        if handler is not None and not self._released:
            handler(self, event)

    def on_opened(self, event: ConnectionOpened) -> None:
        self._announce_open()
        self.peer = event.open
        if event.open.hostname:
            self.claims.endpoint = f"sb://{event.open.hostname}"
        self._set_heartbeat()

    def _on_attaching(self, event: LinkAttaching) -> None:
        link = event.link
        self._links_opened += 1
        if self._links_opened > MAX_LINKS:
            # Some may have ended. A client may have thousands: they are not counted each time.
            self._links_opened = len(self.links)
        if self._links_opened > MAX_LINKS:
            # Refused links count until their peer has detached them too, so that it cannot pile them up.
            self.fail(EntityFull(f"A connection has at most {MAX_LINKS} links."))
            return
        self._close_namesakes(link)
        try:
            link.context = self.open_link(link)
        except ServiceError as error:
            link.close(amqp_error(error))

    def _close_namesakes(self, link: Link) -> None:
        """Close the link that `link` replaces: one of its name in the same session, as the service does."""
        for other in link.session.links:
            if other.name == link.name and other.IS_RECEIVER is link.IS_RECEIVER and other.context is not None:
                self.close_link(other, LinkStolen(f"The link '{link.name[:100]}' has been attached again."))

    def _on_credit(self, event: CreditChanged) -> None:
        endpoint = event.link.context
        if endpoint is not None:
            endpoint.on_flow()
        self.pull(event.link.session)

    def on_stateful(self, delivery: StatefulDelivery) -> None:
        endpoint = delivery.link.context
        if endpoint is not None:
            endpoint.receive(delivery)
            self._to_flush[endpoint] = None

    def _on_disposed(self, event: Disposed) -> None:
        for link, deliveries in groupby(event.deliveries, attrgetter("link")):
            if not link.IS_RECEIVER and link.context is not None:
                # First: a settlement may close the link.
                self._to_flush[link.context] = None
                link.context.settle(list(deliveries), event.state, settled=event.settled)

    def _on_closed(self, event: ConnectionClosed) -> None:
        if event.error is not None:
            logger.info("A connection ends: %s: %s", event.error.condition, event.error.description)
        self.end(peacefully=event.by_peer and event.error is None)

    HANDLERS: ClassVar[Handlers] = {
        ConnectionOpened: on_opened,
        LinkAttaching: _on_attaching,
        CreditChanged: _on_credit,
        **dict.fromkeys((WindowOpened, DrainAnswered), lambda self, event: self.pull(event.session)),
        Disposed: _on_disposed,
        StatefulDelivery: on_stateful,
        LinkDetached: lambda self, event: self.release_link(event.link, peacefully=True),
        SessionEnded: lambda self, event: self.end_session(event.session, peacefully=event.error is None),
        ConnectionClosed: _on_closed,
    }

    # The end

    def abort(self) -> None:
        self.output.transport.abort()

    def fail(self, error: ServiceError) -> None:
        """End the connection with an error."""
        self._connection.fail(amqp_error(error))
        self.end(peacefully=False)

    def end(self, *, peacefully: bool) -> None:
        """Close after the last output is written, or after a few seconds if the peer does not read."""
        self.release(peacefully=peacefully)
        self.output.flush()
        self.output.send(None)
        self._deadline = self._loop.call_later(CLOSE_SECONDS, self.output.transport.abort)

    def release(self, *, peacefully: bool) -> None:
        """End the links and the grants, once."""
        if self._released:
            return
        self._released = True
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        for session in self._connection.sessions:
            self.end_session(session, peacefully=peacefully)
        self.claims.clear()
