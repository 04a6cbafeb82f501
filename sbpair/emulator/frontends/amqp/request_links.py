"""The endpoints of links to `$cbs` and `$management` nodes: requests in, replies out."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from sbpair.amqp.link import Delivery, ReceivingLink, SendingLink, Sent, terminus_address
from sbpair.amqp.performatives import Accepted, Error, Rejected
from sbpair.amqp.types import Map
from sbpair.emulator.frontends.amqp.link_endpoint import CREDIT, PRE_SETTLED, LinkConnection, LinkEndpoint
from sbpair.emulator.frontends.amqp.request_messages import AmqpRequest, Answer, ReplyKeys, read_request, reply_to
from sbpair.errors import ProtocolError

if TYPE_CHECKING:
    from sbpair.emulator.access.sas import AccessRight

REQUEST_BYTES: Final = 1_048_576
MAX_PENDING_REPLY_BYTES: Final = 4_194_304
"""Replies that may wait for credit or window of a client that does not take them."""


class RequestLink(LinkEndpoint):
    """A link on which a client sends requests to a node. Each is answered at once, on a link for replies."""

    def __init__(
        self,
        connection: LinkConnection,
        link: ReceivingLink,
        node: str,
        path: str,
        rights: tuple[AccessRight, ...],
        answer: Answer,
        keys: ReplyKeys,
    ) -> None:
        super().__init__(path, rights)
        self._output = connection.output
        self._pending: deque[Delivery] = deque()
        self._link = link
        self._node = node
        self._answer = answer
        self._keys = keys
        link.accept(max_message_size=REQUEST_BYTES)
        link.grant(CREDIT)

    def receive(self, delivery: Delivery) -> None:
        self._pending.append(delivery)
        self.answer_pending()

    def answer_pending(self) -> None:
        """Answer pending requests while the peer reads the replies."""
        while self._pending and not self._output.blocked:
            self._answer_one(self._pending.popleft())
        if self._pending:
            self._output.pause_reading_for(self)

    def _answer_one(self, delivery: Delivery) -> None:
        session = self._link.session
        try:
            request = read_request(delivery.payload)
        except ProtocolError as error:
            state = Rejected(Error(error.condition, error.message, Map()))
            session.dispose(delivery.id, delivery.id, state, receiver=True, settled=True)
            return
        if not delivery.settled:
            session.dispose(delivery.id, delivery.id, Accepted(), receiver=True, settled=True)
        replies = self._replies_to(request)
        payload = reply_to(request, self._answer, self._keys)
        if replies is not None:
            replies.send(payload)
            self._output.count(len(payload))

    def _replies_to(self, request: AmqpRequest) -> ReplyLink | None:
        """Return the link for the reply: the one that `reply-to` names, else any of this node, own session first."""
        own = self._link.session
        sessions = sorted(own.connection.sessions, key=lambda session: session is not own)
        replies = [link.context for session in sessions for link in session.links]
        candidates = [each for each in replies if isinstance(each, ReplyLink) and each.node == self._node]
        named = next((each for each in candidates if request.reply_to and each.address == request.reply_to), None)
        return named or next(iter(candidates), None)

    def flush(self) -> None:
        if self._link.credit <= CREDIT // 2 and self._link.is_open:
            self._link.grant(CREDIT)

    def on_detached(self, unsettled: Iterable[Sent], *, released: bool) -> None:  # noqa: ARG002  # LinkEndpoint's signature
        self._pending.clear()


class ReplyLink(LinkEndpoint):
    """A link on which a client receives the replies of a node. Replies beyond its credit wait, up to a bound."""

    def __init__(self, link: SendingLink, node: str, path: str, rights: tuple[AccessRight, ...]) -> None:
        super().__init__(path, rights)
        self.node = node
        self.address = terminus_address(link.remote.target)
        self._link = link
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

    def on_detached(self, unsettled: Iterable[Sent], *, released: bool) -> None:  # noqa: ARG002  # LinkEndpoint's signature
        self._pending.clear()
