"""Checks of the credentials for a namespace, without sending, receiving or changing anything.

Send and Listen are tried by opening a link without messages or credit; Manage by reading.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import TypeAlias

from sbpair import errors
from sbpair.amqp_client.client import connect
from sbpair.azure.atom import NamespaceProbe, open_atom
from sbpair.azure.credentials import signed_in
from sbpair.azure.http_client import HealthResponse, check_health
from sbpair.doctor.check import (
    AGAIN,
    Check,
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
from sbpair.model.connect_errors import DOCTOR_HINT
from sbpair.model.pair import Endpoint, Identity, SasKey
from sbpair.model.report import Outcome

SKEW_SECONDS = 60.0
"""The allowed difference of clocks: a lock lasts no longer, and NTP is a thousand times better."""

CLAIMS = ("Send", "Listen", "Manage")
NEEDED = {
    ("primary", "Send"): "syphon cannot bring anything back",
    ("secondary", "Listen"): "syphon cannot take anything out of the backlog",
    ("secondary", "Manage"): "provision and audit cannot work, and syphon cannot find every queue",
}
"""The effect of a missing claim; the others are needed for extras at most."""

BACKLOG_CANNOT_BE = "Basic: messages live at most 14 days, and in a backlog queue for ever; no topics and no sessions"
TIERS = {
    "Basic": "Basic: no topics, sessions, duplicate detection or forwarding; messages up to 256 KB",
    "Standard": "Standard: messages up to 256 KB, and 1000 credits a second for all of the namespace",
    "Premium": "Premium: messages up to 1 MB, or to 100 MB where a queue says so; no credits",
}


ClaimResults: TypeAlias = "dict[str, errors.SbpairError | None]"
"""The result of each claim: None where granted, else the error, which may be unrelated to the claim."""


async def check_access(
    side: str,
    endpoint: Endpoint,
    paths: tuple[str, ...],
    seconds: float,
    emit: Emit,
    connection: Awaitable[list[Check]],
    *,
    named: bool = False,
) -> tuple[list[Check], str]:
    """Run every check of access and management. Returns them and the tier, "" where unknown.

    `paths` are the entities to open links to, in this order; without Manage no other is known. No other is tried
    either if the user `named` them. `connection` yields the concurrent connectivity checks: their failures are not
    repeated for each claim.
    """
    async with asyncio.TaskGroup() as group:
        health = group.create_task(_management(side, endpoint, seconds, emit), name=f"health of {side}")
        probe = group.create_task(_result(_probe(endpoint, seconds), seconds), name=f"probe of {side}")
        links = group.create_task(_links(endpoint, paths, seconds), name=f"links of {side}")
    checks, probed, found = health.result(), probe.result(), links.result()
    none_exists = all(isinstance(each, errors.EntityMissing) for each in found.values())
    if isinstance(probed, NamespaceProbe) and probed.queue and none_exists and not named:
        found = await _links(endpoint, (probed.queue,), seconds)
    found["Manage"] = None if isinstance(probed, NamespaceProbe) else probed
    passed = {check.name for check in (*checks, *await connection) if check.outcome is Outcome.OK}
    checks += [emit(each) for each in (*_verdicts(side, endpoint, found, passed), *_tier(side, probed))]
    return checks, probed.tier if isinstance(probed, NamespaceProbe) else ""


async def _probe(endpoint: Endpoint, seconds: float) -> NamespaceProbe:
    async with open_atom(endpoint, call_seconds=seconds) as namespace:
        return await namespace.probe()


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
    refused = next((each for each in found.values() if isinstance(each, errors.NotAuthenticated)), None)
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
        return note(name, f"{claim} is not granted, and not needed here")
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
    credential = endpoint.credential
    if isinstance(credential, SasKey):
        return f"the key {credential.name}"
    return "the identity that is signed in" if isinstance(credential, Identity) else "a ready-made signature"


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
