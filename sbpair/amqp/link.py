"""Links: one-way paths for messages, with flow control by credit. AMQP 1.0, parts 2.6 and 2.7."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sbpair.amqp import transfer
from sbpair.amqp.endpoint import EndpointState, EndpointStep, ProtocolEndpoint
from sbpair.amqp.performatives import Attach, Composite, Detach, Error, Flow, Source, Target
from sbpair.errors import ProtocolError

SERIAL, SERIAL_HALF = 0xFFFFFFFF, 0x80000000
"""Delivery counts and ids are 32-bit serial numbers: they wrap; half the circle ahead means behind."""

MAX_TAG = 32

Parts = tuple[bytes, bytes, bytes]
"""A delivery's tag, and its payload in two pieces, so that the larger one need not be copied."""


@dataclass(slots=True)
class LinkAttaching:
    """The peer requests a link: answer with `link.accept(…)`, or refuse it with `link.close(error)`."""

    link: Link


@dataclass(slots=True)
class LinkAttached:
    """The peer has attached a link that we opened; a LinkDetached with an error may follow at once."""

    link: Link


@dataclass(slots=True)
class LinkDetached:
    """The peer has detached or refused a link, or has ended its session, or has sent on one that we had not answered.

    Our own close is not reported. Without `closed` the peer means to resume it.
    """

    link: Link
    error: Error | None
    closed: bool = True


@dataclass(slots=True)
class CreditChanged:
    """The peer has sent a flow: see `link.credit` and `link.draining`."""

    link: SendingLink


@dataclass(slots=True, eq=False, repr=False)
class Delivery:
    """A complete message. `tag` identifies it during the link's life, `id` in its session."""

    link: ReceivingLink
    id: int
    tag: bytes
    format: int
    settled: bool
    payload: bytes = b""
    context: Any = None

    def with_state(self, state: Any) -> StatefulDelivery:
        return StatefulDelivery(self.link, self.id, self.tag, self.format, self.settled, self.payload, state=state)


@dataclass(slots=True, eq=False, repr=False)
class StatefulDelivery(Delivery):
    """A delivery sent with a state, such as a transaction's. A class of its own: most deliveries have none."""

    state: Any = None


@dataclass(slots=True, eq=False, repr=False)
class Sent:
    """A delivery sent and not settled yet. `context` belongs to the sender."""

    link: SendingLink
    id: int
    context: Any


class FrameSink(Protocol):
    """The connection of a session, which writes its frames."""

    remote_max_frame_size: int

    @property
    def sessions(self) -> Iterable[LinkSession]: ...
    def put(self, channel: int, body: bytes) -> None: ...
    def put_transfer(self, channel: int, head: bytes, payload: bytes) -> None: ...
    def put_frames(self, pieces: list[bytes]) -> None: ...


class LinkSession(Protocol):
    """The session of a link, for the link and its owner. `room` and the methods are described in `session`."""

    connection: FrameSink
    channel: int
    numbered: int
    sent: dict[int, Sent]
    received: dict[int, Delivery]

    @property
    def is_open(self) -> bool: ...
    @property
    def usable(self) -> bool: ...
    @property
    def room(self) -> int: ...
    @property
    def links(self) -> tuple[Link, ...]: ...
    def end(self) -> None: ...
    def dispose(self, first: int, last: int, state: Any, *, receiver: bool, settled: bool) -> None: ...
    def put(self, body: Composite) -> None: ...
    def put_transfer(self, link: SendingLink, head: bytes, payload: bytes, *, last: bool) -> None: ...
    def put_frames(self, link: SendingLink, frames: list[bytes]) -> None: ...
    def put_flow(self, link: Link, *, drain: bool = False) -> None: ...
    def next_delivery_id(self) -> int: ...
    def after_queued(self, link: SendingLink) -> None: ...
    def forget(self, link: Link) -> None: ...


