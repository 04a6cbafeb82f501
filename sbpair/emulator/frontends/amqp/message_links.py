"""The endpoints of links on which a client sends messages to an entity, or receives them from it or from a session.

Invariant: a message leaves its queue only if it can be sent at once.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from sbpair.amqp.link import ReceivingLink
from sbpair.amqp.performatives import Accepted, Error, Modified, Outcome, Rejected, Released, Source, TransactionalState
from sbpair.amqp.session import id_ranges
from sbpair.amqp.types import Described, Long, Map, Symbol, ULong, Value
from sbpair.amqp_server.node_links import PRE_SETTLED, answer_to, text_at
from sbpair.amqp_server.refusals import ArgumentInvalid, NotAllowed, ServiceError, amqp_error
from sbpair.amqp_server.server_connection import LinkEndpoint
from sbpair.amqp_server.shared_access import AccessRight
from sbpair.emulator.entities import service_envelope
from sbpair.emulator.entities.queue import MAX_BATCH_BYTES
from sbpair.emulator.entities.sessions import HeldSession, SessionMessages
from sbpair.emulator.entities.subqueue import MessageCopies
from sbpair.emulator.entities.transaction import SendVia
from sbpair.emulator.frontends.amqp.link_owner import LinkOwner
from sbpair.emulator.service_errors import OperationTimedOut, SessionLockExpired
from sbpair.errors import ProtocolError
from sbpair.timespan import TICKS_PER_MS

if TYPE_CHECKING:
    from sbpair.amqp.link import Delivery, Link, SendingLink, Sent
    from sbpair.emulator.clock import Deadline
    from sbpair.emulator.entities.namespace import AddressTarget
    from sbpair.emulator.entities.queue import QueueEntity
    from sbpair.emulator.entities.stored_message import StoredMessage
    from sbpair.emulator.entities.subqueue import SubQueue
    from sbpair.emulator.entities.transaction import SendTarget, Transaction, Trial

SEND: Final = (AccessRight.SEND,)
OVERSIZE_FACTOR: Final = 4
"""A message up to this many times the limit is read and rejected; a larger one costs its link."""

_BATCH_SIZE = Symbol("com.microsoft:max-message-batch-size")

LISTEN: Final = (AccessRight.LISTEN,)
FIRST_SLICE: Final = 8
MAX_SLICE: Final = 250
SLICE_BYTES: Final = 262_144
"""Bytes taken from a queue in one go, so that other links get their turn and a slow peer shows.

