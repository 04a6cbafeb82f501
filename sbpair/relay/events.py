"""Events of relay listeners and clients. `str(event)` is one line, without tokens, headers and bodies."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from sbpair.failover.events import Event, EventReporter

if TYPE_CHECKING:
    from sbpair.model.pair import Side


class _RelaySideEvent(Event):
    """Something that happened on one side. `path` is the path of the hybrid connection."""

    path: str
    side: Side


class RelaySideUp(_RelaySideEvent, text="{path}: listening on the {side}", level=logging.INFO):
    """A listener is connected to one side."""


class RelaySideDown(
    _RelaySideEvent, text="{path}: not listening on the {side}, next attempt in {retry_seconds:g} s: {reason}"
):
    """A listener is not connected to one side. It tries again after so many seconds, and reports a new reason."""

    reason: str
    retry_seconds: float


class RelayTokenNotRenewed(_RelaySideEvent, text="{path}: the token for the {side} is not renewed: {reason}"):
    """A listener could not renew its token, and tries again. The service ends the channel of an expired token."""

    reason: str


class RelayRequestFailed(
    _RelaySideEvent, text="{path}: request {request_id} of the {side} was answered {status}: {reason}"
):
    """A handler failed, or returned an answer that cannot be sent. The sender got `status`."""

    request_id: str
    status: int
    reason: str


class RelayAnswerLost(
    _RelaySideEvent, text="{path}: the answer to request {request_id} of the {side} is lost: {reason}"
):
    """A request was accepted, and its answer did not reach the service, or not all of it. It may have been executed."""

    request_id: str
    reason: str


class RelaySideChosen(_RelaySideEvent, text="{path}: the {side} is active", level=logging.INFO):
    """A client has chosen its first active side."""


class RelaySideFailed(_RelaySideEvent):
    """A side was not available to a client. `in_doubt` if a listener may have executed the request all the same."""

    reason: str
    in_doubt: bool

    def __str__(self) -> str:
        doubt = ", and may have executed a request" if self.in_doubt else ""
        return f"{self.path}: the {self.side} is not available{doubt}: {self.reason}"


class RelayRolesSwapped(Event, text="{path}: the {active} is active now: {reason}"):
    """Later requests of a client go to `active`."""

    path: str
    active: Side
    backup: Side
    reason: str


class RelayBothFailed(Event, text="{path}: both sides failed: {reason}"):
    """Neither side took a request of a client. The roles stay."""

    path: str
    reason: str


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
