"""The road to a namespace, step by step: its name, its port, TLS, and AMQP. Each failed step has a hint of its own.

Nothing is signed in to here.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Coroutine
from contextlib import suppress
from ipaddress import ip_address
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import urlsplit

from sbpair.amqp_client.stream import open_stream
from sbpair.doctor.check import UNREACHABLE, Check, Tell, bounded, failed, skipped
from sbpair.errors import ExitCode, MachineLacks

if TYPE_CHECKING:
    from sbpair.model.pair import Endpoint

CLOSE_SECONDS = 1.0

Step: TypeAlias = Callable[[str, "Endpoint"], Coroutine[object, object, str | Check]]


async def walk(side: str, endpoint: Endpoint, seconds: float, tell: Tell) -> list[Check]:
    """One check a step; those behind the first that leads nowhere cannot be told."""
    silent = f"let AMQP out to {_where(endpoint)}: a firewall or a proxy seems to keep it for itself"
    steps: dict[str, Step] = {f"{side}.dns": _dns, f"{side}.tcp": _tcp, f"{side}.tls": _tls, f"{side}.amqp": _amqp}
    checks: list[Check] = []
    for name, step in steps.items():
        checks.append(tell(await bounded(name, seconds, step(name, endpoint), hint=silent)))
        if checks[-1].exit_code not in (ExitCode.DONE, ExitCode.PARTIAL_OR_FINDINGS):
            break
    return checks + [tell(each) for each in skipped(list(steps)[len(checks) :], checks[-1].name)]


async def _dns(name: str, endpoint: Endpoint) -> str | Check:
    try:
        found = await asyncio.get_running_loop().getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        hint = "check the namespace's name, and that this machine's DNS knows it (a private link has a zone of its own)"
        return failed(name, f"{endpoint.host} has no address", hint, UNREACHABLE)
    return ", ".join(dict.fromkeys(str(address[0]) for *_, address in found))


async def _tcp(name: str, endpoint: Endpoint) -> str | Check:
    where = _where(endpoint)
    try:
        await _hang_up(await asyncio.open_connection(endpoint.host, endpoint.port))
    except ConnectionRefusedError:
        return failed(name, f"nobody listens at {where}", "check the port, and that the namespace is up", UNREACHABLE)
    except OSError as error:
        hint = f"let AMQP out to {where}: a firewall or a route is in the way"
        return failed(name, f"{where} cannot be reached: {error.strerror or error}", hint, UNREACHABLE)
    return f"{where} accepts connections"


async def _tls(name: str, endpoint: Endpoint) -> str | Check:
    if not endpoint.tls:
        return _without_tls(name, endpoint)
    try:
        context = ssl.create_default_context(cafile=endpoint.ca_file)
    except OSError as error:
        raise MachineLacks(
            f"the CA file {endpoint.ca_file} cannot be used: {error.strerror or 'it holds no certificate'}",
            hint="give a readable file of certificates in PEM form",
        ) from error
    try:
        return await _shake_hands(endpoint, context)
    except ssl.SSLCertVerificationError as error:
        hint = "give the certificates to trust as ca_file, if this is the right address"
        return failed(name, f"its certificate is not trusted: {error.verify_message}", hint, UNREACHABLE)
    except OSError as error:
        what = f"{_where(endpoint)} does not speak TLS ({getattr(error, 'reason', None) or type(error).__name__})"
        hint = "check the port; an emulator without TLS wants UseDevelopmentEmulator=true in its connection string"
        return failed(name, what, hint, UNREACHABLE)


async def _shake_hands(endpoint: Endpoint, context: ssl.SSLContext) -> str:
    host = urlsplit(f"//{endpoint.authority}").hostname or endpoint.host
    reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port, ssl=context, server_hostname=host)
    secured = writer.get_extra_info("ssl_object")
    certificate = secured.getpeercert() or {}
    said = f"{secured.version()}, certificate until {certificate.get('notAfter', 'nobody knows when')}"
    await _hang_up((reader, writer))
    return said


def _without_tls(name: str, endpoint: Endpoint) -> str | Check:
    if endpoint.emulator or _is_loopback(endpoint.host):
        return "none, as emulators are spoken to"
    return failed(
        name,
        f"TLS is off, and {endpoint.host} is another machine: whoever is in between reads and changes everything",
        "take tls = false out of the configuration file",
    )


async def _amqp(_name: str, endpoint: Endpoint) -> str:
    stream = await open_stream(endpoint, "sbpair-doctor")
    await stream.close(CLOSE_SECONDS)
    return "opens a connection"


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _where(endpoint: Endpoint) -> str:
    return f"{endpoint.host}:{endpoint.port}"


async def _hang_up(connection: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
    writer = connection[1]
    writer.close()
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(CLOSE_SECONDS):
            await writer.wait_closed()