The number of messages follows from the size of the last ones.
"""

OUTCOMES: Final = (Accepted, Modified, Rejected, Released)
REASON: Final = "DeadLetterReason"
DESCRIPTION: Final = "DeadLetterErrorDescription"
_REASONS: Final = (REASON, DESCRIPTION)

COPY: Final = "copy"
"""The distribution mode of a link that browses."""

SESSION_FILTER: Final = Symbol("com.microsoft:session-filter")
NON_EXCLUSIVE: Final = ULong(0x13_7000_000E)
"""The descriptor of a filter that shares a session with others."""

DETACH_MS: Final = 750
"""How long a link outlives the lock of its session."""

TIMEOUT: Final = "com.microsoft:timeout"
DEFAULT_TIMEOUT_MS: Final = 65_000
"""How long a link waits for a session if its properties give no time."""

TRANSFER_DESTINATION: Final = "com.microsoft:transfer-destination-address"
LOCKED_UNTIL: Final = Symbol("com.microsoft:locked-until-utc")
_TICKS_TO_1970: Final = 621_355_968_000_000_000


class EntityLink(LinkEndpoint):
    """The endpoint of a link to the messages of an entity."""

    _owner: LinkOwner

    def __init__(self, owner: LinkOwner, link: Any, path: str, rights: tuple[AccessRight, ...]) -> None:
        super().__init__(owner, link, path, rights)
        self._fault_points = owner.namespace.fault_points


class IncomingLink(EntityLink):
    """A link into an entity. A delivery is accepted once the entity has its messages."""

    _link: ReceivingLink

    def __init__(
        self,
        owner: LinkOwner,
        link: ReceivingLink,
        target: SendTarget,
        path: str,
        properties: dict[Symbol, str] | None = None,
    ) -> None:
        super().__init__(owner, link, path, SEND)
        self._queue = target
        self._with_id = target.description.requires_duplicate_detection
        self._received: list[Delivery] = []
        self._accepted: list[Delivery] = []
        limit = target.max_message_bytes
        properties_of = {_BATCH_SIZE: ULong(min(limit, MAX_BATCH_BYTES)), **(properties or {})}
        link.accept(max_message_size=limit, properties=properties_of)
        link.max_message_size = OVERSIZE_FACTOR * limit
        self.idle = owner.watch_idle(link)
        self.grant()

    def check_open(self) -> None:
        self._queue.check_send()

    def receive(self, delivery: Delivery) -> None:
        self._received.append(delivery)

    def _enqueue_together(self, deliveries: list[Delivery]) -> bool:
        """Enqueue single messages at once; return False, without effect, if any needs separate handling."""
        if self._fault_points.is_limiting or any(delivery.format for delivery in deliveries):
            return False
        try:
            read = [service_envelope.read_message(each.payload, with_id=self._with_id) for each in deliveries]
        except (ServiceError, ProtocolError):
            return False
        if not self._queue.try_send_each([message for message in read if message is not None]):
            return False
        self._accepted += [delivery for delivery in deliveries if not delivery.settled]
        return True

    def receive_in(self, transaction: Transaction, delivery: Delivery) -> None:
        """Keep the messages for the commit. A failure that the client does not wait for makes the commit fail."""
        error = self._store(delivery, partial(transaction.send, self._queue))
        if delivery.settled:
            if error is not None:
                transaction.doom(error.message)
        elif error is None and self._fault_points.acknowledged(self.path, [delivery]):
            self.dispose(delivery, answer_to(delivery, Accepted()))

    def _store(
        self, delivery: Delivery, send: Callable[[list[StoredMessage]], None]
    ) -> ServiceError | ProtocolError | None:
        """Pass the messages of a delivery to `send`; if that fails, reject the delivery and return the error."""
        try:
            with_bytes = self._fault_points.takes_bytes(self.path)
            messages = service_envelope.read_delivery(
                delivery.payload, delivery.format, with_id=self._with_id, with_bytes=with_bytes
            )
            if messages:
                if self._fault_points.is_limiting:
                    self._fault_points.spend(len(messages) * self._queue.credits_per_message, self.path)
                send(messages)
        except (ServiceError, ProtocolError) as error:
            if not delivery.settled:
                self.dispose(delivery, answer_to(delivery, Rejected(amqp_error(error))))
            return error
        return None

    def flush(self) -> None:
        """Enqueue everything received since the last call and accept it in ranges."""
        received, self._received = self._received, []
        if len(received) == 1 or not self._enqueue_together(received):
            for delivery in received:
                if self._store(delivery, self._queue.send) is None and not delivery.settled:
                    self._accepted.append(delivery)
        self.idle.postpone()
        if self._fault_points.acting:
            self._accepted = self._fault_points.acknowledged(self.path, self._accepted)
        for first, last in id_ranges([each.id for each in self._accepted]):
            self._link.session.dispose(first, last, Accepted(), receiver=True, settled=True)
        self._accepted.clear()
        self.grant()

    def on_detached(self) -> None:
        """Stop the idle timer: every delivery received was enqueued."""
        self.idle.cancel()


class SendViaLink(IncomingLink):
    """A link into an entity by way of another. It needs the right to send to both; `other` is the one not in `path`.

    By way of a subscription it needs the right to receive there, which its client has a token for.
    """

    def __init__(
        self,
        owner: LinkOwner,
        link: ReceivingLink,
        route: SendVia,
        path: str,
        other: QueueEntity,
        properties: dict[Symbol, str] | None = None,
    ) -> None:
        self._other, self._rights = other.path.lower(), SEND if other.top_level is other else LISTEN
        owner.claims.require(self._rights, self._other)
        super().__init__(owner, link, route, path, properties)

    def check_rights(self) -> None:
        super().check_rights()
        self._owner.claims.require(self._rights, self._other)

    def check_open(self) -> None:
        super().check_open()
        self._owner.namespace.resolve(self._other)


class OutgoingLink(EntityLink):
    """A link out of an entity. It waits as a Consumer of its queue while it has credit left."""

    _link: SendingLink

    def __init__(
        self,
        owner: LinkOwner,
        link: SendingLink,
        target: AddressTarget,
        path: str,
        queue: SubQueue | HeldSession | MessageCopies,
        *,
        filters: dict[Symbol, Any] | None = None,
        **terms: Any,
    ) -> None:
        """Accept the link with these `terms`, and confirm the `filters` in place only (AMQP 1.0, part 3.5.3)."""
        super().__init__(owner, link, path, LISTEN)
        self._target = target
        self._slice = FIRST_SLICE
        self._completed: list[Sent] = []
        is_browsed = isinstance(queue, MessageCopies)
        self._pre_settled = is_browsed or link.remote.snd_settle_mode == PRE_SETTLED
        self._queue: Any = queue  # nothing is settled in copies
        source = replace(link.remote.source, filter=filters, distribution_mode=COPY if is_browsed else None)
        # Without a max-message-size: annotations push a message over the entity's limit, and strict clients close then.
        link.accept(source=source, snd_settle_mode=PRE_SETTLED if is_browsed else None, **terms)
        self.idle = owner.watch_idle(link)

    def check_open(self) -> None:
        self._target.check_receive()

    # Sending

    def wake(self) -> None:
        self.pull()
        self._output.flush_soon()

    def pull(self) -> None:
        """Send messages as far as credit, session window and the peer's reading allow."""
        wanted = self._wanted()
        if not wanted:
            return
        messages = self._queue.receive(wanted, self)
        self._send(messages)
        if len(messages) == wanted and self._link.credit:
            self._output.pull_soon(self)

    def on_flow(self) -> None:
        if self._link.draining:
            self._queue.remove_consumer(self)
            self._drain()
        elif self._link.credit:
            self.pull()
        else:
            self._queue.remove_consumer(self)

    def _drain(self) -> None:
        while wanted := self._wanted():
            messages = self._queue.receive(wanted)
            self._send(messages)
            if len(messages) < wanted:
                break
        self._link.drained()

    def _wanted(self) -> int:
        link = self._link
        if self._output.blocked or not link.is_open:
            return 0
        wanted = max(0, min(link.credit, link.session.room, self._slice))
        # A link that may take nothing does not wait at the queue: it is resumed.
        points = self._fault_points
        return points.allowed(wanted, self.path) if points.is_limiting else wanted

    def _send(self, messages: list[StoredMessage]) -> None:
        if self._fault_points.is_limiting:
            self._fault_points.record(len(messages))
        size = self._send_settled(messages) if self._pre_settled else self._send_locked(messages)
        if size:
            self.idle.postpone()
            self._slice = max(1, min(MAX_SLICE, SLICE_BYTES * len(messages) // size))
            self._output.count(size)

    def _send_locked(self, messages: list[StoredMessage]) -> int:
        parts = [(message.lock_token, *service_envelope.encode_delivery_parts(message)) for message in messages]
        self._link.send_all(parts)
        return sum([len(beginning) + len(rest) for _, beginning, rest in parts])

    def _send_settled(self, messages: list[StoredMessage]) -> int:
        size = 0
        for message in messages:
            payload = service_envelope.encode_peeked(message)
            self._queue.checked().complete(message.lock_token)
            self._link.send(payload, message.lock_token, settled=True)
            size += len(payload)
        return size

    # Settling

    def settle(self, deliveries: list[Sent], state: Any, *, settled: bool) -> None:
        """Apply an outcome to deliveries of this link and confirm it, unless the peer has settled them itself."""
        tokens = [delivery.context for delivery in deliveries]
        failed = settle_all(self._queue, tokens, state, settled=settled)
        if failed is None and isinstance(state, TransactionalState):
            self._settle_in(deliveries, state, settled=settled)
        if settled or failed is None:
            return
        done = deliveries if not failed else [each for each in deliveries if each.context not in failed]
        if isinstance(state, Accepted) and not failed:
            self._completed += done
            return
        self._owner.flush_endpoints()
        self._confirm(done, state)
        for delivery in deliveries if failed else ():
            if delivery.context in failed:
                self.dispose(delivery, Rejected(amqp_error(failed[delivery.context])))

    def _settle_in(self, deliveries: list[Sent], state: TransactionalState, *, settled: bool) -> None:
        """Keep an outcome for the commit of a transaction. Until then, deliveries that the peer keeps stay open."""
        try:
            transaction = self._owner.transactions.find(state.txn_id)
        except ServiceError as error:
            self._owner.close_link(self._link, error)
            return
        outcome = state.outcome
        if not isinstance(outcome, OUTCOMES):
            return
        for delivery in deliveries:
            settlement = partial(settle_one, outcome)
            try:
                entity, tokens = self._target.entity, [delivery.context]
                transaction.settle(entity, self._queue, tokens, settlement, is_settled=settled)
            except ServiceError as error:
                if settled:
                    # The peer does not wait for an answer.
                    transaction.doom(error.message)
                else:
                    self.dispose(delivery, TransactionalState(transaction.id, Rejected(amqp_error(error))))
            else:
                if not settled:
                    confirmed = TransactionalState(transaction.id, _confirmed(outcome))
                    self.dispose(delivery, confirmed, settled=False)
                    transaction.on_committed.append(partial(self._on_committed, delivery, confirmed))

    def _on_committed(self, delivery: Sent, confirmed: TransactionalState) -> None:
        """Settle a delivery with its state: clients such as Java's fail at a bare rejected."""
        if self._link.session.sent.get(delivery.id) is delivery:
            self.dispose(delivery, confirmed)

    def flush(self) -> None:
        """Confirm completed deliveries in ranges: many clients complete each message by itself."""
        self.idle.postpone()
        self._confirm(self._completed, Accepted())
        self._completed = []

    def _confirm(self, deliveries: list[Sent], state: Outcome) -> None:
        for first, last in id_ranges([each.id for each in deliveries]):
            self._link.session.dispose(first, last, _confirmed(state), receiver=False, settled=True)

    def on_detached(self) -> None:
        """Stop receiving. Locks outlive the link: the management node settles and renews them until they expire."""
        self.idle.cancel()
        self._queue.remove_consumer(self)


class OutgoingSessionLink(OutgoingLink):
    """A link that holds a session and receives from it. The session is released with the link."""

    def __init__(
        self, owner: LinkOwner, link: SendingLink, target: AddressTarget, path: str, held: HeldSession
    ) -> None:
        filters = {SESSION_FILTER: _granted(link.remote.source.filter, held.id)}
        locked_until = Long(held.locked_until_ms * TICKS_PER_MS + _TICKS_TO_1970)
        super().__init__(owner, link, target, path, held, filters=filters, properties={LOCKED_UNTIL: locked_until})
        self.held = held
        held.owner = owner.peer.container_id or ""
        self._detaching: Deadline | None = None
        held.on_lock_lost = self._on_lock_lost

    def _on_lock_lost(self, error: SessionLockExpired) -> None:
        """Detach somewhat later: a client that waits for as long as the lock lasts ends its wait before."""
        detach = partial(self._owner.close_link, self._link, error)
        self._detaching = self._owner.namespace.deadline(DETACH_MS, detach)

    def _wanted(self) -> int:
        return 0 if self._detaching else super()._wanted()

    def pull(self) -> None:
        with suppress(SessionLockExpired):  # the lock may end between two messages, before its timer runs
            super().pull()

    def _drain(self) -> None:
        with suppress(SessionLockExpired):
            super()._drain()

    def on_detached(self) -> None:
        super().on_detached()
        if self._detaching:
            self._detaching.cancel()
        self.held.on_lock_lost = None
        self.held.close(failed=not self.ended_peacefully)


def _granted(asked: Map, session_id: str) -> Described | str:
    """Return the filter of a granted session: with the client's descriptor, or bare for a client that sends it bare."""
    given = asked.get(SESSION_FILTER)
    if not isinstance(given, Described):
        return given or session_id
    return Described(given.descriptor, given.value or session_id)


class WaitingSessionLink(EntityLink):
    """A link that stays unanswered until a session is free or its time is over."""

    def __init__(self, owner: LinkOwner, link: SendingLink, target: AddressTarget, path: str) -> None:
        super().__init__(owner, link, path, LISTEN)
        self._target = target

    def start(self, timeout_ms: int) -> None:
        self._deadline = self._owner.namespace.deadline(timeout_ms, self._on_deadline)

    def on_session_locked(self, held: HeldSession) -> None:
        self._deadline.cancel()
        outgoing = OutgoingSessionLink(self._owner, self._link, self._target, self.path, held)
        self._link.context = outgoing
        outgoing.wake()

    def _on_deadline(self) -> None:
        error = OperationTimedOut("No session became available within the time that was given.")
        self._owner.close_link(self._link, error)

    def check_open(self) -> None:
        self._target.check_receive()

    def on_detached(self) -> None:
        self._deadline.cancel()
        if isinstance(self._target.messages, SessionMessages):
            self._target.messages.remove_waiter(self)


# Opening


def open_to_messages(owner: LinkOwner, link: Link, path: str, target: AddressTarget) -> EntityLink:
    """Accept a link to an entity and return its endpoint, after the checks of rights and of the entity.

    A receiver from a session names it in the source's filter, null for any free one, and gives the time to wait in the
    link's properties. Raises ServiceError.
    """
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
    owner: LinkOwner, link: SendingLink, path: str, target: AddressTarget
) -> OutgoingLink | WaitingSessionLink:
    source = link.remote.source
    if isinstance(source, Source) and source.distribution_mode == COPY:
        return OutgoingLink(owner, link, target, path, MessageCopies(target.messages))
    filters = source.filter if isinstance(source, Source) and isinstance(source.filter, Map) else Map()
    if any(isinstance(each, Described) and each.descriptor == NON_EXCLUSIVE for _, each in filters.pairs):
        raise NotAllowed("A session cannot be shared: non-exclusive session receivers are not supported.")
    if isinstance(target.messages, SessionMessages) or SESSION_FILTER in filters:
        return _open_to_session(owner, link, target, path, filters)
    return OutgoingLink(owner, link, target, path, target.messages)


def _open_to_send(owner: LinkOwner, link: ReceivingLink, path: str, entity: QueueEntity) -> IncomingLink:
    """Return the endpoint of a link for sending: to the entity, or by way of it or of its session's first entity."""
    properties = link.remote.properties
    destination = text_at(properties, TRANSFER_DESTINATION) if isinstance(properties, Map) else None
    if destination is not None:
        to = owner.namespace.find_target(destination, owner.claims.endpoint)
        echo = {Symbol(TRANSFER_DESTINATION): destination}
        return SendViaLink(owner, link, SendVia(entity, to), path, to, echo)
    via = owner.transactions.via(link.session, entity)
    if entity not in (via, via.top_level):
        return SendViaLink(owner, link, SendVia(via, entity), path, via)
    return IncomingLink(owner, link, entity, path)


def _open_to_session(
    owner: LinkOwner, link: SendingLink, target: AddressTarget, path: str, filters: Map
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


# Settlement


def settle_all(
    queue: SubQueue | HeldSession, tokens: list[bytes], state: Any, *, settled: bool
) -> dict[bytes, ServiceError] | None:
    """Apply an outcome to locked messages and return the errors by token, or None if `state` is not an outcome."""
    # A delivery settled without an outcome was not processed.
    outcome = Released() if state is None and settled else state
    if not isinstance(outcome, OUTCOMES):
        return None
    try:
        messages = queue.checked()
        if isinstance(outcome, Accepted):
            return messages.complete_all(tokens)
    except SessionLockExpired as error:
        return dict.fromkeys(tokens, error)
    failed: dict[bytes, ServiceError] = {}
    for token in tokens:
        try:
            settle_one(outcome, messages, token)
        except ServiceError as error:
            failed[token] = error
    return failed


def _confirmed(outcome: Outcome) -> Outcome:
    """Return the outcome to confirm: a rejected with an error would mean that the settlement itself has failed."""
    return Rejected() if isinstance(outcome, Rejected) else outcome


def settle_one(outcome: Outcome, messages: SubQueue | Trial, token: bytes) -> None:
    """Apply an outcome to a locked message."""
    match outcome:
        case Accepted():
            messages.complete(token)
        case Modified():
            _modify(messages, token, outcome.message_annotations)
            # `delivery_failed` is ignored: the SDK for JavaScript abandons without it.
            (messages.defer if outcome.undeliverable_here else messages.abandon)(token)
        case Rejected(error=Error() as error):
            info = error.info if isinstance(error.info, Map) else Map()
            # A reason that is no text stays as it is, as a property.
            _modify(
                messages, token, Map(pair for pair in info.pairs if pair[0] not in _REASONS or not _is_text(pair[1]))
            )
            messages.dead_letter(token, text_at(info, REASON), text_at(info, DESCRIPTION) or error.description or None)
        case Rejected():
            messages.dead_letter(token)
        case Released():
            messages.release(token)


def _is_text(value: Value) -> bool:
    return value is None or isinstance(value, str)


def _modify(messages: SubQueue | Trial, token: bytes, properties: object) -> None:
    """Update the application properties of a locked message, if any are given."""
    if isinstance(properties, Map) and properties:
        try:
            messages.modify(token, lambda message: service_envelope.modify_properties(message, properties))
        except ProtocolError as error:
            raise ArgumentInvalid(f"The properties of the message cannot be changed: {error.message}") from error
