"""The gateway of a namespace: the kinds of requests to the relay, the checks of their tokens, and the answers."""

from __future__ import annotations

import asyncio
import logging
import uuid
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import quote

from aiohttp import hdrs, web

from sbpair.emulator.access.sas import AccessRight
from sbpair.emulator.relay import relay_refusals as refusals
from sbpair.emulator.relay.frame_connection import Handshake, cut_off
from sbpair.emulator.relay.listener_channel import MAX_CONTROL_MESSAGE, ListenerAddress, ListenerChannel
from sbpair.emulator.relay.relay_messages import joined_headers
from sbpair.emulator.relay.relay_target import RelayTarget, is_websocket_path, read_target
from sbpair.emulator.relay.relayed_request import RelayedRequest, read_inline
from sbpair.emulator.relay.relayed_socket import OfferedSocket, RejectedByListener
from sbpair.emulator.service_errors import log_bug

if TYPE_CHECKING:
    from sbpair.emulator.entities.namespace import Namespace
    from sbpair.emulator.relay.hybrid_connection import HybridConnection

logger = logging.getLogger(__name__)

TOKEN_HEADER: Final = "ServiceBusAuthorization"  # noqa: S105  # a header's name
ALLOWED: Final = "Microsoft-Relay-AllowedListeners"
DISALLOWED: Final = "Microsoft-Relay-DisallowedListeners"
_STRIPPED: Final = frozenset({TOKEN_HEADER.lower(), ALLOWED.lower(), DISALLOWED.lower()})
_MAX_ID: Final = 128


class EndpointSilent(Exception):
    """A fault ends connections to the endpoint without an answer."""


