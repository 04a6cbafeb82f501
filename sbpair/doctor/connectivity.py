"""Connectivity checks of a namespace: DNS, TCP, the proxy, TLS and AMQP, in this order, without sign-in.

Where AMQP over TCP fails, AMQP over WebSocket is tried: many networks let out nothing but port 443.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import TypeAlias

from sbpair.amqp_client.stream import open_stream
from sbpair.doctor.check import UNREACHABLE, Check, CheckNote, Emit, bounded, failed, note, skipped
from sbpair.errors import ExitCode, UsageError
from sbpair.http_tunnel import client_context, open_connection
from sbpair.model.connect_errors import TRUST_HINT
from sbpair.model.pair import Endpoint, Transport, is_loopback
from sbpair.model.report import Outcome

CLOSE_SECONDS = 1.0
MAX_SECONDS = 600.0
"""The time limit of the check is shorter."""

PROXY_HINT = "if only a proxy leads out of this network, set HTTPS_PROXY, or proxy in the configuration file"

Step: TypeAlias = Callable[[str, "Endpoint"], Coroutine[object, object, str | Check]]


async def check_connectivity(
    side: str, endpoint: Endpoint, seconds: float, emit: Emit, *, web_port: int | None = None
) -> list[Check]:
    """Run one check a step; those after the first without a connection are unknown.

    `web_port` is the port of WebSockets to try where TCP fails, if it is not the standard one.
    """
    silent = f"let AMQP out to {endpoint.amqp_address}: a firewall or a proxy seems to drop it"
    over_websocket = endpoint.transport is Transport.WEBSOCKET
    if over_websocket and not _has_proxy(endpoint):
        silent += f"; {PROXY_HINT}"
    steps: dict[str, Step] = {f"{side}.dns": _dns, f"{side}.tcp": _tcp, f"{side}.tls": _tls, f"{side}.amqp": _amqp}
    if over_websocket and _has_proxy(endpoint):
        steps = {f"{side}.proxy": _tunnel, f"{side}.tls": _tls, f"{side}.amqp": _amqp}
    checks: list[Check] = []
    others: list[Check] = []
    for name, step in steps.items():
        check = await bounded(name, seconds, step(name, endpoint), hint=silent)
        connected = check.exit_code in (ExitCode.DONE, ExitCode.PARTIAL_OR_FINDINGS)
        if not connected:
            others = await _check_websocket(side, endpoint, seconds, web_port)
            if any(each.outcome is Outcome.OK for each in others):
                check = replace(check, detail=CheckNote(_transport_hint(side, others[0])))
        checks.append(emit(check))
        if not connected:
            break
    others += skipped(list(steps)[len(checks) :], checks[-1].name)
    return checks + [emit(each) for each in others]


def _has_proxy(endpoint: Endpoint) -> bool:
    try:
        return endpoint.web_proxy() is not None
    except UsageError:
        # The check that uses it reports it.
        return True


async def _check_websocket(side: str, endpoint: Endpoint, seconds: float, web_port: int | None) -> list[Check]:
    """Try AMQP over WebSocket in place of TCP, on its own port."""
    if endpoint.transport is Transport.WEBSOCKET or (web_port is None and endpoint.shares_port):
        return []
    name = f"{side}.websocket"
    other = replace(endpoint, transport=Transport.WEBSOCKET, port=web_port or endpoint.port)
    check = await bounded(name, seconds, _amqp(name, other))
    if check.outcome is Outcome.OK:
        return [check]
    hint = check.detail.hint if check.detail and _has_proxy(other) else PROXY_HINT
    return [note(name, f"AMQP over WebSocket does not work either: {check.reason}", hint)]


def _transport_hint(side: str, works: Check) -> str:
    setting = f'set SBPAIR_{side.upper()}_TRANSPORT=websocket, or transport = "websocket" in the configuration file'
    return f"{setting}: AMQP over WebSocket {works.reason}"


async def _dns(name: str, endpoint: Endpoint) -> str | Check:
    try:
        found = await asyncio.get_running_loop().getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        hint = "check the namespace's name, and that this machine's DNS knows it (a private link has a zone of its own)"
        return failed(name, f"{endpoint.host} has no address", hint, UNREACHABLE)
    return ", ".join(dict.fromkeys(str(address[0]) for *_, address in found))


async def _tcp(name: str, endpoint: Endpoint) -> str | Check:
    address = endpoint.amqp_address
    try:
        await _close(await open_connection(endpoint.host, endpoint.amqp_port))
    except ConnectionRefusedError:
        hint = "check the port, and that the namespace is up"
        return failed(name, f"connection refused at {address}", hint, UNREACHABLE)
    except OSError as error:
        hint = f"let AMQP out to {address}: a firewall or a route is in the way"
        if endpoint.transport is Transport.WEBSOCKET:
            hint += f"; {PROXY_HINT}"
        return failed(name, f"{address} cannot be reached: {error.strerror or error}", hint, UNREACHABLE)
    return f"{address} accepts connections"


async def _tunnel(_name: str, endpoint: Endpoint) -> str:
    proxy = endpoint.amqp_proxy()
    await _close(await open_connection(endpoint.host, endpoint.amqp_port, proxy))
    return f"{proxy.address if proxy else ''} connects to {endpoint.amqp_address}"


async def _tls(name: str, endpoint: Endpoint) -> str | Check:
    if not endpoint.tls and (endpoint.emulator or is_loopback(endpoint.host)):
        return "off, as for every emulator"
    if not endpoint.tls:
        what = f"TLS is off, and {endpoint.host} is another machine: anyone in between can read and change messages"
        return failed(name, what, "remove tls = false from the configuration file")
    context, address = client_context(endpoint.ca_file), (endpoint.host, endpoint.amqp_port)
    try:
        reader, writer = await open_connection(*address, endpoint.amqp_proxy(), context, endpoint.tls_name)
        secured = writer.get_extra_info("ssl_object")
        certificate = secured.getpeercert() or {}
        found = f"{secured.version()}, certificate until {certificate.get('notAfter', 'an unknown date')}"
        await _close((reader, writer))
    except ssl.SSLCertVerificationError as error:
        hint = f"{TRUST_HINT}, if this is the right address"
        return failed(name, f"its certificate is not trusted: {error.verify_message}", hint, UNREACHABLE)
    except OSError as error:
        what = f"{endpoint.amqp_address} does not speak TLS ({getattr(error, 'reason', None) or type(error).__name__})"
        hint = "check the port; an emulator without TLS wants UseDevelopmentEmulator=true in its connection string"
        return failed(name, what, hint, UNREACHABLE)
    return found


async def _amqp(_name: str, endpoint: Endpoint) -> str:
    stream = await open_stream(endpoint, "sbpair-doctor", seconds=MAX_SECONDS)
    await stream.close(CLOSE_SECONDS)
    if endpoint.transport is Transport.TCP:
        return "opens a connection"
    proxy = endpoint.amqp_proxy()
    through = f" through the proxy {proxy.address}" if proxy else ""
    return f"opens a connection at {endpoint.amqp_address}{through}"


async def _close(connection: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
    writer = connection[1]
    writer.close()
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(CLOSE_SECONDS):
            await writer.wait_closed()
