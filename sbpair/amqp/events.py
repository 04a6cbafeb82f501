"""Events of a connection, in the order in which they happened. They are facts: none needs an answer."""

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
    """The connection has ended, with all sessions and links, which are not reported one by one.

    `by_peer`: the peer closed first. Bytes may still wait to be written.
    """

    error: Error | None
    by_peer: bool


@dataclass(slots=True)
class SessionBegun:
    session: Session


@dataclass(slots=True)
class SessionEnded:
    """The peer has ended a session, after a LinkDetached for each link. Our own end is not reported."""

    session: Session
    error: Error | None


@dataclass(slots=True)
class LinkAttaching:
    """The peer requests a link: answer with `link.accept(…)` or `link.refuse(…)`."""

    link: Link


@dataclass(slots=True)
class LinkAttached:
    """The peer has attached a link that we opened; a LinkDetached with an error may follow at once."""

    link: Link


@dataclass(slots=True)
class LinkDetached:
    """The peer has detached or refused a link, or has ended its session. Our own close is not reported.

    Without `closed` the peer means to resume it.
    """

    link: Link
    error: Error | None
    closed: bool = True


@dataclass(slots=True)
class CreditChanged:
    """The peer has sent a flow: see `link.credit` and `link.draining`."""

    link: SendingLink


@dataclass(slots=True)
class WindowOpened:
    """The peer has changed its window of a session: see `session.room`."""

    session: Session


class Delivery:
    """A complete message. `tag` identifies it during the link's life, `id` in its session."""

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
    """A delivery sent and not settled yet. `context` belongs to the sender."""

    __slots__ = ("context", "id", "link")

    def __init__(self, link: SendingLink, delivery_id: int, context: Any) -> None:
        self.link = link
        self.id = delivery_id
        self.context = context


@dataclass(slots=True)
class Disposed:
    """The peer's disposition of deliveries that we sent (Sent), or its answer for received ones (Delivery).

    `state` is an outcome or any other state; `settled`: the peer has forgotten them.
    """

    session: Session
    deliveries: list[Any]
    state: Any
    settled: bool


Event: TypeAlias = (
    ConnectionOpened | ConnectionClosed | SessionBegun | SessionEnded | LinkAttaching | LinkAttached | LinkDetached
    | CreditChanged | WindowOpened | Delivery | Disposed
)  # fmt: skip
