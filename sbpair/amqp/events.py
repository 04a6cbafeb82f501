"""What a connection has to tell, in the order in which it happened. Events are facts: none asks for an answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from sbpair.amqp.link import Link, ReceivingLink, SendingLink
    from sbpair.amqp.performatives import Error, Open
    from sbpair.amqp.session import Session


@dataclass(slots=True)
class ConnectionOpened:
    """The peer has opened the connection."""

    open: Open


@dataclass(slots=True)
class ConnectionClosed:
    """The connection is over, and every session and link with it: they are not reported one by one.

    `by_peer` tells who said so first; bytes may still be waiting to be written.
    """

    error: Error | None
    by_peer: bool


@dataclass(slots=True)
class SessionBegun:
    session: Session


@dataclass(slots=True)
class SessionEnded:
    """The peer has ended a session; a LinkDetached for each link in it has come before. Our own end is not reported."""

    session: Session
    error: Error | None


@dataclass(slots=True)
class LinkAttaching:
    """The peer asks for a link: answer with `link.accept(…)` or `link.refuse(…)`."""

    link: Link


@dataclass(slots=True)
class LinkAttached:
    """The peer has agreed to a link that we asked for, unless a LinkDetached with an error follows at once."""

    link: Link


@dataclass(slots=True)
class LinkDetached:
    """The peer has let go of a link, has refused it, or has ended its session. Our own close is not reported.

    Without `closed` the peer means to come back to it.
    """

    link: Link
    error: Error | None
    closed: bool = True


@dataclass(slots=True)
class CreditChanged:
    """The peer has said how much it can take; `link.credit` and `link.draining` tell."""

    link: SendingLink


@dataclass(slots=True)
class WindowOpened:
    """The peer has said how many frames it can take in a session: `session.room` tells what is left of it."""

    session: Session


class Delivery:
    """A whole message that has arrived. `tag` names it for the link's life, `id` in its session."""

    __slots__ = ("context", "format", "id", "link", "payload", "settled", "tag")

    def __init__(
        self,
        link: ReceivingLink,
        delivery_id: int,
        tag: bytes,
        message_format: int,
        settled: bool,
        payload: bytes = b"",
    ) -> None:
        self.link = link
        self.id = delivery_id
        self.tag = tag
        self.format = message_format
        self.settled = settled
        self.payload = payload
        self.context: Any = None


class Sent:
    """A delivery that we have sent and that is not settled yet. `context` is whatever the sender gave."""

    __slots__ = ("context", "id", "link")

    def __init__(self, link: SendingLink, delivery_id: int, context: Any) -> None:
        self.link = link
        self.id = delivery_id
        self.context = context


@dataclass(slots=True)
class Disposed:
    """The peer says what became of deliveries that we sent (Sent), or answers our word on received ones (Delivery).

    `state` is an outcome, or whatever else the peer sent; `settled` says whether it has forgotten them.
    """

    session: Session
    deliveries: list[Any]
    state: Any
    settled: bool


Event: TypeAlias = (
    ConnectionOpened | ConnectionClosed | SessionBegun | SessionEnded | LinkAttaching | LinkAttached | LinkDetached
    | CreditChanged | WindowOpened | Delivery | Disposed
)  # fmt: skip
