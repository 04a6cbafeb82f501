"""The opening of links that clients attach: address and rights are checked before an endpoint is created.

A receiver from a session names it in the source's filter, null for any free one, and gives the time to wait in the
link's properties.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, cast

from sbpair.amqp.link import Link, LinkSession, ReceivingLink, SendingLink
from sbpair.amqp.performatives import Coordinator, Source
from sbpair.amqp.types import Described, Map, Symbol
from sbpair.emulator.access.sas import AccessRight, scope_of
from sbpair.emulator.entities.send_via import SendVia
from sbpair.emulator.entities.sessions import SessionMessages
from sbpair.emulator.frontends.amqp import cbs, management_operations, outgoing_link
from sbpair.emulator.frontends.amqp.coordinator_link import CoordinatorLink, TransactionGroup
from sbpair.emulator.frontends.amqp.incoming_link import SEND, IncomingLink, SendViaLink
from sbpair.emulator.frontends.amqp.link_endpoint import LinkEndpoint, address_of
from sbpair.emulator.frontends.amqp.request_links import AmqpRequest, Answer, Reply, ReplyLink, RequestLink, text_at
from sbpair.emulator.service_errors import ArgumentInvalid, NotAllowed, ServiceError

if TYPE_CHECKING:
    from sbpair.emulator.entities.namespace import AddressTarget
    from sbpair.emulator.entities.queue import QueueEntity
    from sbpair.emulator.frontends.amqp.amqp_connection import AmqpConnection

TIMEOUT: Final = "com.microsoft:timeout"
DEFAULT_TIMEOUT_MS: Final = 65_000
"""How long a link waits for a session if its properties give no time."""

TRANSFER_DESTINATION: Final = "com.microsoft:transfer-destination-address"

_ANY: Final = (AccessRight.SEND, AccessRight.LISTEN, AccessRight.MANAGE)


def open_link(connection: AmqpConnection, link: Link) -> LinkEndpoint:
    """Accept a link and return its endpoint. Raises ServiceError."""
    if isinstance(link.remote.target, Coordinator):
        return _open_coordinator(connection, link)
    path = scope_of(address_of(link))
    if path == cbs.NODE:
        return _open_to_node(connection, link, "", (), connection.claims.put_token)
    # Rights first: a client without any must not learn which entities exist.
    connection.claims.require(_ANY, path)
    target = connection.namespace.resolve(address_of(link))
    connection.namespace.fault_points.check(path)
    connection.watch(target.entity)
    if target.management:
        return _open_to_node(connection, link, path, _ANY, partial(_manage, connection, link.session, target, path))
    return _open_to_messages(connection, link, path, target)


def _open_coordinator(connection: AmqpConnection, link: Link) -> LinkEndpoint:
    if not isinstance(link, ReceivingLink):
        raise NotAllowed("Nothing can be received from a coordinator.")
    if not connection.namespace.tier.has_all_features:
        raise NotAllowed(f"Transactions are not supported in the {connection.namespace.tier.name} tier.")
    to_entities = (IncomingLink, outgoing_link.OutgoingLink, outgoing_link.WaitingSessionLink)
    if not any(isinstance(other.context, to_entities) for other in link.session.links):
        connection.transactions.groups.setdefault(link.session, TransactionGroup())
    return CoordinatorLink(connection, link)


def _open_to_node(
    connection: AmqpConnection, link: Link, path: str, rights: tuple[AccessRight, ...], answer: Answer
) -> LinkEndpoint:
    if isinstance(link, ReceivingLink):
        return RequestLink(connection, link, path, rights, answer)
    return ReplyLink(connection, cast("SendingLink", link), path, rights)


def _manage(
    connection: AmqpConnection, session: LinkSession, target: AddressTarget, path: str, request: AmqpRequest
) -> Reply:
    try:
        connection.namespace.fault_points.spend(1, path)
    except ServiceError as error:
        return Reply.for_error(error)
    if name := text_at(request.properties, "associated-link-name"):
        _touch_links(session, name)
    return management_operations.execute(request, target, lambda right: connection.claims.require((right,), path))


def _touch_links(session: LinkSession, name: str) -> None:
    """Count a request that names one of the client's links as a use of that link."""
    for link in (link for other in session.connection.sessions for link in other.links):
        if link.name == name and isinstance(link.context, (IncomingLink, outgoing_link.OutgoingLink)):
            link.context.idle.touch()


