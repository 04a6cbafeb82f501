"""The exceptions of azure-servicebus' data plane into those of `sbpair.errors`: the one place where that is done. Pure.

What the service says goes into a message, on one line and without what should not be in it.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager

from azure.core.exceptions import AzureError, ClientAuthenticationError
from azure.servicebus import exceptions as azure

from sbpair import errors
from sbpair.azure.management_errors import SIGN_IN_HINT

UNREADABLE_HINT = "receive the message with another client, which can decode it"

_UNDECODABLE = (TypeError, LookupError, ValueError, struct.error)
"""Raised by the SDK's decoder for a type that it does not know."""

_RETRY = "it may work a little later"
_MISSING_HINT = "check the name, and that it exists in this namespace"

_MEANT: tuple[tuple[type[Exception], type[errors.SbpairError], str], ...] = (
    (azure.OperationTimeoutError, errors.TimedOut, _RETRY),
    (azure.ServiceBusServerBusyError, errors.Throttled, _RETRY),
    (azure.ServiceBusQuotaExceededError, errors.QuotaExceeded, _RETRY),
    (azure.MessagingEntityNotFoundError, errors.EntityMissing, _MISSING_HINT),
    (azure.MessagingEntityDisabledError, errors.Unreachable, _RETRY),
    (azure.ServiceBusConnectionError, errors.Unreachable, _RETRY),
    (azure.ServiceBusCommunicationError, errors.Unreachable, _RETRY),
)
_ACCESS = (azure.ServiceBusAuthenticationError, azure.ServiceBusAuthorizationError)
_TRANSIENT = frozenset(
    (
        "amqp:internal-error",
        "amqp:connection:forced",
        "amqp:link:redirect",
        "amqp:session:errant-link",
        "amqp:transfer-limit-exceeded",
        "amqp:link:transfer-limit-exceeded",
        "com.microsoft:operation-cancelled",
        "com.microsoft:partition-not-owned",
        "com.microsoft:container-close",
        "com.microsoft:connection-refused",
    )
)

_ANSWERS = frozenset(("MessageException", "MessageSendFailed"))
_OWN_CONDITIONS = frozenset(("", "amqp:unknown-error", "amqp:client-error"))

_SECRET = re.compile(r"(sig=|SharedAccessKey=|SharedAccessSignature )[^&;\s'\"]+", re.IGNORECASE)


@contextmanager
def translate_data_errors(doing: str) -> Iterator[None]:
    """Raise what goes wrong inside as an SbpairError. `doing` is a phrase such as "sending to 'orders'"."""
    try:
        yield
    except AzureError as error:
        raise from_sdk_error(error, doing) from error
    except (OSError, ValueError, AttributeError) as error:
        # So it answers where another task's failure has closed what this one still uses.
        raise errors.Unreachable(f"{doing}: the connection is gone ({redacted(error)})", hint=_RETRY) from error


def from_sdk_error(error: AzureError, doing: str) -> errors.SbpairError:
    """The SbpairError that one of the SDK's means."""
    inner, condition, text = error.inner_exception, condition_of(error), _text_of(error)
    said = f"{doing}: {text}"
    if isinstance(error, ClientAuthenticationError) or isinstance(inner, ClientAuthenticationError):
        # Of azure-identity, which tells at length what it has tried.
        return errors.NotAuthenticated(
            f"{doing}: no identity is signed in that the namespace would accept", hint=SIGN_IN_HINT
        )
    # What `$cbs` answered when it was given the token.
    if getattr(inner, "status_code", None) == 404:
        return errors.EntityMissing(said, hint=_MISSING_HINT)
    if isinstance(error, azure.MessageLockLostError):
        return errors.MessageLockLost(said, condition=condition, hint="the message will be delivered again")
    if isinstance(error, _ACCESS) or isinstance(inner, _ACCESS) or condition == "amqp:unauthorized-access":
        return _access(said, text)
    for kind, meant, hint in _MEANT:
        if isinstance(error, kind):
            return meant(said, hint=hint)
    if isinstance(inner, _UNDECODABLE):
        return errors.UnreadableMessage(f"{doing}: azure-servicebus cannot decode a message", hint=UNREADABLE_HINT)
    if condition in _TRANSIENT or not condition:
        return errors.Unreachable(said, hint=_RETRY)
    return errors.ServiceRefused(said, condition=condition, hint="the same request would be refused again")


def is_answer(error: BaseException | None) -> bool:
    """Whether the service has answered so for this one message; False where a link or a connection has ended.

    The SDK gives both the same classes, and those that tell them apart are not among its public ones. It has conditions
    of its own for a message whose link went away.
    """
    if not isinstance(error, AzureError):
        return False
    answered = type(error.inner_exception).__name__ in _ANSWERS and condition_of(error) not in _OWN_CONDITIONS
    return answered or isinstance(error, azure.MessageSizeExceededError)


def is_unused(error: BaseException | None) -> bool:
    """Whether the service has let go of a link only because nothing went over it for a while."""
    let_go = isinstance(error, AzureError) and condition_of(error) == "amqp:link:detach-forced"
    return let_go and "IdleTimerExpired" in str(error)


def condition_of(error: AzureError) -> str:
    """AMQP's name for what went wrong; "" where nobody has said one."""
    if isinstance(error, azure.MessageSizeExceededError):
        return "amqp:link:message-size-exceeded"
    condition = getattr(error.inner_exception, "condition", None)
    condition = getattr(condition, "value", condition)
    return condition.decode(errors="replace") if isinstance(condition, bytes) else str(condition or "")


def _text_of(error: AzureError) -> str:
    said = getattr(error.inner_exception, "status_description", None)
    return redacted(said.decode(errors="replace") if isinstance(said, bytes) else said or error)


def _access(said: str, text: str) -> errors.AccessError:
    if "claim" in text.lower() and "required" in text.lower():
        return errors.NotAuthorized(said, hint="use a key, or a role, that has this claim")
    return errors.NotAuthenticated(said, hint="check the key's name and the key, and that the token has not expired")


def redacted(error: object) -> str:
    """What an error says, on one line and without secrets."""
    return _SECRET.sub(r"\1***", " ".join(str(error).split()))[:500]
