"""Where a management request really goes, and what the SDK cannot say right.

The SDK speaks https to the host that its tokens name, and to nothing else: emulators speak plain HTTP on the port of
their AMQP, proxies and private links listen elsewhere. What leaves here is put right here, and nowhere else.
"""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

import aiohttp
from azure.core.pipeline.transport import AioHttpTransport

from sbpair.errors import MachineLacks
from sbpair.model.durations import TIMESPAN_MAX
from sbpair.model.pair import AMQPS_PORT, Endpoint, authority_of, is_loopback

if TYPE_CHECKING:
    from azure.core.rest import HttpRequest

CONNECT_SECONDS = 15.0
CALL_SECONDS = 60.0
# The SDK reads even a duration that is text into a timedelta, whose six decimals make it more than the maximum.
ROUNDED_TIMESPAN_MAX = "P10675199DT2H48M5.477581S"
_BEARER_OF_SIGNATURE = "Bearer SharedAccessSignature "


@dataclass(frozen=True, slots=True)
class HttpRoute:
    """Scheme and address to connect to, and the host that the certificate and the Host header name."""

    scheme: str
    netloc: str
    authority: str

    @property
    def server_hostname(self) -> str | None:
        return urlsplit(f"//{self.authority}").hostname if self.scheme == "https" else None

    def lead(self, url: str) -> str:
        """`url` with this road's scheme and address; the path keeps its escapes."""
        return urlunsplit(urlsplit(url)._replace(scheme=self.scheme, netloc=self.netloc))


def road_to(endpoint: Endpoint) -> HttpRoute:
    """The management side of a namespace: its own HTTPS port beside AMQPS, else the one port that serves both."""
    shares_port = endpoint.emulator or endpoint.port != AMQPS_PORT
    port = endpoint.port if shares_port else None
    scheme = "https" if endpoint.tls else "http"
    return HttpRoute(scheme, authority_of(endpoint.host, port), endpoint.authority)


def is_local(endpoint: Endpoint) -> bool:
    """Whether an emulator is meant, which is its own Resource Manager too."""
    return endpoint.emulator or is_loopback(endpoint.host)


class RoutedTransport(AioHttpTransport):  # type: ignore[misc]  # azure-core loads it lazily
    """The SDK's transport, led along a Road. One session serves concurrent requests."""

    def __init__(self, road: HttpRoute, session: aiohttp.ClientSession, call_seconds: float = CALL_SECONDS) -> None:
        super().__init__(session=session, connection_timeout=CONNECT_SECONDS)
        self._road = road
        self._call_seconds = call_seconds

    async def send(self, request: HttpRequest, **options: Any) -> Any:
        """Send it along the road, and give the request back as it was: the SDK's policies look at its URL again."""
        asked = request.url
        request.url = self._road.lead(asked)
        request.headers["Host"] = self._road.authority
        _correct(request)
        try:
            async with asyncio.timeout(self._call_seconds):
                return await super().send(request, server_hostname=self._road.server_hostname, **options)
        finally:
            request.url = asked


def _correct(request: HttpRequest) -> None:
    authorization = request.headers.get("Authorization", "")
    if authorization.startswith(_BEARER_OF_SIGNATURE):
        # The SDK takes every ready-made token for a bearer token, and the service knows no such scheme.
        request.headers["Authorization"] = authorization.removeprefix("Bearer ")
    body = request.data
    if isinstance(body, bytes):
        request.data = body.replace(ROUNDED_TIMESPAN_MAX.encode(), TIMESPAN_MAX.encode())
        request.headers["Content-Length"] = str(len(request.data))


def session_for(endpoint: Endpoint) -> aiohttp.ClientSession:
    """An HTTP session that trusts the endpoint's CA file where it has one. To be made inside a running loop."""
    connector = aiohttp.TCPConnector(ssl=trust(endpoint.ca_file)) if endpoint.ca_file else aiohttp.TCPConnector()
    return aiohttp.ClientSession(
        connector=connector,
        # A proxy is for the way out of this network, not to an emulator on this machine.
        trust_env=endpoint.tls,
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
    )


def trust(ca_file: str) -> ssl.SSLContext:
    """A context that trusts exactly the certificates of `ca_file`. Raises MachineLacks where it cannot be read."""
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise MachineLacks(
            f"the CA file {ca_file} cannot be used: {error.strerror or 'it holds no certificate'}",
            hint="give a readable file of certificates in PEM form",
        ) from error
