"""Diagnosis of this machine and both namespaces, with a hint for each failed check.

Read-only: nothing is sent, received or changed. Checks run concurrently, each with a time limit. A check that depends
on a failed one is unknown. `live_checks` checks more, and creates queues for it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sbpair import backlog
from sbpair.doctor import machine_checks
from sbpair.doctor.check import Check, CheckNote, Diagnosis, Emit, diagnosis_exit_code, note, ok
from sbpair.doctor.namespace_checks import check_namespace
from sbpair.errors import NameInvalid
from sbpair.model.pair import Endpoint
from sbpair.model.report import Report
from sbpair.replay.spark import is_installed

__all__ = ["Check", "CheckNote", "CheckSubject", "Diagnosis", "diagnose", "diagnosis_exit_code"]

CHECK_SECONDS = 15.0
"""The time limit of one check."""


@dataclass(frozen=True, slots=True)
class CheckSubject:
    """The subject of a diagnosis. A side without an endpoint is not checked: its error is known.

    `paths` are entities to try claims on, by side.
    """

    endpoints: Mapping[str, Endpoint]
    config_file: Path
    state_directory: Path | None = None
    paths: Mapping[str, str] = field(default_factory=dict)


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
    return Report((*checks, *(emit(each) for each in pair_checks(tiers))))


async def _machine(subject: CheckSubject, seconds: float, environ: Mapping[str, str], emit: Emit) -> list[Check]:
    checks = [machine_checks.file_check(subject.config_file)]
    if subject.state_directory is not None:
        checks.append(machine_checks.state_check(subject.state_directory))
    checks += machine_checks.versions()
    java = await machine_checks.java_check(environ, seconds, wanted=is_installed("pyspark"))
    return [emit(each) for each in (*checks, java)]


def _paths(side: str, subject: CheckSubject) -> tuple[str, ...]:
    """Return the entity to try claims on: the given one, or the secondary's first backlog queue."""
    if path := subject.paths.get(side):
        return (path,)
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
