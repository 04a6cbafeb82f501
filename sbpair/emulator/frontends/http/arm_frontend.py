"""The Azure Resource Manager frontend: all namespaces and their entities as JSON, on every port.

Any subscription id and resource group is accepted, and has the namespaces that no PUT has placed elsewhere.
"""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlencode

from aiohttp import web

from sbpair.amqp_server.refusals import ServiceError, ServiceUnavailable, Unauthenticated
from sbpair.emulator.bearer_tokens import ARM_AUDIENCES
from sbpair.emulator.clock import token_ms
from sbpair.emulator.entities.namespace import is_namespace_name
from sbpair.emulator.faults.fault_points import RequestRefused
from sbpair.emulator.frontends.http.arm_resources import (
    DOCUMENTS,
    PROVIDER,
    RELAY_PROVIDER,
    ArmError,
    Json,
    Keys,
    PlacedNamespace,
    Resources,
    T,
    collection_at,
    existing,
    not_found,
    read_members,
)
from sbpair.emulator.frontends.http.management_parts import read_body, read_page, read_query

if TYPE_CHECKING:
    from sbpair.emulator.entities.namespace import Namespace

API_VERSIONS: Final = (
    *("2017-04-01", "2021-06-01-preview", "2021-11-01", "2022-01-01-preview", "2022-10-01-preview"),
    *("2023-01-01-preview", "2024-01-01", "2026-01-01"),
)
ANY_SUBSCRIPTION: Final = "00000000-0000-0000-0000-000000000000"
RESOURCE_GROUP: Final = "emulator"
"""The resource group in answers to requests that name none: every group has all namespaces."""

_SUBSCRIPTION: Final = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_PATH: Final = re.compile(
    r"/+(?:subscriptions/(?P<subscription>[^/]+)/+(?:resourcegroups/(?P<group>[^/]+)/+)?)?"
    r"providers/microsoft\.(?P<provider>servicebus|relay)(?P<rest>/.*)?",
    re.IGNORECASE,
)
_SUBSCRIPTIONS: Final = re.compile(r"/+subscriptions/?\?(?:.*&)?api-version=\d{4}-\d\d-\d\d(?:&.*)?", re.IGNORECASE)
"""The list of subscriptions. Atom's versions, of an entity with that name, have no day."""

_WITH_PATHS: Final = ("queues", "topics", "hybridconnections")
_TYPES: Final = {
    each.lower(): each
    for each in ("authorizationRules", "hybridConnections", *(kind for kind, *_ in DOCUMENTS.values()))
}

_NAME_CHECK: Final = "checknameavailability"

_CODES: Final = {
    400: "MessagingGatewayBadRequest",
    401: "InvalidAuthenticationToken",
    403: "MessagingGatewayForbidden",
    404: "MessagingGatewayNotFoundStatusCode",
    409: "MessagingGatewayConflict",
    413: "RequestEntityTooLarge",
    429: "MessagingGatewayTooManyRequests",
    500: "InternalServerError",
    503: "ServiceUnavailable",
    504: "GatewayTimeout",
}
_OWN_WORDS: Final = {
    401: ("ExpiredAuthenticationToken", "The access token is expired."),
    403: (
        "AuthorizationFailed",
        "The client does not have authorization to perform this action over this scope, or the scope is invalid.",
    ),
}
"""Refusals of Resource Manager itself, before Service Bus: code and text."""


