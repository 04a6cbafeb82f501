"""Links: the one-way roads that messages take, with the credit that keeps them from being flooded.

A sender sends only what it has credit for; a receiver grants credit and puts a delivery together from its frames. Both
keep AMQP's `delivery-count` on the same idea of what was sent. AMQP 1.0, parts 2.6 and 2.7.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sbpair.amqp import transfer
from sbpair.amqp.endpoint import Endpoint, State, Step
from sbpair.amqp.events import CreditChanged, Delivery, LinkAttached, LinkAttaching, LinkDetached, Sent
from sbpair.amqp.performatives import Attach, Detach, Error, Flow, Source, Target
from sbpair.errors import ProtocolError

if TYPE_CHECKING:
    from sbpair.amqp.session import Session

SERIAL = 0xFFFFFFFF
"""Delivery counts and ids are serial numbers of 32 bits: they wrap."""

TAG_MOST = 32


class Link(Endpoint):
    """What both kinds of link are. `remote` is the peer's attach; `context` is the owner's to use."""

    IS_RECEIVER = False

    def __init__(self, session: Session, name: str, handle: int) -> None:
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
        max_message_size: int | None = None,
        properties: dict[Any, Any] | None = None,
        snd_settle_mode: int | None = None,
    ) -> None:
        """Agree to a link that the peer asked for: its own terms are echoed where none are given."""
        self._attach(
            Attach(
                snd_settle_mode=self.remote.snd_settle_mode if snd_settle_mode is None else snd_settle_mode,
                rcv_settle_mode=self.remote.rcv_settle_mode,
                source=source or self.remote.source,
                target=target or self.remote.target,
                max_message_size=max_message_size,
                properties=properties,
            )
        )

    def refuse(self, error: Error) -> None:
        """Turn down a link that the peer asked for: attach to nothing, then detach with the reason."""
        self._attach(Attach(snd_settle_mode=self.remote.snd_settle_mode))
        self.close(error)

    def close(self, error: Error | None = None) -> None:
        """Let go of the link for good."""
        if self.can_close:
            self.step(Step.WE_CLOSE)
            self.session.put(Detach(self.handle, True, error))
        self.session.forget(self)

    def _attach(self, attach: Attach) -> None:
        attach.name, attach.handle, attach.role = self.name, self.handle, self.IS_RECEIVER
        if not self.IS_RECEIVER:
            attach.initial_delivery_count = self.delivery_count
        self.step(Step.WE_OPEN)
        self.session.put(attach)

    def open(self, *, source: Any, target: Any, **terms: Any) -> None:
        """Ask the peer for this link; LinkAttached, or LinkDetached with its reason, answers."""
        self._attach(Attach(source=source, target=target, **terms))

    def on_attach(self, attach: Attach) -> LinkAttached | LinkAttaching:
        asked_by_us = self.state is not State.UNMAPPED
        self.remote = attach
        self.remote_handle = attach.handle
        self.step(Step.THEY_OPEN)
        return LinkAttached(self) if asked_by_us else LinkAttaching(self)

    def on_detach(self, detach: Detach) -> LinkDetached | None:
        """The peer lets go; answered in kind, unless we have let go before."""
        known = self.state is not State.CLOSE_SENT
        self.step(Step.THEY_CLOSE)
        if self.state is State.CLOSE_RECEIVED:
            self.step(Step.WE_CLOSE)
            self.session.put(Detach(self.handle, detach.closed, None))
        self.session.forget(self)
        error = detach.error if isinstance(detach.error, Error) else None
        return LinkDetached(self, error) if known else None

    def on_flow(self, flow: Flow) -> CreditChanged | None:
        raise NotImplementedError


class Sender(Link):
    """The sending end. `draining` asks for an answer: `drained()` once there is nothing more to send."""

    def __init__(self, session: Session, name: str, handle: int) -> None:
        super().__init__(session, name, handle)
        self.draining = False

    def send(
        self, payload: bytes, tag: bytes, *, message_format: int = 0, settled: bool = False, context: Any = None
    ) -> int:
        """Put a message on the link, in as many frames as it takes; answers its delivery id.

        Raises ValueError without credit: that is for the caller to have looked at.
        """
        if self.credit <= 0:
            raise ValueError(f"link {self.name!r} has no credit")
        if len(tag) > TAG_MOST:
            raise ValueError(f"a delivery tag has at most {TAG_MOST} bytes")
        self.credit -= 1
        self.delivery_count = (self.delivery_count + 1) & SERIAL
        session = self.session
        delivery_id = session.next_delivery_id()
        if not settled:
            session.sent[delivery_id] = Sent(self, delivery_id, context)
        self._put_frames(payload, delivery_id, tag, message_format, settled)
        return delivery_id

    def _put_frames(self, payload: bytes, delivery_id: int, tag: bytes, message_format: int, settled: bool) -> None:
        last = transfer.write(self.handle, delivery_id, tag, message_format, settled=settled, more=False)
        room = self.session.connection.remote_max_frame_size - 8 - len(last)
        position = 0
        if len(payload) > room:
            more = transfer.write(self.handle, delivery_id, tag, message_format, settled=settled, more=True)
            while len(payload) - position > room:
                self.session.put_transfer(more + payload[position : position + room])
                position += room
        self.session.put_transfer(last + (payload[position:] if position else payload))

    def drained(self) -> None:
        """Give back the credit that a draining receiver has granted and there is nothing for."""
        self.delivery_count = (self.delivery_count + self.credit) & SERIAL
        self.credit = 0
        self.draining = False
        self.session.put_flow(self, drain=True)

    def on_flow(self, flow: Flow) -> CreditChanged | None:
        count = self.delivery_count if flow.delivery_count is None else flow.delivery_count
        if flow.link_credit is not None:
            granted = (count + flow.link_credit - self.delivery_count) & SERIAL
            # A receiver that knows of fewer deliveries than we have sent may have granted less than nothing.
            self.credit = granted if granted < 0x80000000 else 0
        self.draining = bool(flow.drain)
        if flow.echo:
            self.session.put_flow(self)
        return CreditChanged(self)


class Receiver(Link):
    """The receiving end."""

    IS_RECEIVER = True

    def __init__(self, session: Session, name: str, handle: int) -> None:
        super().__init__(session, name, handle)
        self.max_message_size = 0
        self._partial: Delivery | None = None
        self._chunks: list[bytes] = []
        self._size = 0

    def accept(self, *, max_message_size: int | None = None, **terms: Any) -> None:
        self.max_message_size = max_message_size or 0
        super().accept(max_message_size=max_message_size, **terms)

    def grant(self, credit: int) -> None:
        """Let the peer send until `credit` more deliveries have come."""
        self.credit = credit
        self.session.put_flow(self)

    def drain(self) -> None:
        """Ask the peer to use up its credit now, or to give it back."""
        self.session.put_flow(self, drain=True)

    def on_attach(self, attach: Attach) -> LinkAttached | LinkAttaching:
        if attach.initial_delivery_count is None and attach.source is not None:
            raise ProtocolError("a sender's attach has no initial-delivery-count", condition="amqp:invalid-field")
        self.delivery_count = attach.initial_delivery_count or 0
        return super().on_attach(attach)

    def on_flow(self, flow: Flow) -> CreditChanged | None:
        """The sender tells how far it is: with drain, what it will not send is given back."""
        if flow.delivery_count is not None:
            advanced = (flow.delivery_count - self.delivery_count) & SERIAL
            if advanced < 0x80000000:
                self.delivery_count = flow.delivery_count
                self.credit = max(0, self.credit - advanced)
        if flow.echo:
            self.session.put_flow(self)
        return None

    def on_transfer(self, fields: transfer.Fields, buffer: bytes, end: int) -> Delivery | None:
        """One frame of a delivery; the delivery, once it is whole. Raises ProtocolError."""
        _, delivery_id, tag, message_format, settled, more, aborted, start = fields
        delivery = self._partial
        if delivery is None:
            if delivery_id is None:
                raise ProtocolError("a delivery begins without an id", condition="amqp:not-allowed")
            delivery = Delivery(self, delivery_id, tag or b"", message_format, settled)
        elif delivery_id is not None and delivery_id != delivery.id:
            raise ProtocolError("a delivery begins before the one before it has ended", condition="amqp:not-allowed")
        if aborted:
            self._reset()
            return None
        chunk = buffer[start:end]
        if self._too_large(len(chunk)):
            return None
        if more:
            self._partial = delivery
            self._chunks.append(chunk)
            return None
        delivery.settled = delivery.settled or settled
        delivery.payload = b"".join((*self._chunks, chunk)) if self._chunks else chunk
        self._reset()
        self._arrived(delivery)
        return delivery

    def _arrived(self, delivery: Delivery) -> None:
        self.delivery_count = (self.delivery_count + 1) & SERIAL
        # A peer may overrun its credit (pyamqp does): that is no reason to lose a message.
        self.credit = max(0, self.credit - 1)
        if not delivery.settled:
            self.session.received[delivery.id] = delivery

    def _too_large(self, size: int) -> bool:
        self._size += size
        if not self.max_message_size or self._size <= self.max_message_size:
            return False
        text = (
            f"The received message (delivery-id:{self._partial.id if self._partial else 0}, size:{self._size} bytes) "
            f"exceeds the limit ({self.max_message_size} bytes) currently allowed on the link."
        )
        self._reset()
        self.close(Error("amqp:link:message-size-exceeded", text))
        return True

    def _reset(self) -> None:
        self._partial = None
        self._chunks = []
        self._size = 0


def terminus_address(terminus: Any) -> str | None:
    """The address of a source or target, or None for one that has none."""
    if isinstance(terminus, (Source, Target)) and isinstance(terminus.address, str):
        return terminus.address
    return None
