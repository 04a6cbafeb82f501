"""Requests to Azure Resource Manager, decoded, and the parts that all answers share.

In names of queues and topics, and only there, `~` stands for `/`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar
from urllib.parse import unquote, urlencode

from aiohttp import web

from sbpair.emulator.frontends.http.management_parts import read_page, read_query
from sbpair.emulator.service_errors import ArgumentInvalid

API_VERSIONS: Final = ("2017-04-01", "2021-11-01", "2024-01-01", "2026-01-01")
PROVIDER: Final = "Microsoft.ServiceBus"
RELAY_PROVIDER: Final = "Microsoft.Relay"
RESOURCE_GROUP: Final = "emulator"
"""The resource group in answers to requests that name none: every group has all namespaces."""

_SUBSCRIPTION: Final = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_PATH: Final = re.compile(
    r"/+subscriptions/(?P<subscription>[^/]+)(?:/resourcegroups/(?P<group>[^/]+))?"
    r"/providers/microsoft\.(?P<provider>servicebus|relay)(?P<rest>/.*)?",
    re.IGNORECASE,
)

Json = dict[str, Any]
T = TypeVar("T")


class ArmError(ArgumentInvalid):
    """An error of Resource Manager itself, not of Service Bus."""

    sub_code = 0

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.code = code
        self.status = status


class ArmRequest:
    """A decoded request. `namespace` is None for all; `parts` are the segments below it, types in lower case."""

    def __init__(self, request: web.BaseRequest) -> None:
        """Decode a request. Raises ArmError if it is not valid for Resource Manager."""
        self.raw_path, _, query = request.raw_path.partition("?")
        match = _PATH.fullmatch(self.raw_path)
        if match is None:
            raise not_found()
        self.provider = RELAY_PROVIDER if match["provider"].lower() == "relay" else PROVIDER
        first, *names = [unquote(part) for part in (match["rest"] or "").strip("/").split("/")]
        self.query = read_query(query)
        _check(match["subscription"], first, names, self.query.get("api-version"))
        self.method = request.method
        self.subscription = unquote(match["subscription"])
        self.group = unquote(match["group"]) if match["group"] else None
        self.namespace = names[0] if names else None
        self.parts = tuple(part.lower() if number % 2 == 0 else part for number, part in enumerate(names[1:]))
        self.base = f"{request.scheme}://{request.host}"
        self.token = request.headers.get("Authorization")

    @property
    def namespaces_id(self) -> str:
        group = self.group or RESOURCE_GROUP
        return f"/subscriptions/{self.subscription}/resourceGroups/{group}/providers/{self.provider}/namespaces"

    def next_link(self, **query: int) -> str:
        named = {f"${name}": value for name, value in query.items()}
        return f"{self.base}{self.raw_path}?{urlencode({**self.query, **named})}"


def is_arm(raw_path: str) -> bool:
    return _PATH.fullmatch(raw_path.partition("?")[0]) is not None


def _check(subscription: str, first: str, names: list[str], version: str | None) -> None:
    if _SUBSCRIPTION.fullmatch(subscription) is None:
        text = f"The provided subscription identifier '{subscription[:100]}' is malformed or invalid."
        raise ArmError("InvalidSubscriptionId", text)
    if not version:
        text = "The api-version query parameter (?api-version=) is required for all requests."
        raise ArmError("MissingApiVersionParameter", text)
    if version not in API_VERSIONS:
        text = f"The api-version '{version[:40]}' is invalid. The supported versions are '{', '.join(API_VERSIONS)}'."
        raise ArmError("InvalidApiVersionParameter", text)
    if first.lower() != "namespaces" or "" in names:
        raise not_found()
    if any("/" in name for name in names):
        raise ArmError("InvalidResourceName", "The resource name contains '/': write '~' for it.")


def not_found(provider: str = PROVIDER) -> ArmError:
    return ArmError("InvalidResourceType", f"The resource type could not be found in '{provider}'.", 404)


def unsupported_method(method: str) -> ArmError:
    return ArmError("MethodNotAllowed", f"The HTTP method '{method[:20]}' is not supported at this scope.", 405)


def read_object(body: bytes) -> Json:
    """Return the JSON object in a body. Raises ArmError."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ArmError("InvalidRequestContent", "The request content was invalid and could not be read.") from error
    if not isinstance(document, dict):
        raise ArmError("InvalidRequestContent", "The request content is not a JSON object.")
    return document


def object_in(within: Json, name: str) -> Json:
    """Return the object `name` in another, {} if absent."""
    found = within.get(name)
    if found is not None and not isinstance(found, dict):
        raise ArmError("InvalidRequestContent", f"The value of '{name[:100]}' is not a JSON object.")
    return found or {}


def arm_page(request: ArmRequest, items: Sequence[T], to_json: Callable[[T], Json]) -> web.Response:
    """Return the page that `$skip` and `$top` select, with a link to the next page."""
    skip, top = read_page(request.query, lambda message: ArmError("BadRequest", message))
    document: Json = {"value": [to_json(item) for item in items[skip : skip + top]]}
    if top and len(items) > skip + top:
        document["nextLink"] = request.next_link(skip=skip + top, top=top)
    return web.json_response(document)