class ArmRequest:
    """A decoded request. `namespace` is None for all; `parts` are the segments below it, types in lower case.

    `kind` is `namespaces`, or an operation of the provider.
    """

    def __init__(self, request: web.BaseRequest) -> None:
        """Decode a request. Raises ArmError if it is not valid for Resource Manager."""
        self.raw_path, _, query = request.raw_path.partition("?")
        match = _PATH.fullmatch(self.raw_path)
        if match is None:
            raise not_found()
        self.provider = RELAY_PROVIDER if match["provider"].lower() == "relay" else PROVIDER
        first, *names = [unquote(part) for part in (match["rest"] or "").strip("/").split("/")]
        self.query = read_query(query)
        self.subscription = unquote(match["subscription"] or "")
        self.kind = first.lower()
        _check(self.subscription, self.kind, names, self.query.get("api-version"))
        self.method = request.method
        self.group = unquote(match["group"]) if match["group"] else None
        self.namespace = names[0] if names else None
        self.parts = tuple(part.lower() if number % 2 == 0 else part for number, part in enumerate(names[1:]))
        self.base = f"{request.scheme}://{request.host}"
        self.token = request.headers.get("Authorization")

    def namespaces_id(self, group: str = "") -> str:
        """Return the id of all namespaces of the resource group, by default of this `group`."""
        group = self.group or group or RESOURCE_GROUP
        return f"/subscriptions/{self.subscription}/resourceGroups/{group}/providers/{self.provider}/namespaces"

    @property
    def entity_path(self) -> str:
        """The entity of a request in the form of Atom paths, which faults and limits use."""
        if not self.parts:
            return "$namespaceinfo"
        if len(self.parts) == 1:
            return f"$resources/{self.parts[0]}"
        head, name, *rest = self.parts
        return "/".join([name.replace("~", "/"), *rest]) if head in _WITH_PATHS else "/".join(self.parts)

    def require(self, *methods: str) -> None:
        """Raise ArmError if the method is not one of these."""
        if self.method not in methods:
            text = f"The HTTP method '{self.method[:20]}' is not supported at this scope."
            raise ArmError("MethodNotAllowed", text, 405)


def is_arm(raw_path: str) -> bool:
    return bool(_PATH.fullmatch(raw_path.partition("?")[0]) or _SUBSCRIPTIONS.fullmatch(raw_path))


def _check(subscription: str, kind: str, names: list[str], version: str | None) -> None:
    if kind != "operations" and _SUBSCRIPTION.fullmatch(subscription) is None:
        text = f"The provided subscription identifier '{subscription[:100]}' is malformed or invalid."
        raise ArmError("InvalidSubscriptionId", text)
    if not version:
        text = "The api-version query parameter (?api-version=) is required for all requests."
        raise ArmError("MissingApiVersionParameter", text)
    if version not in API_VERSIONS:
        text = f"The api-version '{version[:40]}' is invalid. The supported versions are '{', '.join(API_VERSIONS)}'."
        raise ArmError("InvalidApiVersionParameter", text)
    if kind not in ("namespaces", *(() if names else (_NAME_CHECK, "operations"))) or "" in names:
        raise not_found()
    if any("/" in name for name in names):
        raise ArmError("InvalidResourceName", "The resource name contains '/': write '~' for it.")


