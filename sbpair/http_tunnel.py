"""TCP connections of clients: their TLS contexts, direct connections, and tunnels through an HTTP proxy (CONNECT).

The errors of a proxy are complete: they name the proxy and its setting, and never its credentials.
"""

from __future__ import annotations

import asyncio
import re
import ssl
import time
from contextlib import suppress
from functools import lru_cache
from http import HTTPStatus
from pathlib import Path
from typing import TypeAlias

from sbpair.errors import MachineLacks, NetworkRefused, SbpairError, Silent, Unreachable, UsageError
from sbpair.model.connect_errors import DOCTOR_HINT, TUNNEL_SECONDS, cause_of
from sbpair.model.pair import Endpoint, authority_of
from sbpair.model.proxy import ESCAPES, Proxy
from sbpair.operating_system.shortages import shortage_of, shortages_raised

MAX_HEAD_BYTES = 64 * 1024
ASK_SECONDS = 3.0
_HINT = "ca_file, SBPAIR_PRIMARY_CA_FILE or SBPAIR_SECONDARY_CA_FILE names a PEM file with the certificates to trust"

Streams: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def client_context(ca_file: str | None) -> ssl.SSLContext:
    """Return a context that trusts exactly the certificates of `ca_file`, or the system's.

    Raises UsageError if it is not a file of certificates, and MachineLacks if it cannot be read.
    """
    try:
        return _context(ca_file, Path(ca_file).stat().st_mtime_ns if ca_file else 0)
    except PermissionError as error:
        raise MachineLacks(f"the CA file {ca_file} cannot be read: {error.strerror}", hint=_HINT) from error
    except (OSError, ValueError) as error:
        if (lack := shortage_of(error, f"the CA file {ca_file}")) is not None:
            raise lack from error
        problem = "it holds no certificate" if isinstance(error, ssl.SSLError) else getattr(error, "strerror", error)
        raise UsageError(f"the CA file {ca_file} cannot be used: {problem}", hint=_HINT) from error


@lru_cache(maxsize=8)
def _context(ca_file: str | None, _changed_ns: int) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=ca_file)


async def open_connection(
    host: str,
    port: int,
    proxy: Proxy | None = None,
    context: ssl.SSLContext | None = None,
    server_hostname: str | None = None,
) -> Streams:
    """Connect. Raises OSError, Exhausted; for the proxy Unreachable, NetworkRefused."""
    if proxy is None:
        with shortages_raised(authority_of(host, port)):
            return await asyncio.open_connection(host, port, ssl=context, server_hostname=server_hostname)
    reader, writer = await _open_tunnel(proxy, authority_of(host, port))
    if context is not None:
        try:
            await writer.start_tls(context, server_hostname=server_hostname)
        except BaseException:
            writer.transport.abort()
            raise
    return reader, writer


async def ask_time(endpoint: Endpoint) -> None:
    """Let the clock of a namespace see the date of an HTTP answer, for clients of AMQP, which has none.

    The request needs no token. No-op if the time is known, or does not come within ASK_SECONDS.
    """
    if endpoint.clock.known() is not None:
        return
    with suppress(OSError, TimeoutError, EOFError, asyncio.LimitOverrunError, SbpairError):
        async with asyncio.timeout(ASK_SECONDS):
            context = client_context(endpoint.ca_file) if endpoint.tls else None
            name = endpoint.tls_name if endpoint.tls else None
            reader, writer = await open_connection(
                endpoint.host, endpoint.web_port, endpoint.web_proxy(), context, name
            )
            asked = time.monotonic()
            try:
                request = f"GET {_TIME_PATH} HTTP/1.1\r\nHost: {endpoint.authority}\r\nConnection: close\r\n\r\n"
                writer.write(request.encode())
                head = await reader.readuntil(b"\r\n\r\n")
            finally:
                writer.transport.abort()
        date = _DATE.search(head)
        endpoint.clock.observe_date(date and date[1].decode("latin-1"), time.monotonic() - asked)


