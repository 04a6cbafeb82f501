"""Rules for the errors of a send that count as unavailability of the entity. Pure.

"default" counts transient errors that retries did not solve: timeouts, broken connections, a busy service. "article"
follows the feature's documentation literally: a timeout, or a permanent messaging error. Neither counts an error of the
client's configuration, such as a wrong key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, TypeAlias

from azure.core.exceptions import AzureError
from azure.servicebus import exceptions as sdk
from azure.servicebus.exceptions import MessagingEntityDisabledError, ServiceBusError

from sbpair import errors
from sbpair.amqp.conditions import redacted
from sbpair.azure.data_plane import connection_problem, from_sdk_error, text_of
from sbpair.errors import BothFailed, SbpairError, UsageError

FailoverOn: TypeAlias = Literal["default", "article"] | Callable[[Exception], bool]


def failover_rule(failover_on: FailoverOn) -> Callable[[Exception], bool]:
    """Return the function that decides whether an error counts. Raises UsageError for an unknown rule."""
    if callable(failover_on):
        return failover_on
    if not isinstance(failover_on, str) or failover_on not in _RULES:
        raise UsageError(
            f'expected failover_on "default", "article" or a function, got {failover_on!r}',
            hint="a function takes the error, and returns whether it counts",
        )
    return _RULES[failover_on]


def is_transient(error: Exception) -> bool:
    """Return whether the same send may succeed later: such errors are retried, and count by default."""
    if isinstance(error, MessagingEntityDisabledError):
        return False
    if isinstance(error, AzureError):
        translated = from_sdk_error(error, "sending")
        return isinstance(translated, errors.Unavailable) and not isinstance(translated, errors.QuotaExceeded)
    return isinstance(error, OSError | TimeoutError)


def describe_error(error: Exception) -> str:
    """Return an error as one line, for the reason of an event."""
    if isinstance(error, AzureError) and isinstance(from_sdk_error(error, "sending"), errors.EntityMissing):
        # The SDK raises an authentication error where the token's answer is that the entity is missing.
        return f"{sdk.MessagingEntityNotFoundError.__name__}: {text_of(error)}"
    return f"{type(error).__name__}: {connection_problem(error) or redacted(error)}"


def to_sdk_error(error: SbpairError) -> ServiceBusError:
    """Return the SDK error of the same meaning, which callers and their functions expect."""
    kind = next((theirs for ours, theirs in _SDK_ERRORS if isinstance(error, ours)), ServiceBusError)
    return kind(message=error.message, error=error)


def both_failed(text: str, reasons: dict[str, Exception], hint: str, in_doubt: tuple[str, ...] = ()) -> BothFailed:
    """Return the error for both sides. Its message adds the reason of each to `text`."""
    why = "; ".join(f"the {side}: {describe_error(error)}" for side, error in reasons.items())
    failed = BothFailed(f"{text}: {why}", reasons=reasons, in_doubt=in_doubt, hint=hint)
    failed.retriable = any(map(is_transient, reasons.values()))
    failed.__cause__ = ExceptionGroup("errors of both namespaces", list(reasons.values()))
    return failed


def _counts_by_article(error: Exception) -> bool:
    if isinstance(error, AzureError):
        translated = from_sdk_error(error, "sending")
        permanent = not translated.retriable or isinstance(translated, errors.QuotaExceeded)
        return isinstance(translated, errors.TimedOut) or (permanent and not isinstance(translated, errors.AccessError))
    return isinstance(error, TimeoutError)


_SDK_ERRORS: Final[tuple[tuple[type[SbpairError], type[ServiceBusError]], ...]] = (
    (errors.EntityMissing, sdk.MessagingEntityNotFoundError),
    (errors.AccessError, sdk.ServiceBusAuthorizationError),
    (errors.QuotaExceeded, sdk.ServiceBusQuotaExceededError),
    (errors.Throttled, sdk.ServiceBusServerBusyError),
    (errors.TimedOut, sdk.OperationTimeoutError),
    (errors.InDoubt, sdk.OperationTimeoutError),
    (errors.Unavailable, sdk.ServiceBusConnectionError),
)
_RULES: Final[dict[str, Callable[[Exception], bool]]] = {"default": is_transient, "article": _counts_by_article}
