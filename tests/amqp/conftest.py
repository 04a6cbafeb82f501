"""Two connections that talk through memory, in pieces as small as a test wants."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from sbpair.amqp import frames
from sbpair.amqp.connection import Connection, ConnectionClosed, Event
from sbpair.amqp.link import Delivery, LinkAttaching, ReceivingLink, SendingLink
from sbpair.amqp.performatives import Accepted, Composite, Disposition, Error, Source, Target, decode_composite
from sbpair.amqp.sasl import SaslClient, SaslServer
from sbpair.amqp.session import Disposed, Session, SessionBegun


@dataclass
class Side:
    connection: Connection
    events: list[Event] = field(default_factory=list)

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def closed(self) -> ConnectionClosed:
        (event,) = self.of(ConnectionClosed)
        return event  # type: ignore[no-any-return]

    def payloads(self) -> list[bytes]:
        return [delivery.payload for delivery in self.of(Delivery)]


class Pair:
    """A client and a server. `pump` carries bytes to and fro until both are silent; `wire` keeps what was said."""

    def __init__(self, *, piece: int = 0, client: Any = None, server: Any = None, **terms: Any) -> None:
        self.client = Side(Connection(SaslClient(), container_id="c", hostname="h", **terms, **(client or {})))
        self.server = Side(Connection(SaslServer(), container_id="s", **terms, **(server or {})))
        self.piece = piece
        self.now = 0.0
        self.said: list[tuple[str, Composite]] = []

    def pump(self) -> None:
        while True:
            to_server, to_client = self.client.connection.take(), self.server.connection.take()
            if not to_server and not to_client:
                return
            self.carry("client", to_server, self.server)
            self.carry("server", to_client, self.client)

    def carry(self, who: str, data: bytes, side: Side) -> None:
        self.said += [(who, body) for body in performatives(data)]
        step = self.piece or len(data) or 1
        for position in range(0, len(data), step):
            side.events += side.connection.receive(data[position : position + step], self.now)

    def tell(self, who: str, *bodies: Composite, channel: int = 0, payload: bytes = b"") -> None:
        """Say to one side what its peer would not say of itself. What it answers waits for `pump`, or `answers`."""
        side = self.server if who == "server" else self.client
        data = b"".join(frames.frame(body.encode() + payload, channel=channel) for body in bodies)
        side.events += side.connection.receive(data, self.now)

    def answers(self, who: str) -> list[Composite]:
        side = self.server if who == "server" else self.client
        return list(performatives(side.connection.take()))

    def bodies(self, who: str, kind: type[Composite]) -> list[Any]:
        return [body for speaker, body in self.said if speaker == who and isinstance(body, kind)]

    def session(self) -> tuple[Session, Session]:
        self.pump()
        ours = self.client.connection.begin()
        self.pump()
        theirs: Session = self.server.of(SessionBegun)[-1].session
        return ours, theirs

    def opening(self, kind: str, name: str = "x", *, session: Session | None = None, **terms: Any) -> Any:
        """A link that the client has requested and the server has not answered."""
        link = getattr(session or self.session()[0], kind)(name)
        link.open(**{"source": Source("here"), "target": Target("queue"), **terms})
        self.pump()
        return link

    def sender(
        self, session: Session | None = None, *, credit: int = 0, **terms: Any
    ) -> tuple[SendingLink, ReceivingLink]:
        """The client's sender and the server's receiver."""
        link = self.opening("sender", "to the server", session=session)
        theirs: ReceivingLink = self.server.of(LinkAttaching)[-1].link
        theirs.accept(**terms)
        if credit:
            theirs.grant(credit)
        self.pump()
        return link, theirs

    def receiver(
        self, session: Session | None = None, *, credit: int = 0, **terms: Any
    ) -> tuple[ReceivingLink, SendingLink]:
        """The client's receiver and the server's sender."""
        link = self.opening("receiver", "from the server", session=session, source=Source("queue"), **terms)
        theirs: SendingLink = self.server.of(LinkAttaching)[-1].link
        theirs.accept()
        if credit:
            link.grant(credit)
        self.pump()
        return link, theirs


def performatives(data: bytes) -> Iterator[Composite]:
    """What bytes written at once say, headers and heartbeats aside."""
    position = 0
    while position < len(data):
        if data[position : position + 4] == b"AMQP":
            position += frames.HEADER_SIZE
            continue
        size = int.from_bytes(data[position : position + 4])
        if size > frames.HEADER_SIZE:
            yield decode_composite(data[position + 8 : position + size])[0]
        position += size


# Links

NOT_FOUND = Error("amqp:not-found", "no such entity")


def send(link: Any, *payloads: bytes, **terms: Any) -> None:
    for payload in payloads:
        link.send(payload, payload[:8] or b"tag", **terms)


def deliver(pair: Any, link: Any, *payloads: bytes) -> None:
    send(link, *payloads)
    pair.pump()


def assert_settling_has_no_effect(pair: Any, first: int, last: int) -> None:
    """Settle deliveries of the client's link that has ended."""
    pair.tell("client", Disposition(True, first, last, True, Accepted()))
    assert pair.client.of(Disposed) == []
    assert not pair.client.connection.over


def frame_sizes(data: bytes) -> list[int]:
    found, position = [], 0
    while position < len(data):
        found.append(int.from_bytes(data[position : position + 4]))
        position += found[-1]
    return found


@pytest.fixture
def pair() -> Pair:
    return Pair()
