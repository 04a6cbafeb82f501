"""The life of a connection, a session or a link: each of the two sides opens once and closes once.

One table serves all three nouns, for both roles. The law: nothing is said on an endpoint that its own side has not
opened, and nothing after its own side has closed it; a peer that breaks it gets ProtocolError. AMQP 1.0, 2.4 to 2.6.
"""

from __future__ import annotations

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
"""For the paths that every message takes: looking a member up in its class takes longer than all else there."""


class EndpointStep(Enum):
    WE_OPEN = auto()
    THEY_OPEN = auto()
    WE_CLOSE = auto()
    THEY_CLOSE = auto()


TRANSITIONS: dict[EndpointState, dict[EndpointStep, EndpointState]] = {
    EndpointState.UNMAPPED: {
        EndpointStep.WE_OPEN: EndpointState.OPEN_SENT,
        EndpointStep.THEY_OPEN: EndpointState.OPEN_RECEIVED,
    },
    EndpointState.OPEN_SENT: {
        EndpointStep.THEY_OPEN: EndpointState.OPEN,
        EndpointStep.WE_CLOSE: EndpointState.CLOSE_PIPE,
    },
    EndpointState.OPEN_RECEIVED: {
        EndpointStep.WE_OPEN: EndpointState.OPEN,
        EndpointStep.THEY_CLOSE: EndpointState.CLOSE_RECEIVED,
    },
    EndpointState.OPEN: {
        EndpointStep.WE_CLOSE: EndpointState.CLOSE_SENT,
        EndpointStep.THEY_CLOSE: EndpointState.CLOSE_RECEIVED,
    },
    EndpointState.CLOSE_PIPE: {EndpointStep.THEY_OPEN: EndpointState.CLOSE_SENT},
    EndpointState.CLOSE_SENT: {EndpointStep.THEY_CLOSE: EndpointState.CLOSED},
    # A side that is told of the end before it has answered the beginning may answer both.
    EndpointState.CLOSE_RECEIVED: {
        EndpointStep.WE_OPEN: EndpointState.CLOSE_RECEIVED,
        EndpointStep.WE_CLOSE: EndpointState.CLOSED,
    },
    EndpointState.CLOSED: {},
}


class ProtocolEndpoint:
    """What a connection, a session and a link have in common."""

    def __init__(self) -> None:
        self.state = EndpointState.UNMAPPED

    @property
    def is_open(self) -> bool:
        return self.state is EndpointState.OPEN

    @property
    def usable(self) -> bool:
        """Whether anything may be said on it: a peer need not have answered yet."""
        return self.state in (EndpointState.OPEN, EndpointState.OPEN_SENT)

    @property
    def can_close(self) -> bool:
        return EndpointStep.WE_CLOSE in TRANSITIONS[self.state]

    def step(self, step: EndpointStep) -> None:
        """Take a step. Raises ProtocolError where the table has no such step."""
        try:
            self.state = TRANSITIONS[self.state][step]
        except KeyError:
            raise ProtocolError(
                f"{step.name} is not possible when a {type(self).__name__} is {self.state.name}",
                condition="amqp:illegal-state",
            ) from None
