"""The errors of a send: those that count as unavailability of the entity, and all of them as callers catch them. Pure.

They are of the SDK or, from our own client, sbpair's: each function here takes both.

"default" counts transient errors that retries did not solve: timeouts, broken connections, a busy service, an identity
provider that is away. "article" follows the feature's documentation literally: a timeout, or a permanent messaging
error, a disabled entity's included. Neither counts an error of the client's configuration, such as a wrong key.

An error that leaves a sender is of two classes: `except SbpairError` and `except ServiceBusError` both catch it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from typing import Any, Concatenate, Final, Literal, ParamSpec, TypeAlias, TypeVar

from azure.core.exceptions import AzureError
from azure.servicebus import exceptions as sdk
from azure.servicebus.exceptions import MessagingEntityDisabledError, ServiceBusError

from sbpair import errors
from sbpair.amqp.conditions import TOO_LARGE, redacted
from sbpair.azure.data_plane import connection_problem, from_sdk_error, text_of
from sbpair.errors import BothFailed, SbpairError, UsageError
from sbpair.operating_system.shortages import shortage_of
from sbpair.sync_async import Steps

P = ParamSpec("P")
T = TypeVar("T")
Procedure: TypeAlias = Callable[Concatenate[Any, P], Steps[T]]
FailoverOn: TypeAlias = Literal["default", "article"] | Callable[[Exception], bool]


def failover_rule(failover_on: FailoverOn) -> Callable[[Exception], bool]:
    """Return the function that decides whether an error counts. Raises UsageError for an unknown rule.

    Invariant: a shortage of this machine never counts.
    """
    if callable(failover_on):
        return _but_shortages(failover_on)
    if not isinstance(failover_on, str) or failover_on not in _RULES:
        raise UsageError(
            f'expected failover_on "default", "article" or a function, got {failover_on!r}',
            hint="a function takes the error, and returns whether it counts",
        )
    return _but_shortages(_RULES[failover_on])


def _but_shortages(rule: Callable[[Exception], bool]) -> Callable[[Exception], bool]:
    return lambda error: shortage_of(error) is None and rule(error)


def meaning_of(error: Exception) -> SbpairError | None:
    """Return sbpair's error of the same meaning; None for an error of neither the SDK nor sbpair."""
    if isinstance(error, AzureError):
        return from_sdk_error(error, "sending")
    return error if isinstance(error, SbpairError) else None


def is_transient(error: Exception) -> bool:
    """Return whether the same send may succeed later: such errors are retried, and count by default."""
    if isinstance(error, MessagingEntityDisabledError):
        return False
    found = meaning_of(error)
    if found is None:
        return isinstance(error, OSError | TimeoutError)
    return isinstance(found, errors.Unavailable) and not isinstance(
        found, errors.QuotaExceeded | errors.AccessError | errors.DisabledEntity
    )


def is_token_end(error: Exception) -> bool:
    """Return whether a link ended with its token."""
    return isinstance(meaning_of(error), errors.TokenExpired)


def is_missing(error: Exception) -> bool:
    """Return whether the queue or topic does not exist."""
    return isinstance(meaning_of(error), errors.EntityMissing)


def blames_message(error: Exception) -> bool:
    """Return whether no queue would accept the message: it is too large, or was not a message."""
    if isinstance(error, errors.ServiceRefused):
        return error.condition == TOO_LARGE
    return isinstance(error, sdk.MessageSizeExceededError | TypeError)


def describe_error(error: Exception) -> str:
    """Return an error as one line, for the reason of an event."""
    if isinstance(error, AzureError) and is_missing(error):
        # The SDK raises an authentication error where the token's answer is that the entity is missing.
        return f"{sdk.MessagingEntityNotFoundError.__name__}: {text_of(error)}"
    return f"{type(error).__name__}: {connection_problem(error) or redacted(error)}"


class NotSent(sdk.OperationTimeoutError):
    """The message was not sent at all, so it cannot be in doubt."""


