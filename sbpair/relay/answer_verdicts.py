"""Decisions of the relay client, as tables: is an endpoint available, was a request executed, may it be reissued. Pure.

Invariant: only an answer without `Via`, or no answer, is an answer of the service itself, and may swap roles.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, Literal, TypeAlias

Reissue: TypeAlias = Literal["safe", "always"]

IDEMPOTENT: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"})
"""The methods that RFC 9110 defines as idempotent: to execute them twice is to execute them once."""

TRACKING: Final = "TrackingId:"
"""Part of each reason phrase of the service. A listener's rejection of a WebSocket has none (assumed)."""

_NOT_ROUTED: Final = frozenset({404, 503})
_ROUTED_PERHAPS: Final = frozenset({500, 502, 504})


class AnswerVerdict(Enum):
    """The meaning of an answer, or of its absence."""

    ANSWER = "the listener has answered"
    REFUSED = "the service refuses the request"
    NOT_EXECUTED = "the endpoint is not available, and no listener got the request"
    IN_DOUBT = "the endpoint is not available, and a listener may have executed the request"

    @property
    def is_unavailable(self) -> bool:
        return self in (AnswerVerdict.NOT_EXECUTED, AnswerVerdict.IN_DOUBT)


def judged_answer(status: int, *, has_via: bool, was_repeated: bool = False) -> AnswerVerdict:
    """Return the verdict on an HTTP answer; `was_repeated` if the request was sent before, and not answered."""
    if has_via:
        return AnswerVerdict.ANSWER
    if status in _ROUTED_PERHAPS or (was_repeated and status >= 400):
        return AnswerVerdict.IN_DOUBT
    if status in _NOT_ROUTED:
        return AnswerVerdict.NOT_EXECUTED
    return AnswerVerdict.REFUSED if status >= 400 else AnswerVerdict.ANSWER


def judged_handshake(status: int, reason: str) -> AnswerVerdict:
    """Return the verdict on a refused WebSocket handshake, which has no `Via`: ANSWER is a listener's rejection.

    A handshake executes nothing: a connection that a listener may have accepted ends with its sender's.
    """
    if TRACKING not in reason:
        return AnswerVerdict.ANSWER
    return AnswerVerdict.NOT_EXECUTED if status in _NOT_ROUTED | _ROUTED_PERHAPS else AnswerVerdict.REFUSED


def judged_silence(*, was_sent: bool) -> AnswerVerdict:
    """Return the verdict on a connection that failed, or a time-out; `was_sent` if the request had begun to leave."""
    return AnswerVerdict.IN_DOUBT if was_sent else AnswerVerdict.NOT_EXECUTED


def may_reissue(verdict: AnswerVerdict, method: str, reissue: Reissue, *, is_complete: bool) -> bool:
    """Return whether the other endpoint may get a request. `is_complete` if its whole body can be sent again."""
    if not verdict.is_unavailable or not is_complete:
        return False
    return verdict is AnswerVerdict.NOT_EXECUTED or reissue == "always" or method.upper() in IDEMPOTENT
