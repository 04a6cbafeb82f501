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
from sbpair.emulator.access_tokens import AccessRight, scope_of
from sbpair.emulator.entities.sessions import SessionMessages
from sbpair.emulator.entities.transaction import SendVia
from sbpair.emulator.frontends.amqp import management_operations
from sbpair.emulator.frontends.amqp.link_endpoints import (
    AmqpRequest,
    Answer,
    CoordinatorLink,
    LinkEndpoint,
    Reply,
    ReplyLink,
    RequestLink,
    address_of,
    text_at,
)
from sbpair.emulator.frontends.amqp.message_links import (
    LISTEN,
    SEND,
    SESSION_FILTER,
    IncomingLink,
    OutgoingLink,
    OutgoingSessionLink,
    SendViaLink,
    WaitingSessionLink,
)
from sbpair.emulator.service_errors import ArgumentInvalid, NotAllowed, ServiceError

if TYPE_CHECKING:
    from sbpair.emulator.entities.namespace import AddressTarget
    from sbpair.emulator.entities.queue import QueueEntity
    from sbpair.emulator.frontends.amqp.amqp_connection import AmqpConnection

TIMEOUT: Final = "com.microsoft:timeout"
DEFAULT_TIMEOUT_MS: Final = 65_000
"""How long a link waits for a session if its properties give no time."""

CBS_NODE: Final = "$cbs"
PUT_TOKEN: Final = "put-token"  # noqa: S105  # the name of an operation
TRANSFER_DESTINATION: Final = "com.microsoft:transfer-destination-address"

_ANY: Final = (AccessRight.SEND, AccessRight.LISTEN, AccessRight.MANAGE)


def open_link(owner: AmqpConnection, link: Link) -> LinkEndpoint:
    """Accept a link and return its endpoint. Raises ServiceError."""
    if isinstance(link.remote.target, Coordinator):
        return _open_coordinator(owner, link)
    path = scope_of(address_of(link))
    if path == CBS_NODE:
        _check_first_to_cbs(owner, link)
        return _open_to_node(owner, link, "", (), partial(_put_token, owner))
    # Rights first: a client without any must not learn which entities exist.
    owner.claims.require(_ANY, path)
    target = owner.namespace.resolve(address_of(link), owner.claims.endpoint)
    owner.namespace.fault_points.check(path)
    if target.management:
        return _open_to_node(owner, link, path, _ANY, partial(_manage, owner, link.session, target, path))
    return _open_to_messages(owner, link, path, target)


def _check_first_to_cbs(owner: AmqpConnection, link: Link) -> None:
    """Raise NotAllowed if a link in this direction is open already: a connection has one pair to `$cbs`."""
    kind = RequestLink if isinstance(link, ReceivingLink) else ReplyLink
    contexts = (other.context for session in link.session.connection.sessions for other in session.links)
    if any(isinstance(each, kind) and not each.path for each in contexts):
        container = (owner.peer.container_id or "")[:100]
        raise NotAllowed(f"A link to connection '{container}' $cbs node has already been opened.")


def _open_coordinator(owner: AmqpConnection, link: Link) -> LinkEndpoint:
    if not isinstance(link, ReceivingLink):
        raise NotAllowed("Nothing can be received from a coordinator.")
    if not owner.namespace.tier.has_all_features:
        raise NotAllowed(f"Transactions are not supported in the {owner.namespace.tier.name} tier.")
    to_entities = (IncomingLink, OutgoingLink, WaitingSessionLink)
    if not any(isinstance(other.context, to_entities) for other in link.session.links):
        owner.transactions.groups.setdefault(link.session)
    return CoordinatorLink(owner, link)


def _open_to_node(
    owner: AmqpConnection, link: Link, path: str, rights: tuple[AccessRight, ...], answer: Answer
) -> LinkEndpoint:
    if isinstance(link, ReceivingLink):
        return RequestLink(owner, link, path, rights, answer)
    return ReplyLink(owner, cast("SendingLink", link), path, rights)


def _put_token(owner: AmqpConnection, request: AmqpRequest) -> Reply:
    try:
        if request.operation != PUT_TOKEN:
            raise ArgumentInvalid(f"'{request.operation[:100]}' is not an operation of $cbs.")
        owner.claims.put(text_at(request.properties, "name"), request.body)
    except ServiceError as error:
        # Without the condition: with one, the SDK for Python drops status and description.
        return Reply(error.status, error.message)
    return Reply(202, "Accepted")


