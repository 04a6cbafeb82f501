"""The endpoints of links that clients attach: address and rights are checked before one is created."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, cast

from sbpair.amqp.link import Link, LinkSession, ReceivingLink, SendingLink
from sbpair.emulator.access.sas import AccessRight, scope_of
from sbpair.emulator.entities.sessions import SessionMessages
from sbpair.emulator.frontends.amqp import cbs, management_operations
from sbpair.emulator.frontends.amqp.incoming_link import SEND, IncomingLink
from sbpair.emulator.frontends.amqp.link_endpoint import LinkConnection, LinkEndpoint, address_of
from sbpair.emulator.frontends.amqp.outgoing_link import LISTEN, OutgoingLink
from sbpair.emulator.frontends.amqp.request_links import ReplyLink, RequestLink
from sbpair.emulator.frontends.amqp.request_messages import (
    CBS_KEYS,
    MANAGEMENT_KEYS,
    AmqpRequest,
    Answer,
    Reply,
    ReplyKeys,
    text_at,
)
from sbpair.emulator.frontends.amqp.session_links import open_session, requests_session
from sbpair.emulator.service_errors import NotAllowed, ServiceError

if TYPE_CHECKING:
    from sbpair.emulator.entities.namespace import AddressTarget, Namespace
    from sbpair.emulator.entities.queue import QueueEntity
    from sbpair.emulator.frontends.amqp.cbs import Claims

_ANY: Final = (AccessRight.SEND, AccessRight.LISTEN, AccessRight.MANAGE)


class LinkOpener:
    """The factory of a connection's endpoints. `watch` is called with each entity that a link attaches to."""

    def __init__(
        self, connection: LinkConnection, namespace: Namespace, claims: Claims, watch: Callable[[QueueEntity], None]
    ) -> None:
        self._connection = connection
        self._namespace = namespace
        self._claims = claims
        self._watch = watch

    def endpoint_for(self, link: Link) -> LinkEndpoint:
        """Accept the link and return its endpoint. Raises ServiceError."""
        path = scope_of(address_of(link))
        if path == cbs.NODE:
            return self._node_endpoint(link, path, "", (), self._claims.put_token, CBS_KEYS)
        # Rights first: a client without any must not learn which entities exist.
        self._claims.require(_ANY, path)
        target = self._namespace.resolve(path)
        self._namespace.fault_points.check(path)
        self._watch(target.entity)
        if target.management:
            answer = partial(self._manage, link.session, target, path)
            return self._node_endpoint(link, path, path, _ANY, answer, MANAGEMENT_KEYS)
        return self._message_endpoint(link, path, target)

    def _node_endpoint(
        self, link: Link, node: str, path: str, rights: tuple[AccessRight, ...], answer: Answer, keys: ReplyKeys
    ) -> LinkEndpoint:
        if isinstance(link, ReceivingLink):
            return RequestLink(self._connection, link, node, path, rights, answer, keys)
        return ReplyLink(cast("SendingLink", link), node, path, rights)

    def _manage(self, session: LinkSession, target: AddressTarget, path: str, request: AmqpRequest) -> Reply:
        meter = self._namespace.fault_points.meter
        if meter is not None:
            try:
                meter.spend(1, path)
            except ServiceError as error:
                return Reply.for_error(error)
        if name := text_at(request.properties, "associated-link-name"):
            _touch_links(session, name)
        return management_operations.execute(request, target, lambda right: self._claims.require((right,), path))

    def _message_endpoint(self, link: Link, path: str, target: AddressTarget) -> LinkEndpoint:
        fault_points = self._namespace.fault_points
        if isinstance(link, ReceivingLink):
            self._claims.require(SEND, path)
            if target.is_dead_letters:
                raise NotAllowed("Nothing can be sent to a dead-letter queue.")
            target.entity.check_send()
            return IncomingLink(self._connection, link, target, path, fault_points)
        self._claims.require(LISTEN, path)
        target.check_receive()
        sending = cast("SendingLink", link)
        if isinstance(target.messages, SessionMessages) or requests_session(link):
            return open_session(self._connection, sending, target, path, self._namespace)
        return OutgoingLink(self._connection, sending, target, path, fault_points)


def _touch_links(session: LinkSession, name: str) -> None:
    """Count a request that names one of the client's links as a use of that link."""
    for link in (link for other in session.connection.sessions for link in other.links):
        if link.name == name and isinstance(link.context, (IncomingLink, OutgoingLink)):
            link.context.idle.touch()
