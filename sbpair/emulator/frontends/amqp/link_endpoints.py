"""The ends of a client's links: messages into an entity, messages out of it, requests to a node and their replies.

Each is the `context` of its link. Credit is what a peer can take, and nothing is taken out of a queue that could not
leave at once: what a slow reader cannot take stays where it is. No I/O here; the door writes.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final, Protocol

from sbpair.amqp.link import SERIAL, Link, ReceivingLink, SendingLink, terminus_address
from sbpair.amqp.performatives import Accepted, Composite, Error, Outcome, Rejected
from sbpair.amqp.types import Map, Symbol, ULong
from sbpair.emulator.access.sas import AccessRight
from sbpair.emulator.entities import service_envelope
from sbpair.emulator.entities.queue import BATCH_BYTES
from sbpair.emulator.frontends.amqp.outcomes import settle_all
from sbpair.emulator.frontends.amqp.request_messages import AmqpRequest, Answer, ReplyKeys, read_request, reply_to
from sbpair.emulator.service_errors import ArgumentInvalid, ServiceError
from sbpair.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sbpair.amqp.events import Delivery, Sent
    from sbpair.amqp.session import Session
    from sbpair.emulator.entities.idle import IdleLink
    from sbpair.emulator.entities.namespace import AddressTarget
    from sbpair.emulator.entities.sessions import HeldSession
    from sbpair.emulator.entities.stored_message import StoredMessage
    from sbpair.emulator.entities.subqueue import SubQueue
    from sbpair.emulator.faults.fault_points import FaultPoints

CREDIT: Final = 1_000
"""How many messages a client may send before it is given credit again, which happens at half of it."""

SLICE_FIRST: Final = 8
MAX_SLICE: Final = 250
SLICE_BYTES: Final = 262_144
"""What is taken out of a queue in one go, before others have their turn and the peer's slowness can show.

How many messages that is follows from the size of the last ones.
"""

REQUEST_BYTES: Final = 1_048_576
OVERSIZE_FACTOR: Final = 4
"""A message up to so many times the limit is read and refused by itself; a larger one costs its link."""

REPLIES_BYTES: Final = 4_194_304
"""What may wait for the credit, or the window, of a client that asks and does not take the answers."""


_BATCH_SIZE = Symbol("com.microsoft:max-message-batch-size")
_SETTLED = 1


class LinkConnection(Protocol):
    """What links need of the connection that they are on."""

    @property
    def blocked(self) -> bool:
        """Whether the peer is not reading what it has been sent."""

    def flush_soon(self) -> None:
        """There is output: write it once this turn is over."""

    def sent(self, size: int) -> None:
        """So many bytes of messages wait to be written: if they are many, they are, and `blocked` tells the rest."""

    def pull_soon(self, outlet: OutgoingLink) -> None:
        """Let `outlet` pull once more, after others had their turn."""

    def close_link(self, link: Link, refusal: ServiceError) -> None:
        """Close a link on which nothing has come, and let go of what stands at our end of it."""

    def watch_idle(self, link: Link) -> IdleLink:
        """End the link once nothing has come or gone on it for long."""

    def hold(self, requests: RequestLink) -> None:
        """Read nothing more before `requests` has answered what it holds: `resume` it when the peer reads again."""


class LinkEndpoint(Protocol):
    """What every link's context is. `path` and `claims` (any of them will do) are what keeps it open."""

    path: str
    claims: tuple[AccessRight, ...]

    def check(self) -> None:
        """Raises EntityDisabled, or NotAllowed, where such a link could not be opened any more."""

    def finish(self) -> None:
        """All that was read in one go has been taken: say what is still to be said of it."""

    def gone(self, unsettled: Iterable[Sent], *, released: bool) -> None:
        """The link is no more. `released` where its peer closed it in peace."""


def error_of(refusal: ServiceError) -> Error:
    return Error(refusal.condition, refusal.message, Map())


def runs(deliveries: Iterable[Any]) -> Iterable[tuple[int, int]]:
    """(first, last) of each stretch of consecutive delivery ids."""
    first = last = None
    for delivery in deliveries:
        if last is None or delivery.id != (last + 1) & SERIAL:
            if first is not None and last is not None:
                yield first, last
            first = delivery.id
        last = delivery.id
    if first is not None and last is not None:
        yield first, last


