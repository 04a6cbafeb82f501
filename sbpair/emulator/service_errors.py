"""Errors of the emulated service, and their form on the wire.

An error fails one request or one link, never the connection of another peer. Entities raise them; only the frontends
encode them.
"""

from __future__ import annotations

import logging
import traceback
from typing import ClassVar, Final

from sbpair.errors import SbpairError

MANAGEMENT_HELP: Final = "To know more visit https://aka.ms/sbResourceMgrExceptions."
MESSAGING_HELP: Final = "For more information please see https://aka.ms/ServiceBusExceptions ."
"""Links that the service adds to the texts of its errors."""

CONFLICT: Final = (
    f"Conflict. You're requesting an operation that isn't allowed in the resource's current state. {MANAGEMENT_HELP}"
)


class ServiceError(SbpairError):
    """The root. `condition` is the AMQP error condition; `status` and `sub_code` are those of HTTP, 0 for none."""

    condition: ClassVar[str] = "amqp:internal-error"
    status: int = 500
    sub_code: int = 50000
    retry_after_seconds: int | None = None

    def __init_subclass__(cls, *, condition: str = "", status: int = 0, sub_code: int = 0) -> None:
        """Set what a subclass names; a subclass of a subclass inherits the rest."""
        super().__init_subclass__()
        if condition:
            cls.condition, cls.status, cls.sub_code = condition, status, sub_code


class ArgumentInvalid(ServiceError, condition="com.microsoft:argument-error", status=400, sub_code=40000): ...


class NotAllowed(ServiceError, condition="amqp:not-allowed", status=400, sub_code=40000): ...


class Unauthenticated(ServiceError, condition="amqp:unauthorized-access", status=401, sub_code=40100):
    """No token, or an invalid one."""


class Unauthorized(ServiceError, condition="amqp:unauthorized-access", status=401, sub_code=40100):
    """A valid token without the right."""


class AccessRefused(Unauthenticated, condition="amqp:unauthorized-access", status=401, sub_code=0):
    """A refusal by a network rule, or of each key where local authentication is disabled. It has no sub-code."""


class ManageRequired(Unauthorized, condition="amqp:unauthorized-access", status=401, sub_code=0):
    """A valid token without Manage, at management. The service gives no sub-code."""


class EntityFull(ServiceError, condition="amqp:resource-limit-exceeded", status=403, sub_code=40300): ...


class EntityDisabled(ServiceError, condition="com.microsoft:entity-disabled", status=403, sub_code=40301): ...


class EntityNotFound(ServiceError, condition="amqp:not-found", status=404, sub_code=40400): ...


class ForwardTargetMissing(ArgumentInvalid, condition="com.microsoft:argument-error", status=400, sub_code=40400): ...


class MessageNotFound(ServiceError, condition="com.microsoft:message-not-found", status=404, sub_code=40401): ...


class EntityExists(ServiceError, condition="com.microsoft:entity-already-exists", status=409, sub_code=40900): ...


class LinkStolen(ServiceError, condition="amqp:link:stolen", status=409, sub_code=40900):
    """The name of the link was attached again."""


class SessionCannotBeLocked(
    ServiceError, condition="com.microsoft:session-cannot-be-locked", status=409, sub_code=40902
):
    """Another link holds the session."""


class PropertyTooLarge(ServiceError):
    """An application property over 32 KB. The service does not name the cause, and calls the error transient."""

    def __init__(self) -> None:
        super().__init__(
            "The service was unable to process the request; please retry the operation. For more information on "
            "exception types and proper exception handling, please refer to "
            "http://go.microsoft.com/fwlink/?LinkId=761101"
        )


class SessionLockExpired(ServiceError, condition="com.microsoft:session-lock-lost", status=410, sub_code=41001): ...


class MessageLockExpired(ServiceError, condition="com.microsoft:message-lock-lost", status=410, sub_code=41000): ...


class MessageTooLarge(ServiceError, condition="amqp:link:message-size-exceeded", status=413, sub_code=41300): ...


class ServiceUnavailable(ServiceError, condition="amqp:connection:forced", status=503, sub_code=50300):
    """The namespace is down."""


class EntityUnavailable(ServiceError, condition="amqp:link:detach-forced", status=503, sub_code=50300):
    """An entity is down."""


class LinkIdle(ServiceError, condition="amqp:link:detach-forced", status=503, sub_code=50300):
    """A link was idle."""


class ServerBusy(ServiceError, condition="com.microsoft:server-busy", status=503, sub_code=50009): ...


class RequestThrottled(ServiceError, condition="com.microsoft:server-busy", status=429, sub_code=50004):
    """Too many management requests."""


class TransactionUnknown(ServiceError, condition="amqp:transaction:unknown-id", status=400, sub_code=40000):
    """No such transaction was declared on this connection, or it has ended."""


class TransactionRolledBack(ServiceError, condition="amqp:transaction:rollback", status=400, sub_code=40000):
    """A commit failed: nothing of the transaction took effect."""


class OperationTimedOut(ServiceError, condition="com.microsoft:timeout", status=504, sub_code=50400): ...


def unwritable() -> ServerBusy:
    return ServerBusy("The server is busy: its data file cannot be written. Please wait 10 seconds and try again.")


def partition_unavailable(partition: int) -> OperationTimedOut:
    return OperationTimedOut(
        f"The operation did not complete within the allotted time: partition {partition} is not available."
    )


class InternalError(ServiceError):
    def __init__(self) -> None:
        super().__init__("The server was unable to process the request; please retry the operation.")


_REASONS: Final[dict[type[ServiceError], str]] = {
    EntityFull: "QuotaExceeded",
    OperationTimedOut: "TimedOut",
    ServiceUnavailable: "Unavailable",
}


def dead_letter_reason(error: ServiceError) -> str:
    """Return the DeadLetterReason of a message that could not be forwarded because of `error`."""
    return _REASONS.get(type(error), type(error).__name__)


def log_bug(logger: logging.Logger, request: str, error: Exception) -> None:
    """Log where a bug was hit, without any values: they may be secret, or part of a message."""
    where = "".join(traceback.format_tb(error.__traceback__)).rstrip()
    logger.error("A %r failed because of a bug in the emulator: %s at\n%s", request[:100], type(error).__name__, where)