class Link(ProtocolEndpoint):
    """The common part of both kinds of link. `remote` is the peer's attach; `context` belongs to the owner."""

    IS_RECEIVER = False

    def __init__(self, session: LinkSession, name: str, handle: int) -> None:
        super().__init__()
        self.session = session
        self.name = name
        self.handle = handle
        self.remote_handle: int | None = None
        self.remote: Attach = Attach()
        self.delivery_count = 0
        self.credit = 0
        self.context: Any = None

    def accept(
        self,
        *,
        source: Any = None,
        target: Any = None,
        snd_settle_mode: int | None = None,
        rcv_settle_mode: int | None = None,
        **terms: Any,
    ) -> None:
        """Attach a link that the peer requested, with its own terms by default.

        Does nothing if the peer has detached it meanwhile.
        """
        if self.state is not EndpointState.OPEN_RECEIVED:
            return
        self._attach(
            Attach(
                snd_settle_mode=self.remote.snd_settle_mode if snd_settle_mode is None else snd_settle_mode,
                rcv_settle_mode=self.remote.rcv_settle_mode if rcv_settle_mode is None else rcv_settle_mode,
                source=source or self.remote.source,
                target=target or self.remote.target,
                **terms,
            )
        )

    def close(self, error: Error | None = None, *, closed: bool = True) -> None:
        """Detach, for good if `closed`. Deliveries that still wait for the session's window are not sent.

        A link that the peer requested is refused: attached without a terminus, then detached with the reason.
        """
        if self.state is EndpointState.OPEN_RECEIVED:
            self._attach(Attach(snd_settle_mode=self.remote.snd_settle_mode))
        if self.can_close:
            self.step(EndpointStep.WE_CLOSE)
            self.session.put(Detach(self.handle, closed, error))
            self.session.forget(self)
        elif self.state is EndpointState.UNMAPPED:
            self.cut()

    def cut(self) -> bool:
        """End the link with its session. Return whether the owner does not know yet."""
        was_open = self.state in (EndpointState.OPEN_SENT, EndpointState.OPEN_RECEIVED, EndpointState.OPEN)
        self.state = EndpointState.CLOSED
        self.session.forget(self)
        return was_open

    def _attach(self, attach: Attach) -> None:
        attach.name, attach.handle, attach.role = self.name, self.handle, self.IS_RECEIVER
        self.step(EndpointStep.WE_OPEN)
        self.session.put(attach)

    def open(self, *, source: Any, target: Any, **terms: Any) -> None:
        """Request this link; LinkAttached follows, or LinkDetached with the reason.

        Raises ProtocolError if the session has ended.
        """
        if not self.session.usable:
            raise ProtocolError("the session of a link has ended", condition="amqp:illegal-state")
        self._attach(Attach(source=source, target=target, **terms))

    def lose(self) -> None:
        """Discard the credit and all pending state."""
        self.credit = 0

    def on_attach(self, attach: Attach) -> LinkAttached | LinkAttaching | None:
        self.remote = attach
        self.remote_handle = attach.handle
        self.step(EndpointStep.THEY_OPEN)
        if self.state is EndpointState.OPEN_RECEIVED:
            return LinkAttaching(self)
        return LinkAttached(self) if self.state is EndpointState.OPEN else None

    def on_detach(self, detach: Detach) -> LinkDetached | None:
        """Answer the peer's detach, unless we detached first."""
        known = self.state is not EndpointState.CLOSE_SENT
        unanswered = self.state is EndpointState.OPEN_RECEIVED
        self.step(EndpointStep.THEY_CLOSE)
        if unanswered:
            self._attach(Attach(snd_settle_mode=self.remote.snd_settle_mode))
        if self.state is EndpointState.CLOSE_RECEIVED:
            self.step(EndpointStep.WE_CLOSE)
            self.session.put(Detach(self.handle, detach.closed, None))
        self.session.forget(self)
        error = detach.error if isinstance(detach.error, Error) else None
        return LinkDetached(self, error, bool(detach.closed)) if known else None

    def on_flow(self, flow: Flow) -> CreditChanged | None:
        raise NotImplementedError


