"""Errors by which a server refuses a request, a link or a connection, and their form on the wire.

An error fails one request or one link, never the connection of another peer.
"""

from __future__ import annotations

import logging
import traceback
from typing import ClassVar

from sbpair.amqp.performatives import Error
from sbpair.amqp.types import Map
from sbpair.errors import ProtocolError, SbpairError


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


class EntityFull(ServiceError, condition="amqp:resource-limit-exceeded", status=403, sub_code=40300): ...


class LinkStolen(ServiceError, condition="amqp:link:stolen", status=409, sub_code=40900):
    """The name of the link was attached again."""


class MessageTooLarge(ServiceError, condition="amqp:link:message-size-exceeded", status=413, sub_code=41300): ...


class ServiceUnavailable(ServiceError, condition="amqp:connection:forced", status=503, sub_code=50300):
    """The namespace is down."""


class ServerBusy(ServiceError, condition="com.microsoft:server-busy", status=503, sub_code=50009): ...


class InternalError(ServiceError):
    def __init__(self) -> None:
        super().__init__("The server was unable to process the request; please retry the operation.")


def amqp_error(error: ServiceError | ProtocolError) -> Error:
    return Error(error.condition, error.message, Map())


def log_bug(logger: logging.Logger, request: str, error: Exception) -> None:
    """Log where a bug was hit, without any values: they may be secret, or part of a message."""
    where = "".join(traceback.format_tb(error.__traceback__)).rstrip()
    logger.error("A %r failed because of a bug: %s at\n%s", request[:100], type(error).__name__, where)
