"""The links to nodes, which take requests to `$cbs` and `$management`, and answer them on links of their own.

The two name the fields of their replies differently. A reply's correlation id has the type of the request's message id,
because some clients compare types too. A bug in answering fails its request only.
"""

from __future__ import annotations

import logging
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from sbpair.amqp.link import Delivery, Link, ReceivingLink, SendingLink, StatefulDelivery, terminus_address
from sbpair.amqp.message import APPLICATION_PROPERTIES, VALUE, Properties, Sections, encode_map, value_body
from sbpair.amqp.performatives import Accepted, Error, Rejected, TransactionalState
from sbpair.amqp.types import Int, Map, Symbol, Value
from sbpair.amqp_server.refusals import (
    ArgumentInvalid,
    InternalError,
    NotAllowed,
    ServiceError,
    Unauthenticated,
    amqp_error,
    log_bug,
)
from sbpair.amqp_server.server_connection import LinkEndpoint, ServerConnection
from sbpair.errors import ProtocolError
from sbpair.timespan import instant

if TYPE_CHECKING:
    from sbpair.amqp_server.shared_access import AccessRight

logger = logging.getLogger(__name__)

PRE_SETTLED: Final = 1
"""Settle mode of a sender whose deliveries are settled when sent (2.8.2)."""


CBS_NODE: Final = "$cbs"
PUT_TOKEN: Final = "put-token"  # noqa: S105  # the name of an operation
REQUEST_BYTES: Final = 1_048_576
MAX_PENDING_REPLY_BYTES: Final = 4_194_304
"""Replies that may wait for credit or window of a client that does not take them."""

ReplyKeys: TypeAlias = tuple[str, str, str]
CBS_KEYS: Final[ReplyKeys] = ("status-code", "status-description", "error-condition")
MANAGEMENT_KEYS: Final[ReplyKeys] = ("statusCode", "statusDescription", "errorCondition")


def answer_to(delivery: Delivery, outcome: Accepted | Rejected) -> Accepted | Rejected | TransactionalState:
    """Return the state that answers a delivery: the outcome, as part of its transaction if it has one."""
    state = delivery.state if isinstance(delivery, StatefulDelivery) else None
    return TransactionalState(state.txn_id, outcome) if isinstance(state, TransactionalState) else outcome


