"""A listener on one side: its control channel, opened again whenever it ends, and the renewal of its token.

Invariant: a request that came over a channel outlives it. Its answer is sent to its rendezvous address.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from websockets.exceptions import ConnectionClosed, WebSocketException

from sbpair.errors import AccessError, EntityMissing, SbpairError, Unreachable, UsageError
from sbpair.model.backoff import StepBackoff
from sbpair.relay.control_messages import (
    TOKEN_HEADER,
    AcceptMessage,
    RelayMessageInvalid,
    RequestMessage,
    read_control,
    renewal_message,
)
from sbpair.relay.events import RelayAnswerLost, RelayReporter, RelaySideDown, RelaySideUp, RelayTokenNotRenewed
from sbpair.relay.relay_clock import sleep
from sbpair.relay.relay_connections import one_line, open_frames, send_message
from sbpair.relay.relay_decisions import TRACKING
from sbpair.relay.relay_tokens import RENEW_SECONDS, RelayTokens

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

    from sbpair.relay.relay_clock import RelayClock
    from sbpair.relay.relay_endpoint import RelayEndpoint, Side

BACKOFF: Final = StepBackoff((0.0, 1.0, 2.0, 5.0, 10.0, 30.0))
SLOW_SECONDS: Final = 60.0
"""Pause after a refusal that only a change of the endpoint or its keys can end."""

STEADY_SECONDS: Final = 30.0
"""A channel that lives this long has worked: the next failure is a first one."""

CONFIRM_SECONDS: Final = 0.05
"""How long answers wait for the ping that all of them share."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ListenerTasks:
    """The work that a side begins: `request(message, body, channel)`, and `offer(message)`. Each runs on its own."""

    request: Callable[[RequestMessage, bytes, ControlChannel], object]
    offer: Callable[[AcceptMessage], object]
    spawn: Callable[..., object]


class ControlChannel:
    """One control channel. Answers that the service has not confirmed by a pong go by rendezvous when it ends."""

    def __init__(self, side: ListenerSide, socket: ClientConnection) -> None:
        self.side = side.side
        self.socket = socket
        self._listener = side
        self._turn = asyncio.Lock()
        self._unconfirmed: dict[str, tuple[RequestMessage, str, bytes]] = {}
        self._confirming: asyncio.Task[None] | None = None

    async def send_answer(self, request: RequestMessage, text: str, body: bytes) -> bool:
        return await asyncio.shield(asyncio.ensure_future(self._send_answer(request, text, body)))

    async def _send_answer(self, request: RequestMessage, text: str, body: bytes) -> bool:
        """Send head and body as neighbours, whatever becomes of the caller."""
        async with self._turn:
            try:
                await send_message(self.socket, text, body)
            except ConnectionClosed:
                return False
        self._unconfirmed[request.request_id] = (request, text, body)
        if self._confirming is None or self._confirming.done():
            self._confirming = asyncio.create_task(self._confirm(), name="confirm answers of a relay listener")
        return True

    async def _confirm(self) -> None:
        """Forget answers when the pong to a ping behind them has come."""
        with suppress(ConnectionClosed):
            while self._unconfirmed:
                await asyncio.sleep(CONFIRM_SECONDS)
                sent = list(self._unconfirmed)
                async with self._turn:
                    pong = await self.socket.ping()
                await pong
                for request_id in sent:
                    self._unconfirmed.pop(request_id, None)

    async def renew(self, token: str) -> None:
        async with self._turn:
            await self.socket.send(renewal_message(token))

    async def meet(self, address: str) -> ClientConnection:
        return await self._listener.meet(address)

    async def leave(self) -> None:
        """Send the answers again that may not have arrived. The service drops one that has."""
        if self._confirming is not None:
            self._confirming.cancel()
            await asyncio.gather(self._confirming, return_exceptions=True)
        for request, text, body in list(self._unconfirmed.values()):
            self._listener.tasks.spawn(self._send_again(request, text, body))
        self._unconfirmed.clear()

    async def _send_again(self, request: RequestMessage, text: str, body: bytes) -> None:
        try:
            meeting = await self._listener.meet(request.address)
        except (AccessError, EntityMissing):
            # The address is used up: the service has the answer, or gave it up.
            return
        except SbpairError as error:
            self._listener.report_lost(request.request_id, error.message)
            return
        try:
            await send_message(meeting, text, body)
        except WebSocketException as error:
            self._listener.report_lost(request.request_id, one_line(str(error)))
        finally:
            await meeting.close()