class ArmFrontend:
    """The frontend of all namespaces of an emulator. Every error becomes Resource Manager's error body."""

    def __init__(self, namespaces: Mapping[str, Namespace]) -> None:
        self._namespaces = namespaces

    async def answer(self, http_request: web.BaseRequest) -> web.Response:
        if _SUBSCRIPTIONS.fullmatch(http_request.raw_path):
            return self._subscriptions(http_request)
        request = ArmRequest(http_request)
        wanted = (request.namespace or "").lower()
        namespace = next((each for name, each in self._namespaces.items() if name.lower() == wanted), None)
        if namespace is not None and namespace.fault_points.latency_seconds:
            await asyncio.sleep(namespace.fault_points.latency_seconds)
        return self._answer(request, namespace, await read_body(http_request))

    def error_response(self, request: web.BaseRequest, error: ServiceError) -> web.Response:
        """Return Resource Manager's error response."""
        del request
        code, text = _code_and_text(error)
        response = web.json_response({"error": {"code": code, "message": text}}, status=error.status)
        if error.status == HTTPStatus.UNAUTHORIZED:
            response.headers["WWW-Authenticate"] = 'Bearer error="invalid_token"'
        return response

    def _answer(self, request: ArmRequest, namespace: Namespace | None, body: bytes) -> web.Response:
        if namespace is not None:
            namespace.fault_points.check_request(request.method, request.entity_path)
        readable = self._authorize(request.token, namespace)
        place = (request.subscription, request.group)
        if request.namespace is None:
            return self._answer_of_provider(request, readable, body)
        resource = None if namespace is None else PlacedNamespace(namespace)
        places = request.method == "PUT" and not request.parts
        if namespace is None or resource is None or not (resource.is_in(*place) or places):
            raise _namespace_not_found(request, request.namespace[:100])
        if namespace.is_down:
            raise ServiceUnavailable(f"The namespace '{namespace.name}' is not available. Please retry the operation.")
        namespace.fault_points.charge_management(request.entity_path)
        if not request.parts:
            if request.method == "DELETE":
                raise ArmError("OperationNotAllowed", "The namespaces of an emulator cannot be deleted.", 409)
            request.require("GET", "PUT", "PATCH")
            if request.method != "GET":
                resource.apply(_read_object(body))
            if places:
                resource.place = namespace.resource["place"] = (request.subscription, request.group or RESOURCE_GROUP)
            return web.json_response(_namespace_json(request, resource))
        return _answer_below(request, namespace, body)

    def _answer_of_provider(self, request: ArmRequest, readable: Iterable[Namespace], body: bytes) -> web.Response:
        """Answer a request for all namespaces, or for an operation of the provider."""
        if request.kind == _NAME_CHECK:
            return _check_name(request, body, self._namespaces)
        request.require("GET")
        if request.kind == "operations":
            return web.json_response({"value": []})
        place = (request.subscription, request.group)
        there = [each for each in map(PlacedNamespace, readable) if each.is_in(*place)]
        return _page(request, there, lambda each: _namespace_json(request, each))

    def _subscriptions(self, request: web.BaseRequest) -> web.Response:
        readable = self._authorize(request.headers.get("Authorization"), None)
        ids = {PlacedNamespace(each).place[0].lower() for each in readable} - {""}
        found = [
            {"id": f"/subscriptions/{each}", "subscriptionId": each, "displayName": "Emulator", "state": "Enabled"}
            for each in sorted(ids) or [ANY_SUBSCRIPTION]
        ]
        return web.json_response({"value": found})

    def _authorize(self, given: str | None, namespace: Namespace | None) -> list[Namespace]:
        """Return the namespaces that a token is for: this one, or of all those of its tenant. Raises ServiceError."""
        scheme, _, token = (given or "").partition(" ")
        if scheme != "Bearer":
            text = "Authentication failed. The 'Authorization' header is missing, or is of no scheme but 'Bearer'."
            raise ArmError("AuthenticationFailed", text, 401)
        wanted = list(self._namespaces.values()) if namespace is None else [namespace]
        now_ms = token_ms(wanted[0].clock)
        claimed = token.strip(), now_ms, ARM_AUDIENCES
        readable = []
        for each in wanted:
            with suppress(Unauthenticated):
                each.bearers.grant(*claimed)
                readable.append(each)
        if not readable:
            wanted[0].bearers.grant(*claimed)
        if namespace is not None:
            namespace.fault_points.check_token(now_ms)
        return readable


def _answer_below(request: ArmRequest, namespace: Namespace, body: bytes) -> web.Response:
    """Answer a request for a collection below a namespace, one of its resources, or the keys of one."""
    *parents, last = request.parts
    if parents == ["disasterrecoveryconfigs"] and last.lower() == _NAME_CHECK:
        aliases = collection_at(request.provider, namespace, request.parts[:1])
        return _check_name(request, body, aliases.all())
    if len(request.parts) % 2 == 0:
        return _answer_of_resource(request, namespace, parents, last, body)
    if last in ("listkeys", "regeneratekeys") and parents:
        return _answer_about_keys(request, namespace, body)
    resources = collection_at(request.provider, namespace, request.parts)
    request.require("GET")
    return _page(request, resources.all(), lambda item: _to_json(request, resources, request.parts, item))


def _answer_of_resource(
    request: ArmRequest, namespace: Namespace, parents: Sequence[str], name: str, body: bytes
) -> web.Response:
    resources = collection_at(request.provider, namespace, tuple(parents))
    found = resources.find(name)
    request.require("GET", "PUT", "DELETE")
    if request.method == "DELETE":
        if found is None:
            return web.Response(status=204)
        resources.remove(found)
        return web.Response(status=200)
    if request.method == "PUT":
        given = read_members({"properties": _read_object(body).get("properties")}, {"properties": dict})
        stored = resources.put(name, given.get("properties", {}))
        return web.json_response(_to_json(request, resources, parents, stored))
    return web.json_response(_to_json(request, resources, parents, existing(found, name)))


