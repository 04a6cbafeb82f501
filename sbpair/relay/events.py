"""Events of relay listeners and clients. `str(event)` is one line, without tokens, headers and bodies."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from sbpair.failover.events import EventReporter

if TYPE_CHECKING:
    from sbpair.relay.relay_endpoint import Side

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _RelaySideEvent:
    """Something that happened on one side. `path` is the path of the hybrid connection."""

    path: str
    side: Side


@dataclass(frozen=True, slots=True)
class RelaySideUp(_RelaySideEvent):
    """A listener is connected to one side."""

    def __str__(self) -> str:
        return f"{self.path}: listening on the {self.side}"


@dataclass(frozen=True, slots=True)
class RelaySideDown(_RelaySideEvent):
    """A listener is not connected to one side. It tries again after so many seconds, and reports a new reason."""

    reason: str
    retry_seconds: float

    def __str__(self) -> str:
        return f"{self.path}: not listening on the {self.side}, next attempt in {self.retry_seconds:g} s: {self.reason}"


@dataclass(frozen=True, slots=True)
class RelayTokenNotRenewed(_RelaySideEvent):
    """A listener could not renew its token, and tries again. The service ends the channel of an expired token."""

    reason: str

    def __str__(self) -> str:
        return f"{self.path}: the token for the {self.side} is not renewed: {self.reason}"


@dataclass(frozen=True, slots=True)
class RelayRequestFailed(_RelaySideEvent):
    """A handler failed, or returned an answer that cannot be sent. The sender got `status`."""

    request_id: str
    status: int
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: request {self.request_id} of the {self.side} was answered {self.status}: {self.reason}"


@dataclass(frozen=True, slots=True)
class RelayAnswerLost(_RelaySideEvent):
    """A request was accepted, and its answer did not reach the service, or not all of it. It may have been executed."""

    request_id: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: the answer to request {self.request_id} of the {self.side} is lost: {self.reason}"


@dataclass(frozen=True, slots=True)
class RelaySideChosen(_RelaySideEvent):
    """A client has chosen its first active side."""

    def __str__(self) -> str:
        return f"{self.path}: the {self.side} is active"


@dataclass(frozen=True, slots=True)
class RelaySideFailed(_RelaySideEvent):
    """A side was not available to a client. `in_doubt` if a listener may have executed the request all the same."""

    reason: str
    in_doubt: bool

    def __str__(self) -> str:
        doubt = ", and may have executed a request" if self.in_doubt else ""
        return f"{self.path}: the {self.side} is not available{doubt}: {self.reason}"


@dataclass(frozen=True, slots=True)
class RelayRolesSwapped:
    """Later requests of a client go to `active`."""

    path: str
    active: Side
    backup: Side
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: the {self.active} is active now: {self.reason}"


@dataclass(frozen=True, slots=True)
class RelayBothFailed:
    """Neither side took a request of a client. The roles stay."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: both sides failed: {self.reason}"


RelayEvent: TypeAlias = (
    RelaySideUp
    | RelaySideDown
    | RelayTokenNotRenewed
    | RelayRequestFailed
    | RelayAnswerLost
    | RelaySideChosen
    | RelaySideFailed
    | RelayRolesSwapped
    | RelayBothFailed
)

OnRelayEvent: TypeAlias = Callable[[RelayEvent], Any]
RelayReporter: TypeAlias = EventReporter[RelayEvent]

_INFORMATIONAL = (RelaySideUp, RelaySideChosen)


def relay_reporter(owner: str, on_event: OnRelayEvent | None) -> RelayReporter:
    """Return the reporter of a listener's or a client's events."""
    return EventReporter(log, owner, _INFORMATIONAL, on_event)
