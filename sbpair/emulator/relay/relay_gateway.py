"""The gateway of a namespace: the kinds of requests to the relay, the checks of their tokens, and the WebSockets.

A WebSocket of a sender is offered to a listener, then accepted or rejected, then relayed frame by frame.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import quote

from aiohttp import hdrs, web

from sbpair.amqp_server.refusals import log_bug
from sbpair.amqp_server.shared_access import AccessRight
from sbpair.emulator.relay.frame_connection import (
    ABNORMAL,
    FrameConnection,
    FrameUser,
    Handshake,
    cut_off,
    remote_endpoint,
)
from sbpair.emulator.relay.listener_channel import MAX_CONTROL_MESSAGE, ListenerChannel
from sbpair.emulator.relay.relay_messages import (
    RelayRefused,
    RelayTarget,
    endpoint_not_found,
    is_websocket_path,
    joined_headers,
    no_listeners,
    one_line,
    read_target,
    url_invalid,
    with_tracking,
)
from sbpair.emulator.relay.relayed_request import RelayedRequest, read_inline

if TYPE_CHECKING:
    from websockets.frames import Frame

    from sbpair.emulator.entities.namespace import Namespace
    from sbpair.emulator.relay.hybrid_connection import HybridConnection

logger = logging.getLogger(__name__)

TOKEN_HEADER: Final = "ServiceBusAuthorization"  # noqa: S105  # a header's name
ALLOWED: Final = "Microsoft-Relay-AllowedListeners"
DISALLOWED: Final = "Microsoft-Relay-DisallowedListeners"
_STRIPPED: Final = frozenset({TOKEN_HEADER.lower(), ALLOWED.lower(), DISALLOWED.lower()})
_MAX_ID: Final = 128

ACCEPT_MS: Final = 30_000
NOT_ACCEPTED: Final = (
    504,
    "ConnectionNotEstablished",
    "None of the connected listeners accepted the connections within the allowed timeout.",
)
GOING_AWAY: Final = 1001
_STATUS: Final = "sb-hc-statuscode"
_REASON: Final = "sb-hc-statusdescription"


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
        except RelayRefused as error:
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
            refusal = RelayRefused(500, "InternalServerError", "The request could not be processed.")
        return self._refuse(request, refusal, path)

    def _refuse(self, request: web.BaseRequest, error: RelayRefused, path: str) -> web.Response:
        now_ms = self._namespace.clock.now_ms()
        text = with_tracking(error.message, self._namespace.endpoint, quote(path, safe="/"), now_ms)
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
        raise url_invalid("The value of sb-hc-action is not listen, connect, accept or request.")

    def _listen(self, request: web.BaseRequest, target: RelayTarget, identity: str) -> web.Response:
        handshake = Handshake(request, MAX_CONTROL_MESSAGE)
        entity = self._entities.find(target.path)
        if entity is None:
            raise endpoint_not_found("Endpoint does not exist.")
        grant = self._entities.authorize(token_of(request, target), AccessRight.LISTEN, target.path, entity)
        self._check_up(entity)
        entity.check_room()
        scheme = "wss" if request.scheme == "https" else "ws"
        base = f"{scheme}://{request.headers.get(hdrs.HOST) or self._namespace.authority}"
        ListenerChannel(self._namespace, entity, identity[:_MAX_ID], base).open(handshake, grant)
        return web.Response()

    async def _connect(self, request: web.BaseRequest, target: RelayTarget, given_id: str) -> web.Response:
        handshake = Handshake(request)
        entity = self._find(target)
        if entity.description.requires_client_authorization:
            self._entities.authorize(token_of(request, target), AccessRight.SEND, target.path, entity)
        channel = self._choose(request, entity)
        # Behind the sender's own id: only the listener can know the address.
        identity = f"{given_id[:_MAX_ID]}{'_' if given_id else ''}{uuid.uuid4()}_G0_G1"
        address = channel.rendezvous(target.with_query, "accept", identity)
        offered = self._entities.waiting[identity] = OfferedSocket(self._namespace, handshake)
        channel.send(
            {
                "accept": {
                    "address": address,
                    "id": identity,
                    "connectHeaders": joined_headers(request.headers.items(), _STRIPPED),
                    "remoteEndpoint": remote_endpoint(request),
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
        raise address_expired()

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
            raise url_invalid("A request with an upgrade is possible below /$hc/ only.")
        self._choose(request, entity)
        header_bytes = sum(len(name) + len(value) + 4 for name, value in request.raw_headers)
        body = await read_inline(request, header_bytes + len(request.raw_path))
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
            raise endpoint_not_found("Endpoint does not exist.")
        return entity

    def _check_up(self, entity: HybridConnection) -> None:
        """Raise RelayRefused or EndpointSilent if a fault has taken an endpoint down."""
        fault = self._namespace.fault_points.hit("relay-down", entity.key)
        if fault is None:
            return
        if fault.status is None:
            raise EndpointSilent
        code = "InternalServerError" if fault.status == 500 else "ServiceUnavailable"
        raise RelayRefused(fault.status, code, "The endpoint is not available. Please retry the operation.")

    def _choose(self, request: web.BaseRequest, entity: HybridConnection) -> ListenerChannel:
        self._check_up(entity)
        if self._namespace.fault_points.hit("relay-no-listeners", entity.key):
            raise no_listeners()
        chosen = self._entities.choose(entity, request.headers.get(ALLOWED), request.headers.get(DISALLOWED))
        return cast("ListenerChannel", chosen)


def token_of(request: web.BaseRequest, target: RelayTarget) -> str | None:
    """Return the relay's own token of a request: from its header, or else its query."""
    return request.headers.get(TOKEN_HEADER) or target.parameters.get("sb-hc-token")


