"""The only translation of AMQP conditions and statuses into sbpair's errors. Pure."""

from __future__ import annotations

import re

from sbpair import errors
from sbpair.amqp.performatives import Error
from sbpair.model.connect_errors import key_hint, refused

RETRY_HINT = "retry in a minute"
MISSING_HINT = "check the name, and that it exists in this namespace"
DISABLED_HINT = "set its Status to Active in the Azure portal: the namespace, the entity, Overview"
REFUSED_HINT = "the same request would be refused again"

DISABLED = "com.microsoft:entity-disabled"
TOO_LARGE = "amqp:link:message-size-exceeded"
HINTS = {
    DISABLED: DISABLED_HINT,
    **dict.fromkeys(("amqp:connection:redirect", "amqp:link:redirect"), "connect to that address"),
}
"""Hints of single conditions; redirects are not followed."""

TRANSIENT: dict[str, type[errors.Unavailable]] = {
    "com.microsoft:server-busy": errors.Throttled,
    "com.microsoft:timeout": errors.TimedOut,
    "com.microsoft:operation-cancelled": errors.TimedOut,
    "com.microsoft:partition-not-owned": errors.Unreachable,
    "com.microsoft:container-close": errors.Unreachable,
    "com.microsoft:connection-refused": errors.Unreachable,
    "amqp:internal-error": errors.Unreachable,
    "amqp:connection:forced": errors.Unreachable,
    "amqp:link:detach-forced": errors.Unreachable,
    "amqp:connection:redirect": errors.Unreachable,
    "amqp:link:redirect": errors.Unreachable,
    "amqp:session:errant-link": errors.Unreachable,
    "amqp:transfer-limit-exceeded": errors.Unreachable,
    "amqp:link:transfer-limit-exceeded": errors.Unreachable,
    DISABLED: errors.DisabledEntity,
}

_TRANSIENT_STATUSES: dict[int, type[errors.Unavailable]] = {
    **dict.fromkeys((408, 410), errors.TimedOut),
    429: errors.Throttled,
    **dict.fromkeys((500, 502, 503, 504), errors.Unreachable),
}

_LOST: dict[str, tuple[type[errors.ServiceRefused], str]] = {
    "com.microsoft:message-lock-lost": (errors.MessageLockLost, "the message will be delivered again"),
    "com.microsoft:session-lock-lost": (errors.SessionLockLost, "accept the session again"),
    "com.microsoft:session-cannot-be-locked": (errors.SessionLocked, "retry when its receiver has closed"),
}

_SECRET = re.compile(r"(sig=|SharedAccessKey=|SharedAccessSignature )[^&;\s'\"]+", re.IGNORECASE)

_OBJECT = re.compile(r" ?(?:\w+:)?<[^<>]* object at 0x[0-9a-fA-F]+>")


def error_of(error: Error | None, doing: str) -> errors.SbpairError:
    """Return the error for a peer's condition while `doing` (a phrase such as "sending to 'orders'")."""
    if error is None:
        return errors.Unreachable(f"{doing}: the service closed without a reason", hint=RETRY_HINT)
    condition, text = str(error.condition or ""), redacted(error.description)
    message = _describe(error, doing)
    if condition == "amqp:not-found":
        return errors.EntityMissing(message, hint=MISSING_HINT)
    if condition == "amqp:unauthorized-access":
        return refused(message, text, key_hint(""))
    lost = _LOST.get(condition)
    if lost is not None:
        return lost[0](message, condition=condition, hint=lost[1])
    if condition == "amqp:resource-limit-exceeded":
        message = _describe(error, f"{doing}: over quota")
        return errors.QuotaExceeded(message, hint="room comes back when its receivers catch up")
    transient = TRANSIENT.get(condition)
    if transient is not None:
        return transient(message, hint=HINTS.get(condition, RETRY_HINT))
    return errors.ServiceRefused(message, condition=condition, hint=REFUSED_HINT)


def status_error(status: int, description: str | None, doing: str, condition: str | None = None) -> errors.SbpairError:
    """Return the error for a status of `$cbs` or `$management`."""
    if condition:
        return error_of(Error(condition, description), doing)
    text = redacted(description)
    message = f"{doing}: {text or 'no reason given'} (status {status})"
    if status in (401, 403):
        return refused(message, text, key_hint(""))
    if status == 404:
        return errors.EntityMissing(message, hint=MISSING_HINT)
    if status in _TRANSIENT_STATUSES:
        return _TRANSIENT_STATUSES[status](message, hint=RETRY_HINT)
    return errors.ServiceRefused(message, condition=str(status), hint=REFUSED_HINT)


def lost_error(error: Error | None, doing: str) -> errors.SbpairError:
    """Return the error for a connection or link that has ended.

    Never one that blames a message: the next attempt shows whether it can be opened again.
    """
    meant = error_of(error, doing)
    if isinstance(meant, errors.NotAuthenticated) and "expired" in meant.message:
        return errors.TokenExpired(meant.message, hint=RETRY_HINT)
    if error is None or isinstance(meant, _KEPT_KINDS):
        return meant
    # An ended connection has no quota, though its condition may be that of one.
    return errors.Unreachable(_describe(error, doing), hint=RETRY_HINT)


_KEPT_KINDS = (errors.AccessError, errors.SessionLockLost, errors.Throttled, errors.TimedOut, errors.Unreachable)


def _describe(error: Error, doing: str) -> str:
    condition, text = str(error.condition or ""), redacted(error.description)
    if condition.endswith(":redirect"):
        info = error.info or {}
        address = f"the service is at {redacted(info.get('network-host'))}:{redacted(info.get('port'))}"
        text = f"{text}; {address}" if text else address
    return f"{doing}: {text} ({condition})" if text else f"{doing}: {condition}"


def is_idle_detach(error: Error | None) -> bool:
    """Return whether the peer detached a link only because it was idle."""
    return (
        error is not None
        and error.condition == "amqp:link:detach-forced"
        and "IdleTimerExpired" in str(error.description or "")
    )


def redacted(text: object) -> str:
    """Return the text of a peer or an error on one line, without secrets and Python's addresses of objects."""
    return _OBJECT.sub("", _SECRET.sub(r"\1***", " ".join(str(text or "").split())))[:500]