class SendingLink(Link):
    """The sending end. While `draining`, call `drained()` once there is nothing more to send.

    `queued` deliveries wait for the session's window: they have used `credit`; `delivery_count` counts them when sent.
    """

    def __init__(self, session: LinkSession, name: str, handle: int) -> None:
        super().__init__(session, name, handle)
        self.draining = False
        self.queued = 0

    def _attach(self, attach: Attach) -> None:
        attach.initial_delivery_count = self.delivery_count
        super()._attach(attach)

    def send(
        self,
        payload: bytes,
        tag: bytes,
        *,
        message_format: int = 0,
        settled: bool = False,
        state: Any = None,
        context: Any = None,
        overrun: bool = False,
    ) -> int:
        """Send a message in as many frames as needed; return its delivery id.

        `state` is that of the delivery, such as a transaction's. `overrun` allows a message for credit that the
        receiver has withdrawn meanwhile. Raises ValueError without credit, which an ended link never has: check first.
        """
        if self.credit <= 0 and not (overrun and self.is_open):
            raise ValueError(f"link {self.name!r} has no credit")
        if len(tag) > MAX_TAG:
            raise ValueError(f"a delivery tag has at most {MAX_TAG} bytes")
        session = self.session
        delivery_id = session.next_delivery_id()
        terms = self.handle, delivery_id, tag, message_format
        head = transfer.encode_transfer(*terms, settled=settled, more=False, state=state)
        self.credit = max(0, self.credit - 1)
        if not settled:
            session.sent[delivery_id] = Sent(self, delivery_id, context)
        room = session.connection.remote_max_frame_size - 8 - len(head)
        if len(payload) > room:
            more = transfer.encode_transfer(*terms, settled=settled, more=True, state=state)
            for position in range(room, len(payload), room):
                session.put_transfer(self, more, payload[position - room : position], last=False)
            payload = payload[position:]
        session.put_transfer(self, head, payload, last=True)
        return delivery_id

    def send_all(self, deliveries: Sequence[Parts]) -> None:
        """Send unsettled messages: half the cost of `send` for each, if each fits one frame.

        A delivery's context is its tag.
        """
        session = self.session
        if len(deliveries) > min(self.credit, session.room) or not deliveries:
            self._send_each(deliveries)
            return
        head_of = transfer.frame_head(session.channel, self.handle, len(deliveries[0][0]))
        room = session.connection.remote_max_frame_size - len(head_of(0, 0, deliveries[0][0]))
        frames: list[bytes] = []
        sent, delivery_id = session.sent, session.numbered
        for number, (tag, beginning, rest) in enumerate(deliveries):
            size = len(beginning) + len(rest)
            if size > room:
                session.put_frames(self, frames)
                self._send_each(deliveries[number:])
                return
            frames.append(head_of(size, delivery_id, tag) + beginning)
            frames.append(rest)
            sent[delivery_id] = Sent(self, delivery_id, tag)
            delivery_id = (delivery_id + 1) & SERIAL
        session.put_frames(self, frames)

    def _send_each(self, deliveries: Sequence[Parts]) -> None:
        for tag, beginning, rest in deliveries:
            self.send(beginning + rest, tag, context=tag)

    def drained(self) -> None:
        """Return the credit that a draining receiver granted in vain."""
        if self.queued:
            self.session.after_queued(self)
        elif self.usable:
            self.delivery_count = (self.delivery_count + self.credit) & SERIAL
            self.credit = 0
            self.draining = False
            self.session.put_flow(self, drain=True)

    def lose(self) -> None:
        super().lose()
        self.queued = 0

    def on_flow(self, flow: Flow) -> CreditChanged | None:
        # A receiver that does not know our count yet counts from our initial one, 0.
        known = flow.delivery_count or 0
        if flow.link_credit is not None:
            ahead = (self.delivery_count + self.queued - known) & SERIAL
            # If the receiver has counted fewer deliveries than we sent, the result may be negative.
            self.credit = max(0, flow.link_credit - (ahead if ahead < SERIAL_HALF else 0))
        self.draining = bool(flow.drain)
        if flow.echo and self.usable:
            self.session.put_flow(self)
        return CreditChanged(self)


