"""A WebSocket from a sender to a listener: offered, then accepted or rejected, then relayed frame by frame."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from aiohttp import web

from sbpair.emulator.relay.frame_connection import ABNORMAL, FrameConnection, Handshake, cut_off
from sbpair.emulator.relay.relay_deadline import RelayDeadline
from sbpair.emulator.relay.relay_refusals import RelayRefused, address_expired, not_accepted, one_line, url_invalid

if TYPE_CHECKING:
    from websockets.frames import Frame

    from sbpair.emulator.entities.namespace import Namespace
    from sbpair.emulator.relay.relay_target import RelayTarget

ACCEPT_MS: Final = 30_000
GOING_AWAY: Final = 1001
_STATUS: Final = "sb-hc-statuscode"
_REASON: Final = "sb-hc-statusdescription"


class RejectedByListener(Exception):
    """The listener's own status and reason for a sender."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(status)
        self.status = status
        self.reason = reason


class Leg:
    """One end of a relayed WebSocket: passes frames, back-pressure and the end on to the other one."""

    def __init__(self, *, of_sender: bool) -> None:
        self._of_sender = of_sender
        self.connection: FrameConnection
        self.other: Leg

    def on_frame(self, frame: Frame) -> None:
        self.other.connection.send(frame.opcode, bytes(frame.data), fin=frame.fin)

    def on_writable(self, *, writable: bool) -> None:
        if writable:
            self.other.connection.resume()
        else:
            self.other.connection.pause()

    def on_end(self, code: int, reason: str) -> None:
        other = self.other.connection
        if code != ABNORMAL:
            other.close(code, reason)
        elif self._of_sender:
            other.close(GOING_AWAY, "The sender's connection was lost.")
        else:
            # The sender must not take a lost connection for a regular end.
            other.abort()


class OfferedSocket:
    """A sender's handshake that waits for a listener."""

    def __init__(self, namespace: Namespace, handshake: Handshake) -> None:
        self._handshake = handshake
        self._outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._deadline = RelayDeadline(namespace, ACCEPT_MS, lambda: self.fail(not_accepted()))

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
        self.fail(not_accepted())

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
