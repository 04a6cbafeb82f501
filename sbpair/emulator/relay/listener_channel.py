"""The control channel of one listener: offers and requests to it, its responses and token renewals.

Invariant: a listener that sends anything else than the protocol has loses its own channel only.
"""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import quote

from websockets.frames import Frame, Opcode

from sbpair.amqp_server.shared_access import AccessRight
from sbpair.emulator.clock import NEVER, token_ms
from sbpair.emulator.relay.frame_connection import FrameConnection, FrameUser, Handshake
from sbpair.emulator.relay.relay_messages import (
    MessageInvalid,
    RelayRefused,
    ResponseHead,
    read_message,
    read_response,
    response_invalid,
)

if TYPE_CHECKING:
    from sbpair.amqp_server.shared_access import Grant
    from sbpair.emulator.entities.namespace import Namespace
    from sbpair.emulator.relay.hybrid_connection import HybridConnection

MAX_CONTROL_MESSAGE: Final = 256 * 1024
"""The service's limit is 64 kB; clients add the headers to it, or do not."""


class AwaitingResponse(Protocol):
    """A request that a listener got over its control channel."""

    def respond(self, head: ResponseHead, body: bytes) -> None: ...
    def fail(self, error: RelayRefused) -> None: ...


class ListenerChannel(FrameUser):
    """A connected listener of `entity`. `base` is the URL by which it reached the relay."""

    def __init__(self, namespace: Namespace, entity: HybridConnection, listener_id: str, base: str) -> None:
        self.listener_id = listener_id or str(uuid.uuid4())
        self._base = base
        self.requests: dict[str, AwaitingResponse] = {}
        """Requests without a response, by id."""

        self._namespace = namespace
        self._entity = entity
        self._parts: list[bytes] = []
        self._kind = Opcode.TEXT
        self._response: ResponseHead | None = None

    def open(self, handshake: Handshake, grant: Grant) -> None:
        """Answer the handshake, and begin to listen."""
        self._frames: FrameConnection = handshake.accept(self, next(iter(handshake.protocols), None))
        self._expiry = self._namespace.deadline(NEVER, self._on_expiry)
        self._await_expiry_of(grant)
        self._entity.listeners.append(self)

    def _await_expiry_of(self, grant: Grant) -> None:
        self._grant = grant
        self._expiry.wait_until(grant.expires_at_ms + self._namespace.clock.advanced_ms)

    def _on_expiry(self) -> None:
        if token_ms(self._namespace.clock) >= self._grant.expires_at_ms:
            self.expire_token()
        else:
            # The clock was advanced meanwhile.
            self._await_expiry_of(self._grant)

    def expire_token(self) -> None:
        self.close(1008, "ExpiredToken: The token is expired.")

    def rendezvous(self, target: str, action: str, identity: str) -> str:
        """Return the address for `action`, accept or request; `target` is path and query of the sender."""
        own = f"sb-hc-action={action}&sb-hc-id={quote(identity, safe='')}"
        return f"{self._base}/$hc{target}{'&' if '?' in target else '?'}{own}"

    def send(self, message: dict[str, Any], body: bytes | None = None) -> None:
        """Send a message, and the body that follows it."""
        self._frames.send(Opcode.TEXT, json.dumps(message).encode())
        if body is not None:
            self._frames.send(Opcode.BINARY, body)

    def close(self, code: int, reason: str) -> None:
        """Close the channel. Connections that were accepted through it stay."""
        self._leave()
        self._frames.close(code, reason)

    def abort(self) -> None:
        self._leave()
        self._frames.abort()

    def _leave(self) -> None:
        self._expiry.cancel()
        if self in self._entity.listeners:
            self._entity.listeners.remove(self)

    # FrameUser

    def on_frame(self, frame: Frame) -> None:
        if self not in self._entity.listeners:
            return
        if frame.opcode is not Opcode.CONT:
            self._kind = frame.opcode
        self._parts.append(bytes(frame.data))
        if not frame.fin:
            return
        data = b"".join(self._parts)
        self._parts.clear()
        try:
            self._take(data)
        except MessageInvalid as error:
            self.close(1008, f"The message of the listener is not valid: {error}.")

    def on_end(self, code: int, reason: str) -> None:
        del code, reason
        self._leave()

    def _take(self, data: bytes) -> None:
        """Handle a whole message. Raises MessageInvalid."""
        if self._response is not None:
            if self._kind is not Opcode.BINARY:
                raise MessageInvalid("the body of a response is missing")
            head, self._response = self._response, None
            self._finish(head, data)
            return
        if self._kind is not Opcode.TEXT:
            # The vendor's client for JavaScript sends an empty body after a response without one.
            return
        message = read_message(data)
        if isinstance(message.get("renewToken"), dict):
            self._renew(message["renewToken"].get("token"))
        elif "response" in message:
            self._begin(message["response"])

    def _renew(self, token: object) -> None:
        hybrid_connections, path = self._namespace.hybrid_connections, self._entity.path
        try:
            grant = hybrid_connections.authorize(str(token), AccessRight.LISTEN, path, self._entity)
        except RelayRefused as error:
            self.close(1008, error.message)
            return
        self._await_expiry_of(grant)

    def _begin(self, response: object) -> None:
        try:
            head = read_response(response)
        except MessageInvalid as error:
            self._refuse(response, error)
            return
        if head.has_body:
            self._response = head
        else:
            self._finish(head, b"")

    def _finish(self, head: ResponseHead, body: bytes) -> None:
        # A response to a request that this channel did not carry, or that has ended, reaches no sender.
        request = self.requests.pop(head.request_id, None)
        if request is not None:
            request.respond(head, body)

    def _refuse(self, response: object, error: MessageInvalid) -> None:
        """Fail the request of an invalid response; one without a known request ends the channel."""
        identity = response.get("requestId") if isinstance(response, dict) else None
        request = self.requests.pop(str(identity), None)
        if request is None or not isinstance(response, dict):
            raise error
        request.fail(response_invalid(str(error)))
        if response.get("body") is True:
            self._response = ResponseHead("", 500, None, (), has_body=True)
