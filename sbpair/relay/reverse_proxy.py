"""A reverse proxy for a relay listener: requests and WebSockets of senders go to a server that this machine reaches.

Invariant: bodies are streamed in both directions. No header of a connection, and no token of the relay, is passed on.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import urlsplit

import aiohttp
from aiohttp import WSMsgType
from multidict import CIMultiDict
from yarl import URL

from sbpair.errors import SbpairError, Unreachable, UsageError
from sbpair.http_tunnel import client_context
from sbpair.relay.control_messages import NOT_PASSED, Body, RelayAnswer, is_header
from sbpair.relay.relay_connections import LOST, MAX_MESSAGE_BYTES, close_session, one_line, open_session, open_socket
from sbpair.relay.relay_endpoint import climbs

if TYPE_CHECKING:
    from sbpair.model.pair import Side
    from sbpair.relay.handled_request import RelayOffer, RelayRequest
    from sbpair.relay.relay_endpoint import RelayPair

NO_CONTENT, NOT_MODIFIED, BAD_REQUEST, BAD_GATEWAY = 204, 304, 400, 502

_FORWARDED: Final = ("x-forwarded-for", "x-forwarded-host", "x-forwarded-proto")
_SENDABLE_CODES: Final = frozenset({*range(1000, 1004), *range(1007, 1015), *range(3000, 5000)})


@dataclass(slots=True)
class ProxiedRequest:
    """One request or WebSocket on its way. `status` is 0 until there is an answer; a WebSocket's is 101.

    `path` is the sender's, without the path of the endpoint and without its query. `seconds` is None until it has
    ended. `problem` is the reason of an answer that the proxy made itself, or of one that ended too soon.
    """

    number: int
    side: Side
    method: str
    path: str
    started: float
    status: int = 0
    seconds: float | None = None
    problem: str = ""


TARGET_HINT: Final = "give an address such as http://localhost:8080"

OnProxied = Callable[[ProxiedRequest], object]


def checked_target(text: str) -> str:
    """Return the address of a server, without a slash at its end. Raises UsageError, which repeats no secret."""
    try:
        url = urlsplit(text)
        port = url.port
    except ValueError:
        raise UsageError("--to is not an address", hint=TARGET_HINT) from None
    host_is_wrong = not url.hostname or port == 0 or not re.fullmatch(r"[A-Za-z0-9._:\[\]%-]+", url.netloc)
    path_is_wrong = not re.fullmatch(r"[!$%&'()*+,./:;=@A-Za-z0-9_~-]*", url.path) or climbs(url.path)
    for wrong, what in (
        # `urlsplit` would leave some of them out.
        (re.search(r"[\x00-\x20\x7f]", text), "has spaces or control characters"),
        ("@" in url.netloc, "has a user or a password, which every user of this machine can read"),
        (url.scheme not in ("http", "https"), "is neither an http:// nor an https:// address"),
        (host_is_wrong, "has no valid host and port"),
        ("?" in text or "#" in text, "has a query or a fragment"),
        (path_is_wrong, "has a path that is not valid: escape it, and leave out '.' and '..'"),
    ):
        if wrong:
            raise UsageError(f"--to {what}", hint=TARGET_HINT)
    return f"{url.scheme}://{url.netloc}{url.path.rstrip('/')}"


class ReverseProxy:
    """Passes requests on to `target`, an http or https address. `on_change` gets each when it begins and ends.

    `handle` and `serve_socket` are the handlers of an AsyncRelayListener.
    """

    def __init__(self, pair: RelayPair, target: str, on_change: OnProxied | None = None) -> None:
        self._pair = pair
        self._target = checked_target(target)
        self._on_change = on_change or (lambda _request: None)
        self._session: aiohttp.ClientSession | None = None
        self._count = 0

    async def __aenter__(self) -> Self:
        self._session = open_session()
        return self

    async def __aexit__(self, *_details: object) -> None:
        if self._session is not None:
            await close_session(self._session)
            self._session = None

    async def handle(self, request: RelayRequest) -> RelayAnswer:
        """Return the answer of the target, or 502 if it gives none."""
        suffix = self._suffix(request.side, request.target)
        noted = self._begin(request.side, request.method, suffix)
        if suffix is None:
            return self._refused(noted, BAD_REQUEST, "the path of the request is not valid")
        headers = self._headers(request.headers, request.side, request.remote)
        body: Any = request if request.is_streamed else await request.read() or None
        try:
            response = await self._open_session.request(
                request.method,
                URL(self._target + suffix, encoded=True),
                headers=headers,
                data=body,
                allow_redirects=False,
                **self._options(),
            )
        except (*LOST, ValueError, SbpairError) as error:
            return self._refused(noted, BAD_GATEWAY, _reason(error))
        except BaseException:
            self._end(noted, "the listener was closed")
            raise
        if not 200 <= response.status <= 599:
            response.close()
            return self._refused(noted, BAD_GATEWAY, f"the target has answered with the status {response.status}")
        noted.status = response.status
        answered = [each for each in _passed(response.headers.items()) if is_header(*each)]
        length = response.headers.get("Content-Length")
        if length is not None and response.status != NO_CONTENT:
            # That of a HEAD is the length of the body that a GET would get.
            answered.append(("Content-Length", length))
        answer_body: Body = b""
        if request.method.upper() == "HEAD" or response.status in (NO_CONTENT, NOT_MODIFIED):
            response.release()
            self._end(noted)
        elif response.content.is_eof() and response.content.exception() is None:
            # All of it came with the head.
            answer_body = response.content.read_nowait()
            self._end(noted)
        else:
            answer_body = _AnsweredBody(response, lambda problem: self._end(noted, problem))
        return RelayAnswer(response.status, answered, answer_body, one_line(response.reason or ""))

    async def serve_socket(self, offer: RelayOffer) -> None:
        """Open a WebSocket to the target, accept the sender's, and pass messages both ways until one side ends."""
        suffix = self._suffix(offer.side, offer.target)
        noted = self._begin(offer.side, "WEBSOCKET", suffix)
        problem = "the listener was closed"
        try:
            problem = await self._serve_socket(offer, suffix, noted)
        except SbpairError as error:
            problem = error.message
            raise
        finally:
            self._end(noted, problem)

    async def _serve_socket(self, offer: RelayOffer, suffix: str | None, noted: ProxiedRequest) -> str:
        """Serve a WebSocket, and return the problem, if any."""
        if suffix is None:
            noted.status = BAD_REQUEST
            await offer.reject(BAD_REQUEST, "Bad Request")
            return "the path of the request is not valid"
        headers = self._headers(offer.headers, offer.side, offer.remote)
        for name in [each for each in headers if each.lower().startswith("sec-websocket-")]:
            headers.popall(name, None)
        try:
            inner = await open_socket(
                self._open_session,
                f"ws{self._target.removeprefix('http')}{suffix}",
                protocols=offer.protocols,
                headers=headers,
                max_msg_size=MAX_MESSAGE_BYTES,
                **self._options(),
            )
        except aiohttp.WSServerHandshakeError as error:
            noted.status = error.status if 400 <= error.status <= 599 else BAD_GATEWAY
            await offer.reject(noted.status, error.message)
            return "the target rejects the WebSocket"
        except (*LOST, ValueError, SbpairError) as error:
            noted.status = BAD_GATEWAY
            await offer.reject(BAD_GATEWAY, "Bad Gateway")
            return _reason(error)
        try:
            outer = await offer.accept(inner.protocol or "")
            noted.status = 101
            self._on_change(noted)
            await _join(outer, inner)
        finally:
            await inner.close()
        return ""

    # Addresses and headers

    def _suffix(self, side: Side, target: str) -> str | None:
        """Return what follows the endpoint's path in a sender's target; None if it leaves the endpoint."""
        own = f"/{self._pair[side].path}"
        path, question, query = target.partition("?")
        rest = path[len(own) :]
        if path[: len(own)].lower() != own.lower() or (rest and not rest.startswith("/")) or climbs(rest):
            return None
        if any(ord(each) <= 32 or ord(each) >= 127 for each in rest + query) or "#" in query:
            return None
        return f"{rest or '/'}{question}{query}"

    def _headers(self, given: Any, side: Side, remote: str) -> CIMultiDict[str]:
        """Return the headers for the target: those of the sender, and where the request came from."""
        endpoint = self._pair[side]
        headers = CIMultiDict(_passed(given.items()))
        before = ", ".join(value for name, value in given.items() if name.lower() == _FORWARDED[0])
        for name in _FORWARDED:
            headers.popall(name, None)
        if chain := ", ".join(each for each in (before, remote) if each):
            headers["X-Forwarded-For"] = chain
        headers["X-Forwarded-Host"] = endpoint.namespace
        headers["X-Forwarded-Proto"] = "https" if endpoint.tls else "http"
        return headers

    def _options(self) -> dict[str, Any]:
        return {"ssl": client_context(None)} if self._target.startswith("https:") else {}

    @property
    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise UsageError("the reverse proxy is not open", hint="use it in an async with")
        return self._session

    # Notes

    def _begin(self, side: Side, method: str, suffix: str | None) -> ProxiedRequest:
        self._count += 1
        path = (suffix or "").partition("?")[0]
        noted = ProxiedRequest(self._count, side, method, path, time.monotonic())
        self._on_change(noted)
        return noted

    def _end(self, noted: ProxiedRequest, problem: str = "") -> None:
        if noted.seconds is None:
            noted.seconds, noted.problem = time.monotonic() - noted.started, problem
            self._on_change(noted)

    def _refused(self, noted: ProxiedRequest, status: int, problem: str) -> RelayAnswer:
        noted.status = status
        self._end(noted, problem)
        text = "Bad Gateway\n" if status == BAD_GATEWAY else "Bad Request\n"
        return RelayAnswer(status, {"Content-Type": "text/plain"}, text.encode())