@dataclass(frozen=True, slots=True)
class AmqpRequest:
    """A request: the `operation`, its argument as `body`, and all application properties.

    `context` is that of its delivery.
    """

    message_id: Value
    reply_to: str | None
    operation: str
    properties: Map
    body: Value = field(repr=False)
    context: Any = None


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply: `status` as in HTTP, and `condition` for an error."""

    status: int = 200
    description: str = "OK"
    body: Map | None = None
    condition: str | None = None

    @classmethod
    def for_error(cls, error: ServiceError) -> Reply:
        return cls(error.status, error.message, None, error.condition)


Answer: TypeAlias = Callable[[AmqpRequest], Reply]


def read_request(payload: bytes, context: Any = None) -> AmqpRequest:
    """Decode a request. Raises ProtocolError if it is not a message."""
    sections = Sections.split(payload)
    properties = sections.read_properties()
    application = sections.read_application_properties()
    bodies = [value for code, value in sections.read_body() if code == VALUE]
    operation = text_at(application, "operation") or ""
    reply_to = properties.reply_to if isinstance(properties.reply_to, str) else None
    return AmqpRequest(properties.message_id, reply_to, operation, application, bodies[0] if bodies else None, context)


def text_at(values: Map, key: str) -> str | None:
    """Return the text under a key, or None. Clients send either, and sometimes both, as binary."""
    value = values.get(key)
    if value is None:
        value = next((value for name, value in values.pairs if name == key.encode()), None)
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return str(value) if isinstance(value, str) else None


def reply_to(request: AmqpRequest, answer: Answer, keys: ReplyKeys) -> bytes:
    """Return the encoded reply, or an InternalError if answering or encoding fails."""
    try:
        return write_reply(request, answer(request), keys)
    except Exception as error:  # noqa: BLE001  # a bug fails its request only
        log_bug(logger, f"request for {request.operation}", error)
        return write_reply(request, Reply.for_error(InternalError()), keys)


def write_reply(request: AmqpRequest, reply: Reply, keys: ReplyKeys) -> bytes:
    status, description, condition = keys
    fields: dict[Value, Value] = {status: Int(reply.status), description: reply.description}
    if reply.condition is not None:
        fields[condition] = Symbol(reply.condition)
    sections = Sections(
        properties=Properties(to=request.reply_to, correlation_id=request.message_id).encode(),
        application_properties=encode_map(APPLICATION_PROPERTIES, Map(fields.items())),
        body=value_body(reply.body if reply.body is not None else Map()),
    )
    return sections.join()


class RequestLink(LinkEndpoint):
    """A link on which a client sends requests to a node. Each is answered at once, on a link for replies.

    The path of `$cbs` is "".
    """

    _link: ReceivingLink

    def __init__(
        self,
        owner: ServerConnection,
        link: ReceivingLink,
        path: str,
        rights: tuple[AccessRight, ...],
        answer: Answer,
    ) -> None:
        super().__init__(owner, link, path, rights)
        self._pending: deque[Delivery] = deque()
        self._answer = answer
        link.accept(max_message_size=REQUEST_BYTES)
        self.grant()

    def receive(self, delivery: Delivery) -> None:
        self._pending.append(delivery)
        self.pull()

    def pull(self) -> None:
        """Answer pending requests while the peer reads the replies."""
        while self._pending and not self._output.blocked:
            self._answer_one(self._pending.popleft())
        if self._pending:
            self._output.transport.pause_reading()

    def has_unanswered(self) -> bool:
        return bool(self._pending)

    def _answer_one(self, delivery: Delivery) -> None:
        try:
            request = read_request(delivery.payload, delivery.context)
        except ProtocolError as error:
            self.dispose(delivery, answer_to(delivery, Rejected(amqp_error(error))))
            return
        if not delivery.settled:
            self.dispose(delivery, answer_to(delivery, Accepted()))
        replies = self._replies_to(request)
        payload = reply_to(request, self._answer, MANAGEMENT_KEYS if self.path else CBS_KEYS)
        if replies is not None:
            replies.send(payload)
            self._output.count(len(payload))

    def _replies_to(self, request: AmqpRequest) -> ReplyLink | None:
        """Return the link for the reply: the one that `reply-to` names, else any of this node, own session first."""
        own = self._link.session
        first: ReplyLink | None = None
        # One by one: a connection may have thousands of sessions.
        for session in chain((own,), own.connection.sessions):
            for link in session.links:
                replies = link.context
                if isinstance(replies, ReplyLink) and replies.path == self.path:
                    first = first or replies
                    if request.reply_to is None or replies.address == request.reply_to:
                        return replies
        return first

    def on_detached(self) -> None:
        self._pending.clear()


class ReplyLink(LinkEndpoint):
    """A link on which a client receives the replies of a node. Replies beyond its credit wait, up to a bound."""

    _link: SendingLink

    def __init__(self, owner: ServerConnection, link: SendingLink, path: str, rights: tuple[AccessRight, ...]) -> None:
        super().__init__(owner, link, path, rights)
        self.address = terminus_address(link.remote.target)
        self._pending: deque[bytes] = deque()
        self._pending_bytes = self._tag = 0
        link.accept(snd_settle_mode=PRE_SETTLED)

    def send(self, payload: bytes) -> None:
        self._pending.append(payload)
        self._pending_bytes += len(payload)
        self.pull()
        if self._pending_bytes > MAX_PENDING_REPLY_BYTES:
            self._pending.clear()
            self._link.close(Error("amqp:resource-limit-exceeded", "Too many replies wait for credit.", Map()))

    def pull(self) -> None:
        link, session = self._link, self._link.session
        while self._pending and link.credit and session.room > 0 and link.is_open:
            payload = self._pending.popleft()
            self._pending_bytes -= len(payload)
            self._tag += 1
            link.send(payload, self._tag.to_bytes(4), settled=True)

    def on_flow(self) -> None:
        self.pull()
        if self._link.draining:
            self._link.drained()


def open_to_node(
    owner: ServerConnection, link: Link, path: str, rights: tuple[AccessRight, ...], answer: Answer
) -> LinkEndpoint:
    """Accept a link to a node, whose requests `answer` answers."""
    if isinstance(link, ReceivingLink):
        return RequestLink(owner, link, path, rights, answer)
    return ReplyLink(owner, cast("SendingLink", link), path, rights)


def open_to_cbs(owner: ServerConnection, link: Link, now_ms: Callable[[], int]) -> LinkEndpoint:
    """Accept a link to `$cbs`; `now_ms` is for the texts of refusals.

    Raises NotAllowed if one in this direction is open: a connection has a pair.
    """
    kind = RequestLink if isinstance(link, ReceivingLink) else ReplyLink
    if any(isinstance(other.context, kind) and not other.context.path for other in owner.links):
        container = (owner.peer.container_id or "")[:100]
        raise NotAllowed(f"A link to connection '{container}' $cbs node has already been opened.")
    return open_to_node(owner, link, "", (), partial(_put_token, owner, now_ms))


def _put_token(owner: ServerConnection, now_ms: Callable[[], int], request: AmqpRequest) -> Reply:
    try:
        if request.operation != PUT_TOKEN:
            raise ArgumentInvalid(f"'{request.operation[:100]}' is not an operation of $cbs.")
        owner.claims.put(text_at(request.properties, "name"), request.body)
    except ServiceError as error:
        text = error.message
        if isinstance(error, Unauthenticated):
            now = instant(now_ms())[: len("2026-01-01T00:00:00")]
            text += f" TrackingId:{uuid.uuid4()}_G0, SystemTracker:NoSystemTracker, Timestamp:{now}"
        # Without the condition: with one, the SDK for Python drops status and description.
        return Reply(error.status, text)
    return Reply(202, "Accepted")
