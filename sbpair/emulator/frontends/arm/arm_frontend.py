"""The Azure Resource Manager frontend: all namespaces and their entities as JSON, on every port.

Any subscription id and resource group is accepted, and has all namespaces.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, TypeVar

from aiohttp import web

from sbpair.emulator.access.bearer import ARM_AUDIENCES
from sbpair.emulator.faults.fault_points import RequestRefused
from sbpair.emulator.frontends.arm.arm_relay import relay_collection_at, relay_namespace_json
from sbpair.emulator.frontends.arm.arm_request import (
    RELAY_PROVIDER,
    ArmError,
    ArmRequest,
    Json,
    arm_page,
    not_found,
    object_in,
    read_object,
    unsupported_method,
)
from sbpair.emulator.frontends.arm.arm_resources import Entities, Keys, Resources, Rules
from sbpair.emulator.frontends.http.management_parts import queues_of, read_body, subscriptions_of, topics_of
from sbpair.emulator.service_errors import ServiceError, ServiceUnavailable, Unauthenticated
from sbpair.timespan import instant

if TYPE_CHECKING:
    from sbpair.emulator.entities.namespace import Namespace

T = TypeVar("T")

LOCATION: Final = "This machine"
_WITH_PATHS: Final = ("queues", "topics", "hybridconnections")
_TYPES: Final = {"authorizationrules": "authorizationRules", "hybridconnections": "hybridConnections"}

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


class ArmFrontend:
    """The frontend of all namespaces of an emulator. Every error becomes Resource Manager's error body."""

    def __init__(self, namespaces: Mapping[str, Namespace]) -> None:
        self._namespaces = namespaces

    async def answer(self, http_request: web.BaseRequest) -> web.Response:
        request = ArmRequest(http_request)
        namespace = self._namespace(request)
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

    def _namespace(self, request: ArmRequest) -> Namespace | None:
        wanted = (request.namespace or "").lower()
        return next((each for name, each in self._namespaces.items() if name.lower() == wanted), None)

    def _answer(self, request: ArmRequest, namespace: Namespace | None, body: bytes) -> web.Response:
        if namespace is not None:
            namespace.fault_points.check_request(request.method, request_path(request.parts))
        self._authorize(request)
        if request.namespace is None:
            return self._list(request)
        if namespace is None:
            raise namespace_not_found(request, request.namespace[:100])
        if namespace.is_down:
            raise ServiceUnavailable(f"The namespace '{namespace.name}' is not available. Please retry the operation.")
        namespace.fault_points.charge_management(request_path(request.parts))
        if not request.parts:
            check_read_only(request)
            return web.json_response(self._to_json(request, namespace))
        return answer_below(request, namespace, body)

    def _authorize(self, request: ArmRequest) -> None:
        scheme, _, token = (request.token or "").partition(" ")
        if scheme != "Bearer":
            text = "Authentication failed. The 'Authorization' header is missing, or is of no scheme but 'Bearer'."
            raise ArmError("AuthenticationFailed", text, 401)
        # All namespaces of an emulator have the same issuer.
        some = next(iter(self._namespaces.values()))
        some.bearers.grant(token.strip(), some.clock.now_ms(), ARM_AUDIENCES)

    def _list(self, request: ArmRequest) -> web.Response:
        if request.method != "GET":
            raise unsupported_method(request.method)
        return arm_page(request, list(self._namespaces.values()), lambda each: self._to_json(request, each))

    def _to_json(self, request: ArmRequest, namespace: Namespace) -> Json:
        if request.provider == RELAY_PROVIDER:
            return relay_namespace_json(request, namespace, LOCATION)
        created = instant(namespace.created_at_ms)
        partitions = namespace.partitions if namespace.tier.partitions != (1,) else 0
        sku: Json = {"name": namespace.tier.name, "tier": namespace.tier.name}
        return {
            "sku": {**sku, "capacity": namespace.partitions} if partitions else sku,
            "id": f"{request.namespaces_id}/{namespace.name}",
            "name": namespace.name,
            "type": f"{request.provider}/namespaces",
            "location": LOCATION,
            "tags": {},
            "properties": {
                "premiumMessagingPartitions": partitions,
                "disableLocalAuth": False,
                "publicNetworkAccess": "Enabled",
                "provisioningState": "Succeeded",
                "status": "Active",
                "createdAt": created,
                "updatedAt": created,
                "serviceBusEndpoint": f"https://{namespace.authority}/",
                "zoneRedundant": False,
            },
        }


def answer_below(request: ArmRequest, namespace: Namespace, body: bytes) -> web.Response:
    """Answer a request for a collection below a namespace, one of its resources, or the keys of one."""
    *parents, last = request.parts
    if len(request.parts) % 2 == 0:
        return _answer_of_resource(request, namespace, tuple(parents), last, body)
    if last in ("listkeys", "regeneratekeys") and parents:
        return _answer_about_keys(request, namespace, body)
    resources = collection_of(request, namespace, request.parts)
    if request.method != "GET":
        raise unsupported_method(request.method)
    within = "/".join([request.namespaces_id, request.namespace or "", *_types(request.parts)])
    return arm_page(request, resources.all(), lambda item: resources.to_json(within, item))


