"""The transport of the management SDKs along a route, and corrections of their requests.

The SDKs speak only https, to the host that their tokens name.
Invariant: at most MAX_ANSWER_BYTES of an answer are read, decompressed ones included.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import aiohttp
from azure.core.exceptions import ServiceRequestTimeoutError
from azure.core.pipeline.transport import AioHttpTransport

from sbpair.azure.http_client import CALL_SECONDS, AnswerLimit, HttpRoute, redact_proxy_credentials
from sbpair.azure.management_errors import NotHttp
from sbpair.http_tunnel import client_context
from sbpair.model.connect_errors import CONNECT_SECONDS, FirstAnswerTimeout
from sbpair.timespan import TIMESPAN_MAX

if TYPE_CHECKING:
    import ssl

    from azure.core.rest import HttpRequest

    from sbpair.model.pair import Endpoint
    from sbpair.model.proxy import Proxy

MAX_ANSWER_BYTES = 1536 * 1024
"""A page of a hundred descriptions has a third of a megabyte. Parsed, JSON takes up to 60 times its size."""

# The SDK parses durations into a timedelta, whose six decimals round the maximum up, beyond itself.
ROUNDED_TIMESPAN_MAX = "P10675199DT2H48M5.477581S"
_BEARER_OF_SIGNATURE = "Bearer SharedAccessSignature "


class BoundedResponse(aiohttp.ClientResponse):
    """An answer that is read whole, within the limit."""

    async def read(self) -> bytes:
        """Return the body. Raises NotHttp if it is too large, and aiohttp's errors."""
        body = bytearray()
        async for part in self.content.iter_any():
            body += part
            if len(body) > MAX_ANSWER_BYTES:
                self.close()
                raise NotHttp(f"the response is larger than {MAX_ANSWER_BYTES} bytes")
        return bytes(body)


class RoutedTransport(AioHttpTransport):  # type: ignore[misc]  # azure-core loads it lazily
    """The SDK's transport along a route. One session serves concurrent requests."""

    def __init__(
        self,
        route: HttpRoute,
        session: aiohttp.ClientSession,
        call_seconds: float = CALL_SECONDS,
        *,
        proxy: Proxy | None = None,
    ) -> None:
        super().__init__(session=session, connection_timeout=CONNECT_SECONDS)
        self._proxy = _proxy_options(proxy)
        self._route = route
        self._limit = AnswerLimit(route.netloc, call_seconds)

    async def send(self, request: HttpRequest, **options: Any) -> Any:
        """Send along the route. The request's URL is restored, since the SDK's policies read it again."""
        original = request.url
        request.url = self._route.apply(original)
        request.headers["Host"] = self._route.authority
        _correct(request, first_rule=options.pop("first_rule", b""))
        try:
            async with self._limit.one_request():
                return await super().send(
                    request, server_hostname=self._route.server_hostname, **self._proxy, **options
                )
        except ServiceRequestTimeoutError as error:
            raise FirstAnswerTimeout(self._route.netloc, CONNECT_SECONDS) from error
        finally:
            request.url = original


def _proxy_options(proxy: Proxy | None) -> dict[str, Any]:
    """Return aiohttp's options of a request for a configured proxy; the session finds the environment's."""
    if proxy is None:
        return {}
    if proxy.authorization is None:
        return {"proxy": proxy.url}
    return {"proxy": proxy.url, "proxy_headers": {"Proxy-Authorization": proxy.authorization}}


def _correct(request: HttpRequest, *, first_rule: bytes) -> None:
    authorization = request.headers.get("Authorization", "")
    if authorization.startswith(_BEARER_OF_SIGNATURE):
        # The SDK sends every ready-made token as a bearer token, a scheme that the service refuses for signatures.
        request.headers["Authorization"] = authorization.removeprefix("Bearer ")
    body = request.data
    if isinstance(body, bytes):
        request.data = body.replace(ROUNDED_TIMESPAN_MAX.encode(), TIMESPAN_MAX.encode())
        if first_rule:
            # The SDK sets no rule of a new subscription. The service reads the elements in this order.
            request.data = request.data.replace(b"<MaxDeliveryCount>", first_rule + b"<MaxDeliveryCount>", 1)
        request.headers["Content-Length"] = str(len(request.data))


def session_for(endpoint: Endpoint) -> aiohttp.ClientSession:
    """Create an HTTP session that trusts the endpoint's CA file, if any. Call it inside a running loop."""
    # A proxy may have credentials.
    redact_proxy_credentials()
    # A proxy leads out of this network, not to an emulator on this machine.
    return bounded_session(client_context(endpoint.ca_file) if endpoint.ca_file else True, trust_env=endpoint.tls)


def bounded_session(trusted: ssl.SSLContext | bool = True, *, trust_env: bool = True) -> aiohttp.ClientSession:
    """Create an HTTP session whose answers are bounded, as Azure's own sessions are otherwise."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=trusted),
        trust_env=trust_env,
        cookie_jar=aiohttp.DummyCookieJar(),
        response_class=BoundedResponse,
    )
