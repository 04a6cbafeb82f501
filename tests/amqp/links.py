"""What tests of links share."""

from typing import Any

from sbpair.amqp.performatives import Accepted, Disposition, Error
from sbpair.amqp.session import Disposed

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
