"""Requests to `$cbs` and `$management`, decoded, and their replies, encoded. Does no I/O.

A bug in answering fails its request only. The two nodes name the fields of their replies differently. A reply's
correlation id has the type of the request's message id, because some clients compare types too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from sbpair.amqp.message import APPLICATION_PROPERTIES, VALUE, Properties, Sections, encode_map, value_body
from sbpair.amqp.types import Int, Map, Symbol, Value
from sbpair.emulator.service_errors import InternalError, ServiceError, log_bug

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AmqpRequest:
    """A request: the `operation`, its argument as `body`, and all application properties."""

    message_id: Value
    reply_to: str | None
    operation: str
    properties: Map
    body: Value = field(repr=False)


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply: `status` as in HTTP, and `condition` for an error."""

    status: int = 200
    description: str = "OK"
    body: Map | None = None
    condition: str | None = None

    @classmethod
    def for_error(cls, error: ServiceError) -> Reply:
        return cls(error.status, error.message, None, error.condition)


@dataclass(frozen=True, slots=True)
class ReplyKeys:
    status: str
    description: str
    condition: str


CBS_KEYS: Final = ReplyKeys("status-code", "status-description", "error-condition")
MANAGEMENT_KEYS: Final = ReplyKeys("statusCode", "statusDescription", "errorCondition")

Answer: TypeAlias = Callable[[AmqpRequest], Reply]


def read_request(payload: bytes) -> AmqpRequest:
    """Decode a request. Raises ProtocolError if it is not a message."""
    sections = Sections.split(payload)
    properties = sections.read_properties()
    application = sections.read_application_properties()
    bodies = [value for code, value in sections.read_body() if code == VALUE]
    operation = text_at(application, "operation") or ""
    reply_to = properties.reply_to if isinstance(properties.reply_to, str) else None
    return AmqpRequest(properties.message_id, reply_to, operation, application, bodies[0] if bodies else None)


def text_at(values: Map, key: str) -> str | None:
    """Return the text under a key, or None. Clients send either, and sometimes both, as binary."""
    value = values.get(key)
    if value is None:
        value = next((value for name, value in values.pairs if name == key.encode()), None)
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return str(value) if isinstance(value, str) else None


def reply_to(request: AmqpRequest, answer: Answer, keys: ReplyKeys) -> bytes:
    """Return the encoded reply, or an InternalError if answering or encoding fails."""
    try:
        return write_reply(request, answer(request), keys)
    except Exception as error:  # noqa: BLE001  # a bug fails its request only
        log_bug(logger, f"request for {request.operation}", error)
        return write_reply(request, Reply.for_error(InternalError()), keys)


def write_reply(request: AmqpRequest, reply: Reply, keys: ReplyKeys) -> bytes:
    fields: dict[Value, Value] = {keys.status: Int(reply.status), keys.description: reply.description}
    if reply.condition is not None:
        fields[keys.condition] = Symbol(reply.condition)
    sections = Sections(
        properties=Properties(to=request.reply_to, correlation_id=request.message_id).encode(),
        application_properties=encode_map(APPLICATION_PROPERTIES, Map(fields.items())),
        body=value_body(reply.body if reply.body is not None else Map()),
    )
    return sections.join()
