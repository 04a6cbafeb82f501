"""Translation of azure-servicebus' data-plane exceptions into `sbpair.errors`. Pure.

The service's text becomes one line of the message, without secrets.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager

from azure.core.exceptions import AzureError, ClientAuthenticationError
from azure.servicebus import exceptions as azure

from sbpair import errors
from sbpair.amqp.conditions import CLAIM_HINT, MISSING_HINT, REFUSED_HINT, RETRY_HINT, TRANSIENT, redacted
from sbpair.azure.management_errors import SIGN_IN_HINT, proxy_status
from sbpair.http_tunnel import refused_by_proxy
from sbpair.model.connect_errors import REACH_HINT, cause_of
from sbpair.model.pair import authority_of

UNREADABLE_HINT = "receive the message with another client, which can decode it"

_UNDECODABLE = (TypeError, LookupError, ValueError, struct.error)
"""Raised by the SDK's decoder for a type that it does not know."""

_TRANSLATIONS: tuple[tuple[type[Exception], type[errors.SbpairError], str], ...] = (
    (azure.OperationTimeoutError, errors.TimedOut, RETRY_HINT),
    (azure.ServiceBusServerBusyError, errors.Throttled, RETRY_HINT),
    (azure.ServiceBusQuotaExceededError, errors.QuotaExceeded, RETRY_HINT),
    (azure.MessagingEntityNotFoundError, errors.EntityMissing, MISSING_HINT),
    (azure.MessagingEntityDisabledError, errors.Unreachable, RETRY_HINT),
    (azure.ServiceBusConnectionError, errors.Unreachable, RETRY_HINT),
    (azure.ServiceBusCommunicationError, errors.Unreachable, RETRY_HINT),
)
_ACCESS = (azure.ServiceBusAuthenticationError, azure.ServiceBusAuthorizationError)
_ANSWERS = frozenset(("MessageException", "MessageSendFailed"))
_OWN_CONDITIONS = frozenset(("", "amqp:unknown-error", "amqp:client-error"))


@contextmanager
def translate_data_errors(doing: str) -> Iterator[None]:
    """Raise an error of the block as an SbpairError. `doing` is a phrase such as "sending to 'orders'"."""
    try:
        yield
    except AzureError as error:
        raise from_sdk_error(error, doing) from error
    except (OSError, ValueError, AttributeError) as error:
        # Raised where another task's failure has closed a connection that this one still uses.
        raise errors.Unreachable(f"{doing}: the connection is gone ({redacted(error)})", hint=RETRY_HINT) from error


def from_sdk_error(error: AzureError, doing: str) -> errors.SbpairError:
    """Return the SbpairError for one of the SDK's."""
    inner, condition, text = error.inner_exception, condition_of(error), text_of(error)
    message = f"{doing}: {text}"
    if (found := _connection_error(error, doing)) is not None:
        return found
    if isinstance(error, ClientAuthenticationError) or isinstance(inner, ClientAuthenticationError):
        # Of azure-identity, whose text lists all it has tried.
        return errors.NotAuthenticated(
            f"{doing}: no identity is signed in that the namespace accepts", hint=SIGN_IN_HINT
        )
    # The answer of `$cbs` to the token.
    if getattr(inner, "status_code", None) == 404:
        return errors.EntityMissing(message, hint=MISSING_HINT)
    if isinstance(error, azure.MessageLockLostError):
        return errors.MessageLockLost(message, condition=condition, hint="the message will be delivered again")
    if isinstance(error, _ACCESS) or isinstance(inner, _ACCESS) or condition == "amqp:unauthorized-access":
        return _access(message, text)
    for kind, translation, hint in _TRANSLATIONS:
        if isinstance(error, kind):
            return translation(message, hint=hint)
    if isinstance(inner, _UNDECODABLE):
        return errors.UnreadableMessage(f"{doing}: azure-servicebus cannot decode a message", hint=UNREADABLE_HINT)
    if condition in TRANSIENT or not condition:
        return errors.Unreachable(message, hint=RETRY_HINT)
    return errors.ServiceRefused(message, condition=condition, hint=REFUSED_HINT)


def _connection_error(error: AzureError, doing: str) -> errors.SbpairError | None:
    """Return the SbpairError for a proxy that refuses, or for an address that cannot be reached."""
    if status := proxy_status(error):
        return refused_by_proxy(f"{doing}: the proxy refuses the connection", status)
    if problem := connection_problem(error):
        return errors.Unreachable(f"{doing}: {problem}", hint=REACH_HINT)
    return None


def connection_problem(error: BaseException) -> str:
    """Return which address the SDK could not connect to over WebSocket, and why; "" for all other errors."""
    cause: BaseException | None = error
    while cause is not None:
        # Of aiohttp, which the SDK loads.
        names = [each.__name__ for each in type(cause).__mro__]
        if "ClientConnectorError" in names:
            address = authority_of(getattr(cause, "host", ""), getattr(cause, "port", None))
            proxy = "the proxy " if "ClientProxyConnectionError" in names else ""
            return f"{proxy}{address} cannot be reached: {cause_of(cause)}"
        cause = getattr(cause, "inner_exception", None) or cause.__cause__
    return ""


def is_answer(error: BaseException | None) -> bool:
    """Return whether the service refused this one message; False where a link or a connection ended.

    The SDK uses the same public classes for both; only its private ones differ. It has its own conditions for a
    message whose link ended.
    """
    if not isinstance(error, AzureError):
        return False
    answered = type(error.inner_exception).__name__ in _ANSWERS and condition_of(error) not in _OWN_CONDITIONS
    return answered or isinstance(error, azure.MessageSizeExceededError)


def is_unused(error: BaseException | None) -> bool:
    """Return whether the service detached a link only because it was idle."""
    detached = isinstance(error, AzureError) and condition_of(error) == "amqp:link:detach-forced"
    return detached and "IdleTimerExpired" in str(error)


def condition_of(error: AzureError) -> str:
    """Return the AMQP condition of an error, "" without one."""
    if isinstance(error, azure.MessageSizeExceededError):
        return "amqp:link:message-size-exceeded"
    condition = getattr(error.inner_exception, "condition", None)
    condition = getattr(condition, "value", condition)
    return condition.decode(errors="replace") if isinstance(condition, bytes) else str(condition or "")


def text_of(error: AzureError) -> str:
    """Return the service's text as one line without secrets."""
    text = getattr(error.inner_exception, "status_description", None)
    return redacted(text.decode(errors="replace") if isinstance(text, bytes) else text or error)


def _access(message: str, text: str) -> errors.AccessError:
    if "claim" in text.lower() and "required" in text.lower():
        return errors.NotAuthorized(message, hint=CLAIM_HINT)
    return errors.NotAuthenticated(message, hint="check the key, its name, and that the token has not expired")