class IncomingLink:
    """Where a client sends to: deliveries become messages of the queue, and are settled once it has them."""

    claims: tuple[AccessRight, ...] = (AccessRight.SEND,)

    def __init__(
        self, connection: LinkConnection, link: ReceivingLink, target: AddressTarget, path: str, points: FaultPoints
    ) -> None:
        self.path = path
        self._points = points
        self._link = link
        self._queue = target.queue
        self._with_id = target.queue.description.requires_duplicate_detection
        self._arrived: list[Delivery] = []
        self._taken: list[Delivery] = []
        limit = target.queue.message_limit_bytes
        link.accept(max_message_size=limit, properties={_BATCH_SIZE: ULong(min(limit, BATCH_BYTES))})
        link.max_message_size = OVERSIZE_FACTOR * limit
        self._idle = connection.watch_idle(link)
        link.grant(CREDIT)

    def touch(self) -> None:
        """The link was used, by way of the management node."""
        self._idle.touch()

    def check(self) -> None:
        self._queue.check_send()

    def take(self, delivery: Delivery) -> None:
        self._arrived.append(delivery)

    def _take_in(self, arrived: list[Delivery]) -> None:
        if len(arrived) == 1 or not self._take_together(arrived):
            for delivery in arrived:
                self._take_one(delivery)

    def _take_together(self, arrived: list[Delivery]) -> bool:
        """Messages that came one by one in the same breath, unless one of them needs a look of its own."""
        if self._points.meter is not None or any(delivery.format for delivery in arrived):
            return False
        try:
            read = [service_envelope.read_message(delivery.payload, with_id=self._with_id) for delivery in arrived]
        except ProtocolError:
            return False
        if not self._queue.send_each([message for message in read if message is not None]):
            return False
        self._taken += [delivery for delivery in arrived if not delivery.settled]
        return True

    def _take_one(self, delivery: Delivery) -> None:
        try:
            messages = service_envelope.take_in(delivery.payload, delivery.format, with_id=self._with_id)
            if messages:
                if self._points.meter is not None:
                    self._points.meter.spend(len(messages) * self._queue.credits_a_message, self.path)
                self._queue.send(messages)
        except ServiceError as refusal:
            self._reject(delivery, error_of(refusal))
        except ProtocolError as error:
            self._reject(delivery, Error(error.condition, error.message, Map()))
        else:
            if not delivery.settled:
                self._taken.append(delivery)

    def finish(self) -> None:
        """Take in what has arrived since the last time, and tell so in as few words as possible."""
        arrived, self._arrived = self._arrived, []
        self._take_in(arrived)
        session = self._link.session
        self._idle.touch()
        if self._points.swallows:
            self._taken = self._points.acknowledged(self.path, self._taken)
        for first, last in runs(self._taken):
            session.dispose(first, last, Accepted(), receiver=True, settled=True)
        self._taken.clear()
        if self._link.credit <= CREDIT // 2 and self._link.is_open:
            self._link.grant(CREDIT)

    def _reject(self, delivery: Delivery, error: Error) -> None:
        if not delivery.settled:
            state = Rejected(error)
            self._link.session.dispose(delivery.id, delivery.id, state, receiver=True, settled=True)

    def gone(self, unsettled: Iterable[Sent], *, released: bool) -> None:
        """Whatever has arrived has been taken."""
        del unsettled, released
        self._idle.stop()


