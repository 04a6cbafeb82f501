"""What the credentials for a namespace let one do there, found out without sending, receiving or changing anything.

Send and Listen are tried by opening a link, to which no message is given and no credit; Manage by reading.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, TypeAlias

from sbpair.amqp_client.client import connect
from sbpair.azure.credentials import token_getter_for
from sbpair.azure.health import HealthResponse, check_health
from sbpair.azure.trial_queues import NamespaceSample, look
from sbpair.doctor.check import (
    AGAIN,
    Check,
    Result,
    Tell,
    bounded,
    failed,
    note,
    of_error,
    skipped,
    unknown,
    well,
    within,
)
from sbpair.errors import (
    AccessError,
    EntityMissing,
    NotAuthenticated,
    NotAuthorized,
    SbpairError,
    TimedOut,
    Unavailable,
)
from sbpair.model.pair import Identity, SasKey
from sbpair.model.report import Outcome

if TYPE_CHECKING:
    from sbpair.model.pair import Endpoint

SKEW_SECONDS = 60.0
"""By how much clocks may differ: a lock lasts no longer, and a machine that keeps time is a thousand times better."""

CLAIMS = ("Send", "Listen", "Manage")
NEEDED = {
    ("primary", "Send"): "syphon cannot bring anything back",
    ("secondary", "Listen"): "syphon cannot take anything out of the backlog",
    ("secondary", "Manage"): "provision and audit cannot work, and syphon cannot find every queue",
}
"""What the lack of a claim means; what is not here is needed for extras at most."""

BACKLOG_CANNOT_BE = (
    "Basic: a message lives 14 days at most there, and in a backlog queue for ever; there are no topics and no sessions"
)
TIERS = {
    "Basic": "Basic: no topics, sessions, duplicate detection or forwarding; messages up to 256 KB",
    "Standard": "Standard: messages up to 256 KB, and 1000 credits a second for all of the namespace",
    "Premium": "Premium: messages up to 1 MB, or to 100 MB where a queue says so; no credits",
}


Answers: TypeAlias = "dict[str, SbpairError | None]"
"""What each claim came to: None where it is granted, else an error that says no, or that says nothing of it."""


async def examine(
    side: str, endpoint: Endpoint, paths: tuple[str, ...], seconds: float, tell: Tell, road: Awaitable[list[Check]]
) -> tuple[list[Check], str]:
    """All that concerns access and management; and the tier, "" where it is not known.

    `paths` are the entities to open links to, in this order; without Manage there is no other. `road` is what comes of
    the way there, which is walked at the same time: what is told of that is not told again of each claim.
    """
    async with asyncio.TaskGroup() as group:
        greeted = group.create_task(_management(side, endpoint, seconds, tell), name=f"check_health {side}")
        looking = group.create_task(_outcome(look(endpoint, seconds=seconds), seconds), name=f"look at {side}")
        named = group.create_task(_links(endpoint, paths, seconds), name=f"links of {side}")
    checks, seen, found = greeted.result(), looking.result(), named.result()
    if isinstance(seen, NamespaceSample) and seen.queue and _nothing_there(found):
        found = await _links(endpoint, (seen.queue,), seconds)
    found["Manage"] = None if isinstance(seen, NamespaceSample) else seen
    passable = {check.name for check in (*checks, *await road) if check.outcome is Outcome.OK}
    checks += [tell(each) for each in (*_verdicts(side, endpoint, found, passable), *_tier(side, seen))]
    return checks, seen.tier if isinstance(seen, NamespaceSample) else ""


# The management side, to a stranger


async def _management(side: str, endpoint: Endpoint, seconds: float, tell: Tell) -> list[Check]:
    greetings: list[HealthResponse] = []

    async def ask() -> str:
        greetings.append(await check_health(endpoint, seconds=seconds))
        return f"answers ({greetings[0].status} to a stranger)"

    http = tell(await bounded(f"{side}.http", seconds, ask()))
    name = f"{side}.clock"
    [clock] = [clock_check(name, endpoint.name, each) for each in greetings] or skipped([name], http.name)
    return [http, tell(clock)]


def clock_check(name: str, namespace: str, greeting: HealthResponse) -> Check:
    """Whether this machine's clock is near enough to the namespace's."""
    ahead = greeting.ahead_seconds
    if ahead is None:
        return unknown(name, f"{namespace} does not say what time it is")
    if abs(ahead) <= SKEW_SECONDS + greeting.margin_seconds:
        return well(name, f"within {max(1.0, abs(ahead) + greeting.margin_seconds):.0f} s of this machine's")
    way = "behind" if ahead > 0 else "ahead of"
    return failed(
        name,
        f"this machine's clock is {abs(ahead):.0f} s {way} that of {namespace}; {SKEW_SECONDS:.0f} s are allowed",
        "let this machine keep time by NTP: signatures are made out by its clock, and end an hour later",
    )


# Claims


async def _links(endpoint: Endpoint, paths: tuple[str, ...], seconds: float) -> Answers:
    async def attempt() -> Answers:
        async with (
            token_getter_for(endpoint.credential, endpoint.name) as get,
            connect(endpoint, get_token=get) as wire,
        ):
            return {"Send": await _open(wire.sender, paths), "Listen": await _open(wire.receiver, paths)}

    came_to = await _outcome(attempt(), seconds)
    return dict.fromkeys(("Send", "Listen"), came_to) if isinstance(came_to, SbpairError) else came_to


async def _open(attach: Callable[[str], Awaitable[object]], paths: tuple[str, ...]) -> SbpairError | None:
    last: SbpairError = EntityMissing("there is no queue to try it on")
    for path in paths:
        try:
            await attach(path)
        except EntityMissing as error:
            last = error
        except SbpairError as error:
            return error
        else:
            return None
    return last


def _nothing_there(found: Answers) -> bool:
    return all(isinstance(each, EntityMissing) for each in found.values())


def _verdicts(side: str, endpoint: Endpoint, found: Answers, passable: set[str]) -> list[Check]:
    stranger = next((each for each in found.values() if isinstance(each, NotAuthenticated)), None)
    name, names = f"{side}.sign_in", [f"{side}.{claim.lower()}" for claim in CLAIMS]
    if stranger is not None:
        return [of_error(name, stranger), *skipped(names, name)]
    known = any(each is None or isinstance(each, AccessError) for each in found.values())
    signed = well(name, f"accepted: {_who(endpoint)}") if known else unknown(name, "nothing could be tried")
    return [signed, *(_verdict(side, claim, found[claim], passable) for claim in CLAIMS)]


def _verdict(side: str, claim: str, error: SbpairError | None, passable: set[str]) -> Check:
    name = f"{side}.{claim.lower()}"
    if error is None:
        return well(name, f"{claim} is granted")
    need = NEEDED.get((side, claim))
    if isinstance(error, NotAuthorized):
        if need:
            return failed(name, f"{claim} is not granted: {need}", f"use a key or a role with {claim}", error.exit_code)
        return note(name, f"{claim} is not granted, and sbpair does without it here")
    if isinstance(error, EntityMissing):
        return unknown(name, f"{claim} could not be tried: there is no queue to open", _mend_missing(side))
    what = f"{claim} could not be tried: {error.message}"
    way = f"{side}.{'http' if claim == 'Manage' else 'amqp'}"
    if isinstance(error, Unavailable) and way in passable:
        return failed(name, what, error.hint, error.exit_code)
    return unknown(name, what, error.hint)


def _mend_missing(side: str) -> str:
    option = "--queue PATH" if side == "secondary" else "--destination PATH"
    first = "sbpair provision makes the backlog queues; or " if side == "secondary" else ""
    return f"{first}name one with {option}"


def _who(endpoint: Endpoint) -> str:
    credential = endpoint.credential
    if isinstance(credential, SasKey):
        return f"the key {credential.name}"
    return "whoever is signed in" if isinstance(credential, Identity) else "a ready-made signature"


def _tier(side: str, seen: NamespaceSample | SbpairError) -> list[Check]:
    name = f"{side}.tier"
    if isinstance(seen, SbpairError):
        return skipped([name], f"{side}.manage")
    told = TIERS.get(seen.tier, seen.tier)
    if seen.tier != "Basic":
        return [well(name, told)]
    if side == "secondary":
        return [failed(name, BACKLOG_CANNOT_BE, "have a Standard or a Premium namespace as the secondary")]
    return [note(name, told, "what arrives twice after an outage stays twice there")]


async def _outcome(action: Coroutine[object, object, Result], seconds: float) -> Result | SbpairError:
    """What `action` comes to, as data."""
    try:
        return await within(seconds, action)
    except TimeoutError:
        return TimedOut(f"no answer within {seconds:g} s", hint=AGAIN)
    except SbpairError as error:
        return error
