"""Connectivity checks of a namespace: DNS, TCP, TLS and AMQP, in this order, without sign-in."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import urlsplit

from sbpair.amqp_client.stream import open_stream
from sbpair.azure.management_route import ssl_context
from sbpair.doctor.check import UNREACHABLE, Check, Emit, bounded, failed, skipped
from sbpair.errors import ExitCode
from sbpair.model.pair import is_loopback

if TYPE_CHECKING:
    from sbpair.model.pair import Endpoint

CLOSE_SECONDS = 1.0
MAX_SECONDS = 600.0
"""The time limit of the check is shorter."""

Step: TypeAlias = Callable[[str, "Endpoint"], Coroutine[object, object, str | Check]]


async def check_connectivity(side: str, endpoint: Endpoint, seconds: float, emit: Emit) -> list[Check]:
    """Run one check a step; those after the first without a connection are unknown."""
    silent = f"let AMQP out to {_address(endpoint)}: a firewall or a proxy seems to drop it"
    steps: dict[str, Step] = {f"{side}.dns": _dns, f"{side}.tcp": _tcp, f"{side}.tls": _tls, f"{side}.amqp": _amqp}
    checks: list[Check] = []
    for name, step in steps.items():
        checks.append(emit(await bounded(name, seconds, step(name, endpoint), hint=silent)))
        if checks[-1].exit_code not in (ExitCode.DONE, ExitCode.PARTIAL_OR_FINDINGS):
            break
    return checks + [emit(each) for each in skipped(list(steps)[len(checks) :], checks[-1].name)]


async def _dns(name: str, endpoint: Endpoint) -> str | Check:
    try:
        found = await asyncio.get_running_loop().getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        hint = "check the namespace's name, and that this machine's DNS knows it (a private link has a zone of its own)"
        return failed(name, f"{endpoint.host} has no address", hint, UNREACHABLE)
    return ", ".join(dict.fromkeys(str(address[0]) for *_, address in found))


async def _tcp(name: str, endpoint: Endpoint) -> str | Check:
    address = _address(endpoint)
    try:
        await _close(await asyncio.open_connection(endpoint.host, endpoint.port))
    except ConnectionRefusedError:
        hint = "check the port, and that the namespace is up"
        return failed(name, f"connection refused at {address}", hint, UNREACHABLE)
    except OSError as error:
        hint = f"let AMQP out to {address}: a firewall or a route is in the way"
        return failed(name, f"{address} cannot be reached: {error.strerror or error}", hint, UNREACHABLE)
    return f"{address} accepts connections"


async def _tls(name: str, endpoint: Endpoint) -> str | Check:
    if not endpoint.tls and (endpoint.emulator or is_loopback(endpoint.host)):
        return "off, as for every emulator"
    if not endpoint.tls:
        what = f"TLS is off, and {endpoint.host} is another machine: anyone in between can read and change messages"
        return failed(name, what, "remove tls = false from the configuration file")
    context = ssl_context(endpoint.ca_file)
    host = urlsplit(f"//{endpoint.authority}").hostname or endpoint.host
    try:
        reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port, ssl=context, server_hostname=host)
        secured = writer.get_extra_info("ssl_object")
        certificate = secured.getpeercert() or {}
        found = f"{secured.version()}, certificate until {certificate.get('notAfter', 'an unknown date')}"
        await _close((reader, writer))
    except ssl.SSLCertVerificationError as error:
        hint = "set ca_file to the certificates to trust, if this is the right address"
        return failed(name, f"its certificate is not trusted: {error.verify_message}", hint, UNREACHABLE)
    except OSError as error:
        what = f"{_address(endpoint)} does not speak TLS ({getattr(error, 'reason', None) or type(error).__name__})"
        hint = "check the port; an emulator without TLS wants UseDevelopmentEmulator=true in its connection string"
        return failed(name, what, hint, UNREACHABLE)
    return found


async def _amqp(_name: str, endpoint: Endpoint) -> str:
    stream = await open_stream(endpoint, "sbpair-doctor", seconds=MAX_SECONDS)
    await stream.close(CLOSE_SECONDS)
    return "opens a connection"


def _address(endpoint: Endpoint) -> str:
    return f"{endpoint.host}:{endpoint.port}"


async def _close(connection: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
    writer = connection[1]
    writer.close()
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(CLOSE_SECONDS):
            await writer.wait_closed()