def _check_name(request: ArmRequest, body: bytes, taken: Iterable[Any]) -> web.Response:
    """Answer whether a name for a namespace, or its alias, is free here."""
    request.require("POST")
    name = read_members(_read_object(body), {"name": str}).get("name", "")
    reason = "None" if is_namespace_name(name) else "InvalidName"
    if name.lower() in [each.lower() for each in taken]:
        reason = "NameInUse"
    message = "" if reason == "None" else f"The name '{name[:100]}' is not available: {reason}."
    return web.json_response({"nameAvailable": reason == "None", "reason": reason, "message": message})


def _to_json(request: ArmRequest, resources: Resources, parents: Iterable[str], item: object) -> Json:
    name, properties = resources.to_json(item)
    # Segments of types, as they are written in ids.
    segments = [_TYPES.get(part, part) if number % 2 == 0 else part for number, part in enumerate(parents)]
    return {
        "id": "/".join([request.namespaces_id(), request.namespace or "", *segments, name]),
        "name": name,
        "type": f"{resources.provider}/namespaces/{resources.kind}",
        "properties": properties,
    }


def _answer_about_keys(request: ArmRequest, namespace: Namespace, body: bytes) -> web.Response:
    *parts, name, action = request.parts
    keys = collection_at(request.provider, namespace, tuple(parts))
    if not isinstance(keys, Keys):
        raise not_found(request.provider)
    request.require("POST")
    rule = existing(keys.find(name), name)
    if action == "regeneratekeys":
        rule = keys.regenerate(rule, _read_object(body))
    return web.json_response(keys.keys_json(rule))


def _namespace_json(request: ArmRequest, resource: PlacedNamespace) -> Json:
    document, name = resource.to_json(request.provider), resource.namespace.name
    document["properties"]["metricId"] = f"{request.subscription}:{name.lower()}"
    identity = f"{request.namespaces_id(resource.place[1])}/{name}"
    return {**document, "id": identity, "name": name, "type": f"{request.provider}/namespaces"}


def _page(request: ArmRequest, items: Sequence[T], to_json: Callable[[T], Json]) -> web.Response:
    """Return the page that `$skip` and `$top` select, with a link to the next page."""
    skip, top = read_page(request.query, lambda message: ArmError("BadRequest", message))
    document: Json = {"value": [to_json(item) for item in items[skip : skip + top]]}
    if top and len(items) > skip + top:
        query = urlencode({**request.query, "$skip": skip + top, "$top": top})
        document["nextLink"] = f"{request.base}{request.raw_path}?{query}"
    return web.json_response(document)


def _read_object(body: bytes) -> Json:
    """Return the JSON object in a body. Raises ArmError."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ArmError("InvalidRequestContent", "The request content was invalid and could not be read.") from error
    if not isinstance(document, dict):
        raise ArmError("InvalidRequestContent", "The request content is not a JSON object.")
    return document


def _namespace_not_found(request: ArmRequest, name: str) -> ArmError:
    if request.parts:
        text = f"Failed to perform this, because the parent resource '{request.namespaces_id()}/{name}' is missing."
        return ArmError("ParentResourceNotFound", text, 404)
    text = f"The Resource '{request.provider}/namespaces/{name}' under resource group '{request.group}' was not found."
    return ArmError("ResourceNotFound", text, 404)


def _code_and_text(error: ServiceError) -> tuple[str, str]:
    if isinstance(error, ArmError):
        return error.code, error.message
    if isinstance(error, RequestRefused) and not error.sub_code:
        return _OWN_WORDS.get(error.status, (_CODES[error.status], error.message))
    if isinstance(error, Unauthenticated):
        return _CODES[401], error.message
    code = _CODES.get(error.status, _CODES[400])
    return code, f"SubCode={error.sub_code}. {error.message} CorrelationId: {uuid.uuid4()}"
