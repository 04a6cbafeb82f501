"""Parts of requests that Atom and Resource Manager share."""

from __future__ import annotations

import base64
import secrets
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, unquote

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from aiohttp import web

    from sbpair.emulator.service_errors import ServiceError

FORWARDS: Final = ("ForwardTo", "ForwardDeadLetteredMessagesTo")
MAX_PAGE: Final = 100


def split_target(request: web.BaseRequest) -> tuple[str, str]:
    """Return the request's path, unquoted, and its query. Two slashes at the start do not begin a host name."""
    raw = request.raw_path
    if not raw.startswith("/"):
        raw = raw.partition("://")[2].partition("/")[2]
    path, _, query = raw.partition("?")
    return unquote(path), query


def read_query(query: str) -> dict[str, str]:
    """Return the query's parameters, names in lower case."""
    return {name.lower(): value for name, value in parse_qsl(query, keep_blank_values=True)}


def read_page(query: Mapping[str, str], invalid: Callable[[str], ServiceError]) -> tuple[int, int]:
    """Return `$skip` and `$top` of a list request. Raises `invalid(message)`."""

    def number(name: str, default: int) -> int:
        text = query.get(name, str(default))
        if not (text.isascii() and text.isdigit() and len(text) <= 9):
            raise invalid(f"The value '{text[:40]}' of {name} is not a whole number from 0.")
        return int(text)

    return number("$skip", 0), min(number("$top", MAX_PAGE), MAX_PAGE)


def with_addresses(values: Mapping[str, str], host: str) -> dict[str, str]:
    """Return the values with forwarding targets as whole addresses, the form in which entities keep them."""

    def address(target: str) -> str:
        return target if "://" in target else f"sb://{host}/{target.strip('/')}"

    return {**values, **{name: address(values[name].strip()) for name in FORWARDS if values.get(name)}}


def new_key() -> str:
    return base64.b64encode(secrets.token_bytes(32)).decode()