class ReceivingLink(Link):
    """The receiving end."""

    IS_RECEIVER = True

    def __init__(self, session: LinkSession, name: str, handle: int) -> None:
        super().__init__(session, name, handle)
        self.max_message_size = 0
        self._partial: Delivery | None = None
        self._chunks = bytearray()

    def _attach(self, attach: Attach) -> None:
        # A limit of our own holds although the peer is not told of it.
        self.max_message_size = attach.max_message_size or self.max_message_size
        super()._attach(attach)

    def grant(self, credit: int) -> None:
        """Let the peer send `credit` more deliveries."""
        if self.usable:
            self.credit = credit
            self.session.put_flow(self)

    def drain(self) -> None:
        """Ask the peer to use up its credit now, or to return it."""
        if self.usable:
            self.session.put_flow(self, drain=True)

    def on_attach(self, attach: Attach) -> LinkAttached | LinkAttaching | None:
        # The service leaves the count out, and its clients may.
        self.delivery_count = attach.initial_delivery_count or 0
        return super().on_attach(attach)

    def on_flow(self, flow: Flow) -> CreditChanged | None:
        """Follow the sender's count: after a drain, unused credit is returned."""
        if flow.delivery_count is not None:
            advanced = (flow.delivery_count - self.delivery_count) & SERIAL
            if advanced < SERIAL_HALF:
                self.delivery_count = flow.delivery_count
                self.credit = max(0, self.credit - advanced)
        if flow.echo and self.usable:
            self.session.put_flow(self)
        return None

    def on_transfer(self, fields: transfer.Fields, buffer: bytes, end: int) -> Delivery | None:
        """Add one frame of a delivery; return the delivery once it is complete. Raises ProtocolError."""
        _, delivery_id, tag, message_format, settled, more, aborted, start, state = fields
        if self._partial is not None or more or aborted:
            return self._on_part(fields, buffer[start:end])
        if delivery_id is None:
            raise ProtocolError("a delivery begins without an id", condition="amqp:not-allowed")
        if 0 < self.max_message_size < end - start:
            self._too_large(delivery_id, end - start)
            return None
        self.count()
        delivery = Delivery(self, delivery_id, tag or b"", message_format, settled, buffer[start:end])
        if state is not None:
            delivery = delivery.with_state(state)
        if not settled:
            self.session.received[delivery_id] = delivery
        return delivery

    def _on_part(self, fields: transfer.Fields, chunk: bytes) -> Delivery | None:
        _, delivery_id, tag, message_format, settled, more, aborted, _, state = fields
        delivery = self._partial
        if delivery is None:
            if delivery_id is None:
                raise ProtocolError("a delivery begins without an id", condition="amqp:not-allowed")
            delivery = self._partial = Delivery(self, delivery_id, tag or b"", message_format, settled)
            self.count()
        elif delivery_id is not None and delivery_id != delivery.id:
            raise ProtocolError("a delivery begins before the previous one has ended", condition="amqp:not-allowed")
        delivery.settled = delivery.settled or settled
        if state is not None:
            delivery = self._partial = delivery.with_state(state)
        if aborted:
            self._reset()
            return None
        size = len(self._chunks) + len(chunk)
        if 0 < self.max_message_size < size:
            self._too_large(delivery.id, size)
            return None
        self._chunks += chunk
        if more:
            return None
        delivery.payload = bytes(self._chunks)
        self._reset()
        if not delivery.settled:
            self.session.received[delivery.id] = delivery
        return delivery

    def count(self, deliveries: int = 1) -> None:
        """Count deliveries at their first frame, whether completed or aborted."""
        self.delivery_count = (self.delivery_count + deliveries) & SERIAL
        # A peer may overrun its credit (pyamqp does): its message is accepted anyway.
        self.credit = max(0, self.credit - deliveries)

    def _too_large(self, delivery_id: int, size: int) -> None:
        text = (
            f"The received message (delivery-id:{delivery_id}, size:{size} bytes) "
            f"exceeds the limit ({self.max_message_size} bytes) currently allowed on the link."
        )
        self.close(Error("amqp:link:message-size-exceeded", text))

    def lose(self) -> None:
        super().lose()
        self._reset()

    def _reset(self) -> None:
        self._partial = None
        self._chunks = bytearray()


def terminus_address(terminus: Any) -> str | None:
    """Return the address of a source or target, or None if it has none."""
    if isinstance(terminus, (Source, Target)) and isinstance(terminus.address, str):
        return terminus.address
    return None