def _open_to_messages(connection: AmqpConnection, link: Link, path: str, target: AddressTarget) -> LinkEndpoint:
    if isinstance(link, ReceivingLink):
        connection.claims.require(SEND, path)
        if target.is_dead_letters:
            raise NotAllowed("Nothing can be sent to a dead-letter queue.")
        target.entity.check_send()
        return _open_to_send(connection, link, path, target.entity)
    connection.claims.require(outgoing_link.LISTEN, path)
    target.check_receive()
    group = connection.transactions.groups.get(link.session)
    if group is not None:
        group.check_receive(target.entity)
    endpoint = _open_to_receive(connection, cast("SendingLink", link), path, target)
    if group is not None:
        group.join(target.entity)
    return endpoint


def _open_to_receive(
    connection: AmqpConnection, link: SendingLink, path: str, target: AddressTarget
) -> outgoing_link.OutgoingLink | outgoing_link.WaitingSessionLink:
    source = link.remote.source
    filters = source.filter if isinstance(source, Source) and isinstance(source.filter, Map) else Map()
    if isinstance(target.messages, SessionMessages) or outgoing_link.SESSION_FILTER in filters:
        return _open_to_session(connection, link, target, path, filters)
    return outgoing_link.OutgoingLink(connection, link, target, path, target.messages)


def _open_to_send(connection: AmqpConnection, link: ReceivingLink, path: str, entity: QueueEntity) -> IncomingLink:
    """Return the endpoint of a link for sending: to the entity, or by way of it or of its session's first entity."""
    properties = link.remote.properties
    destination = text_at(properties, TRANSFER_DESTINATION) if isinstance(properties, Map) else None
    if destination is not None:
        to = connection.namespace.find_target(destination)
        echo = {Symbol(TRANSFER_DESTINATION): destination}
        return SendViaLink(connection, link, SendVia(entity, to), path, to, echo)
    group = connection.transactions.groups.get(link.session)
    via = group.join(entity) if group is not None else entity
    if via is not entity:
        return SendViaLink(connection, link, SendVia(via, entity), path, via)
    return IncomingLink(connection, link, entity, path)


def _open_to_session(
    connection: AmqpConnection, link: SendingLink, target: AddressTarget, path: str, filters: Map
) -> outgoing_link.OutgoingSessionLink | outgoing_link.WaitingSessionLink:
    """Return the endpoint of a link to an entity with sessions. Raises NotAllowed, SessionCannotBeLocked."""
    messages = target.messages
    if not isinstance(messages, SessionMessages):
        raise NotAllowed(
            "A sessionful message receiver cannot be created on an entity that does not require sessions. Ensure "
            "RequiresSession is set to true when creating a Queue or Subscription to enable sessionful behavior."
        )
    if outgoing_link.SESSION_FILTER not in filters:
        raise NotAllowed(
            "It is not possible for an entity that requires sessions to create a non-sessionful message receiver."
        )
    wanted = filters.get(outgoing_link.SESSION_FILTER)
    session_id = wanted.value if isinstance(wanted, Described) else wanted
    if session_id is not None and not isinstance(session_id, str):
        raise ArgumentInvalid("A session filter holds the id of a session, or null.")
    if session_id is None:
        wait = outgoing_link.WaitingSessionLink(connection, link, target, path)
        held = messages.accept_next(wait)
        if held is None:
            namespace = connection.namespace
            wait.start(namespace.timers, namespace.clock.now_ms() + _timeout_ms(link))
            return wait
    else:
        held = messages.accept(session_id)
    return outgoing_link.OutgoingSessionLink(connection, link, target, path, held)


def _timeout_ms(link: Link) -> int:
    properties = link.remote.properties
    given = properties.get(TIMEOUT) if isinstance(properties, Map) else None
    return given if isinstance(given, int) and not isinstance(given, bool) and given >= 0 else DEFAULT_TIMEOUT_MS