class RelayGateway:
    """The gateway of one namespace."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._entities = namespace.hybrid_connections

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer a request. Every error becomes a refusal, with its text in the reason phrase."""
        path = ""
        try:
            target = read_target(request.raw_path)
            path = target.path
            if is_websocket_path(request.raw_path):
                return await self._answer_websocket(request, target)
            return await self._relay_request(request, target)
        except refusals.RelayRefused as error:
            refusal = error
        except RejectedByListener as rejection:
            return web.Response(status=rejection.status, reason=rejection.reason)
        except EndpointSilent:
            cut_off(request)
            return web.Response(status=503)
        except (ConnectionError, asyncio.IncompleteReadError, web.RequestPayloadError):
            # The sender's connection is lost: this answer reaches no client.
            return web.Response(status=400)
        except Exception as bug:  # noqa: BLE001  # a bug fails its request only
            log_bug(logger, "relay request", bug)
            refusal = refusals.RelayRefused(500, "InternalServerError", "The request could not be processed.")
        return self._refuse(request, refusal, path)

    def _refuse(self, request: web.BaseRequest, error: refusals.RelayRefused, path: str) -> web.Response:
        now_ms = self._namespace.clock.now_ms()
        text = refusals.with_tracking(error.message, self._namespace.endpoint, quote(path, safe="/"), now_ms)
        if is_websocket_path(request.raw_path):
            return web.Response(status=error.status, reason=text)
        document = {"error": {"code": error.code, "message": text}}
        return web.json_response(document, status=error.status, reason=text)

    # WebSockets

    async def _answer_websocket(self, request: web.BaseRequest, target: RelayTarget) -> web.StreamResponse:
        action = target.parameters.get("sb-hc-action", "connect").lower()
        identity = target.parameters.get("sb-hc-id", "")
        match action:
            case "listen":
                return self._listen(request, target, identity)
            case "connect":
                return await self._connect(request, target, identity)
            case "accept" | "request":
                return self._meet(request, target, identity)
        raise refusals.url_invalid("The value of sb-hc-action is not listen, connect, accept or request.")

    def _listen(self, request: web.BaseRequest, target: RelayTarget, identity: str) -> web.Response:
        handshake = Handshake(request, MAX_CONTROL_MESSAGE)
        entity = self._entities.find(target.path)
        if entity is None:
            raise refusals.endpoint_missing()
        grant = self._entities.authorize(token_of(request, target), AccessRight.LISTEN, target.path, entity)
        self._check_up(entity)
        entity.check_room()
        scheme = "wss" if request.scheme == "https" else "ws"
        address = ListenerAddress(scheme, request.headers.get(hdrs.HOST) or self._namespace.authority)
        ListenerChannel(self._namespace, entity, identity[:_MAX_ID], address).open(handshake, grant)
        return web.Response()

    async def _connect(self, request: web.BaseRequest, target: RelayTarget, given_id: str) -> web.Response:
        handshake = Handshake(request)
        entity = self._find(target)
        if entity.description.requires_client_authorization:
            self._entities.authorize(token_of(request, target), AccessRight.SEND, target.path, entity)
        channel = self._choose(request, entity)
        # Behind the sender's own id: only the listener can know the address.
        identity = f"{given_id[:_MAX_ID]}{'_' if given_id else ''}{uuid.uuid4()}_G0_G1"
        address = channel.address.rendezvous(target.with_query, "accept", identity)
        peer = (request.transport and request.transport.get_extra_info("peername")) or ("", 0)
        offered = self._entities.waiting[identity] = OfferedSocket(self._namespace, handshake)
        channel.send(
            {
                "accept": {
                    "address": address,
                    "id": identity,
                    "connectHeaders": joined_headers(request.headers.items(), _STRIPPED),
                    "remoteEndpoint": {"address": peer[0], "port": peer[1]},
                }
            }
        )
        try:
            await offered.wait()
        finally:
            self._entities.waiting.pop(identity, None)
        return web.Response()

    def _meet(self, request: web.BaseRequest, target: RelayTarget, identity: str) -> web.StreamResponse:
        """Answer a listener at a rendezvous address, which can be used once."""
        waiting = self._entities.waiting.get(identity)
        if isinstance(waiting, OfferedSocket) and target.parameters["sb-hc-action"].lower() == "accept":
            return waiting.meet(request, target)
        if isinstance(waiting, RelayedRequest) and target.parameters["sb-hc-action"].lower() == "request":
            handshake = Handshake(request, None)
            if not waiting.is_met:
                waiting.meet(handshake)
                return web.Response()
        raise refusals.address_expired()

    # HTTP

    async def _relay_request(self, request: web.BaseRequest, target: RelayTarget) -> web.StreamResponse:
        entity = self._find(target)
        stripped = _STRIPPED
        if entity.description.requires_client_authorization:
            token = token_of(request, target)
            if token is None:
                token, stripped = request.headers.get(hdrs.AUTHORIZATION), _STRIPPED | {"authorization"}
            self._entities.authorize(token, AccessRight.SEND, target.path, entity)
        if hdrs.UPGRADE in request.headers:
            raise refusals.url_invalid("A request with an upgrade is possible below /$hc/ only.")
        self._choose(request, entity)
        header_bytes = sum(len(name) + len(value) + 4 for name, value in request.raw_headers)
        body = await read_inline(self._namespace, request, header_bytes + len(request.raw_path))
        # The listener may have left while the body was read.
        channel = self._choose(request, entity)
        identity = f"{uuid.uuid4()}_G0"
        relayed = self._entities.waiting[identity] = RelayedRequest(
            self._namespace, request, target, identity, entity.key
        )
        try:
            return await relayed.relay(channel, body, without=stripped)
        finally:
            self._entities.waiting.pop(identity, None)

    def _find(self, target: RelayTarget) -> HybridConnection:
        entity = self._entities.find_within(target.path)
        if entity is None:
            raise refusals.endpoint_missing()
        return entity

    def _check_up(self, entity: HybridConnection) -> None:
        """Raise RelayRefused or EndpointSilent if a fault has taken an endpoint down."""
        fault = self._namespace.fault_points.hit("relay-down", entity.key)
        if fault is not None and fault.status is None:
            raise EndpointSilent
        if fault is not None:
            raise refusals.endpoint_down(fault.status or 503)

    def _choose(self, request: web.BaseRequest, entity: HybridConnection) -> ListenerChannel:
        self._check_up(entity)
        if self._namespace.fault_points.hit("relay-no-listeners", entity.key):
            raise refusals.no_listeners()
        chosen = self._entities.choose(entity, request.headers.get(ALLOWED), request.headers.get(DISALLOWED))
        return cast("ListenerChannel", chosen)


def token_of(request: web.BaseRequest, target: RelayTarget) -> str | None:
    """Return the relay's own token of a request: from its header, or else its query."""
    return request.headers.get(TOKEN_HEADER) or target.parameters.get("sb-hc-token")
