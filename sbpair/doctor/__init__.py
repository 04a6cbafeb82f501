"""Diagnosis of this machine and both namespaces, with a hint for each failed check.

Read-only: nothing is sent, received or changed. Checks run concurrently, each with a time limit. A check that depends
on a failed one is unknown. `live_checks` checks more, and creates queues for it.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from sbpair import backlog
from sbpair.amqp.conditions import DISABLED_HINT
from sbpair.azure.atom import open_atom
from sbpair.azure.credentials import SERVICE_BUS_SCOPE, open_tokens
from sbpair.doctor import machine_checks
from sbpair.doctor.check import Check, CheckNote, Diagnosis, Emit, bounded, diagnosis_exit_code, failed, note, ok
from sbpair.doctor.namespace_checks import check_namespace
from sbpair.errors import NameInvalid, SbpairError
from sbpair.management.audit_findings import ACTIVE
from sbpair.management.exchanged_sides import find_exchanged
from sbpair.model.pair import PROVIDER_REMEDIES, SIDES, Endpoint, Ends, ResourceGroup, shared_provider
from sbpair.model.report import Report
from sbpair.replay.spark import is_installed
from sbpair.runs.active_mover import read_mover
from sbpair.runs.database import StateOwner
from sbpair.runs.waiting import local_directory, read_waiting

__all__ = ["Check", "CheckNote", "CheckSubject", "Diagnosis", "diagnose", "diagnosis_exit_code"]

CHECK_SECONDS = 15.0
"""The time limit of one check."""


@dataclass(frozen=True, slots=True)
class CheckSubject:
    """The subject of a diagnosis. A side without an endpoint is not checked: its error is known.

    `paths` are entities to try claims on, by side. `group` is where Resource Manager finds the namespaces; None not to
    ask it. `lease` is the queue of movers' leases, if there is one.
    """

    endpoints: Mapping[str, Endpoint]
    config_file: Path
    state_directory: Path | None = None
    paths: Mapping[str, str] = field(default_factory=dict)
    group: ResourceGroup | None = None
    lease: str | None = None


async def diagnose(
    subject: CheckSubject,
    *,
    seconds: float = CHECK_SECONDS,
    environ: Mapping[str, str] = os.environ,
    on_event: Callable[[Check], object] = lambda _event: None,
) -> Diagnosis:
    """Check this machine and both namespaces. Their errors are failed checks, never raised."""

    def emit(check: Check) -> Check:
        on_event(check)
        return check

    async with asyncio.TaskGroup() as group:
        here = group.create_task(_machine(subject, seconds, environ, emit), name="this machine")
        namespaces = {
            side: group.create_task(
                check_namespace(side, endpoint, _paths(side, subject), seconds, emit, named=side in subject.paths),
                name=f"checks of {side}",
            )
            for side, endpoint in subject.endpoints.items()
        }
    found = {side: task.result() for side, task in namespaces.items()}
    checks = [*here.result(), *(check for checks, _ in found.values() for check in checks)]
    tiers = {side: tier for side, (_, tier) in found.items()}
    checks += [emit(each) for each in (*pair_checks(tiers), *await _provider_checks(subject.endpoints, seconds))]
    if subject.group is not None:
        from sbpair.doctor.resource_checks import check_resources

        checks += await check_resources(subject.endpoints, subject.group, seconds, emit)
    if set(subject.endpoints) == set(SIDES):
        ends = _ends(subject.endpoints)
        checks.append(emit(await bounded("backlog", seconds, _backlog(ends.destination, ends.source))))
        checks.append(emit(await bounded("mover", seconds, _mover(ends, subject.lease))))
    return Report(tuple(checks))


def _ends(endpoints: Mapping[str, Endpoint]) -> Ends:
    return Ends(name="", source=endpoints["secondary"], destination=endpoints["primary"])


async def _provider_checks(endpoints: Mapping[str, Endpoint], seconds: float) -> Sequence[Check]:
    """Note that both sides hang on one identity provider, and how long their tokens last without it."""
    host = shared_provider(*endpoints.values()) if len(endpoints) == len(SIDES) else ""
    if not host:
        return ()
    last = "as long as their tokens"
    with suppress(TimeoutError, SbpairError):
        async with asyncio.timeout(seconds), open_tokens() as get_token:
            asked = [get_token(each.credential, SERVICE_BUS_SCOPE) for each in endpoints.values()]  # type: ignore[arg-type]
            left = min(expiry for _, expiry in await asyncio.gather(*asked)) - time.time()
            last = f"{left / 60:.0f} min more" if left >= 90 else f"{left:.0f} s more"
    what = f"both sides sign in by {host}: if it goes away, sends and moves go on for {last}"
    return (note("identity_provider", what, PROVIDER_REMEDIES),)


async def _backlog(primary: Endpoint, secondary: Endpoint) -> str | Check:
    """Check that the sides are not exchanged, and that backlog queues and destinations are enabled."""
    specs = {}
    try:
        for side in (secondary, primary):
            async with open_atom(side) as namespace:
                specs[side.name] = [each.spec for each in await namespace.list_under("")]
    except SbpairError as error:
        return note("backlog", f"the queues are unknown: {error.message}")
    is_here = any(backlog.under_prefix(primary.name, each.path) for each in specs[secondary.name])
    if not is_here and (exchanged := await find_exchanged(primary, secondary)):
        what, hint = exchanged.split(": ", 1)
        return failed("backlog", what, hint)
    off = [f"{each.path} in {at} is {each.status}" for at in specs for each in specs[at] if each.status != ACTIVE]
    if off:
        return failed("backlog", f"disabled queues: {len(off)}, such as {off[0]}", DISABLED_HINT)
    return "the queues of both sides are enabled"


async def _mover(ends: Ends, lease: str | None) -> str | Check:
    """Check that a mover has the lease of the pair, if messages wait."""
    mover = await read_mover(ends, lease)
    if mover.moving is None:
        return note("mover", mover.reason, "if messages wait, and none runs elsewhere, start sbpair syphon --watch")
    if mover.moving:
        return f"{mover} moves the backlog"
    async with open_atom(ends.source) as namespace:
        queues = await namespace.list_under(backlog.prefix(ends.backlog_of), counts=True)
    waiting = sum(each.counts.active for each in queues if each.counts)
    if mover.is_missed(waiting):
        return failed("mover", f"no mover has the lease, and {waiting} messages wait", "start sbpair syphon --watch")
    return "none has the lease, and no message waits"


async def _machine(subject: CheckSubject, seconds: float, environ: Mapping[str, str], emit: Emit) -> list[Check]:
    checks = [machine_checks.file_check(subject.config_file)]
    if subject.state_directory is not None:
        checks.append(machine_checks.state_check(subject.state_directory))
        if set(subject.endpoints) == set(SIDES):
            runs, _ = read_waiting(StateOwner(_ends(subject.endpoints), subject.state_directory))
            archives = {local_directory(each.archive) for each in runs if each.archive}
            checks += [machine_checks.room_check("archive", each) for each in archives if each and each.is_dir()]
    keys = {f"{side}.key_file": endpoint.key_file for side, endpoint in subject.endpoints.items() if endpoint.key_file}
    checks += [machine_checks.file_check(Path(file), name) for name, file in keys.items()]
    checks += machine_checks.versions()
    java = await machine_checks.java_check(environ, seconds, wanted=is_installed("pyspark"))
    return [emit(each) for each in (*checks, java)]


def _paths(side: str, subject: CheckSubject) -> tuple[str, ...]:
    """Return the entities to try claims on: the given one, those of keys, or the secondary's first backlog queue."""
    if path := subject.paths.get(side):
        return (path,)
    if (endpoint := subject.endpoints.get(side)) and endpoint.keyed_entities:
        return endpoint.keyed_entities
    primary = subject.endpoints.get("primary")
    if side == "primary" or primary is None:
        return ()
    try:
        return (backlog.queue_path(primary.name, 0),)
    except NameInvalid:
        return ()


def pair_checks(tiers: Mapping[str, str]) -> Sequence[Check]:
    """Compare the tiers of the two namespaces, if both are known."""
    if not all(tiers.get(side) for side in ("primary", "secondary")):
        return ()
    if tiers["primary"] == "Premium" != tiers["secondary"]:
        what = "the secondary accepts 256 KB a message, the primary more: larger messages cannot wait in the backlog"
        return (note("tiers", what, "use a Premium secondary for larger messages"),)
    return (ok("tiers", "the backlog accepts the primary's messages, except for the aliases' bytes"),)
