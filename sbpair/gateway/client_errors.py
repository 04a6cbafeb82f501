"""The AMQP errors by which the gateway answers for the namespaces: the only translation of our errors into them."""

from __future__ import annotations

from typing import Any, Final

from sbpair import errors
from sbpair.amqp.conditions import lost_error, redacted
from sbpair.amqp.performatives import Accepted, Error, Outcome, Rejected, TransactionalState
from sbpair.amqp.types import Map

BUSY: Final = "com.microsoft:server-busy"
"""The condition of a refused transfer or request that every SDK retries: the namespace is away, or was too slow."""

DETACHED: Final = "amqp:link:detach-forced"
"""The condition of a link that every SDK attaches again. After BUSY, those for Python and Go keep the dead link."""

SESSION_LOST: Final = "com.microsoft:session-lock-lost"
"""The same of a link to a session. After DETACHED, the SDK for JavaScript keeps the dead link for minutes."""

_CONDITIONS: Final[tuple[tuple[type[errors.SbpairError], str], ...]] = (
    (errors.EntityMissing, "amqp:not-found"),
    (errors.NoToken, BUSY),
    (errors.AccessError, "amqp:unauthorized-access"),
    (errors.QuotaExceeded, "amqp:resource-limit-exceeded"),
    (errors.Unavailable, BUSY),
    (errors.InDoubt, BUSY),
    (errors.UsageError, "amqp:not-allowed"),
)


def refusal(error: errors.SbpairError) -> Error:
    """Return the AMQP error of the same meaning. Its text has no secret."""
    condition = getattr(error, "condition", "") if isinstance(error, errors.ServiceRefused) else ""
    known = next((name for kind, name in _CONDITIONS if isinstance(error, kind)), "amqp:internal-error")
    return Error(condition or known, _text(error), Map())


def end_of_link(error: errors.SbpairError, *, of_session: bool = False) -> Error:
    """Return the AMQP error with which a link ends, or is refused."""
    found = refusal(error)
    if found.condition == BUSY:
        found.condition = SESSION_LOST if of_session else DETACHED
    return found


def error_in(state: Any) -> Error | None:
    """Return the error with which a link ends whose client does not wait for this outcome; None if it is no refusal."""
    outcome = state.outcome if isinstance(state, TransactionalState) else state
    if not isinstance(outcome, Outcome) or isinstance(outcome, Accepted):
        return None
    error = outcome.error if isinstance(outcome, Rejected) and isinstance(outcome.error, Error) else None
    if error is None:
        return Error(DETACHED, f"a message that was sent settled was {type(outcome).__name__.lower()}", Map())
    return Error(DETACHED if error.condition == BUSY else error.condition, error.description, Map())


def is_unauthorized(error: Error | None) -> bool:
    return error is not None and error.condition == "amqp:unauthorized-access"


def passed_on(error: Error | None, doing: str) -> Error | None:
    """Return the reason of the namespace for which a link ends. The end of a token is the gateway's own affair."""
    meant = lost_error(error, doing) if is_unauthorized(error) else None
    return end_of_link(meant) if isinstance(meant, errors.TokenExpired) else error


def _text(error: errors.SbpairError) -> str:
    """Return the reason, of a missing entity in the service's words: two SDKs know it by them, and try again else."""
    if isinstance(error, errors.EntityMissing) and error.entity:
        return f"The messaging entity '{error.entity}' could not be found."
    return redacted(error.message)
