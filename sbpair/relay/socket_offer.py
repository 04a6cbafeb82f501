"""A sender's WebSocket that a handler may accept or reject."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import aiohttp

from sbpair.errors import Unavailable, UsageError
from sbpair.model.reachability import CONNECT_SECONDS
from sbpair.relay.relay_clock import RelayClock, TimeLimit
from sbpair.relay.relay_connections import LOST, http_options, one_line, open_socket
from sbpair.relay.relay_endpoint import RelayEndpoint, Side, target_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sbpair.relay.control_messages import AcceptMessage

REJECTED: Final = 410
"""The service's answer to a listener that rejects: it has worked."""


class RelayOffer:
    """A WebSocket that a sender wants to open. A handler accepts or rejects it once, within 20 seconds.

    `target` has path and query of the sender, with the path of the endpoint. `headers` are those of its handshake.
    """

    def __init__(
        self,
        message: AcceptMessage,
        side: Side,
        endpoint: RelayEndpoint,
        session: aiohttp.ClientSession,
        clock: RelayClock,
        max_message_bytes: int,
    ) -> None:
        self.side = side
        self.offer_id = message.offer_id
        self.target = target_of(message.address)
        self.headers: Mapping[str, str] = message.headers
        self.protocols = message.protocols
        self.remote = message.remote
        self.socket: aiohttp.ClientWebSocketResponse | None = None
        self.is_decided = False
        self._address = message.address
        self._endpoint = endpoint
        self._session = session
        self._clock = clock
        self._max_message_bytes = max_message_bytes

    async def accept(self, protocol: str | None = None) -> aiohttp.ClientWebSocketResponse:
        """Open the WebSocket. `protocol` is one of the sender's; by default its first one, "" is none.

        Raises UsageError for another protocol, or after a decision; Unavailable if the sender has gone.
        """
        if protocol and protocol not in self.protocols:
            raise UsageError(f"the sender does not offer {protocol[:40]!r}", hint="choose one of `protocols`")
        self._decide()
        chosen = next(iter(self.protocols), None) if protocol is None else protocol
        try:
            self.socket = await self._meet(self._address, (chosen,) if chosen else ())
        except LOST as error:
            raise self._gone(error) from None
        return self.socket

    async def reject(self, status: int = 400, reason: str = "Rejected by user code") -> None:
        """Refuse the WebSocket: the sender gets `status`, from 400 to 599, and `reason` with its handshake.

        Raises UsageError for another status, or after a decision; Unavailable if the sender has gone.
        """
        if isinstance(status, bool) or not isinstance(status, int) or not 400 <= status <= 599:
            raise UsageError(f"expected a status from 400 to 599, got {str(status)[:40]!r}", hint="400 is the default")
        self._decide()
        text = quote(one_line(reason), safe="")
        join = "&" if "?" in self._address else "?"
        address = f"{self._address}{join}sb-hc-statusCode={status}&sb-hc-statusDescription={text}"
        try:
            socket = await self._meet(address, ())
        except aiohttp.WSServerHandshakeError as error:
            if error.status != REJECTED:
                raise self._gone(error) from None
        except LOST as error:
            raise self._gone(error) from None
        else:
            await socket.close()

    def _decide(self) -> None:
        if self.is_decided:
            raise UsageError("the WebSocket was accepted or rejected before", hint="decide once")
        self.is_decided = True

    async def _meet(self, address: str, protocols: tuple[str, ...]) -> aiohttp.ClientWebSocketResponse:
        options = http_options(self._endpoint) | {"protocols": protocols, "max_msg_size": self._max_message_bytes}
        async with TimeLimit(self._clock, CONNECT_SECONDS):
            return await open_socket(self._session, address, **options)

    def _gone(self, error: Exception) -> Unavailable:
        status = f" ({error.status})" if isinstance(error, aiohttp.WSServerHandshakeError) else ""
        return Unavailable(
            f"{self._endpoint}: the sender of a WebSocket is not there any more{status}",
            hint="accept within 20 seconds",
        )
