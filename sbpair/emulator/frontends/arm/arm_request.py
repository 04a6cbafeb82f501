"""A request to Azure Resource Manager, read, and what all answers to one are made of. No decisions about entities.

`~` stands for `/` in the name of a queue or a topic, and nowhere else.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import parse_qsl, unquote, urlencode

from aiohttp import web

from sbpair.emulator.service_errors import ArgumentInvalid

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

API_VERSIONS: Final = ("2017-04-01", "2021-11-01", "2024-01-01", "2026-01-01")
PROVIDER: Final = "Microsoft.ServiceBus"
RESOURCE_GROUP: Final = "emulator"
"""Where namespaces are said to be when nobody named a group: every group has all of them."""

_PAGE: Final = 100
_SUBSCRIPTION: Final = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_PATH: Final = re.compile(
    r"/+subscriptions/(?P<subscription>[^/]+)(?:/resourcegroups/(?P<group>[^/]+))?/providers/microsoft\.servicebus"
    r"(?P<rest>/.*)?",
    re.IGNORECASE,
)

Json = dict[str, Any]
T = TypeVar("T")


class ArmRefusal(ArgumentInvalid):
    """What Resource Manager itself refuses, before Service Bus is asked."""

    sub_code = 0

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.code = code
        self.status = status


@dataclass(frozen=True, slots=True)
class ArmRequest:
    """`namespace` is None where all are asked for; `parts` are the segments below it, types in lower case."""

    method: str
    subscription: str
    group: str | None
    namespace: str | None
    parts: tuple[str, ...]
    query: dict[str, str]
    base: str
    raw_path: str
    token: str | None

    @property
    def namespaces_id(self) -> str:
        group = self.group or RESOURCE_GROUP
        return f"/subscriptions/{self.subscription}/resourceGroups/{group}/providers/{PROVIDER}/namespaces"

    def next_link(self, **query: int) -> str:
        named = {f"${name}": value for name, value in query.items()}
        return f"{self.base}{self.raw_path}?{urlencode({**self.query, **named})}"


def is_arm(raw_path: str) -> bool:
    return _PATH.fullmatch(raw_path.partition("?")[0]) is not None


def read_arm_ask(request: web.BaseRequest) -> ArmRequest:
    """Raises ArmRefusal for what Resource Manager cannot make anything of."""
    raw_path, _, told = request.raw_path.partition("?")
    match = _PATH.fullmatch(raw_path)
    if match is None:
        raise not_found()
    first, *names = [unquote(part) for part in (match["rest"] or "").strip("/").split("/")]
    query = {name.lower(): value for name, value in parse_qsl(told, keep_blank_values=True)}
    _check(match["subscription"], first, names, query.get("api-version"))
    return ArmRequest(
        request.method,
        unquote(match["subscription"]),
        unquote(match["group"]) if match["group"] else None,
        names[0] if names else None,
        tuple(part.lower() if number % 2 == 0 else part for number, part in enumerate(names[1:])),
        query,
        f"{request.scheme}://{request.host}",
        raw_path,
        request.headers.get("Authorization"),
    )


def _check(subscription: str, first: str, names: list[str], version: str | None) -> None:
    if _SUBSCRIPTION.fullmatch(subscription) is None:
        text = f"The provided subscription identifier '{subscription[:100]}' is malformed or invalid."
        raise ArmRefusal("InvalidSubscriptionId", text)
    if not version:
        text = "The api-version query parameter (?api-version=) is required for all requests."
        raise ArmRefusal("MissingApiVersionParameter", text)
    if version not in API_VERSIONS:
        text = f"The api-version '{version[:40]}' is invalid. The supported versions are '{', '.join(API_VERSIONS)}'."
        raise ArmRefusal("InvalidApiVersionParameter", text)
    if first.lower() != "namespaces" or "" in names:
        raise not_found()
    if any("/" in name for name in names):
        raise ArmRefusal("InvalidResourceName", "The resource name contains '/': write '~' for it.")


def not_found() -> ArmRefusal:
    return ArmRefusal("InvalidResourceType", "The resource type could not be found in 'Microsoft.ServiceBus'.", 404)


def not_a_verb(method: str) -> ArmRefusal:
    return ArmRefusal("MethodNotAllowed", f"The HTTP method '{method[:20]}' is not supported at this scope.", 405)


def path_of(name: str) -> str:
    """The path of the entity that a resource of this name is."""
    if "/" in name:
        raise ArmRefusal("InvalidResourceName", "The resource name contains '/': write '~' for it.")
    return name.replace("~", "/")


def name_of(path: str) -> str:
    return path.replace("/", "~")


def read_object(body: bytes) -> Json:
    """The JSON object that a body is. Raises ArmRefusal where it is none."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ArmRefusal("InvalidRequestContent", "The request content was invalid and could not be read.") from error
    if not isinstance(document, dict):
        raise ArmRefusal("InvalidRequestContent", "The request content is no JSON object.")
    return document


def read_properties(body: bytes) -> Json:
    """The `properties` of a request's body, none where it leaves them out."""
    return object_in(read_object(body), "properties")


def object_in(within: Json, name: str) -> Json:
    """What is called so, which may be left out."""
    found = within.get(name)
    if found is not None and not isinstance(found, dict):
        raise ArmRefusal("InvalidRequestContent", f"The value of '{name[:100]}' is no JSON object.")
    return found or {}


def page_of(ask: ArmRequest, items: Sequence[T], shown: Callable[[T], Json]) -> web.Response:
    """The part of a list that `$skip` and `$top` ask for, with a link to the next."""
    skip, top = _count(ask, "$skip", 0), min(_count(ask, "$top", _PAGE), _PAGE)
    document: Json = {"value": [shown(item) for item in items[skip : skip + top]]}
    if top and len(items) > skip + top:
        document["nextLink"] = ask.next_link(skip=skip + top, top=top)
    return web.json_response(document)


def _count(ask: ArmRequest, name: str, default: int) -> int:
    text = ask.query.get(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise ArmRefusal("BadRequest", f"The value '{text[:40]}' of {name} is not a whole number from 0.")
    return int(text)
