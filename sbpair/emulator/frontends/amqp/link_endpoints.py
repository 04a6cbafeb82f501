"""The endpoints of links: what all have in common with the output of their connection, and the links to nodes.

Nodes take requests to `$cbs` and `$management`, and answer them on links of their own. The two name the fields of their
replies differently. A reply's correlation id has the type of the request's message id, because some clients compare
types too. A bug in answering fails its request only. Beside those, the control links of transactions: AMQP 1.0, part 4.

Output beyond OUTPUT_HIGH stops deliveries. Output beyond MAX_OUTPUT stops reading from the peer.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from sbpair.amqp.link import Delivery, Link, ReceivingLink, SendingLink, Sent, terminus_address
from sbpair.amqp.message import APPLICATION_PROPERTIES, VALUE, Properties, Sections, encode_map, value_body
from sbpair.amqp.performatives import (
    Accepted,
    Coordinator,
    Declare,
    Declared,
    Discharge,
    Error,
    Outcome,
    Rejected,
    TransactionalState,
    composite_of,
)
from sbpair.amqp.types import Array, Int, Map, Symbol, Value
from sbpair.emulator.service_errors import (
    ArgumentInvalid,
    InternalError,
    NotAllowed,
    ServiceError,
    TransactionUnknown,
    log_bug,
)
from sbpair.errors import ProtocolError

if TYPE_CHECKING:
    from sbpair.amqp.connection import Connection
    from sbpair.emulator.access_tokens import AccessRight
    from sbpair.emulator.entities.transaction import Transaction
    from sbpair.emulator.frontends.amqp.amqp_connection import AmqpConnection
    from sbpair.emulator.frontends.amqp.connection_faults import ConnectionFaults

logger = logging.getLogger(__name__)

OUTPUT_HIGH: Final = 262_144
MAX_OUTPUT: Final = 4_194_304
CREDIT: Final = 1_000
"""Messages that a client may send before it needs new credit, which it gets at half of this."""

PRE_SETTLED: Final = 1
"""Settle mode of a sender whose deliveries are settled when sent (2.8.2)."""


class LinkEndpoint:
    """The `context` of a link. It stays open while any of `rights` is granted on `path`, "" for no entity."""

    ended_peacefully = False
    """Whether the peer ended the link without an error; set before `on_detached`."""

    def __init__(self, owner: AmqpConnection, link: Any, path: str, rights: tuple[AccessRight, ...]) -> None:
        self.path = path
        self.rights = rights
        self._owner = owner
        self._link = link
        self._output = owner.output
        self._fault_points = owner.namespace.fault_points

    def check_open(self) -> None:
        """Raise EntityDisabled or NotAllowed if such a link could no longer be opened. Nodes are always open."""

    def receive(self, delivery: Delivery) -> None:
        """Take a delivery that the peer sent."""

    def receive_in(self, transaction: Transaction, delivery: Delivery) -> None:
        """Take a delivery that the peer sent as part of a transaction."""
        delivery.context = transaction
        self.receive(delivery)

    def flush(self) -> None:
        """Send the dispositions of everything received in one read, and grant new credit."""
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

    def has_unanswered(self) -> bool:
        """Return whether requests wait until the peer reads: nothing more is read before."""
        return False

    def on_flow(self) -> None:
        """React to a change of the credit for sending."""

    def on_detached(self) -> None:
        """Stop."""


def amqp_error(error: ServiceError | ProtocolError) -> Error:
    return Error(error.condition, error.message, Map())


def accepted_in(transaction: Transaction | None) -> Accepted | TransactionalState:
    """Return the answer to a delivery that was accepted, as part of a transaction or of none."""
    return Accepted() if transaction is None else TransactionalState(transaction.id, Accepted())


def address_of(link: Link) -> str:
    """Return the address that a client attaches to: the target it sends to, or the source it receives from."""
    address = terminus_address(link.remote.target if link.IS_RECEIVER else link.remote.source)
    if not address:
        raise ArgumentInvalid("A link needs an address.")
    return address


class ConnectionOutput:
    """The writer of one connection. `blocked`: the peer does not read. `faults` are there while some act on it.

    `store_changes` is called before each write. It returns False if what the output acknowledges cannot be stored: then
    the connection breaks, and nothing is written.
    """

    def __init__(self, connection: Connection, transport: asyncio.Transport, store_changes: Callable[[], bool]) -> None:
        self.blocked = False
        self.transport = transport
        self.faults: ConnectionFaults | None = None
        self._connection = connection
        self._store_changes = store_changes
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
        if out and not self._store_changes():
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
        if self.faults is not None:
            self.faults.send(piece)
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


# Nodes

CBS_NODE: Final = "$cbs"
PUT_TOKEN: Final = "put-token"  # noqa: S105  # the name of an operation
REQUEST_BYTES: Final = 1_048_576
CAPABILITIES: Final = ("amqp:local-transactions", "amqp:multi-txns-per-ssn", "amqp:multi-ssns-per-txn")
CONTROL_BYTES: Final = 65_536
MAX_PENDING_REPLY_BYTES: Final = 4_194_304
"""Replies that may wait for credit or window of a client that does not take them."""

ReplyKeys: TypeAlias = tuple[str, str, str]
CBS_KEYS: Final[ReplyKeys] = ("status-code", "status-description", "error-condition")
MANAGEMENT_KEYS: Final[ReplyKeys] = ("statusCode", "statusDescription", "errorCondition")


@dataclass(frozen=True, slots=True)
class AmqpRequest:
    """A request: the `operation`, its argument as `body`, and all application properties."""

    message_id: Value
    reply_to: str | None
    operation: str
    properties: Map
    body: Value = field(repr=False)
    transaction: Transaction | None = None


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


def read_request(payload: bytes, transaction: Transaction | None = None) -> AmqpRequest:
    """Decode a request. Raises ProtocolError if it is not a message."""
    sections = Sections.split(payload)
    properties = sections.read_properties()
    application = sections.read_application_properties()
    bodies = [value for code, value in sections.read_body() if code == VALUE]
    operation = text_at(application, "operation") or ""
    reply_to = properties.reply_to if isinstance(properties.reply_to, str) else None
    return AmqpRequest(
        properties.message_id, reply_to, operation, application, bodies[0] if bodies else None, transaction
    )


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
        owner: AmqpConnection,
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
            self.dispose(delivery, Rejected(amqp_error(error)))
            return
        if not delivery.settled:
            self.dispose(delivery, accepted_in(delivery.context))
        replies = self._replies_to(request)
        payload = reply_to(request, self._answer, MANAGEMENT_KEYS if self.path else CBS_KEYS)
        if replies is not None:
            replies.send(payload)
            self._output.count(len(payload))

    def _replies_to(self, request: AmqpRequest) -> ReplyLink | None:
        """Return the link for the reply: the one that `reply-to` names, else any of this node, own session first."""
        own = self._link.session
        sessions = sorted(own.connection.sessions, key=lambda session: session is not own)
        replies = [link.context for session in sessions for link in session.links]
        candidates = [each for each in replies if isinstance(each, ReplyLink) and each.path == self.path]
        named = next((each for each in candidates if request.reply_to and each.address == request.reply_to), None)
        return named or next(iter(candidates), None)

    def on_detached(self) -> None:
        self._pending.clear()


class ReplyLink(LinkEndpoint):
    """A link on which a client receives the replies of a node. Replies beyond its credit wait, up to a bound."""

    _link: SendingLink

    def __init__(self, owner: AmqpConnection, link: SendingLink, path: str, rights: tuple[AccessRight, ...]) -> None:
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
    owner: AmqpConnection, link: Link, path: str, rights: tuple[AccessRight, ...], answer: Answer
) -> LinkEndpoint:
    """Accept a link to a node, whose requests `answer` answers."""
    if isinstance(link, ReceivingLink):
        return RequestLink(owner, link, path, rights, answer)
    return ReplyLink(owner, cast("SendingLink", link), path, rights)


def open_to_cbs(owner: AmqpConnection, link: Link) -> LinkEndpoint:
    """Accept a link to `$cbs`. Raises NotAllowed if one in this direction is open: a connection has a pair."""
    kind = RequestLink if isinstance(link, ReceivingLink) else ReplyLink
    if any(isinstance(other.context, kind) and not other.context.path for other in owner.links):
        container = (owner.peer.container_id or "")[:100]
        raise NotAllowed(f"A link to connection '{container}' $cbs node has already been opened.")
    return open_to_node(owner, link, "", (), partial(_put_token, owner))


def _put_token(owner: AmqpConnection, request: AmqpRequest) -> Reply:
    try:
        if request.operation != PUT_TOKEN:
            raise ArgumentInvalid(f"'{request.operation[:100]}' is not an operation of $cbs.")
        owner.claims.put(text_at(request.properties, "name"), request.body)
    except ServiceError as error:
        # Without the condition: with one, the SDK for Python drops status and description.
        return Reply(error.status, error.message)
    return Reply(202, "Accepted")


class CoordinatorLink(LinkEndpoint):
    """A control link: a client declares and discharges transactions on it. Those left are rolled back with it."""

    _link: ReceivingLink

    def __init__(self, owner: AmqpConnection, link: ReceivingLink) -> None:
        super().__init__(owner, link, "", ())
        self._transactions = owner.transactions
        self._declared: set[bytes] = set()
        capabilities = Array(map(Symbol, CAPABILITIES))
        link.accept(target=Coordinator(capabilities), max_message_size=CONTROL_BYTES)
        self.grant()

    def receive(self, delivery: Delivery) -> None:
        self._owner.flush_endpoints()
        if delivery.settled:
            self._owner.close_link(self._link, NotAllowed("Messages on a control link must not be settled."))
            return
        try:
            state = self._answer(_read_control(delivery.payload))
        except (ServiceError, ProtocolError) as error:
            state = Rejected(amqp_error(error))
        self.dispose(delivery, state)

    def _answer(self, request: Any) -> Outcome | Declared:
        if isinstance(request, Declare):
            if request.global_id is not None:
                raise ProtocolError("Distributed transactions are not supported.", condition="amqp:not-implemented")
            transaction = self._transactions.declare()
            self._declared.add(transaction.id)
            return Declared(transaction.id)
        if not isinstance(request, Discharge):
            raise ProtocolError("A control message is a declare or a discharge.", condition="amqp:decode-error")
        return self._discharge(request.txn_id or b"", roll_back=bool(request.fail))

    def _discharge(self, txn_id: bytes, *, roll_back: bool) -> Accepted:
        if txn_id not in self._declared:
            raise TransactionUnknown("Transaction is not declared")
        self._declared.discard(txn_id)
        transaction = self._transactions.remove(txn_id)
        if transaction.is_over:
            raise TransactionUnknown("Transaction is not declared")
        if roll_back:
            transaction.roll_back()
        else:
            transaction.commit()
        return Accepted()

    def on_detached(self) -> None:
        """Roll back every transaction that was declared here and not discharged."""
        for txn_id in self._declared:
            self._transactions.remove(txn_id).roll_back()
        self._declared.clear()


def _read_control(payload: bytes) -> Any:
    bodies = [value for code, value in Sections.split(payload).read_body() if code == VALUE]
    return composite_of(bodies[0]) if bodies else None
