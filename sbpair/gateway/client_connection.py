"""One client's connection: its sign-in by the local key, its links, and the upstream connection behind it.

Invariant: nothing that a client presents reaches a namespace. Backlog queues cannot be attached to.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, ClassVar, Final
from urllib.parse import unquote

from sbpair.amqp.link import Delivery, Link, LinkDetached
from sbpair.amqp.performatives import Coordinator, Rejected
from sbpair.amqp.session import Disposed, SessionEnded
from sbpair.amqp_server.claims import Claims
from sbpair.amqp_server.node_links import CBS_NODE, open_to_cbs
from sbpair.amqp_server.refusals import NotAllowed, ServiceError, ServiceUnavailable, Unauthenticated, amqp_error
from sbpair.amqp_server.server_connection import Handlers, LinkEndpoint, ServerConnection, address_of
from sbpair.amqp_server.shared_access import (
    NO_EXPIRY,
    SCHEME,
    AccessRight,
    AuthorizationRule,
    Grant,
    parse_token,
    path_of,
    scope_of,
    verify_token,
)
from sbpair.backlog import is_path, primary_of
from sbpair.errors import SbpairError, Unavailable
from sbpair.gateway.client_errors import end_of_link
from sbpair.gateway.failing_sender import FailingSender
from sbpair.gateway.management_links import ManagementReplies, ManagementRequests
from sbpair.gateway.mirrored_connection import MirroredConnection
from sbpair.gateway.mirrored_links import MANAGEMENT, MirroredLink, MirroredReceiver, MirroredSender, via_of

if TYPE_CHECKING:
    from sbpair.amqp.link import LinkSession
    from sbpair.gateway.gateway_core import GatewayCore

SEND: Final = (AccessRight.SEND,)
LISTEN: Final = (AccessRight.LISTEN,)
EITHER: Final = (*SEND, *LISTEN)
RETRY_SECONDS: Final = 1.0
"""How long an attach waits while the primary is away before it is tried again."""

_link_of: Final = attrgetter("link")


def _usual(path: str) -> str:
    """Return the path that a namespace might read in an odd spelling of it."""
    return "/".join(part.strip() for part in unquote(path).split("/") if part.strip() not in ("", "."))


class LocalClaims(Claims):
    """The grants of one connection, by the gateway's key."""

    def __init__(self, rule: AuthorizationRule, on_lost: Callable[[], None]) -> None:
        super().__init__("sb://localhost", on_lost)
        self._rule = rule
        self._expiry: asyncio.TimerHandle | None = None

    def keys(self) -> Iterable[AuthorizationRule]:
        return (self._rule,)

    def authenticate(self, token: str, name: str) -> Grant:
        if not token.startswith(SCHEME):
            raise Unauthenticated(
                "The gateway takes no token of an identity: sign in with its own key, and it signs in to Azure by the "
                "configuration of the pair."
            )
        return verify_token(parse_token(token), [("", self._rule)], scope_of(name), self.now_ms())

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def expire_at(self, at_ms: int) -> None:
        self._cancel()
        if at_ms != NO_EXPIRY:
            left = max(0, at_ms - self.now_ms()) / 1000
            self._expiry = asyncio.get_running_loop().call_later(left, self.expire)

    def require_any(self) -> None:
        """Raise Unauthenticated for a client that has not signed in: a coordinator belongs to no entity."""
        if not any(grant.expires_at_ms > self.now_ms() for grant in self._grants.values()):
            raise Unauthenticated("Unauthorized access. Sign in with the key of the gateway.")

    def clear(self) -> None:
        super().clear()
        self._cancel()

    def _cancel(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()


class TransactionControl(MirroredSender):
    """A link to a coordinator. The client for Java attaches it before it signs in: then no transaction begins."""

    def __init__(self, owner: ClientConnection, link: Link) -> None:
        super().__init__(owner, link, "", ())
        self._claims = owner.claims

    def receive(self, delivery: Delivery) -> None:
        try:
            self._claims.require_any()
        except Unauthenticated as error:
            self.answer([delivery], Rejected(amqp_error(error)))
        else:
            super().receive(delivery)


class ClientConnection(MirroredConnection):
    """A client's connection. It is one of `connections` from its start to its end."""

    claims: LocalClaims

    def __init__(self, gateway: GatewayCore, connections: set[ClientConnection], on_opened: Callable[[], None]) -> None:
        super().__init__(gateway, LocalClaims(gateway.options.rule, self._close_forbidden), on_opened)
        self._connections = connections

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Over WebSocket, a handshake that is refused makes none.
        super().connection_made(transport)
        self._connections.add(self)

    # Links

    def open_link(self, link: Link) -> LinkEndpoint:
        if isinstance(link.remote.target, Coordinator):
            return self._mirrored(TransactionControl(self, link))
        address = address_of(link)
        path = path_of(address)
        if path.lower() == CBS_NODE:
            return open_to_cbs(self, link, self.claims.now_ms)
        if self.gateway.is_stopping:
            raise ServiceUnavailable("The gateway is stopping.")
        of_management = path.lower().endswith(MANAGEMENT)
        self.claims.require(EITHER if of_management else SEND if link.IS_RECEIVER else LISTEN, path.lower())
        via = via_of(link)
        for each in filter(None, (path, via)):
            if primary_of(_usual(each)) is not None:
                raise NotAllowed(f"'{each[:300]}' is a backlog queue: its messages belong to the syphon.")
        if of_management:
            kind = ManagementRequests if link.IS_RECEIVER else ManagementReplies
            return self._mirrored(kind(self, link, address, EITHER))
        if not link.IS_RECEIVER:
            return self._mirrored(MirroredReceiver(self, link, address, LISTEN))
        # The backlog knows no entity by way of another one, and no odd name: such a link ends with the primary.
        is_paired = not via and is_path(path)
        return self._mirrored((FailingSender if is_paired else MirroredSender)(self, link, address, SEND))

    def _mirrored(self, mirror: MirroredLink) -> MirroredLink:
        self.gateway.spawn(self._attach(mirror), f"attach {mirror.path or 'a coordinator'}")
        return mirror

    async def _attach(self, mirror: MirroredLink) -> None:
        """Attach a link. While the primary is away, try again for as long as a client waits, instead of refusing it."""
        until = self._loop.time() + self.gateway.attach_seconds
        while not mirror.is_over:
            try:
                await mirror.attach()
            except SbpairError as error:
                if isinstance(error, Unavailable) and self._loop.time() < until and not self.gateway.is_stopping:
                    await asyncio.sleep(RETRY_SECONDS)
                    continue
                mirror.end(end_of_link(error))
            return

    def _close_forbidden(self) -> None:
        for link in self.links:
            endpoint = link.context
            if endpoint is not None and endpoint.rights:
                try:
                    endpoint.check_rights()
                except ServiceError as error:
                    self.close_link(link, error)

    # Events

    def _on_client_detached(self, event: LinkDetached) -> None:
        endpoint, event.link.context = event.link.context, None
        if isinstance(endpoint, MirroredLink):
            endpoint.on_client_detached(event)
        elif endpoint is not None:
            endpoint.on_detached()

    def _on_session_ended(self, event: SessionEnded) -> None:
        self.end_session(event.session, peacefully=event.error is None)
        if self._is_sending(event.session):
            self.gateway.spawn(self._end_upstream(event.session), "end an upstream session")
        else:
            self.upstream.end_session(event.session)

    def _on_any_disposed(self, event: Disposed) -> None:
        for link, group in groupby(event.deliveries, _link_of):
            endpoint, deliveries = link.context, list(group)
            if endpoint is None:
                continue
            if not link.IS_RECEIVER:
                endpoint.settle(deliveries, event.state, settled=event.settled)
            elif isinstance(endpoint, MirroredSender):
                endpoint.settle_up(deliveries, event.state, settled=event.settled)
            self._to_flush[endpoint] = None
        self.gateway.changed.set()

    HANDLERS: ClassVar[Handlers] = ServerConnection.HANDLERS | {
        LinkDetached: _on_client_detached,
        SessionEnded: _on_session_ended,
        Disposed: _on_any_disposed,
    }

    # The end

    @property
    def is_idle(self) -> bool:
        """Whether every message that the client sent is accepted, and each that it has received is settled."""
        return not self.sending and not any(session.sent for session in self._connection.sessions)

    def break_off(self, error: SbpairError) -> None:
        """End the upstream connection: the next use opens another one, perhaps to another namespace."""
        self.upstream.break_off(error)

    def release(self, *, peacefully: bool) -> None:
        if not self._released:
            super().release(peacefully=peacefully)
            self._connections.discard(self)
            self.gateway.changed.set()
            self.gateway.spawn(self._end_upstream(None), "close an upstream connection")

    def _is_sending(self, session: LinkSession | None) -> bool:
        """Return whether messages of a session, or of any for None, are not accepted yet."""
        return any(session in (None, each.session) for each in self.sending)

    async def _end_upstream(self, session: LinkSession | None) -> None:
        """End it once the last messages of the client have been accepted: it may have ended right after a send."""
        while self._is_sending(session):
            self.gateway.changed.clear()
            await self.gateway.changed.wait()
        if session is None:
            self.upstream.close()
        else:
            self.upstream.end_session(session)