def refused_by_proxy(what: str, status: int, proxy: Proxy | None = None) -> SbpairError:
    """Return the error for the status with which a proxy, unknown where None, answers instead of connecting."""
    known = HTTPStatus(status).phrase if status in set(HTTPStatus) else ""
    what, setting = f"{what}: {status} {known}".rstrip(), _setting(proxy)
    if status == HTTPStatus.PROXY_AUTHENTICATION_REQUIRED:
        if proxy is not None and proxy.user is None:
            return NetworkRefused(what, hint=f"give user and password in {setting}: http://USER:PASSWORD@HOST:PORT")
        return NetworkRefused(what, hint=f"check user and password in {setting}; {ESCAPES}")
    if status == HTTPStatus.FORBIDDEN:
        return NetworkRefused(what, hint=f"ask its owners for access, or change {setting}{DOCTOR_HINT}")
    if status in _NO_TUNNELS:
        return Unreachable(what, hint=f"check that {setting} has an HTTP proxy with the method CONNECT{DOCTOR_HINT}")
    return Unreachable(what, hint=f"retry in a minute; then check the namespace's address, and {setting}{DOCTOR_HINT}")


async def _open_tunnel(proxy: Proxy, target: str) -> Streams:
    try:
        async with asyncio.timeout(TUNNEL_SECONDS):
            context = client_context(None) if proxy.scheme == "https" else None
            with shortages_raised(f"the proxy {proxy.address}"):
                reader, writer = await asyncio.open_connection(proxy.host, proxy.port, ssl=context)
            status = 0
            try:
                status = await _request_tunnel(reader, writer, proxy, target)
            finally:
                if status not in _SUCCESS:
                    writer.transport.abort()
    except TimeoutError:
        what = f"the proxy {proxy.address} opened no connection to {target} within {TUNNEL_SECONDS:g} s"
        raise Silent(what, hint=f"{_check(proxy)}, and that it lets {target} through{DOCTOR_HINT}") from None
    except (OSError, UnicodeError) as error:
        what = f"the proxy {proxy.address} cannot be reached: {cause_of(error)}"
        raise Unreachable(what, hint=f"{_check(proxy)}{DOCTOR_HINT}") from error
    if status not in _SUCCESS:
        raise refused_by_proxy(f"the proxy {proxy.address} refuses connections to {target}", status, proxy)
    return reader, writer


async def _request_tunnel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, proxy: Proxy, target: str) -> int:
    """Request a tunnel, and return the status of the response. Raises OSError; Unreachable if it is not HTTP."""
    # Most users have no proxy.
    import h11

    http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)
    headers = {"Host": target, "User-Agent": "sbpair"}
    if proxy.authorization is not None:
        headers["Proxy-Authorization"] = proxy.authorization
    request = h11.Request(method="CONNECT", target=target, headers=list(headers.items()))
    writer.write((http.send(request) or b"") + (http.send(h11.EndOfMessage()) or b""))
    answered = False
    try:
        while not isinstance(event := http.next_event(), h11.Response):
            if event is h11.NEED_DATA:
                data = await reader.read(MAX_HEAD_BYTES)
                answered = answered or bool(data)
                if not answered:
                    raise ConnectionResetError("it closed the connection without an answer")
                http.receive_data(data)
    except h11.RemoteProtocolError:
        what = f"the server at {proxy.address} is not an HTTP proxy"
        raise Unreachable(what, hint=_check(proxy)) from None
    return event.status_code


def _check(proxy: Proxy) -> str:
    return f"check that {_setting(proxy)} has the address of an HTTP proxy"


def _setting(proxy: Proxy | None) -> str:
    return proxy.source if proxy and proxy.source else "HTTPS_PROXY, or in the proxy of that side"


_SUCCESS = range(200, 300)
_TIME_PATH = "/$namespaceinfo?api-version=2021-05"
_DATE = re.compile(rb"\r\ndate:[ \t]*([^\r\n]+)", re.IGNORECASE)
_NO_TUNNELS = (400, 404, 405, 501)
