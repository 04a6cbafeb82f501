"""The messages between a listener and the relay: JSON to and from. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterable, Iterable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qsl

from sbpair.errors import UsageError

MAX_INLINE: Final = 64 * 1024
"""Limit of an answer, head and body, that goes over the control channel."""

HOP_BY_HOP: Final = frozenset({
    "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer",
    "transfer-encoding", "upgrade",
})  # fmt: skip

TOKEN_HEADER: Final = "ServiceBusAuthorization"  # noqa: S105  # a header's name
NOT_PASSED: Final = HOP_BY_HOP | {"host", "content-length", "expect", TOKEN_HEADER.lower()}
"""Headers of a connection, or of the relay: no request may be given them, and none is passed on with them."""

_PHRASES: Final = {each.value: each.phrase for each in HTTPStatus}
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE: Final = re.compile(r"[^\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]*")

Headers: TypeAlias = Mapping[str, str] | Iterable[tuple[str, str]]
Body: TypeAlias = bytes | AsyncIterable[bytes]


class RelayMessageInvalid(Exception):
    """A message of the relay that cannot be read. The text has the reason, and no content."""


@dataclass(frozen=True, slots=True)
class RequestMessage:
    """A `request`. `method` is "" for one that waits at its address. `headers` have the names as sent."""

    address: str
    request_id: str = ""
    method: str = ""
    target: str = ""
    headers: dict[str, str] = field(default_factory=dict, repr=False)
    remote: str = ""
    has_body: bool = False


@dataclass(frozen=True, slots=True)
class AcceptMessage:
    """An `accept`: a sender waits at `address` for a WebSocket."""

    address: str
    offer_id: str
    headers: dict[str, str] = field(repr=False)
    remote: str

    @property
    def protocols(self) -> tuple[str, ...]:
        found = next((value for name, value in self.headers.items() if name.lower() == "sec-websocket-protocol"), "")
        return tuple(each.strip() for each in found.split(",") if each.strip())


def read_control(text: str) -> RequestMessage | AcceptMessage | None:
    """Return the message of a text; None for a kind that is not known. Raises RelayMessageInvalid."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RelayMessageInvalid("a message is not JSON") from error
    if not isinstance(document, dict):
        raise RelayMessageInvalid("a message is not a JSON object")
    if "accept" in document:
        given = _fields(document["accept"])
        return AcceptMessage(_address(given), _text(given, "id"), _headers(given.get("connectHeaders")), _remote(given))
    if "request" in document:
        given = _fields(document["request"])
        if "method" not in given:
            return RequestMessage(_address(given), _id_of(_address(given)))
        return RequestMessage(
            _text(given, "address"),
            _text(given, "id"),
            _text(given, "method"),
            _text(given, "requestTarget"),
            _headers(given.get("requestHeaders")),
            _remote(given),
            has_body=given.get("body") is True,
        )
    return None


def _fields(given: object) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise RelayMessageInvalid("a message is not an object")
    return given


def _text(given: dict[str, Any], name: str) -> str:
    value = given.get(name, "")
    if not isinstance(value, str):
        raise RelayMessageInvalid(f"{name} is not text")
    return value


def _address(given: dict[str, Any]) -> str:
    address = _text(given, "address")
    if not address.startswith(("ws://", "wss://")):
        raise RelayMessageInvalid("the address is not that of a WebSocket")
    return address


def _id_of(address: str) -> str:
    """Return the id of a request from its address: its message has none yet."""
    return dict(parse_qsl(address.partition("?")[2])).get("sb-hc-id", "")


def _headers(given: object) -> dict[str, str]:
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise RelayMessageInvalid("headers are not an object")
    # A value that is not text, or would begin another header, is left out.
    return {name: value for name, value in given.items() if isinstance(value, str) and is_header(name, value)}


def _remote(given: dict[str, Any]) -> str:
    found = given.get("remoteEndpoint")
    address = found.get("address") if isinstance(found, dict) else ""
    return address if isinstance(address, str) else ""


def is_header(name: str, value: str) -> bool:
    """Return whether name and value can be a header: no control characters, no line ends."""
    return _NAME.fullmatch(name) is not None and _VALUE.fullmatch(value) is not None


def checked_headers(headers: Headers | None) -> list[tuple[str, str]]:
    """Return headers as pairs. Raises UsageError for one that is not valid, without its value."""
    if headers is None:
        return []
    pairs = list(headers.items() if isinstance(headers, Mapping) else headers)
    for name, value in pairs:
        if not isinstance(name, str) or not isinstance(value, str) or not is_header(name, value):
            raise UsageError(
                f"the header {str(name)[:40]!r} is not valid",
                hint="a name has letters, digits and hyphens, and a value is text on one line",
            )
    return pairs


@dataclass(frozen=True, slots=True)
class RelayAnswer:
    """The answer of a handler. `body` is bytes or an async iterator of bytes; headers may be pairs with repeated names.

    Headers of one connection, such as Transfer-Encoding, are left out. Without `reason` the standard phrase is used.
    """

    status: int = 200
    headers: Headers = ()
    body: Body = b""
    reason: str = ""


def response_head(answer: RelayAnswer) -> dict[str, Any]:
    """Return the head of a `response`. Raises UsageError if the answer's status, reason or headers are not valid."""
    status = answer.status
    if isinstance(status, bool) or not isinstance(status, int) or not 200 <= status <= 599:
        raise UsageError(f"expected a status from 200 to 599, got {str(status)[:40]!r}", hint="200 is the default")
    reason = answer.reason or _PHRASES.get(status, "")
    if not isinstance(reason, str) or not _VALUE.fullmatch(reason):
        raise UsageError("the reason phrase is not text on one line", hint="leave it out for the standard phrase")
    headers: dict[str, str | list[str]] = {}
    names: dict[str, str] = {}
    for name, value in checked_headers(answer.headers):
        key = name.lower()
        if key in HOP_BY_HOP or (key == "content-length" and not _is_length(value, answer.body)):
            continue
        before = headers.get(names.setdefault(key, name))
        if before is None:
            headers[name] = value
        elif key == "set-cookie":
            # Cookies cannot be joined: their dates have commas.
            headers[names[key]] = [*([before] if isinstance(before, str) else before), value]
        else:
            headers[names[key]] = f"{before}, {value}"
    return {"statusCode": status, "statusDescription": reason, "responseHeaders": headers}


def response_message(request_id: str, head: dict[str, Any], *, has_body: bool) -> str:
    return json.dumps({"response": {"requestId": request_id, **head, "body": has_body}})


def _is_length(value: str, body: Body) -> bool:
    """Return whether a given length may go with a body: that of bytes is known, but for the answer to a HEAD."""
    if not (value.isascii() and value.isdigit()):
        return False
    return not isinstance(body, bytes) or not body or int(value) == len(body)


def renewal_message(token: str) -> str:
    return json.dumps({"renewToken": {"token": token}})
