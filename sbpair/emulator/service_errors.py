"""What the emulated service refuses, and how each door has to say so.

    Refusal                     condition (AMQP)                      status  SubCode (HTTP)
    ├── ArgumentInvalid         com.microsoft:argument-error             400  40000
    ├── NotAllowed              amqp:not-allowed                         400  40000
    ├── NotAuthenticated        amqp:unauthorized-access                 401  40100   no token, or one that is not good
    ├── NotAuthorized           amqp:unauthorized-access                 401  40100   a good token without the claim
    ├── QuotaExceeded           amqp:resource-limit-exceeded             403  40300
    ├── EntityDisabled          com.microsoft:entity-disabled            403  40301
    ├── EntityNotFound          amqp:not-found                           404  40400
    ├── MessageNotFound         com.microsoft:message-not-found          404  40401
    ├── EntityExists            com.microsoft:entity-already-exists      409  40900
    ├── LinkStolen              amqp:link:stolen                         409  40900   its name was attached again
    ├── SessionCannotBeLocked   com.microsoft:session-cannot-be-locked   409  40902   another link has it
    ├── MessageLockLost         com.microsoft:message-lock-lost          410  41000
    ├── SessionLockLost         com.microsoft:session-lock-lost          410  41001
    ├── MessageTooLarge         amqp:link:message-size-exceeded          413  41300
    ├── Unavailable             amqp:connection:forced                   503  50300   the namespace is down
    ├── EntityUnavailable       amqp:link:detach-forced                  503  50300   an entity is down
    ├── LinkIdle                amqp:link:detach-forced                  503  50300   nothing came or went on a link
    ├── ServerBusy              com.microsoft:server-busy                503  50009
    ├── Throttled               com.microsoft:server-busy                429  50004   of the management door
    ├── TimedOut                com.microsoft:timeout                    504  50400
    └── InternalError           amqp:internal-error                      500  50000   a mistake of ours

A refusal costs its peer one request or one link, never the connection of another. Entities raise them; only doors
turn them into bytes.
"""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, ClassVar

from sbpair.errors import SbpairError

if TYPE_CHECKING:
    import logging


class ServiceError(SbpairError):
    """The root. `condition` is AMQP's error condition, `status` and `sub_code` are HTTP's; 0 is none."""

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


class InternalError(ServiceError):
    def __init__(self) -> None:
        super().__init__("The server was unable to process the request; please retry the operation.")


def log_mistake(logger: logging.Logger, asked: str, error: Exception) -> None:
    """Where it was made, and not the values that it was made with: they may be secret, or somebody's message."""
    where = "".join(traceback.format_tb(error.__traceback__)).rstrip()
    logger.error("A %r failed by a mistake of the emulator: %s at\n%s", asked[:100], type(error).__name__, where)