class TargetLost(Exception):
    """The target's answer ended too soon. The listener answers 500 if nothing of it was sent."""


class _AnsweredBody:
    """The body of the target's answer. `on_end` gets the problem, or ""."""

    def __init__(self, response: aiohttp.ClientResponse, on_end: Callable[[str], object]) -> None:
        self._response = response
        self._on_end = on_end

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        try:
            part = await self._response.content.readany()
        except LOST:
            self._on_end("the target's answer ended too soon")
            raise TargetLost("the target's answer ended too soon") from None
        if not part:
            self._on_end("")
            raise StopAsyncIteration
        return part

    async def aclose(self) -> None:
        """End the connection, unless the body was read to its end."""
        if not self._response.content.at_eof():
            self._response.close()
        self._on_end("the answer was not taken to its end")


async def _join(outer: aiohttp.ClientWebSocketResponse, inner: aiohttp.ClientWebSocketResponse) -> None:
    """Pass messages both ways, until one side closes or is lost; the other one is closed with its code."""
    pumps = [asyncio.create_task(_pump(*ends), name="pass on messages") for ends in ((outer, inner), (inner, outer))]
    try:
        await asyncio.wait(pumps)
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


async def _pump(source: aiohttp.ClientWebSocketResponse, destination: aiohttp.ClientWebSocketResponse) -> None:
    """Pass messages on, and close the destination when the source ends. A cancelled receive would lose the code."""
    try:
        async for message in source:
            if message.type is WSMsgType.TEXT:
                await destination.send_str(message.data)
            elif message.type is WSMsgType.BINARY:
                await destination.send_bytes(message.data)
    except (aiohttp.ClientError, OSError):
        await source.close(code=1001)
    code = source.close_code or 1006
    await destination.close(code=code if code in _SENDABLE_CODES else 1000 if code == 1005 else 1011)


def _passed(headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the headers that are passed on: not those of the connection, also as Connection names them."""
    pairs = list(headers)
    named = {each.strip().lower() for name, value in pairs if name.lower() == "connection" for each in value.split(",")}
    return [(name, value) for name, value in pairs if name.lower() not in NOT_PASSED | named]


def _reason(error: Exception) -> str:
    if isinstance(error, Unreachable):
        return error.message
    if isinstance(error, TimeoutError):
        return "the target cannot be reached in time"
    if isinstance(error, (aiohttp.ClientConnectorError, ConnectionError)):
        return "the target cannot be reached"
    return "the target gave no valid answer"
