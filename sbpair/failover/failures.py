"""Which errors of a send say that the entity is unavailable. Pure.

Two sources, one meaning: the entity is away, and trying again has not helped. By default what may pass by itself
counts: timeouts, broken connections, a busy service. "article" is the documentation's letter: a timeout, or a messaging
error that will not pass. Neither counts what says that the client is not configured correctly, such as a wrong key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, TypeAlias

from azure.core.exceptions import AzureError
from azure.servicebus import exceptions as sdk
from azure.servicebus.exceptions import MessagingEntityDisabledError, ServiceBusError

from sbpair.azure.data_errors import from_sdk_error
from sbpair.errors import (
    AccessError,
    EntityMissing,
    InDoubt,
    QuotaExceeded,
    SbpairError,
    Throttled,
    TimedOut,
    Unavailable,
    UsageError,
)

FailoverOn: TypeAlias = Literal["default", "article"] | Callable[[Exception], bool]


def counting(failover_on: FailoverOn) -> Callable[[Exception], bool]:
    """What tells whether an error counts. Raises UsageError for a rule that is none."""
    if callable(failover_on):
        return failover_on
    if not isinstance(failover_on, str) or failover_on not in _RULES:
        raise UsageError(
            f"failover_on is {failover_on!r}", hint='say "default", "article", or give a function of the error'
        )
    return _RULES[failover_on]


def is_passing(error: Exception) -> bool:
    """Whether the same send may work a little later: what is tried again, and what counts by default."""
    if isinstance(error, MessagingEntityDisabledError):
        return False
    if isinstance(error, AzureError):
        meant = from_sdk_error(error, "sending")
        return isinstance(meant, Unavailable) and not isinstance(meant, QuotaExceeded)
    return isinstance(error, OSError | TimeoutError)


def as_sdk(error: SbpairError) -> ServiceBusError:
    """The same in the SDK's words, which callers know, and functions of theirs judge."""
    meant = next((theirs for ours, theirs in _IN_THEIR_WORDS if isinstance(error, ours)), ServiceBusError)
    return meant(message=error.message, error=error)


def _by_the_article(error: Exception) -> bool:
    if isinstance(error, AzureError):
        meant = from_sdk_error(error, "sending")
        lasting = not meant.retriable or isinstance(meant, QuotaExceeded)
        return isinstance(meant, TimedOut) or (lasting and not isinstance(meant, AccessError))
    return isinstance(error, TimeoutError)


_IN_THEIR_WORDS: Final[tuple[tuple[type[SbpairError], type[ServiceBusError]], ...]] = (
    (EntityMissing, sdk.MessagingEntityNotFoundError),
    (AccessError, sdk.ServiceBusAuthorizationError),
    (QuotaExceeded, sdk.ServiceBusQuotaExceededError),
    (Throttled, sdk.ServiceBusServerBusyError),
    (TimedOut, sdk.OperationTimeoutError),
    (InDoubt, sdk.OperationTimeoutError),
    (Unavailable, sdk.ServiceBusConnectionError),
)
_RULES: Final[dict[str, Callable[[Exception], bool]]] = {"default": is_passing, "article": _by_the_article}
