"""The HTTP frontend: it has health and control, and passes other requests to identity, Resource Manager or Atom.

The control API is faults, clock and state as JSON under `/$control`. It stays reachable during outages and needs no
token. The answer to an invalid request is 400, with the field.

Invariant: nothing that a peer sends is logged, because it could hold a token or a key.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from email.utils import formatdate
from typing import TYPE_CHECKING, Any, Final, Protocol

from aiohttp import hdrs, web

from sbpair.amqp_server.refusals import ArgumentInvalid, InternalError, ServiceError, log_bug
from sbpair.emulator.faults.fault_kinds import BadField, FaultUnknown, read_count, read_fault
from sbpair.emulator.frontends.http.arm_frontend import ArmFrontend, is_arm
from sbpair.emulator.frontends.http.atom_frontend import AtomFrontend
from sbpair.emulator.frontends.http.http_connection import HttpServer
from sbpair.emulator.frontends.http.management_parts import read_body, split_target
from sbpair.emulator.relay.relay_messages import is_websocket_path
from sbpair.rules.values import RuleInvalid

if TYPE_CHECKING:
    from sbpair.emulator.emulator_control import EmulatorControl
    from sbpair.emulator.entities.namespace import Namespace
    from sbpair.emulator.entities.queue import QueueEntity
    from sbpair.emulator.entities.topic import TopicEntity
    from sbpair.emulator.frontends.http.identity_frontend import IdentityFrontend

logger = logging.getLogger(__name__)

CONTROL: Final = "$control"
PAGE: Final = "$page"


class BrowserPage(Protocol):
    """A page for browsers at `/$page/`. The caller that starts the emulator provides it."""

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse: ...

    async def close(self) -> None:
        """End the answers that are still being sent."""


def http_server(
    emulator: EmulatorControl,
    namespace: Namespace,
    identity: IdentityFrontend | None = None,
    page: Callable[[], BrowserPage] | None = None,
) -> HttpServer:
    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        path = request.raw_path.lower().lstrip("/").replace("%24", "$")
        if path.startswith(CONTROL):
            return await answer_control(emulator, namespace, request)
        if page is not None and is_for_page(request, path):
            return await page().handle(request)
        if is_health_check(request) and namespace.hybrid_connections.find("health") is None:
            return health(namespace)
        if identity is not None and (answering := identity.answer_to(request)) is not None:
            return await answering
        return await serve(request)

    serve = service_of(emulator, namespace)
    return HttpServer(handle)


def service_of(
    emulator: EmulatorControl, namespace: Namespace
) -> Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]:
    """Return what answers requests to the service itself: Resource Manager, the relay and Atom."""
    atom, arm = AtomFrontend(namespace), ArmFrontend(emulator.namespaces)

    async def serve(request: web.BaseRequest) -> web.StreamResponse:
        if namespace.is_down:
            if request.transport is not None:
                request.transport.abort()
            return web.Response(status=503)
        if reason := refusal_of(emulator, request):
            # Clients show the one or the other.
            return web.Response(status=403, reason=reason, text=f"{reason}\n")
        if is_arm(request.raw_path):
            return await answer(arm, namespace, request)
        if namespace.fault_points.latency_seconds:
            await asyncio.sleep(namespace.fault_points.latency_seconds)
        if is_relayed(namespace, request):
            from sbpair.emulator.relay.relay_gateway import RelayGateway

            return await RelayGateway(namespace).answer(request)
        response = await answer(atom, namespace, request)
        # The emulator's clock can be ahead of the machine's.
        response.headers[hdrs.DATE] = formatdate(namespace.clock.now_ms() / 1000, usegmt=True)
        return response

    return serve


def is_for_page(request: web.BaseRequest, path: str) -> bool:
    """Return whether a browser asks for the page: there, or at the root of the port."""
    return path.startswith(f"{PAGE}/") or (not path and "text/html" in request.headers.get(hdrs.ACCEPT, ""))


def is_relayed(namespace: Namespace, request: web.BaseRequest) -> bool:
    """Return whether a request is one to the relay, and not for Atom."""
    if is_websocket_path(request.raw_path):
        return True
    if not namespace.hybrid_connections:
        return "ServiceBusAuthorization" in request.headers
    path, query = split_target(request)
    if namespace.hybrid_connections.find_within(path) is not None:
        return request.headers.get("X-PROCESS-AT", "").lower() != "servicebus"
    # Of a path that is not known, one of Atom has a version and no token of the relay.
    return "ServiceBusAuthorization" in request.headers or not (
        "api-version" in query or path.startswith("/$") or namespace.is_taken(path)
    )


def is_health_check(request: web.BaseRequest) -> bool:
    """Return whether a request asks for health. One with a token is for an entity of that name."""
    return (
        request.method in ("GET", "HEAD")
        and split_target(request)[0].strip("/").lower() == "health"
        and hdrs.AUTHORIZATION not in request.headers
    )


def health(namespace: Namespace) -> web.Response:
    """Return the answer that the vendor's emulator gives to GET /health."""
    if namespace.is_down:
        body, status = '{"status":"unhealthy","message":"Service not available. Please try after some time."}', 503
    else:
        body, status = '{"status":"healthy","message":"Service is healthy."}', 200
    return web.Response(text=body, status=status, content_type="application/json")