def _answer_of_resource(
    request: ArmRequest, namespace: Namespace, parents: tuple[str, ...], name: str, body: bytes
) -> web.Response:
    resources = collection_of(request, namespace, parents)
    within = "/".join([request.namespaces_id, namespace.name, *_types(parents)])
    found = resources.find(name)
    match request.method:
        case "GET":
            return web.json_response(resources.to_json(within, existing(found, name)))
        case "PUT":
            stored = resources.put(name, object_in(read_object(body), "properties"))
            return web.json_response(resources.to_json(within, stored))
        case "DELETE":
            if found is None:
                return web.Response(status=204)
            resources.remove(found)
            return web.Response(status=200)
    raise unsupported_method(request.method)


def _answer_about_keys(request: ArmRequest, namespace: Namespace, body: bytes) -> web.Response:
    *parts, name, action = request.parts
    keys = collection_of(request, namespace, tuple(parts))
    if not isinstance(keys, Keys):
        raise not_found(request.provider)
    if request.method != "POST":
        raise unsupported_method(request.method)
    rule = existing(keys.find(name), name)
    if action == "regeneratekeys":
        rule = keys.regenerate(rule, read_object(body))
    return web.json_response(keys.keys_json(rule))


def collection_of(request: ArmRequest, namespace: Namespace, parts: tuple[str, ...]) -> Resources[Any]:
    """Return the collection that a path below a namespace ends in. Raises ArmError if there is none."""
    if request.provider == RELAY_PROVIDER:
        return relay_collection_at(namespace, parts)
    return collection_at(namespace, parts)


def collection_at(namespace: Namespace, parts: tuple[str, ...]) -> Resources[Any]:
    """Return a collection of Service Bus. Raises ArmError if there is none."""
    match parts:
        case ("queues",):
            return Entities("queues", queues_of(namespace))
        case ("topics",):
            return Entities("topics", topics_of(namespace))
        case ("authorizationrules",):
            return Keys(namespace)
        case ("queues" | "topics" as kind, name, "authorizationrules"):
            return Keys(namespace, existing(collection_at(namespace, (kind,)).find(name), name), kind)
        case ("topics", name, "subscriptions"):
            topic = existing(collection_at(namespace, ("topics",)).find(name), name)
            return Entities("topics/subscriptions", subscriptions_of(namespace, topic))
        case ("topics", _, "subscriptions", name, "rules"):
            return Rules(existing(collection_at(namespace, parts[:3]).find(name), name))
    raise not_found()


def existing(found: T | None, name: str) -> T:
    if found is None:
        raise ArmError(_CODES[404], f"The messaging entity '{name[:300]}' could not be found.", 404)
    return found


def request_path(parts: tuple[str, ...]) -> str:
    """Return the entity of a request in the form of Atom paths, which faults and limits use."""
    if not parts:
        return "$namespaceinfo"
    if len(parts) == 1:
        return f"$resources/{parts[0]}"
    head, name, *rest = parts
    return "/".join([name.replace("~", "/"), *rest]) if head in _WITH_PATHS else "/".join(parts)


def _types(parts: tuple[str, ...]) -> list[str]:
    """Return the segments with the types as they are written in ids."""
    return [_TYPES.get(part, part) if number % 2 == 0 else part for number, part in enumerate(parts)]


def namespace_not_found(request: ArmRequest, name: str) -> ArmError:
    if request.parts:
        text = f"Failed to perform this, because the parent resource '{request.namespaces_id}/{name}' is missing."
        return ArmError("ParentResourceNotFound", text, 404)
    text = f"The Resource '{request.provider}/namespaces/{name}' under resource group '{request.group}' was not found."
    return ArmError("ResourceNotFound", text, 404)


def check_read_only(request: ArmRequest) -> None:
    if request.method in ("PUT", "PATCH", "DELETE"):
        text = "The namespaces of an emulator cannot be changed."
        raise ArmError("OperationNotAllowed", text, 409)
    if request.method != "GET":
        raise unsupported_method(request.method)


def _code_and_text(error: ServiceError) -> tuple[str, str]:
    if isinstance(error, ArmError):
        return error.code, error.message
    if isinstance(error, RequestRefused) and not error.sub_code:
        return _OWN_WORDS.get(error.status, (_CODES[error.status], error.message))
    if isinstance(error, Unauthenticated):
        return _CODES[401], error.message
    code = _CODES.get(error.status, _CODES[400])
    return code, f"SubCode={error.sub_code}. {error.message} CorrelationId: {uuid.uuid4()}"
