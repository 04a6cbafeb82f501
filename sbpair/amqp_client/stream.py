"""One AMQP connection on one socket: feeds `amqp.Connection`, writes its output, dispatches its events.

Invariant: everything runs in the event loop's thread, and one burst of work becomes one write. When the connection is
lost, each function of `when_lost` is called once.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from itertools import groupby
from operator import attrgetter
from typing import Any, TypeAlias, cast

from sbpair.amqp.conditions import lost_error
from sbpair.amqp.connection import Connection, ConnectionClosed, ConnectionOpened, Event
from sbpair.amqp.link import CreditChanged, Delivery, Link, LinkAttached, LinkAttaching, LinkDetached, Sent
from sbpair.amqp.performatives import Accepted, Error, Modified, Rejected, Released
from sbpair.amqp.sasl import SaslClient
from sbpair.amqp.session import Disposed, WindowOpened
from sbpair.amqp_client.limits import CLOSE_SECONDS, SILENT_SECONDS
from sbpair.errors import SbpairError, Unavailable, Unreachable
from sbpair.http_tunnel import client_context
from sbpair.model.connect_errors import CONNECT_SECONDS, REACH_HINT, unreachable
from sbpair.model.pair import Endpoint, Transport
from sbpair.operating_system.shortages import shortages_raised

log = logging.getLogger(__name__)

_LINK_EVENTS = (LinkAttached, LinkDetached, CreditChanged)
_link_of = attrgetter("link")
_OUTCOMES = (Accepted, Rejected, Released, Modified)


class Stream(asyncio.Protocol):
    """The protocol of a connection's socket."""

    def __init__(self, endpoint: Endpoint, container_id: str) -> None:
        self._loop = asyncio.get_running_loop()
        self.connection = Connection(
            SaslClient(),
            container_id=container_id,
            hostname=endpoint.tls_name,
            now=self._loop.time(),
        )
        self.address = endpoint.authority
        self.peer = endpoint.amqp_address
        self.opened: asyncio.Future[None] = self._loop.create_future()
        self.error: SbpairError | None = None
        self.lost = asyncio.Event()
        self.when_lost: dict[Callable[[SbpairError], object], None] = {}
        self._closed = asyncio.Event()
        self._transport: asyncio.Transport | None = None
        self._flushing = False
        self._timer: asyncio.TimerHandle | None = None
        self._writable = asyncio.Event()
        self._writable.set()

    # The socket.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.flush()
        self._set_timer()

    def data_received(self, data: bytes) -> None:
        for kind, alike in groupby(self.connection.receive(data, self._loop.time()), type):
            if issubclass(kind, Delivery):
                for link, deliveries in groupby(alike, _link_of):
                    if link.context is not None:
                        link.context.on_deliveries(list(deliveries))
            else:
                for event in alike:
                    self._on_event(event)
        self.flush_soon()

    def connection_lost(self, exc: Exception | None) -> None:
        why = f": {exc}" if exc is not None else ""
        self.fail(Unreachable(f"the connection to {self.address} broke{why}", hint="retry in a minute"))
        self._closed.set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    @property
    def is_writable(self) -> bool:
        """Whether `writable` would return at once."""
        return self.error is None and self._writable.is_set()

    async def writable(self) -> None:
        """Wait until the socket accepts more; raises if it never will."""
        if not self._writable.is_set():
            await self._writable.wait()
        if self.error is not None:
            raise self.error

    # For the rest of the client.

    def flush_soon(self) -> None:
        """Write the pending output at the end of this turn of the loop: one write for a burst."""
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self.flush)

    def fail(self, error: SbpairError) -> None:
        """End the connection with an error, and call `when_lost`."""
        if self.error is not None:
            return
        self.error = error
        self.lost.set()
        if self._timer is not None:
            self._timer.cancel()
        if not self.opened.done():
            self.opened.set_exception(error)
            self.opened.exception()  # mark as retrieved: there may be no waiter
        self._writable.set()
        for notify in tuple(self.when_lost):
            notify(error)
        if self._transport is not None:
            self.flush()
            self._transport.close()

    def abort(self, error: SbpairError) -> None:
        """Send close without waiting for the answer; pending requests fail with this error."""
        if self.error is None:
            self.connection.close()
            self.fail(error)

    def check_silence(self, asked_at: float) -> None:
        """Abort if nothing has come since a request at `asked_at`, by the loop's clock, for too long."""
        seconds = self._loop.time() - asked_at
        if self.connection.last_received <= asked_at and seconds >= SILENT_SECONDS:
            silent = f"nothing has come from {self.address} for {seconds:.0f} s"
            self.abort(Unreachable(silent, hint="retry in a minute"))

    async def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Send close and wait briefly for the answer. If cancelled, do not wait."""
        try:
            if self.error is None:
                self.connection.close()
                self.flush_soon()
                async with asyncio.timeout(seconds):
                    await self._closed.wait()
        except TimeoutError:
            log.debug("%s did not answer the close", self.address)
        finally:
            self.fail(Unreachable(f"the connection to {self.address} is closed"))
            # Under TLS, a transport that has ended cannot be aborted.
            if self._transport is not None and not self._closed.is_set():
                self._transport.abort()
        await self._closed.wait()

    # Inside.

    def _on_event(self, event: Event) -> None:
        if isinstance(event, _LINK_EVENTS):
            _notify(event.link, event)
        elif isinstance(event, Disposed):
            self.on_disposed(event)
        elif isinstance(event, WindowOpened):
            for link in event.session.links:
                _notify(link, event)
        elif isinstance(event, ConnectionOpened):
            self._set_timer()
            if not self.opened.done():
                self.opened.set_result(None)
        elif isinstance(event, LinkAttaching):
            event.link.close(Error("amqp:not-allowed", "This client accepts no links."))
        elif isinstance(event, ConnectionClosed):
            doing = "talking to" if self.opened.done() else "connecting to"
            self.fail(lost_error(event.error, f"{doing} {self.address}"))

    def on_disposed(self, event: Disposed) -> None:
        """Pass the peer's states of deliveries on to their contexts."""
        context = event.deliveries[0].context
        if event.settled and context is not None and context.disposed_all(event.deliveries, event.state):
            return
        for delivery in event.deliveries:
            if not event.settled:
                if not (isinstance(delivery, Sent) and isinstance(event.state, _OUTCOMES)):
                    continue
                # The outcome of a receiver that waits for us to settle first is final too.
                event.session.dispose(delivery.id, delivery.id, event.state, receiver=False, settled=True)
            if delivery.context is not None:
                delivery.context.disposed(delivery, event.state)
            else:
                delivery.settled = True  # the peer settled it by itself

    def flush(self) -> None:
        """Write the pending output now."""
        self._flushing = False
        data = self.connection.take()
        if data and self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)
            self.connection.wrote(self._loop.time())

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        deadline = self.connection.deadline()
        if deadline != float("inf") and self.error is None:
            self._timer = self._loop.call_at(deadline, self._tick)

    def _tick(self) -> None:
        for event in self.connection.tick(self._loop.time()):
            self._on_event(event)
        if self.error is None:
            self.flush()
            self._set_timer()