async def answer(frontend: AtomFrontend | ArmFrontend, namespace: Namespace, request: web.BaseRequest) -> web.Response:
    """Answer a management request. Every error becomes an error response."""
    error: ServiceError
    try:
        response = await frontend.answer(request)
        namespace.check_stored()
    except ServiceError as refusal:
        error = refusal
    except RuleInvalid as invalid:
        error = ArgumentInvalid(invalid.message)
    except Exception as bug:  # noqa: BLE001  # a bug fails its request only
        log_bug(logger, f"{request.method} request", bug)
        error = InternalError()
    else:
        return response
    response = frontend.error_response(request, error)
    if error.retry_after_seconds is not None:
        response.headers["Retry-After"] = str(error.retry_after_seconds)
    return response


async def answer_control(emulator: EmulatorControl, namespace: Namespace, request: web.BaseRequest) -> web.Response:
    """Answer a request to the control API."""
    parts = split_target(request)[0].strip("/").split("/")[1:]
    if hdrs.ORIGIN in request.headers:
        reason = "The control API is not for web pages: the request has an Origin."
    else:
        reason = refusal_of(emulator, request)
    if reason:
        return web.json_response({"error": {"where": "", "message": reason}}, status=403)
    try:
        match request.method, parts:
            case "POST", ["faults"]:
                identity = emulator.faults.begin(read_fault(await document_of(request)))
                return web.json_response({"id": identity}, status=201)
            case "DELETE", ["faults", identity]:
                emulator.faults.end(identity)
                return web.json_response({"id": identity})
            case "POST", ["clock"]:
                emulator.advance(advance_ms(await document_of(request)))
                namespace.check_stored()
                return web.json_response({"now_ms": emulator.clock.now_ms()})
            case "GET", ["state"]:
                return web.json_response(state_of(emulator))
        raise FaultUnknown("The control API has POST faults, DELETE faults/ID, POST clock and GET state.")
    except ServiceError as error:
        where = error.where if isinstance(error, BadField) else ""
        return web.json_response({"error": {"where": where, "message": error.message}}, status=error.status)


def refusal_of(emulator: EmulatorControl, request: web.BaseRequest) -> str:
    """Return why a page of another site may have sent a request; "" if none can have."""
    headers = request.headers
    return emulator.host_names.refusal_of(headers.getall(hdrs.HOST, ()), headers.getall(hdrs.ORIGIN, ()))


def hybrid_connections_state(namespace: Namespace) -> dict[str, object]:
    """Return the member `hybrid_connections`, for a namespace that has some."""
    found = namespace.hybrid_connections.all()
    listed = [{"path": each.path, "listeners": len(each.listeners)} for each in found]
    return {"hybrid_connections": listed} if listed else {}


def state_of(emulator: EmulatorControl) -> dict[str, Any]:
    faults = {
        identity: {name: value for name, value in asdict(fault).items() if value is not None}
        for identity, fault in emulator.faults.active().items()
    }
    namespaces = [
        {
            "name": name,
            "down": namespace.is_down,
            "queues": [queue_state(queue) for queue in namespace.queues()],
            "topics": [topic_state(topic) for topic in namespace.topics()],
            **hybrid_connections_state(namespace),
        }
        for name, namespace in emulator.namespaces.items()
    ]
    return {"now_ms": emulator.clock.now_ms(), "faults": faults, "namespaces": namespaces}


def queue_state(queue: QueueEntity) -> dict[str, object]:
    counts = queue.counts()
    return {
        "path": queue.path,
        "active": counts.active,
        "locked": queue.messages.locked_count,
        "scheduled": counts.scheduled,
        "dead_letter": counts.dead_letter,
        "transfer": counts.transfer,
        "transfer_dead_letter": counts.transfer_dead_letter,
        "size_bytes": queue.size_bytes,
        "oldest_ms": queue.messages.oldest_ms(),
    }


def topic_state(topic: TopicEntity) -> dict[str, object]:
    return {
        "path": topic.path,
        "scheduled": topic.counts().scheduled,
        "size_bytes": topic.size_bytes,
        "subscriptions": [queue_state(subscription) for subscription in topic.subscriptions],
    }


async def document_of(request: web.BaseRequest) -> object:
    try:
        return json.loads(await read_body(request))
    except ArgumentInvalid as error:
        raise BadField("body", error.message) from error
    except (ValueError, RecursionError) as error:
        raise BadField("body", f"not JSON: {error}") from error


def advance_ms(document: object) -> int:
    if not isinstance(document, dict) or set(document) != {"advance_ms"}:
        raise BadField("body", 'an object {"advance_ms": N} is expected')
    return read_count("advance_ms", document["advance_ms"])
