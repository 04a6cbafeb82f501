"""The route of management requests, and corrections of the SDK's requests.

The SDK speaks only https, to the host that its tokens name. Emulators speak plain HTTP on their AMQP port; proxies and
private links listen elsewhere.
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
# The SDK parses durations into a timedelta, whose six decimals round the maximum up, beyond itself.
ROUNDED_TIMESPAN_MAX = "P10675199DT2H48M5.477581S"
_BEARER_OF_SIGNATURE = "Bearer SharedAccessSignature "


@dataclass(frozen=True, slots=True)
class HttpRoute:
    """The scheme and address to connect to, and the host of the certificate and the Host header."""

    scheme: str
    netloc: str
    authority: str

    @property
    def server_hostname(self) -> str | None:
        return urlsplit(f"//{self.authority}").hostname if self.scheme == "https" else None

    def apply(self, url: str) -> str:
        """Return `url` with this route's scheme and address; the path keeps its escapes."""
        return urlunsplit(urlsplit(url)._replace(scheme=self.scheme, netloc=self.netloc))


def http_route(endpoint: Endpoint) -> HttpRoute:
    """Return the route to a namespace: the HTTPS port beside AMQPS, else the one port that serves both."""
    shares_port = endpoint.emulator or endpoint.port != AMQPS_PORT
    port = endpoint.port if shares_port else None
    scheme = "https" if endpoint.tls else "http"
    return HttpRoute(scheme, authority_of(endpoint.host, port), endpoint.authority)


def is_local(endpoint: Endpoint) -> bool:
    """Return whether the endpoint is an emulator, which is its own Resource Manager, too."""
    return endpoint.emulator or is_loopback(endpoint.host)


class RoutedTransport(AioHttpTransport):  # type: ignore[misc]  # azure-core loads it lazily
    """The SDK's transport along a route. One session serves concurrent requests."""

    def __init__(self, route: HttpRoute, session: aiohttp.ClientSession, call_seconds: float = CALL_SECONDS) -> None:
        super().__init__(session=session, connection_timeout=CONNECT_SECONDS)
        self._route = route
        self._call_seconds = call_seconds

    async def send(self, request: HttpRequest, **options: Any) -> Any:
        """Send along the route. The request's URL is restored, since the SDK's policies read it again."""
        original = request.url
        request.url = self._route.apply(original)
        request.headers["Host"] = self._route.authority
        _correct(request)
        try:
            async with asyncio.timeout(self._call_seconds):
                return await super().send(request, server_hostname=self._route.server_hostname, **options)
        finally:
            request.url = original


def _correct(request: HttpRequest) -> None:
    authorization = request.headers.get("Authorization", "")
    if authorization.startswith(_BEARER_OF_SIGNATURE):
        # The SDK sends every ready-made token as a bearer token, a scheme that the service refuses for signatures.
        request.headers["Authorization"] = authorization.removeprefix("Bearer ")
    body = request.data
    if isinstance(body, bytes):
        request.data = body.replace(ROUNDED_TIMESPAN_MAX.encode(), TIMESPAN_MAX.encode())
        request.headers["Content-Length"] = str(len(request.data))


def session_for(endpoint: Endpoint) -> aiohttp.ClientSession:
    """Create an HTTP session that trusts the endpoint's CA file, if any. Call it inside a running loop."""
    connector = aiohttp.TCPConnector(ssl=ssl_context(endpoint.ca_file)) if endpoint.ca_file else aiohttp.TCPConnector()
    return aiohttp.ClientSession(
        connector=connector,
        # A proxy leads out of this network, not to an emulator on this machine.
        trust_env=endpoint.tls,
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
    )


def ssl_context(ca_file: str) -> ssl.SSLContext:
    """Return a context that trusts exactly the certificates of `ca_file`. Raises MachineLacks."""
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise MachineLacks(
            f"cannot read the CA file {ca_file}: {error.strerror or 'it holds no certificate'}",
            hint="name a readable file of certificates in PEM form",
        ) from error