class ListenerSide:
    """The listener on one side. `run` connects again and again until `stop`."""

    def __init__(
        self, side: Side, endpoint: RelayEndpoint, clock: RelayClock, tasks: ListenerTasks, report: RelayReporter
    ) -> None:
        self.side = side
        self.endpoint = endpoint
        self.tasks = tasks
        self.is_up = False
        self.is_connecting = False
        self.contacted = asyncio.Event()
        """Set after the first attempt."""

        self._clock = clock
        self._report = report
        self._tokens = RelayTokens(endpoint, clock)
        self._id = str(uuid.uuid4())
        self._stopping = asyncio.Event()
        self._channel: ControlChannel | None = None
        self._last_reason = ""

    async def run(self) -> None:
        """Connect and listen, again and again, until `stop`."""
        failures = 0
        try:
            while not self._stopping.is_set():
                began = self._clock.now()
                error = await self._listen()
                lived = self._clock.now() - began
                failures = 1 if self._last_reason == "" and lived >= STEADY_SECONDS else failures + 1
                if self._stopping.is_set():
                    return
                slow = isinstance(error, (AccessError, EntityMissing, UsageError))
                seconds = SLOW_SECONDS if slow else BACKOFF.seconds(failures)
                # The text of the service has an id of its own in each refusal.
                reason = error.message.partition(TRACKING)[0]
                if reason != self._last_reason:
                    self._last_reason = reason
                    self._report(RelaySideDown(self.endpoint.path, self.side, error.message, seconds))
                self.contacted.set()
                await self._pause(seconds)
        finally:
            self.contacted.set()
            await self._tokens.close()

    async def stop(self) -> None:
        """End the channel: the service sends no more requests. Those that it has sent are still read."""
        self._stopping.set()
        if self._channel is not None:
            await self._channel.socket.close(1001, "the listener is closing")

    async def meet(self, address: str) -> ClientConnection:
        """Open a rendezvous connection. Raises SbpairError."""
        if self.endpoint.tls and not address.startswith("wss:"):
            raise Unreachable("a rendezvous address has no TLS", hint="check the service")
        return await open_frames(address, self.endpoint, self._clock)

    def report_lost(self, request_id: str, reason: str) -> None:
        self._report(RelayAnswerLost(self.endpoint.path, self.side, request_id, reason))

    async def _pause(self, seconds: float) -> None:
        if seconds <= 0:
            return
        pausing = asyncio.ensure_future(sleep(self._clock, seconds))
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait((pausing, stopping), return_when=asyncio.FIRST_COMPLETED)
        finally:
            pausing.cancel()
            stopping.cancel()
            await asyncio.gather(pausing, stopping, return_exceptions=True)

    async def _listen(self) -> SbpairError:
        """Open one channel and read from it. Returns why it has ended, or why none could be opened."""
        try:
            token = await self._tokens.get()
            headers = {TOKEN_HEADER: token.value}
            url = self.endpoint.listen_url(self._id)
            self.is_connecting = True
            socket = await open_frames(url, self.endpoint, self._clock, headers, is_control=True)
        except SbpairError as error:
            return error
        except Exception as error:
            log.exception("a relay listener could not connect")
            return Unreachable(f"{self.endpoint}: unexpected {type(error).__name__}")
        finally:
            self.is_connecting = False
        channel = self._channel = ControlChannel(self, socket)
        self.is_up, self._last_reason = True, ""
        self._report(RelaySideUp(self.endpoint.path, self.side))
        self.contacted.set()
        renewing = asyncio.create_task(self._renew(channel, token.expires_at, token.renewable), name="renew a token")
        try:
            if self._stopping.is_set():
                # Beside the reading: the service may have sent more requests by now than the socket keeps.
                self.tasks.spawn(self.stop())
            return await self._read(channel)
        finally:
            self.is_up, self._channel = False, None
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)
            await socket.close()
            await channel.leave()

    async def _read(self, channel: ControlChannel) -> SbpairError:
        """Read messages until the channel ends. Returns why it has ended."""
        socket = channel.socket
        try:
            while True:
                message = read_control(_text(await socket.recv()))
                if isinstance(message, AcceptMessage):
                    self.tasks.offer(message)
                elif message is not None:
                    body = _binary(await socket.recv()) if message.has_body else b""
                    self.tasks.request(message, body, channel)
        except ConnectionClosed as closed:
            received = closed.rcvd
            reason = f"code {received.code:d} {one_line(received.reason)}".rstrip() if received else "no close frame"
            return Unreachable(f"the service ended the control channel: {reason}", hint="the listener connects again")
        except RelayMessageInvalid as error:
            await socket.close(1002, "invalid message")
            return Unreachable(f"the service sent a message that cannot be read: {error}", hint="check the namespace")

    async def _renew(self, channel: ControlChannel, expires_at: float, renewable: bool) -> None:
        """Send a new token before the current one expires, again and again."""
        with suppress(ConnectionClosed):
            while renewable:
                left = expires_at - self._clock.now()
                await sleep(self._clock, max(left - RENEW_SECONDS, min(left / 2, RENEW_SECONDS), 1.0))
                try:
                    token = await self._tokens.get()
                except SbpairError as error:
                    self._report_not_renewed(error.message)
                    continue
                except Exception as error:
                    log.exception("a relay listener could not renew its token")
                    self._report_not_renewed(f"unexpected {type(error).__name__}")
                    continue
                if token.expires_at > expires_at:
                    await channel.renew(token.value)
                expires_at, renewable = token.expires_at, token.renewable

    def _report_not_renewed(self, reason: str) -> None:
        self._report(RelayTokenNotRenewed(self.endpoint.path, self.side, reason))


def _text(message: str | bytes) -> str:
    if isinstance(message, bytes):
        raise RelayMessageInvalid("a body without its message")
    return message


def _binary(message: str | bytes) -> bytes:
    if isinstance(message, str):
        raise RelayMessageInvalid("a message without its body")
    return message
