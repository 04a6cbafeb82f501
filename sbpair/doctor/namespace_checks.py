"""Checks of one namespace: the way to it, its clock, and its credentials. Nothing is sent, received or changed.

The way is DNS, TCP, the proxy, TLS and AMQP, in this order, without sign-in. Where AMQP over TCP fails, AMQP over
WebSocket is tried: many networks let out nothing but port 443. Send and Listen are tried by opening a link without
messages or credit; Manage by reading.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import TypeAlias

from sbpair import errors
from sbpair.amqp_client.client import connect
from sbpair.amqp_client.stream import open_stream
from sbpair.azure.atom import NamespaceProbe, open_atom
from sbpair.azure.credentials import signed_in
from sbpair.azure.http_client import HealthResponse, check_health
from sbpair.doctor.check import (
    AGAIN,
    UNREACHABLE,
    Check,
    CheckNote,
    Emit,
    Result,
    bounded,
    failed,
    note,
    of_error,
    ok,
    skipped,
    unknown,
    within,
)
from sbpair.errors import ExitCode
from sbpair.http_tunnel import client_context, open_connection
from sbpair.model.connect_errors import DOCTOR_HINT, TRUST_HINT, is_accepted
from sbpair.model.pair import Endpoint, Identity, SasKey, Transport, is_loopback
from sbpair.model.report import Outcome
from sbpair.operating_system.shortages import shortages_raised

CLOSE_SECONDS = 1.0
MAX_SECONDS = 600.0
"""The time limit of the check is shorter."""

PROXY_HINT = "if only a proxy leads out of this network, set HTTPS_PROXY, or proxy in the configuration file"

SKEW_SECONDS = 60.0
"""The allowed difference of clocks: a lock lasts no longer, and NTP is a thousand times better."""

CLAIMS = ("Send", "Listen", "Manage")
NEEDED = {
    ("primary", "Send"): "syphon cannot bring anything back",
    ("secondary", "Listen"): "syphon cannot take anything out of the backlog",
}
"""The effect of a missing claim; the others are needed for extras at most."""

EXTRAS = {
    ("secondary", "Manage"): ": provision needs it, audit and status leave out counts, and syphon finds only queues"
    " below the count"
}
"""The use of a claim that the movement of messages does not need."""

BACKLOG_CANNOT_BE = "Basic: messages live at most 14 days, and in a backlog queue for ever; no topics and no sessions"
TIERS = {
    "Basic": "Basic: no topics, sessions, duplicate detection or forwarding; messages up to 256 KB",
    "Standard": "Standard: messages up to 256 KB, and 1000 credits a second for all of the namespace",
    "Premium": "Premium: messages up to 1 MB, or to 100 MB where a queue says so; no credits",
}


ClaimResults: TypeAlias = "dict[str, errors.SbpairError | None]"
"""The result of each claim: None where granted, else the error, which may be unrelated to the claim."""


async def check_namespace(
    side: str, endpoint: Endpoint, paths: tuple[str, ...], seconds: float, emit: Emit, *, named: bool = False
) -> tuple[list[Check], str]:
    """Run every check of a namespace. Returns them and the tier, "" where unknown.

    `paths` are the entities to open links to, in this order; without Manage no other is known. No other is tried
    either if the user `named` them. Failures of the connection are not repeated for each claim.
    """
    async with asyncio.TaskGroup() as group:
        connection = group.create_task(check_connectivity(side, endpoint, seconds, emit), name=f"way to {side}")
        health = group.create_task(_management(side, endpoint, seconds, emit), name=f"health of {side}")
        probe = group.create_task(_result(_probe(endpoint, seconds), seconds), name=f"probe of {side}")
        links = group.create_task(_links(endpoint, paths, seconds), name=f"links of {side}")
    checks, probed, found = [*connection.result(), *health.result()], probe.result(), links.result()
    none_exists = all(isinstance(each, errors.EntityMissing) for each in found.values())
    if isinstance(probed, NamespaceProbe) and probed.queue and none_exists and not named:
        found = await _links(endpoint, (probed.queue,), seconds)
    if paths and isinstance(probed, errors.NotAuthenticated) and any(map(is_accepted, found.values())):
        probed = errors.NotAuthorized(probed.message)  # management refuses the key of an entity as a wrong one
    found["Manage"] = None if isinstance(probed, NamespaceProbe) else probed
    passed = {check.name for check in checks if check.outcome is Outcome.OK}
    checks += [emit(each) for each in (*_verdicts(side, endpoint, found, passed), *_tier(side, probed))]
    return checks, probed.tier if isinstance(probed, NamespaceProbe) else ""


# The way to it

Step: TypeAlias = Callable[[str, Endpoint], Coroutine[object, object, str | Check]]


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
    except errors.UsageError:
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


async def addresses_of(endpoint: Endpoint) -> list[str]:
    """Return the addresses that this machine finds for a namespace. Raises OSError and UnicodeError."""
    with shortages_raised():
        found = await asyncio.get_running_loop().getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


async def _dns(name: str, endpoint: Endpoint) -> str | Check:
    try:
        return ", ".join(await addresses_of(endpoint))
    except (OSError, UnicodeError):
        hint = "check the namespace's name, and that this machine's DNS knows it (a private link has a zone of its own)"
        return failed(name, f"{endpoint.host} has no address", hint, UNREACHABLE)


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


# The management side, without a token


async def _management(side: str, endpoint: Endpoint, seconds: float, emit: Emit) -> list[Check]:
    responses: list[HealthResponse] = []

    async def ask() -> str:
        responses.append(await check_health(endpoint, seconds=seconds))
        return f"answers ({responses[0].status} without a token)"

    http = emit(await bounded(f"{side}.http", seconds, ask()))
    name = f"{side}.clock"
    [clock] = [clock_check(name, endpoint.name, each) for each in responses] or skipped([name], http.name)
    return [http, emit(clock)]


def clock_check(name: str, namespace: str, response: HealthResponse) -> Check:
    """Compare this machine's clock with the namespace's."""
    ahead = response.ahead_seconds
    if ahead is None:
        return unknown(name, f"{namespace} does not report its time")
    if abs(ahead) <= SKEW_SECONDS + response.margin_seconds:
        return ok(name, f"within {max(1.0, abs(ahead) + response.margin_seconds):.0f} s of this machine's")
    way = "behind" if ahead > 0 else "ahead of"
    return failed(
        name,
        f"this machine's clock is {abs(ahead):.0f} s {way} that of {namespace}; {SKEW_SECONDS:.0f} s are allowed",
        "synchronise this machine's clock by NTP: signatures expire an hour after its time",
    )


# Claims


async def _probe(endpoint: Endpoint, seconds: float) -> NamespaceProbe:
    async with open_atom(endpoint, call_seconds=seconds) as namespace:
        return await namespace.probe()


async def _links(endpoint: Endpoint, paths: tuple[str, ...], seconds: float) -> ClaimResults:
    async def attempt() -> ClaimResults:
        async with signed_in(connect, endpoint) as wire:
            return {"Send": await _open(wire.sender, paths), "Listen": await _open(wire.receiver, paths)}

    found = await _result(attempt(), seconds)
    return dict.fromkeys(("Send", "Listen"), found) if isinstance(found, errors.SbpairError) else found


async def _open(attach: Callable[[str], Awaitable[object]], paths: tuple[str, ...]) -> errors.SbpairError | None:
    last: errors.SbpairError = errors.EntityMissing("no queue to try it on")
    for path in paths:
        try:
            await attach(path)
        except errors.EntityMissing as error:
            last = error
        except errors.SbpairError as error:
            return error
        else:
            return None
    return last


def _verdicts(side: str, endpoint: Endpoint, found: ClaimResults, passed: set[str]) -> list[Check]:
    kinds = (errors.NotAuthenticated, errors.KeysDisabled)
    refused = next((each for each in found.values() if isinstance(each, kinds)), None)
    name, names = f"{side}.sign_in", [f"{side}.{claim.lower()}" for claim in CLAIMS]
    if refused is not None:
        return [of_error(name, refused), *skipped(names, name)]
    answers = (errors.NotAuthenticated, errors.NotAuthorized)
    known = any(each is None or isinstance(each, answers) for each in found.values())
    accepted = f"accepted: {_credential_name(endpoint)}"
    signed_in = ok(name, accepted) if known else unknown(name, "no claim could be tried")
    return [signed_in, *(_verdict(side, claim, found[claim], passed) for claim in CLAIMS)]


def _verdict(side: str, claim: str, error: errors.SbpairError | None, passed: set[str]) -> Check:
    name = f"{side}.{claim.lower()}"
    if error is None:
        return ok(name, f"{claim} is granted")
    need = NEEDED.get((side, claim))
    if isinstance(error, errors.NotAuthorized):
        if need:
            return failed(name, f"{claim} is not granted: {need}", f"use a key or a role with {claim}", error.exit_code)
        return note(name, f"{claim} is not granted{EXTRAS.get((side, claim), ', and not needed here')}")
    if isinstance(error, errors.EntityMissing):
        hint = "create the backlog queues with sbpair provision, or name one with --queue PATH"
        hint = hint if side == "secondary" else "name one with --destination PATH"
        return unknown(name, f"{claim} could not be tried: no queue to open", hint)
    what, hint = f"{claim} could not be tried: {error.message}", error.hint.removesuffix(DOCTOR_HINT)
    way = f"{side}.{'http' if claim == 'Manage' else 'amqp'}"
    if isinstance(error, errors.Unavailable) and way in passed:
        return failed(name, what, hint, error.exit_code)
    return unknown(name, what, hint)


def _credential_name(endpoint: Endpoint) -> str:
    credential = endpoint.present
    if isinstance(credential, SasKey):
        return f"the key {credential.name}"
    own = "the identity that is signed in" if credential == Identity() else str(credential)
    return own if isinstance(credential, Identity) else "a ready-made signature"


def _tier(side: str, probed: NamespaceProbe | errors.SbpairError) -> list[Check]:
    name = f"{side}.tier"
    if isinstance(probed, errors.SbpairError):
        return skipped([name], f"{side}.manage")
    described = TIERS.get(probed.tier, probed.tier)
    if probed.tier != "Basic":
        return [ok(name, described)]
    if side == "secondary":
        return [failed(name, BACKLOG_CANNOT_BE, "use a Standard or a Premium namespace as the secondary")]
    return [note(name, described, "duplicates sent during an outage are not detected there")]


async def _result(action: Coroutine[object, object, Result], seconds: float) -> Result | errors.SbpairError:
    """Return the result or error of `action`."""
    try:
        return await within(seconds, action)
    except TimeoutError:
        return errors.TimedOut(f"no answer within {seconds:g} s", hint=AGAIN)
    except errors.SbpairError as error:
        return error
