"""Errors of the emulated service, and their form on the wire.

    ServiceError                condition (AMQP)                      status  SubCode (HTTP)
    ├── ArgumentInvalid         com.microsoft:argument-error             400  40000
    ├── NotAllowed              amqp:not-allowed                         400  40000
    ├── Unauthenticated         amqp:unauthorized-access                 401  40100   no token, or an invalid one
    ├── Unauthorized            amqp:unauthorized-access                 401  40100   a valid token without the right
    ├── EntityFull              amqp:resource-limit-exceeded             403  40300
    ├── EntityDisabled          com.microsoft:entity-disabled            403  40301
    ├── EntityNotFound          amqp:not-found                           404  40400
    ├── MessageNotFound         com.microsoft:message-not-found          404  40401
    ├── EntityExists            com.microsoft:entity-already-exists      409  40900
    ├── LinkStolen              amqp:link:stolen                         409  40900   its name was attached again
    ├── SessionCannotBeLocked   com.microsoft:session-cannot-be-locked   409  40902   another link holds it
    ├── MessageLockExpired      com.microsoft:message-lock-lost          410  41000
    ├── SessionLockExpired      com.microsoft:session-lock-lost          410  41001
    ├── MessageTooLarge         amqp:link:message-size-exceeded          413  41300
    ├── ServiceUnavailable      amqp:connection:forced                   503  50300   the namespace is down
    ├── EntityUnavailable       amqp:link:detach-forced                  503  50300   an entity is down
    ├── LinkIdle                amqp:link:detach-forced                  503  50300   a link was idle
    ├── ServerBusy              com.microsoft:server-busy                503  50009
    ├── RequestThrottled        com.microsoft:server-busy                429  50004   of management requests
    ├── OperationTimedOut       com.microsoft:timeout                    504  50400
    └── InternalError           amqp:internal-error                      500  50000   a bug of the emulator

An error fails one request or one link, never the connection of another peer. Entities raise them; only the frontends
encode them.
"""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, ClassVar, Final

from sbpair.errors import SbpairError

if TYPE_CHECKING:
    import logging


class ServiceError(SbpairError):
    """The root. `condition` is the AMQP error condition; `status` and `sub_code` are those of HTTP, 0 for none."""

    condition: ClassVar[str] = "amqp:internal-error"
    status: int = 500
    sub_code: int = 50000
    retry_after_seconds: int | None = None


class ArgumentInvalid(ServiceError):
    condition = "com.microsoft:argument-error"
    status, sub_code = 400, 40000


class NotAllowed(ServiceError):
    condition = "amqp:not-allowed"
    status, sub_code = 400, 40000


class Unauthenticated(ServiceError):
    condition = "amqp:unauthorized-access"
    status, sub_code = 401, 40100


class Unauthorized(ServiceError):
    condition = "amqp:unauthorized-access"
    status, sub_code = 401, 40100


class EntityFull(ServiceError):
    condition = "amqp:resource-limit-exceeded"
    status, sub_code = 403, 40300


class EntityDisabled(ServiceError):
    condition = "com.microsoft:entity-disabled"
    status, sub_code = 403, 40301


class EntityNotFound(ServiceError):
    condition = "amqp:not-found"
    status, sub_code = 404, 40400


class MessageNotFound(ServiceError):
    condition = "com.microsoft:message-not-found"
    status, sub_code = 404, 40401


class EntityExists(ServiceError):
    condition = "com.microsoft:entity-already-exists"
    status, sub_code = 409, 40900


class LinkStolen(ServiceError):
    condition = "amqp:link:stolen"
    status, sub_code = 409, 40900


class SessionCannotBeLocked(ServiceError):
    condition = "com.microsoft:session-cannot-be-locked"
    status, sub_code = 409, 40902


class SessionLockExpired(ServiceError):
    condition = "com.microsoft:session-lock-lost"
    status, sub_code = 410, 41001


class MessageLockExpired(ServiceError):
    condition = "com.microsoft:message-lock-lost"
    status, sub_code = 410, 41000


class MessageTooLarge(ServiceError):
    condition = "amqp:link:message-size-exceeded"
    status, sub_code = 413, 41300


class ServiceUnavailable(ServiceError):
    condition = "amqp:connection:forced"
    status, sub_code = 503, 50300


class EntityUnavailable(ServiceError):
    condition = "amqp:link:detach-forced"
    status, sub_code = 503, 50300


class LinkIdle(ServiceError):
    condition = "amqp:link:detach-forced"
    status, sub_code = 503, 50300


class ServerBusy(ServiceError):
    condition = "com.microsoft:server-busy"
    status, sub_code = 503, 50009


class RequestThrottled(ServiceError):
    condition = "com.microsoft:server-busy"
    status, sub_code = 429, 50004


class OperationTimedOut(ServiceError):
    condition = "com.microsoft:timeout"
    status, sub_code = 504, 50400


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