# Relayed WebSockets


class RejectedByListener(Exception):
    """The listener's own status and reason for a sender."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(status)
        self.status = status
        self.reason = reason


class Leg(FrameUser):
    """One end of a relayed WebSocket: passes frames, back-pressure and the end on to the other one."""

    def __init__(self, *, of_sender: bool) -> None:
        self._of_sender = of_sender
        self.connection: FrameConnection
        self.other: Leg

    def on_frame(self, frame: Frame) -> None:
        self.other.connection.send(frame.opcode, bytes(frame.data), fin=frame.fin)

    def on_writable(self, *, writable: bool) -> None:
        if writable:
            self.other.connection.resume_reading()
        else:
            self.other.connection.pause_reading()

    def on_end(self, code: int, reason: str) -> None:
        other = self.other.connection
        if code != ABNORMAL:
            other.close(code, reason)
        elif self._of_sender:
            other.close(GOING_AWAY, "The sender's connection was lost.")
        else:
            # The sender must not take a lost connection for a regular end.
            other.abort()


def address_expired() -> RelayRefused:
    return RelayRefused(403, "Forbidden", "The rendezvous address is invalid, has expired, or was used before.")


class OfferedSocket:
    """A sender's handshake that waits for a listener."""

    def __init__(self, namespace: Namespace, handshake: Handshake) -> None:
        self._handshake = handshake
        self._outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._deadline = namespace.deadline(ACCEPT_MS, lambda: self.fail(RelayRefused(*NOT_ACCEPTED)))

    async def wait(self) -> None:
        """Wait until the sender's connection was taken over. Raises RelayRefused or RejectedByListener."""
        try:
            await self._outcome
        finally:
            self._deadline.cancel()

    def fail(self, error: Exception) -> None:
        if not self._outcome.done():
            self._outcome.set_exception(error)

    def break_off(self) -> None:
        """End the sender's connection without an answer."""
        cut_off(self._handshake.request)
        self.fail(RelayRefused(*NOT_ACCEPTED))

    def meet(self, request: web.BaseRequest, target: RelayTarget) -> web.Response:
        """Let the listener accept or reject. Raises RelayRefused."""
        if _STATUS in target.parameters:
            return self._reject(target.parameters[_STATUS], target.parameters.get(_REASON, ""))
        answer = Handshake(request)
        if self._outcome.done() or not self._handshake.is_waiting or not answer.is_waiting:
            raise address_expired()
        chosen = next(iter(answer.protocols), None)
        sender, listener = Leg(of_sender=True), Leg(of_sender=False)
        sender.other, listener.other = listener, sender
        listener.connection = answer.accept(listener, chosen)
        sender.connection = self._handshake.accept(sender, chosen)
        self._outcome.set_result(None)
        # It cannot be sent: the connection was taken over.
        return web.Response()

    def _reject(self, status: str, reason: str) -> web.Response:
        if not (status.isascii() and status.isdigit() and len(status) == 3 and 300 <= int(status) <= 599):
            self.fail(RelayRefused(502, "BadGateway", "The listener rejected the connection with an invalid status."))
            raise url_invalid("The value of sb-hc-statusCode is not a number from 300 to 599.")
        self.fail(RejectedByListener(int(status), one_line(reason)))
        return web.Response(status=410, reason="Gone")