def too_large(what: str, size: int, with_aliases: int, limit: int) -> Exception:
    """Return the error for a message that the backlog would not accept. Sizes are in bytes."""
    return sdk.MessageSizeExceededError(
        message=f"{what} {size} bytes, {with_aliases} with its aliases for the backlog, which accepts {limit}:"
        " it could not be sent while the primary is unavailable"
    )


def to_sdk_error(error: SbpairError) -> ServiceBusError:
    """Return the SDK error of the same meaning, which callers and their functions expect."""
    kind = next((theirs for ours, theirs in _SDK_ERRORS if isinstance(error, ours)), ServiceBusError)
    return kind(message=error.message, error=error)


def joins_sdk_errors(doing: str) -> Callable[[Procedure[P, T]], Procedure[P, T]]:
    """Return a decorator of procedures for an entity, whose errors are then as `join_sdk_errors` raises them.

    `doing` is a phrase such as "sending to".
    """

    def decorate(steps: Procedure[P, T]) -> Procedure[P, T]:
        @wraps(steps)
        def joining(self: Any, /, *arguments: P.args, **options: P.kwargs) -> Steps[T]:
            with join_sdk_errors(f"{doing} {self.entity_name!r}"):
                return (yield from steps(self, *arguments, **options))

        return joining

    return decorate


@contextmanager
def join_sdk_errors(doing: str) -> Iterator[None]:
    """Raise an error of the SDK or the network as a subclass of sbpair's error and of the SDK's class.

    `doing` is a phrase such as "sending to 'orders'".
    """
    try:
        yield
    except SbpairError:
        raise
    except AzureError as error:
        raise _joined(error, doing) from error
    except OSError as error:
        raise _joined(sdk.ServiceBusConnectionError(message=redacted(error), error=error), doing) from error


class _SendError(SbpairError):
    """The base of errors of two classes. They are pickled without the SDK's objects."""

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        state = {name: value for name, value in self.__dict__.items() if name not in _SDK_OBJECTS}
        return _restored, (*type(self).__bases__[1:], self.args, state | dict.fromkeys(_SDK_OBJECTS))


_SDK_OBJECTS = ("inner_exception", "exc_type", "exc_value", "exc_traceback")


def _joined(error: AzureError, doing: str) -> SbpairError:
    found = from_sdk_error(error, doing)
    return _restored(type(found), type(error), found.args, {**error.__dict__, **found.__dict__})


def _restored(
    ours: type[SbpairError], theirs: type[AzureError], args: tuple[Any, ...], state: dict[str, Any]
) -> SbpairError:
    kind = _joined_class(ours, theirs)  # type: ignore[arg-type]  # mypy: a class is not hashable
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error


@cache
def _joined_class(ours: type[SbpairError], theirs: type[AzureError]) -> type[SbpairError]:
    """Return the subclass of both, which has the name and the description of sbpair's."""
    names = {"__module__": ours.__module__, "__qualname__": ours.__qualname__, "__doc__": ours.__doc__}
    return type(ours.__name__, (_SendError, ours, theirs), names)


def both_failed(text: str, reasons: dict[str, Exception], hint: str, in_doubt: tuple[str, ...] = ()) -> BothFailed:
    """Return the error for both sides. Its message adds the reason of each to `text`."""
    why = "; ".join(f"the {side}: {describe_error(error)}" for side, error in reasons.items())
    failed = BothFailed(f"{text}: {why}", reasons=reasons, in_doubt=in_doubt, hint=hint)
    failed.retriable = any(map(is_transient, reasons.values()))
    failed.__cause__ = ExceptionGroup("errors of both namespaces", list(reasons.values()))
    return failed


def _counts_by_article(error: Exception) -> bool:
    found = meaning_of(error)
    if found is None or (isinstance(found, UsageError) and not isinstance(found, errors.EntityMissing)):
        return isinstance(error, TimeoutError)
    return isinstance(found, errors.TimedOut | errors.InDoubt) or not (
        is_transient(error) or isinstance(found, errors.AccessError)
    )


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
