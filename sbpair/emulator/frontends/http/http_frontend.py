"""The HTTP frontend: it has health, control and identity, and passes other requests to Resource Manager or Atom.

The control API is faults, clock and state as JSON under `/$control`. It stays reachable during outages and needs no
token. The answer to an invalid request is 400, with the field.

Invariant: nothing that a peer sends is logged, because it could hold a token or a key.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import secrets
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field
from email.utils import formatdate
from typing import TYPE_CHECKING, Any, Final, Protocol

from aiohttp import hdrs, web
from aiohttp.http_exceptions import HttpProcessingError

from sbpair.emulator.faults.fault_kinds import BadField, FaultUnknown, read_count, read_fault
from sbpair.emulator.frontends.http.arm_frontend import ArmFrontend, is_arm
from sbpair.emulator.frontends.http.atom_frontend import AtomFrontend
from sbpair.emulator.frontends.http.management_parts import read_body, read_query, split_target
from sbpair.emulator.relay.relay_messages import is_websocket_path
from sbpair.emulator.service_errors import ArgumentInvalid, InternalError, ServiceError, log_bug
from sbpair.rules.values import RuleInvalid

if TYPE_CHECKING:
    from sbpair.emulator.access_tokens import Bearers
    from sbpair.emulator.clock import Clock
    from sbpair.emulator.emulator_control import EmulatorControl
    from sbpair.emulator.entities.namespace import Namespace
    from sbpair.emulator.entities.queue import QueueEntity
    from sbpair.emulator.entities.topic import TopicEntity

logger = logging.getLogger(__name__)

CONTROL: Final = "$control"
IDENTITY: Final = "$identity"
PAGE: Final = "$page"
IDENTITY_VERSION: Final = "2019-08-01"


class BrowserPage(Protocol):
    """A page for browsers at `/$page/`. The caller that starts the emulator provides it."""

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse: ...

    async def close(self) -> None:
        """End the answers that are still being sent."""


class QuietLog(logging.LoggerAdapter[logging.Logger]):
    """aiohttp's log without content: invalid HTTP is reported as information, anything else as a bug."""

    def log(self, level: int, msg: object, *args: object, exc_info: Any = None, **others: Any) -> None:
        if isinstance(exc_info, HttpProcessingError):
            self.info("Refused a request that is not HTTP: %s.", type(exc_info).__name__)
        elif isinstance(exc_info, Exception) and level >= logging.ERROR:
            log_bug(self.logger, "request", exc_info)
        else:
            super().log(level, msg, *args, exc_info=exc_info, **others)


class HttpServer(web.Server):
    """aiohttp's server, without its wait of ten seconds for the rest of a body whose sender has gone."""

    def connection_lost(self, handler: Any, exc: BaseException | None = None) -> None:
        super().connection_lost(handler, exc)
        # A request in progress ends by itself: its handler may still have something to undo.
        if handler._task_handler is not None and handler._current_request is None:
            handler._task_handler.cancel()


def http_server(
    emulator: EmulatorControl,
    namespace: Namespace,
    identity: IdentityFrontend | None = None,
    page: Callable[[], BrowserPage] | None = None,
) -> web.Server:
    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        path = request.raw_path.lower().lstrip("/").replace("%24", "$")
        if path.startswith(CONTROL):
            return await answer_control(emulator, namespace, request)
        if page is not None and is_for_page(request, path):
            return await page().handle(request)
        if is_health_check(request) and namespace.hybrid_connections.find("health") is None:
            return health(namespace)
        if identity is not None and path.startswith(IDENTITY):
            return identity.handle(request)
        return await serve(request)

    # The relay passes bodies on as they are.
    serve = service_of(emulator, namespace)
    return HttpServer(handle, access_log=None, logger=QuietLog(logger), auto_decompress=False)


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
    if reason := refusal_of(emulator, request):
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
    """Return why a request may come from a web page, which could change the emulator of its reader; "" if it cannot.

    Browsers name the page's origin. A page of a host name that now leads to this machine has the same origin.
    """
    if hdrs.ORIGIN in request.headers:
        return "The control API is not for web pages: the request has an Origin."
    if not emulator.is_addressed_by(request.headers.get(hdrs.HOST, "")):
        return "The control API is not for other hosts: the Host of the request is not a name of the emulator."
    return ""


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


# Identity


@dataclass(frozen=True, slots=True)
class IdentityEndpoint:
    """The address and secret that azure-identity reads from the environment."""

    endpoint: str
    header: str = field(repr=False)

    @property
    def environment(self) -> dict[str, str]:
        return {"IDENTITY_ENDPOINT": self.endpoint, "IDENTITY_HEADER": self.header}


class IdentityFrontend:
    """The token endpoint of a managed identity in the form of Azure App Service, for azure-identity.

    The secret in IDENTITY_HEADER is required. It is not part of a namespace, and stays reachable during outages.
    """

    def __init__(self, bearers: Bearers, clock: Clock) -> None:
        self.header = secrets.token_urlsafe(24)
        self._bearers = bearers
        self._clock = clock
        self._client_id = str(uuid.uuid4())

    def endpoint_at(self, authority: str) -> IdentityEndpoint:
        return IdentityEndpoint(f"http://{authority}/{IDENTITY}/token", self.header)

    def handle(self, request: web.BaseRequest) -> web.Response:
        given = request.headers.get("X-IDENTITY-HEADER", "")
        if not hmac.compare_digest(given.encode(), self.header.encode()):
            return _refused(401, "The header X-IDENTITY-HEADER is missing, or is not the one of IDENTITY_HEADER.")
        query = read_query(split_target(request)[1])
        if request.method != "GET" or query.get("api-version") != IDENTITY_VERSION or not query.get("resource"):
            return _refused(400, f"Request a token by GET with api-version={IDENTITY_VERSION} and resource=….")
        token, expires_on = self._bearers.issue(query["resource"], self._clock.now_ms())
        return web.json_response(
            {
                "access_token": token,
                "client_id": self._client_id,
                "expires_on": str(expires_on),
                "resource": query["resource"],
                "token_type": "Bearer",
            }
        )


def _refused(status: int, message: str) -> web.Response:
    return web.json_response({"statusCode": status, "message": message}, status=status)