def _manage(
    owner: AmqpConnection, session: LinkSession, target: AddressTarget, path: str, request: AmqpRequest
) -> Reply:
    try:
        owner.namespace.fault_points.spend(1, path)
    except ServiceError as error:
        return Reply.for_error(error)
    if name := text_at(request.properties, "associated-link-name"):
        _touch_links(session, name)
    return management_operations.execute(request, target, lambda right: owner.claims.require((right,), path))


def _touch_links(session: LinkSession, name: str) -> None:
    """Count a request that names one of the client's links as a use of that link."""
    for link in (link for other in session.connection.sessions for link in other.links):
        if link.name == name and isinstance(link.context, (IncomingLink, OutgoingLink)):
            link.context.idle.postpone()


def _open_to_messages(owner: AmqpConnection, link: Link, path: str, target: AddressTarget) -> LinkEndpoint:
    if isinstance(link, ReceivingLink):
        owner.claims.require(SEND, path)
        if target.is_dead_letters:
            raise NotAllowed("Nothing can be sent to a dead-letter queue.")
        target.entity.check_send()
        return _open_to_send(owner, link, path, target.entity)
    owner.claims.require(LISTEN, path)
    target.check_receive()
    owner.transactions.check_receive(link.session, target.entity)
    endpoint = _open_to_receive(owner, cast("SendingLink", link), path, target)
    owner.transactions.via(link.session, target.entity)
    return endpoint


def _open_to_receive(
    owner: AmqpConnection, link: SendingLink, path: str, target: AddressTarget
) -> OutgoingLink | WaitingSessionLink:
    source = link.remote.source
    filters = source.filter if isinstance(source, Source) and isinstance(source.filter, Map) else Map()
    if isinstance(target.messages, SessionMessages) or SESSION_FILTER in filters:
        return _open_to_session(owner, link, target, path, filters)
    return OutgoingLink(owner, link, target, path, target.messages)


def _open_to_send(owner: AmqpConnection, link: ReceivingLink, path: str, entity: QueueEntity) -> IncomingLink:
    """Return the endpoint of a link for sending: to the entity, or by way of it or of its session's first entity."""
    properties = link.remote.properties
    destination = text_at(properties, TRANSFER_DESTINATION) if isinstance(properties, Map) else None
    if destination is not None:
        to = owner.namespace.find_target(destination, owner.claims.endpoint)
        echo = {Symbol(TRANSFER_DESTINATION): destination}
        return SendViaLink(owner, link, SendVia(entity, to), path, to, echo)
    via = owner.transactions.via(link.session, entity)
    if via is not entity:
        return SendViaLink(owner, link, SendVia(via, entity), path, via)
    return IncomingLink(owner, link, entity, path)


def _open_to_session(
    owner: AmqpConnection, link: SendingLink, target: AddressTarget, path: str, filters: Map
) -> OutgoingSessionLink | WaitingSessionLink:
    """Return the endpoint of a link to an entity with sessions. Raises NotAllowed, SessionCannotBeLocked."""
    messages = target.messages
    if not isinstance(messages, SessionMessages):
        raise NotAllowed(
            "A sessionful message receiver cannot be created on an entity that does not require sessions. Ensure "
            "RequiresSession is set to true when creating a Queue or Subscription to enable sessionful behavior."
        )
    if SESSION_FILTER not in filters:
        raise NotAllowed(
            "It is not possible for an entity that requires sessions to create a non-sessionful message receiver."
        )
    wanted = filters.get(SESSION_FILTER)
    session_id = wanted.value if isinstance(wanted, Described) else wanted
    if session_id is not None and not isinstance(session_id, str):
        raise ArgumentInvalid("A session filter holds the id of a session, or null.")
    if session_id is None:
        wait = WaitingSessionLink(owner, link, target, path)
        held = messages.accept_next(wait)
        if held is None:
            wait.start(_timeout_ms(link))
            return wait
    else:
        held = messages.accept(session_id)
    return OutgoingSessionLink(owner, link, target, path, held)


def _timeout_ms(link: Link) -> int:
    properties = link.remote.properties
    given = properties.get(TIMEOUT) if isinstance(properties, Map) else None
    return given if isinstance(given, int) and not isinstance(given, bool) and given >= 0 else DEFAULT_TIMEOUT_MS
