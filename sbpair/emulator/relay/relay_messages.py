"""The messages of control channels and rendezvous connections: JSON to and from. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from sbpair.emulator.relay.relay_refusals import one_line

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
