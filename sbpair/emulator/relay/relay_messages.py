"""The texts of the relay: targets of requests, refusals, and the JSON messages of listeners. Pure."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import unquote, unquote_plus

from sbpair.amqp_server.refusals import ServiceError

MAX_TRACKER: Final = 300
_PREFIX: Final = "$hc"
_RESERVED: Final = "sb-hc-"
_UNSAFE: Final = re.compile(r"[\x00-\x1f\x7f]")
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE: Final = re.compile(r"[^\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]*")
HOP_BY_HOP: Final = frozenset({
    "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer",
    "transfer-encoding", "upgrade",
})  # fmt: skip
NOT_RELAYED: Final = frozenset({
    "connection", "content-length", "host", "te", "trailer", "transfer-encoding", "upgrade", "close", "keep-alive",
    "proxy-connection", "expect",
})  # fmt: skip
"""Headers of a request that the listener does not get."""


# Refusals


class RelayRefused(ServiceError):
    """A refusal of the service itself. `code` is that of the JSON body that HTTP senders get."""

    sub_code = 0

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


def url_invalid(text: str) -> RelayRefused:
    return RelayRefused(400, "BadRequest", text)


def endpoint_not_found(text: str) -> RelayRefused:
    return RelayRefused(404, "EndpointNotFound", text)


def no_listeners() -> RelayRefused:
    return endpoint_not_found("There are no listeners connected for the endpoint.")


def response_invalid(text: str) -> RelayRefused:
    return RelayRefused(502, "BadGateway", f"The listener's response is not valid: {text}.")


def with_tracking(text: str, endpoint: str, path: str, now_ms: int) -> str:
    """Return a text with its tracking id, endpoint and time, on one line of printable ASCII."""
    time = datetime.fromtimestamp(now_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    tracker = f"SystemTracker:{endpoint}/{path.strip('/')[:MAX_TRACKER]}"
    return one_line(f"{text} TrackingId:{uuid.uuid4()}_G0, {tracker}, Timestamp:{time}")


def one_line(text: str) -> str:
    """Return a text as a reason phrase: no line ends, no control characters, ASCII only."""
    return "".join(each if " " <= each <= "~" else "?" for each in text)


# Targets of requests


@dataclass(frozen=True, slots=True)
class RelayTarget:
    """A decoded target. `path` is decoded, without outer slashes and `$hc`.

    `with_query` is the path with the sender's own parameters, byte for byte as the sender wrote both. `parameters` has
    those of the relay, names in lower case.
    """

    path: str
    with_query: str
    parameters: dict[str, str] = field(repr=False)


def is_websocket_path(raw_target: str) -> bool:
    """Return whether a target is below `/$hc/`."""
    return raw_target[:7].lower().replace("%24", "$").startswith(f"/{_PREFIX}/")


def read_target(raw_target: str) -> RelayTarget:
    """Parse a target. Raises RelayRefused if its path has `.` or `..`, encoded or not, or control characters."""
    if not raw_target.startswith("/"):
        raw_target = "/" + raw_target.partition("://")[2].partition("/")[2]
    raw_path, _, query = raw_target.partition("?")
    if is_websocket_path(raw_path):
        raw_path = raw_path[raw_path.index("/", 1) :]
    path = unquote(raw_path)
    if _UNSAFE.search(path) or {".", ".."} & set(re.split(r"[/\\]", path)):
        raise url_invalid("The path of the URL is not valid.")
    rest, parameters = split_query(query)
    return RelayTarget(path.strip("/"), f"{raw_path}?{rest}" if rest else raw_path, parameters)


def split_query(query: str) -> tuple[str, dict[str, str]]:
    """Return the query without each `sb-hc-…=…`, and the decoded values of those. A name without `=` stays."""
    kept: list[str] = []
    parameters: dict[str, str] = {}
    for part in query.split("&"):
        name, equals, value = part.partition("=")
        if equals and name.lower().startswith(_RESERVED):
            parameters.setdefault(name.lower(), unquote_plus(value))
        else:
            kept.append(part)
    return "&".join(kept), parameters


# Messages of listeners


class MessageInvalid(Exception):
    """A message of a listener that cannot be read. The text has the reason, without any of its content."""


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """The `response` message of a listener. `headers` may repeat a name."""

    request_id: str
    status: int
    reason: str | None
    headers: tuple[tuple[str, str], ...]
    has_body: bool


def read_message(text: bytes) -> dict[str, Any]:
    """Return the object of a text message. Raises MessageInvalid."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MessageInvalid("not JSON") from error
    if not isinstance(document, dict):
        raise MessageInvalid("not a JSON object")
    return document


def read_response(given: object) -> ResponseHead:
    """Return the head of a response. Raises MessageInvalid."""
    if not isinstance(given, dict):
        raise MessageInvalid("response is not an object")
    status, reason = _status(given.get("statusCode")), given.get("statusDescription")
    headers = given.get("responseHeaders") or {}
    if not isinstance(headers, dict):
        raise MessageInvalid("responseHeaders is not an object")
    pairs = tuple(_headers(headers.items()))
    if reason is not None and not isinstance(reason, str):
        raise MessageInvalid("statusDescription is not text")
    if reason and _VALUE.fullmatch(reason) is None:
        raise MessageInvalid("statusDescription has control characters")
    return ResponseHead(
        str(given.get("requestId")), status, one_line(reason) if reason else None, pairs, given.get("body") is True
    )


def _status(given: object) -> int:
    text = str(given)
    if isinstance(given, bool) or not (text.isascii() and text.isdigit()) or not 200 <= int(text[:9]) <= 999:
        raise MessageInvalid("statusCode is not a number from 200 to 999")
    return int(text)


def _headers(given: Iterable[tuple[str, object]]) -> Iterable[tuple[str, str]]:
    for name, values in given:
        if _TOKEN.fullmatch(name) is None:
            raise MessageInvalid("a header's name is not valid")
        for value in values if isinstance(values, list) else [values]:
            if isinstance(value, dict | list) or value is None:
                raise MessageInvalid(f"the header {name[:40]} is not text")
            text = value if isinstance(value, str) else json.dumps(value)
            if not is_header_value(text):
                raise MessageInvalid(f"the header {name[:40]} has characters that are not allowed")
            if name.lower() not in HOP_BY_HOP:
                yield name, text


def is_header_value(text: str) -> bool:
    """Return whether a text can be a header's value: no control characters, no half of a surrogate pair."""
    return _VALUE.fullmatch(text) is not None


def joined_headers(pairs: Iterable[tuple[str, str]], without: frozenset[str] = frozenset()) -> dict[str, str]:
    """Return headers by name, as first written. Values of a repeated name are joined by a comma."""
    names: dict[str, str] = {}
    joined: dict[str, str] = {}
    for name, raw in pairs:
        key, value = name.lower(), _decoded(raw)
        if key in without:
            continue
        if key in names:
            joined[names[key]] += f", {value}"
        else:
            names[key] = name
            joined[name] = value
    return joined


def _decoded(value: str) -> str:
    """Return a value as Latin-1 where its bytes are not UTF-8."""
    raw = value.encode("utf-8", "surrogateescape")
    return value if raw.isascii() or is_header_value(value) else raw.decode("latin-1")