MakeStream: TypeAlias = Callable[[Endpoint, str], Stream]


def _notify(link: Link, event: Any) -> None:
    # A link requested by the peer has no owner: it was refused.
    if link.context is not None:
        link.context.on_event(event)


async def open_stream(
    endpoint: Endpoint, container_id: str, *, seconds: float = CONNECT_SECONDS, make: MakeStream = Stream
) -> Stream:
    """Connect, and wait until both sides have opened. `make` makes the protocol of the socket.

    Raises Unavailable, NetworkRefused; UsageError for a wrong CA file or a malformed proxy.
    """
    context = client_context(endpoint.ca_file) if endpoint.tls else None
    stream = make(endpoint, container_id)
    try:
        async with asyncio.timeout(seconds):
            with shortages_raised(endpoint.name):
                await _connect(endpoint, stream, context)
            try:
                await stream.opened
            except BaseException:
                await stream.close(0)
                raise
    except TimeoutError:
        raise unreachable(endpoint.name, stream.peer, seconds) from None
    except (OSError, UnicodeError) as error:
        raise unreachable(endpoint.name, stream.peer, error) from error
    except Unavailable as error:
        if error is stream.error:
            error.hint = REACH_HINT
        raise
    return stream


async def _connect(endpoint: Endpoint, stream: Stream, context: ssl.SSLContext | None) -> None:
    name = endpoint.tls_name if context else None
    if endpoint.transport is Transport.TCP:
        connect = asyncio.get_running_loop().create_connection
        await connect(lambda: stream, endpoint.host, endpoint.port, ssl=context, server_hostname=name)
        return
    # Its library takes longer to load than the rest of the client.
    from sbpair.amqp_client.websocket import open_websocket

    await open_websocket(endpoint, stream, context, name)
