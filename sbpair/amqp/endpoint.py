"""The lifecycle of a connection, session or link, in both roles: each side opens once. AMQP 1.0, 2.4 to 2.6.

Invariant: a side sends nothing before its open and nothing after its close; a peer that does gets ProtocolError.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum, auto

from sbpair.errors import ProtocolError


class EndpointState(Enum):
    UNMAPPED = auto()
    OPEN_SENT = auto()
    OPEN_RECEIVED = auto()
    OPEN = auto()
    CLOSE_PIPE = auto()  # opened and closed by us before the peer has answered either
    CLOSE_SENT = auto()
    CLOSE_RECEIVED = auto()
    CLOSED = auto()


OPEN = EndpointState.OPEN
"""A constant for hot paths: the lookup of an enum member in its class is slow."""


class EndpointStep(Enum):
    WE_OPEN = auto()
    THEY_OPEN = auto()
    WE_CLOSE = auto()
    THEY_CLOSE = auto()


TRANSITIONS: dict[tuple[EndpointState, EndpointStep], EndpointState] = {
    (EndpointState.UNMAPPED, EndpointStep.WE_OPEN): EndpointState.OPEN_SENT,
    (EndpointState.UNMAPPED, EndpointStep.THEY_OPEN): EndpointState.OPEN_RECEIVED,
    (EndpointState.OPEN_SENT, EndpointStep.THEY_OPEN): EndpointState.OPEN,
    (EndpointState.OPEN_SENT, EndpointStep.WE_CLOSE): EndpointState.CLOSE_PIPE,
    (EndpointState.OPEN_RECEIVED, EndpointStep.WE_OPEN): EndpointState.OPEN,
    (EndpointState.OPEN_RECEIVED, EndpointStep.THEY_CLOSE): EndpointState.CLOSE_RECEIVED,
    (EndpointState.OPEN, EndpointStep.WE_CLOSE): EndpointState.CLOSE_SENT,
    (EndpointState.OPEN, EndpointStep.THEY_CLOSE): EndpointState.CLOSE_RECEIVED,
    (EndpointState.CLOSE_PIPE, EndpointStep.THEY_OPEN): EndpointState.CLOSE_SENT,
    (EndpointState.CLOSE_SENT, EndpointStep.THEY_CLOSE): EndpointState.CLOSED,
    # A side that receives the close before it has answered the open may answer both.
    (EndpointState.CLOSE_RECEIVED, EndpointStep.WE_OPEN): EndpointState.CLOSE_RECEIVED,
    (EndpointState.CLOSE_RECEIVED, EndpointStep.WE_CLOSE): EndpointState.CLOSED,
}


class ProtocolEndpoint:
    """The common part of connection, session and link."""

    def __init__(self) -> None:
        self.state = EndpointState.UNMAPPED

    @property
    def is_open(self) -> bool:
        return self.state is EndpointState.OPEN

    @property
    def usable(self) -> bool:
        """Whether frames may be sent: the peer need not have answered yet."""
        return self.state in (EndpointState.OPEN, EndpointState.OPEN_SENT)

    @property
    def can_close(self) -> bool:
        return (self.state, EndpointStep.WE_CLOSE) in TRANSITIONS

    def step(self, step: EndpointStep) -> None:
        """Take a step. Raises ProtocolError if the table does not permit it."""
        try:
            self.state = TRANSITIONS[self.state, step]
        except KeyError:
            raise ProtocolError(
                f"{step.name} is not possible when a {type(self).__name__} is {self.state.name}",
                condition="amqp:illegal-state",
            ) from None


def first_free(taken: Collection[int], highest: int, name: str) -> int:
    """Return a number from 0 to `highest` that is not taken, the lowest if all below are. Raises ProtocolError."""
    if len(taken) <= highest and len(taken) not in taken:
        return len(taken)  # at once: thousands of sessions are begun in order
    for number in range(highest + 1):
        if number not in taken:
            return number
    raise ProtocolError(f"no {name} is free", condition="amqp:resource-limit-exceeded")