class OutgoingLink:
    """Where a client receives from. A Consumer of its queue while it has credit that the queue could not use up."""

    claims: tuple[AccessRight, ...] = (AccessRight.LISTEN,)

    def __init__(
        self, connection: LinkConnection, link: SendingLink, target: AddressTarget, path: str, points: FaultPoints
    ) -> None:
        self.path = path
        self._points = points
        self._connection = connection
        self._link = link
        self._target = target
        self._slice = SLICE_FIRST
        self._completed: list[Sent] = []
        self._for_good = link.remote.snd_settle_mode == _SETTLED
        self._queue = self._open(target)
        self._idle = connection.watch_idle(link)

    def _open(self, target: AddressTarget) -> SubQueue | HeldSession:
        """Agree to the link; what it receives from."""
        self._link.accept(max_message_size=target.queue.message_limit_bytes)
        return target.messages

    def touch(self) -> None:
        """The link was used, by way of the management node."""
        self._idle.touch()

    def check(self) -> None:
        self._target.check_receive()

    # Out

    def wake(self) -> None:
        self.pull()
        self._connection.flush_soon()

    def pull(self) -> None:
        """Send what there is, as far as the peer's credit, its session's window and its reading allow."""
        wanted = self._wanted()
        if not wanted:
            return
        taken = self._queue.receive(wanted, self)
        self._send(taken)
        if len(taken) == wanted and self._link.credit:
            self._connection.pull_soon(self)

    def on_flow(self) -> None:
        """The peer has changed what it can take."""
        if self._link.draining:
            self._queue.withdraw(self)
            self._drain()
        elif self._link.credit:
            self.pull()
        else:
            self._queue.withdraw(self)

    def _drain(self) -> None:
        while wanted := self._wanted():
            taken = self._queue.receive(wanted)
            self._send(taken)
            if len(taken) < wanted:
                break
        self._link.drained()

    def _wanted(self) -> int:
        link = self._link
        if self._connection.blocked or not link.is_open:
            return 0
        wanted = max(0, min(link.credit, link.session.room, self._slice))
        # One that may take nothing does not stand in line: it is resumed when it may.
        return wanted if self._points.meter is None else self._points.meter.allowed(wanted, self.path)

    def _send(self, messages: list[StoredMessage]) -> None:
        if self._points.meter is not None:
            self._points.meter.took(len(messages), self.path)
        size = self._send_for_good(messages) if self._for_good else self._send_locked(messages)
        if size:
            self._idle.touch()
            self._slice = max(1, min(MAX_SLICE, SLICE_BYTES * len(messages) // size))
            self._connection.sent(size)

    def _send_locked(self, messages: list[StoredMessage]) -> int:
        parts = [(message.lock_token, *service_envelope.give_out_in_two(message)) for message in messages]
        self._link.send_all(parts)
        return sum([len(beginning) + len(rest) for _, beginning, rest in parts])

    def _send_for_good(self, messages: list[StoredMessage]) -> int:
        size = 0
        for message in messages:
            payload = service_envelope.show(message)
            self._queue.complete(message.lock_token)
            self._link.send(payload, message.lock_token, settled=True)
            size += len(payload)
        return size

    # What became of it

    def settle(self, deliveries: list[Sent], state: Any, *, settled: bool) -> None:
        """Apply an outcome to deliveries of this link and, unless the peer has forgotten them, say so."""
        tokens = [delivery.context for delivery in deliveries]
        refused = settle_all(self._queue, tokens, state, settled=settled)
        if settled or refused is None:
            return
        done = deliveries if not refused else [each for each in deliveries if each.context not in refused]
        if isinstance(state, Accepted):
            self._completed += done
        else:
            self._echo_done(done, state)
        if refused:
            self._echo_refused([each for each in deliveries if each.context in refused], refused)

    def _echo_refused(self, deliveries: list[Sent], refused: dict[bytes, ServiceError]) -> None:
        for delivery in deliveries:
            error = Rejected(error_of(refused[delivery.context]))
            self._link.session.dispose(delivery.id, delivery.id, error, receiver=False, settled=True)

    def finish(self) -> None:
        """Echo what was completed, which many clients say of every message by itself, in as few words as possible."""
        self._idle.touch()
        self._echo_done(self._completed, Accepted())
        self._completed = []

    def _echo_done(self, done: list[Sent], state: Outcome) -> None:
        session = self._link.session
        # A rejected with an error would mean that the settlement itself has failed.
        said = Rejected() if isinstance(state, Rejected) else state
        for first, last in runs(done):
            session.dispose(first, last, said, receiver=False, settled=True)

    def gone(self, unsettled: Iterable[Sent], *, released: bool) -> None:
        self._idle.stop()
        self._queue.withdraw(self)
        give_back = self._queue.release if released else self._queue.abandon
        for delivery in unsettled:
            try:
                give_back(delivery.context)
            except ServiceError:
                # Its lock has run out, or it was settled by way of the management node.
                continue


class RequestLink:
    """Where a client's requests to a node arrive. Each is answered at once, on the link that waits for replies."""

    def __init__(
        self,
        connection: LinkConnection,
        link: ReceivingLink,
        node: str,
        path: str,
        claims: tuple[AccessRight, ...],
        answer: Answer,
        keys: ReplyKeys,
    ) -> None:
        self.path = path
        self.claims = claims
        self._connection = connection
        self._held: deque[Delivery] = deque()
        self._link = link
        self._node = node
        self._answer = answer
        self._keys = keys
        link.accept(max_message_size=REQUEST_BYTES)
        link.grant(CREDIT)

    def check(self) -> None:
        """A node answers whatever the state of its entity."""

    def take(self, delivery: Delivery) -> None:
        self._held.append(delivery)
        self.resume()

    def resume(self) -> None:
        """Answer what was asked, while the peer reads the answers."""
        while self._held and not self._connection.blocked:
            self._reply_to(self._held.popleft())
        if self._held:
            self._connection.hold(self)

    def _reply_to(self, delivery: Delivery) -> None:
        session = self._link.session
        try:
            request = read_request(delivery.payload)
        except ProtocolError as error:
            state: Composite = Rejected(Error(error.condition, error.message, Map()))
            session.dispose(delivery.id, delivery.id, state, receiver=True, settled=True)
            return
        if not delivery.settled:
            session.dispose(delivery.id, delivery.id, Accepted(), receiver=True, settled=True)
        replies = self._replies_to(request)
        payload = reply_to(request, self._answer, self._keys)
        if replies is not None:
            replies.send(payload)
            self._connection.sent(len(payload))

    def _replies_to(self, request: AmqpRequest) -> ReplyLink | None:
        """By where the request wants its reply; by the node itself where that says nothing."""
        here = [link.context for link in self._link.session.links if isinstance(link.context, ReplyLink)]
        all_of_them = here + [end for end in _all_replies(self._link.session) if end not in here]
        ours = [end for end in all_of_them if end.node == self._node]
        wanted = next((end for end in ours if request.reply_to and end.address == request.reply_to), None)
        return wanted or next(iter(ours), None)

    def finish(self) -> None:
        if self._link.credit <= CREDIT // 2 and self._link.is_open:
            self._link.grant(CREDIT)

    def gone(self, unsettled: Iterable[Sent], *, released: bool) -> None:  # noqa: ARG002  # one signature for all ends
        self._held.clear()


def _all_replies(session: Session) -> list[ReplyLink]:
    links = [link for other in session.connection.sessions for link in other.links]
    return [link.context for link in links if isinstance(link.context, ReplyLink)]


class ReplyLink:
    """Where a client waits for a node's replies. What it has no credit for waits, up to a bound."""

    def __init__(self, link: SendingLink, node: str, path: str, claims: tuple[AccessRight, ...]) -> None:
        self.path = path
        self.claims = claims
        self.node = node
        self.address = terminus_address(link.remote.target)
        self._link = link
        self._waiting: deque[bytes] = deque()
        self._size = self._tag = 0
        # Nobody settles a reply: it is sent settled.
        link.accept(snd_settle_mode=_SETTLED)

    def check(self) -> None:
        """A node answers whatever the state of its entity."""

    def send(self, payload: bytes) -> None:
        self._waiting.append(payload)
        self._size += len(payload)
        self.pull()
        if self._size > REPLIES_BYTES:
            self._waiting.clear()
            self._link.close(Error("amqp:resource-limit-exceeded", "Too many replies wait for credit.", Map()))

    def pull(self) -> None:
        link, session = self._link, self._link.session
        while self._waiting and link.credit and session.room > 0 and link.is_open:
            payload = self._waiting.popleft()
            self._size -= len(payload)
            self._tag += 1
            link.send(payload, self._tag.to_bytes(4), settled=True)

    def finish(self) -> None:
        """Replies are sent as they come."""

    def on_flow(self) -> None:
        self.pull()
        if self._link.draining:
            self._link.drained()

    def gone(self, unsettled: Iterable[Sent], *, released: bool) -> None:  # noqa: ARG002  # one signature for all ends
        self._waiting.clear()


def refuse(link: Link, refusal: ServiceError) -> None:
    link.refuse(error_of(refusal))


def address_of(link: Link) -> str:
    """What a link that a client asks for is about: where it sends to, or receives from."""
    terminus = link.remote.target if link.IS_RECEIVER else link.remote.source
    address = terminus_address(terminus)
    if not address:
        raise ArgumentInvalid("A link needs an address.")
    return address
