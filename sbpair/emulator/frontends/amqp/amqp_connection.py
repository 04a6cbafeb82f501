"""The AMQP door: one connection of a client, from its first byte to its last, between a socket and a namespace.

The law of this file: whatever one peer does costs that peer's connection only. What is read in one go is answered in
one write; while the peer does not read, nothing is taken out of a queue for it, and in the end nothing is read from it.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from sbpair.amqp.connection import Connection
from sbpair.amqp.events import (
    ConnectionClosed,
    ConnectionOpened,
    CreditChanged,
    Delivery,
    Disposed,
    Event,
    LinkAttaching,
    LinkDetached,
    Sent,
    SessionEnded,
    WindowOpened,
)
from sbpair.amqp.link import Link, ReceivingLink, SendingLink
from sbpair.amqp.performatives import Error
from sbpair.amqp.sasl import SaslServer
from sbpair.amqp.types import Map
from sbpair.emulator.access.sas import AccessRight, scope_of
from sbpair.emulator.entities.idle import IdleLink
from sbpair.emulator.entities.sessions import SessionMessages
from sbpair.emulator.faults.fault_points import belongs
from sbpair.emulator.frontends.amqp import cbs, management_operations
from sbpair.emulator.frontends.amqp.cbs import Claims
from sbpair.emulator.frontends.amqp.link_endpoints import (
    IncomingLink,
    LinkEndpoint,
    OutgoingLink,
    ReplyLink,
    RequestLink,
    address_of,
    error_of,
    refuse,
)
from sbpair.emulator.frontends.amqp.request_messages import CBS_KEYS, MANAGEMENT_KEYS, AmqpRequest, Reply, text_at
from sbpair.emulator.frontends.amqp.session_links import asks_for_session, open_session
from sbpair.emulator.service_errors import (
    EntityFull,
    EntityNotFound,
    LinkStolen,
    NotAllowed,
    ServiceError,
    ServiceUnavailable,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from sbpair.amqp.session import Session
    from sbpair.emulator.entities.namespace import AddressTarget, Namespace
    from sbpair.emulator.entities.queue import QueueEntity

logger = logging.getLogger(__name__)

HANDSHAKE_SECONDS: Final = 30.0
GOODBYE_SECONDS: Final = 5.0
"""How long a peer may take to read what a connection that is over still has to say."""

MAX_LINKS: Final = 1_000
OUTPUT_HIGH: Final = 262_144
MAX_OUTPUT: Final = 4_194_304
"""From the first on, queues are left alone; from the second, what the peer sends is left in its socket."""
MAX_READ: Final = 131_072

_ANY = (AccessRight.SEND, AccessRight.LISTEN, AccessRight.MANAGE)


class AmqpConnection(asyncio.Protocol):
    """One client's connection to `namespace`."""

    def __init__(self, namespace: Namespace) -> None:
        self.blocked = False
        self._namespace = namespace
        self._points = namespace.fault_points
        self._claims = Claims(namespace, self._on_expired)
        self._entities: set[QueueEntity] = set()
        self._again: dict[OutgoingLink, None] = {}
        self._holding: dict[RequestLink, None] = {}
        self._unwritten = 0
        self._touched: dict[Any, None] = {}
        self._flush_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._gone = False

    # The socket's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(OUTPUT_HIGH)
        # asyncio's own reading is twice that, which is more than a core's cache holds beside what becomes of it.
        self._transport.max_size = MAX_READ  # type: ignore[attr-defined]
        self._loop = asyncio.get_running_loop()
        now = self._loop.time()
        sasl = SaslServer(self._claims.check_key)
        self._connection = Connection(sasl, container_id=self._namespace.name, now=now)
        self._deadline = self._loop.call_later(HANDSHAKE_SECONDS, self._too_slow)
        self._namespace.on_outage.add(self._on_outage)
        self._points.admit(self, self._transport)
        self._set_timer()
        if self._namespace.down:
            self._on_outage()

    def data_received(self, data: bytes) -> None:
        touched = self._touched
        for event in self._connection.receive(data, self._loop.time()):
            if type(event) is Delivery:
                end = event.link.context
                if end is not None:
                    touched[end] = None
                    end.take(event)
            else:
                self._handle(event)
        for end in touched:
            end.finish()
        touched.clear()
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._leave(released=False)
        self._deadline.cancel()

    def pause_writing(self) -> None:
        self.blocked = True

    def resume_writing(self) -> None:
        self.blocked = False
        holding, self._holding = self._holding, {}
        for requests in holding:
            requests.resume()
        for session in self._connection.sessions:
            self._pull(session)
        self._flush()
        if not self._holding:
            self._transport.resume_reading()

    def sent(self, size: int) -> None:
        self._unwritten += size
        if self._unwritten >= OUTPUT_HIGH:
            self._flush()

    def hold(self, requests: RequestLink) -> None:
        self._holding[requests] = None
        self._transport.pause_reading()

    def _flush(self) -> None:
        self._flush_due = False
        self._unwritten = 0
        out = self._connection.take()
        if self._transport.is_closing():
            # Whatever else there is to say, nobody hears it.
            self.blocked = True
            return
        if not out:
            return
        self._connection.wrote(self._loop.time())
        self._transport.write(out)
        if self.blocked and self._transport.get_write_buffer_size() > MAX_OUTPUT:
            self._transport.pause_reading()

    def flush_soon(self) -> None:
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def pull_soon(self, outlet: OutgoingLink) -> None:
        if not self._again:
            self._loop.call_soon(self._pull_again)
        self._again[outlet] = None

    def _pull_again(self) -> None:
        outlets, self._again = self._again, {}
        if self._gone:
            return
        for outlet in outlets:
            outlet.pull()
        self._flush()

    # Time

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        deadline = self._connection.deadline()
        self._timer = self._loop.call_at(deadline, self._tick) if deadline != float("inf") else None

    def _tick(self) -> None:
        for event in self._connection.tick(self._loop.time()):
            self._handle(event)
        self._flush()
        if not self._gone:
            self._set_timer()

    def _too_slow(self) -> None:
        logger.info("A client did not open its connection within %g seconds.", HANDSHAKE_SECONDS)
        self._transport.abort()

    # What the peer does

    def _handle(self, event: Event) -> None:
        handler = _HANDLERS.get(type(event))
        if handler is not None and not self._gone:
            handler(self, event)

    def _on_opened(self, _event: ConnectionOpened) -> None:
        self._deadline.cancel()
        self._set_timer()
        try:
            self._points.check_connections()
        except ServiceError as refusal:
            self._fail(refusal)

    def _on_attaching(self, event: LinkAttaching) -> None:
        link = event.link
        links = sum(len(session.links) for session in self._connection.sessions)
        if links > MAX_LINKS:
            # Refused links count until their peer has let go of them too: one that does not, cannot pile them up.
            self._fail(EntityFull(f"A connection has at most {MAX_LINKS} links."))
            return
        self._steal(link)
        try:
            link.context = self._end_for(link)
        except ServiceError as refusal:
            refuse(link, refusal)

    def _steal(self, link: Link) -> None:
        """A name that is attached again takes its place, within its session: no further does the service look."""
        for other in link.session.links:
            if other.name == link.name and other.IS_RECEIVER is link.IS_RECEIVER and other.context is not None:
                self.close_link(other, LinkStolen(f"The link '{link.name[:100]}' has been attached again."))

    def _on_credit(self, event: CreditChanged) -> None:
        end = event.link.context
        if end is not None:
            end.on_flow()
        self._pull(event.link.session)

    def _on_window(self, event: WindowOpened) -> None:
        self._pull(event.session)

    def _pull(self, session: Session) -> None:
        for link in session.links:
            if not link.IS_RECEIVER and link.context is not None:
                link.context.pull()

    def _on_disposed(self, event: Disposed) -> None:
        run: list[Sent] = []
        for delivery in event.deliveries:
            if run and delivery.link is not run[0].link:
                self._settle(run, event)
                run = []
            run.append(delivery)
        self._settle(run, event)

    def _settle(self, deliveries: list[Any], event: Disposed) -> None:
        end = deliveries[0].link.context
        if isinstance(end, OutgoingLink):
            end.settle(deliveries, event.state, settled=event.settled)
            self._touched[end] = None

    def _on_detached(self, event: LinkDetached) -> None:
        # A link that is not closed may be come back to, and its messages settled by way of the management node.
        self._let_go(event.link, event.link.abandoned if event.closed else [], released=True)

    def _on_session_ended(self, event: SessionEnded) -> None:
        self._end_session(event.session, released=event.error is None)

    def _on_closed(self, event: ConnectionClosed) -> None:
        if event.error is not None:
            logger.info("A connection ends: %s: %s", event.error.condition, event.error.description)
        self._leave(released=event.by_peer and event.error is None)
        self._flush()
        self._hang_up()

    # Links

    def _end_for(self, link: Link) -> LinkEndpoint:
        """What stands at our end of a link that the client asks for. Raises Refusal."""
        address = address_of(link)
        path = scope_of(address)
        if path == cbs.NODE:
            return self._cbs_end(link)
        # Rights first: who has none does not learn what there is.
        self._claims.require(_ANY, path)
        target = self._namespace.resolve(path)
        self._points.check(path)
        self._watch(target.queue)
        make = self._management_end if target.management else self._message_end
        return make(link, path, target)

    def _cbs_end(self, link: Link) -> LinkEndpoint:
        if isinstance(link, ReceivingLink):
            return RequestLink(self, link, cbs.NODE, "", (), self._claims.put_token, CBS_KEYS)
        return ReplyLink(cast("SendingLink", link), cbs.NODE, "", ())

    def _management_end(self, link: Link, path: str, target: AddressTarget) -> LinkEndpoint:
        if isinstance(link, ReceivingLink):
            answer = partial(self._manage, target, path)
            return RequestLink(self, link, path, path, _ANY, answer, MANAGEMENT_KEYS)
        return ReplyLink(cast("SendingLink", link), path, path, _ANY)

    def _manage(self, target: AddressTarget, path: str, request: AmqpRequest) -> Reply:
        meter = self._points.meter
        if meter is not None:
            try:
                meter.spend(1, path)
            except ServiceError as refusal:
                return Reply.for_error(refusal)
        if used := text_at(request.properties, "associated-link-name"):
            self._use(used)
        return management_operations.execute(request, target, lambda claim: self._claims.require((claim,), path))

    def _use(self, name: str) -> None:
        """A request may say which link of the client it is about: that counts as a use of it."""
        for link in (link for session in self._connection.sessions for link in session.links):
            if link.name == name and isinstance(link.context, (IncomingLink, OutgoingLink)):
                link.context.touch()

    def _message_end(self, link: Link, path: str, target: AddressTarget) -> LinkEndpoint:
        if isinstance(link, ReceivingLink):
            self._claims.require(IncomingLink.claims, path)
            if target.is_dead_letters:
                raise NotAllowed("Nothing can be sent to a dead-letter queue.")
            target.queue.check_send()
            return IncomingLink(self, link, target, path, self._points)
        self._claims.require(OutgoingLink.claims, path)
        target.check_receive()
        if isinstance(target.messages, SessionMessages) or asks_for_session(link):
            return open_session(self, cast("SendingLink", link), target, path, self._namespace)
        return OutgoingLink(self, cast("SendingLink", link), target, path, self._points)

    def _watch(self, queue: QueueEntity) -> None:
        if queue not in self._entities:
            self._entities.add(queue)
            queue.watch(self._on_entity_gone)

    def _on_entity_gone(self, refusal: ServiceError) -> None:
        """An entity was deleted, or disabled: the links that could not be had now end, all others stay."""
        self._recheck(refusal)

    def _on_expired(self) -> None:
        self._recheck(None)

    def _recheck(self, gone: ServiceError | None) -> None:
        for session in self._connection.sessions:
            for link in session.links:
                end = link.context
                if end is None or not end.path:
                    continue
                try:
                    self._claims.require(end.claims, end.path)
                    if gone is not None:
                        self._namespace.resolve(end.path)
                        end.check()
                except EntityNotFound as refusal:
                    self.close_link(link, gone or refusal)
                except ServiceError as refusal:
                    self.close_link(link, refusal)
        self.flush_soon()

    def close_link(self, link: Link, refusal: ServiceError) -> None:
        link.close(error_of(refusal))
        self._let_go(link, [], released=False)
        self.flush_soon()

    def watch_idle(self, link: Link) -> IdleLink:
        return IdleLink(self._namespace.clock, self._namespace.timers, partial(self.close_link, link))

    def _let_go(self, link: Link, unsettled: list[Sent], *, released: bool) -> None:
        end, link.context = link.context, None
        if end is not None:
            self._again.pop(end, None)
            end.gone(unsettled, released=released)

    def _end_session(self, session: Session, *, released: bool) -> None:
        held: dict[Link, list[Sent]] = {}
        for sent in session.sent.values():
            held.setdefault(sent.link, []).append(sent)
        for link in session.links:
            self._let_go(link, held.get(link, []), released=released)

    # Faults

    @property
    def transport(self) -> asyncio.Transport:
        return self._transport

    @property
    def unread(self) -> bytes:
        return self._connection.unread

    def reach(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    def _entity_links(self) -> list[Link]:
        links = [link for session in self._connection.sessions for link in session.links]
        return [link for link in links if link.context is not None and link.context.path]

    def serves(self, entity: str) -> bool:
        return not entity or any(belongs(link.context.path, entity) for link in self._entity_links())

    def detach(self, entity: str, condition: str, text: str) -> None:
        for link in self._entity_links():
            if belongs(link.context.path, entity):
                link.close(Error(condition, text, Map()))
                # What was given out stays under lock, and can be settled by way of the management node.
                self._let_go(link, [], released=False)
        self.flush_soon()

    def resume(self) -> None:
        for session in self._connection.sessions:
            self._pull(session)
        self.flush_soon()

    # The end

    def _on_outage(self) -> None:
        self._fail(ServiceUnavailable(f"The namespace '{self._namespace.name}' is not available."))

    def _fail(self, refusal: ServiceError) -> None:
        self._connection.fail(Error(refusal.condition, refusal.message, Map()))
        self._leave(released=False)
        self._flush()
        self._hang_up()

    def _hang_up(self) -> None:
        """Close, once what is said has been read; a peer that does not read is not waited for long."""
        self._transport.close()
        self._deadline = self._loop.call_later(GOODBYE_SECONDS, self._transport.abort)

    def _leave(self, *, released: bool) -> None:
        """Let go of everything that belongs to the namespace. What was under lock goes back to its queue."""
        if self._gone:
            return
        self._gone = True
        self._deadline.cancel()
        if self._timer is not None:
            self._timer.cancel()
        self._namespace.on_outage.discard(self._on_outage)
        self._points.part(self)
        for queue in self._entities:
            queue.unwatch(self._on_entity_gone)
        for session in self._connection.sessions:
            self._end_session(session, released=released)
        self._claims.forget()


_HANDLERS: Final[dict[type, Callable[[AmqpConnection, Any], None]]] = {
    ConnectionOpened: AmqpConnection._on_opened,
    LinkAttaching: AmqpConnection._on_attaching,
    CreditChanged: AmqpConnection._on_credit,
    WindowOpened: AmqpConnection._on_window,
    Disposed: AmqpConnection._on_disposed,
    LinkDetached: AmqpConnection._on_detached,
    SessionEnded: AmqpConnection._on_session_ended,
    ConnectionClosed: AmqpConnection._on_closed,
}


def amqp_factory(namespace: Namespace) -> AmqpConnection:
    """What a server makes of each connection that speaks AMQP."""
    return AmqpConnection(namespace)
