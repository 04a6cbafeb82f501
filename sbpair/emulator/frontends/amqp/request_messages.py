"""Requests and replies over AMQP, as `$cbs` and `$management` have them: what a request says, and a reply's bytes.

A mistake that is made in answering costs the request and nothing else. No I/O. The two nodes name the fields of their
replies differently; a reply's correlation id is the request's message id in the very type it came in, since some
clients compare types too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

from sbpair.amqp.message import APPLICATION_PROPERTIES, VALUE, Properties, Sections, encode_map, value_body
from sbpair.amqp.types import Int, Map, Symbol, Value
from sbpair.emulator.service_errors import InternalError, log_bug

if TYPE_CHECKING:
    from sbpair.emulator.service_errors import ServiceError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AmqpRequest:
    """`operation` is what is asked for, `body` its argument, `properties` the rest of the application properties."""

    message_id: Value
    reply_to: str | None
    operation: str
    properties: Map
    body: Value = field(repr=False)


@dataclass(frozen=True, slots=True)
class Reply:
    """`status` as in HTTP; `condition` only where something was refused."""

    status: int = 200
    description: str = "OK"
    body: Map | None = None
    condition: str | None = None

    @classmethod
    def for_error(cls, refusal: ServiceError) -> Reply:
        return cls(refusal.status, refusal.message, None, refusal.condition)


@dataclass(frozen=True, slots=True)
class ReplyKeys:
    status: str
    description: str
    condition: str


CBS_KEYS: Final = ReplyKeys("status-code", "status-description", "error-condition")
MANAGEMENT_KEYS: Final = ReplyKeys("statusCode", "statusDescription", "errorCondition")

Answer: TypeAlias = Callable[[AmqpRequest], Reply]


def read_request(payload: bytes) -> AmqpRequest:
    """Raises ProtocolError for what is no message."""
    sections = Sections.split(payload)
    properties = sections.read_properties()
    application = sections.read_application_properties()
    bodies = [value for code, value in sections.read_body() if code == VALUE]
    operation = text_at(application, "operation") or ""
    reply_to = properties.reply_to if isinstance(properties.reply_to, str) else None
    return AmqpRequest(properties.message_id, reply_to, operation, application, bodies[0] if bodies else None)


def text_at(values: Map, key: str) -> str | None:
    """The text under a key; clients send either, and sometimes both, as binary."""
    value = values.get(key)
    if value is None:
        value = next((value for name, value in values.pairs if name == key.encode()), None)
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return str(value) if isinstance(value, str) else None


def reply_to(request: AmqpRequest, answer: Answer, keys: ReplyKeys) -> bytes:
    """The reply, encoded; where there is none to be had or it cannot be encoded, one that says so."""
    try:
        return write_reply(request, answer(request), keys)
    except Exception as error:  # noqa: BLE001  # whatever it is, whoever asked for something else is not to feel it
        log_bug(logger, f"request for {request.operation}", error)
        return write_reply(request, Reply.for_error(InternalError()), keys)


def write_reply(request: AmqpRequest, reply: Reply, keys: ReplyKeys) -> bytes:
    told: dict[Value, Value] = {keys.status: Int(reply.status), keys.description: reply.description}
    if reply.condition is not None:
        told[keys.condition] = Symbol(reply.condition)
    sections = Sections(
        properties=Properties(to=request.reply_to, correlation_id=request.message_id).encode(),
        application_properties=encode_map(APPLICATION_PROPERTIES, Map(told.items())),
        body=value_body(reply.body if reply.body is not None else Map()),
    )
    return sections.join()
