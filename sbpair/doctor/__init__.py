"""What keeps sbpair from working here, and what to do about it.

Looks only: nothing is sent, received or changed. Checks run at the same time, each for a bounded time, and none hides
another; what depends on something that failed is told as unknown. `live` asks more, and makes queues for it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from sbpair import backlog
from sbpair.amqp_client.raw_links import ANSWER_SECONDS
from sbpair.doctor import machine
from sbpair.doctor.access import examine
from sbpair.doctor.check import Check, CheckNote, CheckResult, Diagnosis, Tell, diagnosis_exit_code, note, well
from sbpair.doctor.connectivity import walk
from sbpair.errors import NameInvalid
from sbpair.model.report import Report
from sbpair.replay.java import is_installed

if TYPE_CHECKING:
    from sbpair.model.pair import Endpoint

__all__ = ["Check", "CheckNote", "CheckResult", "CheckSubject", "Diagnosis", "diagnose", "diagnosis_exit_code"]

CHECK_SECONDS = 15.0
"""How long one check may take."""


@dataclass(frozen=True, slots=True)
class CheckSubject:
    """What is to be looked at. A side that is missing here is not looked at: what is wrong with it is known.

    `paths` are entities to try claims on, by side. `send_seconds` is what a send is given before its time-out.
    """

    endpoints: Mapping[str, Endpoint]
    config_file: Path
    state_directory: Path | None = None
    paths: Mapping[str, str] = field(default_factory=dict)
    send_seconds: float = ANSWER_SECONDS


async def diagnose(
    subject: CheckSubject,
    *,
    seconds: float = CHECK_SECONDS,
    environ: Mapping[str, str] = os.environ,
    on_event: Callable[[CheckResult], object] = lambda _event: None,
) -> Diagnosis:
    """Look at this machine and at both namespaces. Raises nothing that is wrong with them."""

    def tell(check: Check) -> Check:
        on_event(CheckResult(check))
        return check

    async with asyncio.TaskGroup() as group:
        here = group.create_task(_machine(subject, seconds, environ, tell), name="this machine")
        roads, access = {}, {}
        for side, endpoint in subject.endpoints.items():
            roads[side] = group.create_task(walk(side, endpoint, seconds, tell), name=f"road to {side}")
            looked = examine(side, endpoint, _paths(side, subject), seconds, tell, roads[side])
            access[side] = group.create_task(looked, name=f"access to {side}")
    checks = here.result()
    for side in subject.endpoints:
        checks += [*roads[side].result(), *access[side].result()[0]]
    tiers = {side: task.result()[1] for side, task in access.items()}
    return Report((*checks, *(tell(each) for each in pair_checks(tiers))))


async def _machine(subject: CheckSubject, seconds: float, environ: Mapping[str, str], tell: Tell) -> list[Check]:
    checks = [machine.file_check(subject.config_file)]
    if subject.state_directory is not None:
        checks.append(machine.state_check(subject.state_directory))
    checks += [*machine.versions(), machine.send_timeout_check(subject.send_seconds)]
    java = await machine.java_check(environ, seconds, wanted=is_installed("pyspark"))
    return [tell(each) for each in (*checks, java)]


def _paths(side: str, subject: CheckSubject) -> tuple[str, ...]:
    """The entity that was named; else, of the secondary, its first backlog queue."""
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
    """What the tiers of the two namespaces mean together; nothing, where one of them is not known."""
    if not all(tiers.get(side) for side in ("primary", "secondary")):
        return ()
    if tiers["primary"] == "Premium" != tiers["secondary"]:
        what = "the secondary takes 256 KB a message, the primary more: what is larger cannot wait in the backlog"
        return (note("tiers", what, "a Premium secondary takes them too"),)
    return (well("tiers", "what the primary takes, the backlog takes: but the aliases make a message a little larger"),)
