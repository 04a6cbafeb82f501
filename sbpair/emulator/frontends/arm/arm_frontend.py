"""The door of Azure Resource Manager: the emulator's namespaces and what is in them, as JSON, from every port.

Reads the request, asks the collection that it is about, writes the answer. Any subscription's id and any resource group
will do, and each has all namespaces. Every refusal becomes Resource Manager's error body.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, TypeVar

from aiohttp import web

from sbpair.emulator.access.bearer import ARM_AUDIENCES
from sbpair.emulator.faults.credit_budget import charge_management
from sbpair.emulator.faults.http_refusals import RequestRefused
from sbpair.emulator.frontends.arm.arm_keys import Keys
from sbpair.emulator.frontends.arm.arm_request import (
    PROVIDER,
    ArmRefusal,
    ArmRequest,
    Json,
    not_a_verb,
    not_found,
    page_of,
    read_arm_ask,
    read_object,
    read_properties,
)
from sbpair.emulator.frontends.arm.arm_resources import Queues, Resources, Rules, Subscriptions, Topics
from sbpair.emulator.frontends.atom.atom_xml import instant
from sbpair.emulator.frontends.http.body import read_body
from sbpair.emulator.service_errors import InternalError, ServiceError, ServiceUnavailable, Unauthenticated, log_bug

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sbpair.emulator.entities.namespace import Namespace
    from sbpair.emulator.entities.topic import TopicEntity

logger = logging.getLogger(__name__)
T = TypeVar("T")

LOCATION: Final = "This machine"
_AUTHORIZATION: Final = "authorizationrules"
_ENTITIES: Final = ("queues", "topics")

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
"""What Resource Manager refuses by itself, so that Service Bus is not asked: code and text."""


class ArmFrontend:
    """One for all namespaces of an emulator."""

    def __init__(self, namespaces: Mapping[str, Namespace]) -> None:
        self._namespaces = namespaces

    async def handle(self, request: web.BaseRequest) -> web.Response:
        try:
            ask = read_arm_ask(request)
            namespace = self._namespace(ask)
            if namespace is not None and namespace.fault_points.latency_seconds:
                await asyncio.sleep(namespace.fault_points.latency_seconds)
            return self._answer(ask, namespace, await read_body(request))
        except ServiceError as refusal:
            return refused(refusal)
        except Exception as error:  # noqa: BLE001  # a mistake of ours is told to whoever asked, and costs nobody else
            log_bug(logger, f"{request.method} request", error)
            return refused(InternalError())

    def _namespace(self, ask: ArmRequest) -> Namespace | None:
        wanted = (ask.namespace or "").lower()
        return next((each for name, each in self._namespaces.items() if name.lower() == wanted), None)

    def _answer(self, ask: ArmRequest, namespace: Namespace | None, body: bytes) -> web.Response:
        if namespace is not None:
            namespace.fault_points.check_request(ask.method, request_path(ask.parts))
        self._authorize(ask)
        if ask.namespace is None:
            return self._list(ask)
        if namespace is None:
            raise no_namespace(ask, ask.namespace[:100])
        if namespace.is_down:
            raise ServiceUnavailable(f"The namespace '{namespace.name}' is not available. Please retry the operation.")
        charge_management(namespace.fault_points, request_path(ask.parts))
        if not ask.parts:
            return web.json_response(self._shown(ask, namespace)) if ask.method == "GET" else no_other(ask)
        return answer_of(ask, namespace, body)

    def _authorize(self, ask: ArmRequest) -> None:
        scheme, _, token = (ask.token or "").partition(" ")
        if scheme != "Bearer":
            text = "Authentication failed. The 'Authorization' header is missing, or is of no scheme but 'Bearer'."
            raise ArmRefusal("AuthenticationFailed", text, 401)
        # They are all alike: one emulator has one issuer.
        some = next(iter(self._namespaces.values()))
        some.bearers.grant(token.strip(), some.clock.now_ms(), ARM_AUDIENCES)

    def _list(self, ask: ArmRequest) -> web.Response:
        if ask.method != "GET":
            raise not_a_verb(ask.method)
        return page_of(ask, list(self._namespaces.values()), lambda each: self._shown(ask, each))

    def _shown(self, ask: ArmRequest, namespace: Namespace) -> Json:
        created = instant(namespace.created_at_ms)
        partitions = namespace.partitions if namespace.tier.partitions != (1,) else 0
        sku: Json = {"name": namespace.tier.name, "tier": namespace.tier.name}
        return {
            "sku": {**sku, "capacity": namespace.partitions} if partitions else sku,
            "id": f"{ask.namespaces_id}/{namespace.name}",
            "name": namespace.name,
            "type": f"{PROVIDER}/namespaces",
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


def answer_of(ask: ArmRequest, namespace: Namespace, body: bytes) -> web.Response:
    """About what is in a namespace: a collection, one of its resources, or the keys of one."""
    *_, last = ask.parts
    if last.lower() in ("listkeys", "regeneratekeys") and len(ask.parts) % 2:
        return _answer_about_keys(ask, namespace, body)
    if len(ask.parts) % 2:
        return _answer_of_collection(ask, collection(namespace, ask.parts))
    resources, name = collection(namespace, ask.parts[:-1]), last
    within = "/".join([ask.namespaces_id, namespace.name, *_types(ask.parts[:-1])])
    found = resources.find(name)
    match ask.method:
        case "GET":
            return web.json_response(resources.shown(within, existing(found, name)))
        case "PUT":
            return web.json_response(resources.shown(within, resources.put(name, read_properties(body))))
        case "DELETE":
            if found is None:
                return web.Response(status=204)
            resources.remove(found)
            return web.Response(status=200)
    raise not_a_verb(ask.method)


def _answer_of_collection(ask: ArmRequest, resources: Resources[Any]) -> web.Response:
    if ask.method != "GET":
        raise not_a_verb(ask.method)
    within = "/".join([ask.namespaces_id, ask.namespace or "", *_types(ask.parts)])
    return page_of(ask, resources.all(), lambda item: resources.shown(within, item))


def _answer_about_keys(ask: ArmRequest, namespace: Namespace, body: bytes) -> web.Response:
    *parts, name, action = ask.parts
    keys = collection(namespace, tuple(parts))
    if not isinstance(keys, Keys):
        raise not_found()
    if ask.method != "POST":
        raise not_a_verb(ask.method)
    rule = existing(keys.find(name), name)
    if action == "regeneratekeys":
        rule = keys.regenerate(rule, read_object(body))
    return web.json_response(keys.shown_keys(rule))


def collection(namespace: Namespace, parts: tuple[str, ...]) -> Resources[Any]:
    """What the path below a namespace means where its last part is a type. ArmRefusal where there is nothing such."""
    match parts:
        case ("queues",):
            return Queues(namespace)
        case ("topics",):
            return Topics(namespace)
        case ("authorizationrules",):
            return Keys(namespace)
        case ("queues" | "topics" as kind, name, "authorizationrules"):
            return Keys(namespace, existing(collection(namespace, (kind,)).find(name), name), kind)
        case ("topics", name, "subscriptions"):
            return Subscriptions(namespace, topic_called(namespace, name))
        case ("topics", name, "subscriptions", subscription, "rules"):
            topic = topic_called(namespace, name)
            return Rules(existing(topic.find_subscription(subscription), subscription))
    raise not_found()


def topic_called(namespace: Namespace, name: str) -> TopicEntity:
    return existing(Topics(namespace).find(name), name)


def existing(found: T | None, name: str) -> T:
    if found is None:
        raise ArmRefusal(_CODES[404], f"The messaging entity '{name[:300]}' could not be found.", 404)
    return found


def request_path(parts: tuple[str, ...]) -> str:
    """The entity that a request is about, as faults know it, and limits: as over Atom."""
    if not parts:
        return "$namespaceinfo"
    if len(parts) == 1:
        return f"$resources/{parts[0]}"
    head, name, *rest = parts
    return "/".join([name.replace("~", "/"), *rest]) if head in _ENTITIES else "/".join(parts)


def _types(parts: tuple[str, ...]) -> list[str]:
    written = {_AUTHORIZATION: "authorizationRules"}
    return [written.get(part, part) if number % 2 == 0 else part for number, part in enumerate(parts)]


def no_namespace(ask: ArmRequest, name: str) -> ArmRefusal:
    if ask.parts:
        text = f"Failed to perform this, because the parent resource '{ask.namespaces_id}/{name}' is missing."
        return ArmRefusal("ParentResourceNotFound", text, 404)
    text = f"The Resource '{PROVIDER}/namespaces/{name}' under resource group '{ask.group}' was not found."
    return ArmRefusal("ResourceNotFound", text, 404)


def no_other(ask: ArmRequest) -> web.Response:
    if ask.method in ("PUT", "PATCH", "DELETE"):
        text = "The namespaces of an emulator are those that it was started with."
        raise ArmRefusal("OperationNotAllowed", text, 409)
    raise not_a_verb(ask.method)


def refused(refusal: ServiceError) -> web.Response:
    """Resource Manager's error body."""
    code, text = _told(refusal)
    answer = web.json_response({"error": {"code": code, "message": text}}, status=refusal.status)
    if refusal.status == HTTPStatus.UNAUTHORIZED:
        answer.headers["WWW-Authenticate"] = 'Bearer error="invalid_token"'
    if refusal.retry_after_seconds is not None:
        answer.headers["Retry-After"] = str(refusal.retry_after_seconds)
    return answer


def _told(refusal: ServiceError) -> tuple[str, str]:
    if isinstance(refusal, ArmRefusal):
        return refusal.code, refusal.message
    if isinstance(refusal, RequestRefused) and not refusal.sub_code:
        return _OWN_WORDS.get(refusal.status, (_CODES[refusal.status], refusal.message))
    if isinstance(refusal, Unauthenticated):
        return _CODES[401], refusal.message
    code = _CODES.get(refusal.status, _CODES[400])
    return code, f"SubCode={refusal.sub_code}. {refusal.message} CorrelationId: {uuid.uuid4()}"
