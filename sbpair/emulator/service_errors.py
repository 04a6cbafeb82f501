"""Errors of the emulated service that only it has. Entities raise them; only the frontends encode them."""

from __future__ import annotations

from typing import Final

from sbpair.amqp_server.refusals import (
    ArgumentInvalid,
    EntityFull,
    ServerBusy,
    ServiceError,
    ServiceUnavailable,
    Unauthenticated,
    Unauthorized,
)

MANAGEMENT_HELP: Final = "To know more visit https://aka.ms/sbResourceMgrExceptions."
MESSAGING_HELP: Final = "For more information please see https://aka.ms/ServiceBusExceptions ."
"""Links that the service adds to the texts of its errors."""

CONFLICT: Final = (
    f"Conflict. You're requesting an operation that isn't allowed in the resource's current state. {MANAGEMENT_HELP}"
)


class AccessRefused(Unauthenticated, condition="amqp:unauthorized-access", status=401, sub_code=0):
    """A refusal by a network rule, or of each key where local authentication is disabled. It has no sub-code."""


class ManageRequired(Unauthorized, condition="amqp:unauthorized-access", status=401, sub_code=0):
    """A valid token without Manage, at management. The service gives no sub-code."""


class EntityDisabled(ServiceError, condition="com.microsoft:entity-disabled", status=403, sub_code=40301): ...


class EntityNotFound(ServiceError, condition="amqp:not-found", status=404, sub_code=40400): ...


class ForwardTargetMissing(ArgumentInvalid, condition="com.microsoft:argument-error", status=400, sub_code=40400): ...


class MessageNotFound(ServiceError, condition="com.microsoft:message-not-found", status=404, sub_code=40401): ...


class EntityExists(ServiceError, condition="com.microsoft:entity-already-exists", status=409, sub_code=40900): ...


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


class EntityUnavailable(ServiceError, condition="amqp:link:detach-forced", status=503, sub_code=50300):
    """An entity is down."""


class ConnectionIdle(ServiceError, condition="amqp:connection:forced", status=503, sub_code=50300):
    """A connection had no links."""


class LinkIdle(ServiceError, condition="amqp:link:detach-forced", status=503, sub_code=50300):
    """A link was idle."""


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


_REASONS: Final[dict[type[ServiceError], str]] = {
    EntityFull: "QuotaExceeded",
    OperationTimedOut: "TimedOut",
    ServiceUnavailable: "Unavailable",
}


def dead_letter_reason(error: ServiceError) -> str:
    """Return the DeadLetterReason of a message that could not be forwarded because of `error`."""
    return _REASONS.get(type(error), type(error).__name__)
