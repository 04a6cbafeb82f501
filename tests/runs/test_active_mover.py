"""Whether a mover has the lease of a pair, from this machine's lease and from the queue of a lease across machines."""

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sbpair import doctor
from sbpair.doctor import CheckSubject
from sbpair.emulator.entities.description import QueueDescription
from sbpair.management.auditing import audit
from sbpair.model.report import AuditFinding, Outcome
from sbpair.runs.active_mover import UNKNOWN_MOVER, ActiveMover, read_mover
from sbpair.runs.file_lease import hold_machine_leases
from sbpair.runs.session_lease import hold_lease
from sbpair.status import read_status
from sbpair.testing import Emulator
from tests.kit import command
from tests.kit.command import CommandLines
from tests.kit.pairs import BacklogWorld
from tests.kit.stranded import put, stranded

LEASES = "sbpair-lease"


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))


@asynccontextmanager
async def world() -> AsyncIterator[BacklogWorld]:
    """Run a pair with one waiting message, and a queue for leases."""
    async with Emulator() as emulator:
        found = BacklogWorld(emulator, 1)
        found.primary.create_queue("orders")
        found.secondary.create_queue(LEASES, QueueDescription(requires_session=True))
        put(found.queue(0), stranded("m1", "orders"))
        yield found


async def reported(w: BacklogWorld, lease: str | None) -> tuple[ActiveMover, Outcome]:
    """Return the mover and the outcome of `doctor`, after checks that all three reports agree."""
    found = await audit(w.pair, sample_seconds=0, lease=lease)
    status = await read_status(w.pair, lease=lease)
    assert found.mover == status.mover
    missed = found.mover.moving is False
    assert bool(found.found[AuditFinding.NO_MOVER]) == bool(status.found[AuditFinding.NO_MOVER]) == missed
    endpoints = {"primary": w.pair.primary, "secondary": w.pair.secondary}
    subject = CheckSubject(endpoints, Path("/nowhere/file"), lease=lease)
    checks = {check.name: check for check in await doctor.diagnose(subject, environ={})}
    return found.mover, checks["mover"].outcome


async def test_a_mover_of_this_machine_is_known_with_its_run_and_start(tmp_path: Path) -> None:
    async with world() as w:
        assert await reported(w, None) == (UNKNOWN_MOVER, Outcome.NOTE)
        with hold_machine_leases(w.pair.ends, tmp_path / "state", "r1"):
            for lease in (None, LEASES, "missing"):
                mover, outcome = await reported(w, lease)
                assert re.fullmatch(r"process \d+ \(run r1, since [-0-9]+ [:0-9]+ UTC\) on this machine", str(mover))
                assert (mover.moving, outcome) == (True, Outcome.OK)
        assert await reported(w, None) == (UNKNOWN_MOVER, Outcome.NOTE)


async def test_a_lease_across_machines_is_read_and_not_taken() -> None:
    async with world() as w:
        assert await reported(w, LEASES) == (ActiveMover(moving=False), Outcome.FAILED)
        async with hold_lease(w.pair.ends, LEASES, "r2") as lease:
            mover, outcome = await reported(w, LEASES)
            assert (mover.moving, outcome) == (True, Outcome.OK)
            assert re.fullmatch(r"process \d+ on .+ \(run r2, since .+ UTC\)", mover.holder)
            lease.check()
        assert await reported(w, LEASES) == (ActiveMover(moving=False), Outcome.FAILED)
        # The reading has taken nothing: the lease is free at once.
        async with hold_lease(w.pair.ends, LEASES, "r3") as lease:
            lease.check()


async def test_without_messages_no_mover_is_no_finding() -> None:
    async with world() as w:
        w.secondary.delete_queue("contoso/x-servicebus-transfer/0")
        w.queue(0)
        assert not (await audit(w.pair, sample_seconds=0, lease=LEASES)).found[AuditFinding.NO_MOVER]
        endpoints = {"primary": w.pair.primary, "secondary": w.pair.secondary}
        checks = await doctor.diagnose(CheckSubject(endpoints, Path("/nowhere/file"), lease=LEASES), environ={})
        assert [check.outcome for check in checks if check.name == "mover"] == [Outcome.OK]


async def test_a_lease_that_cannot_be_read_is_unknown_with_the_reason() -> None:
    async with world() as w:
        w.secondary.create_queue("plain")
        for queue, reason in {
            "missing": "does not exist|missing|not found|could not be found",
            "plain": "session",
        }.items():
            mover = await read_mover(w.pair.ends, queue)
            assert (mover.moving, mover.holder) == (None, "")
            assert re.search(rf"the lease in {queue} cannot be read: .*({reason})", mover.reason), mover.reason


async def test_commands_print_the_mover_and_fail_without_one(tmp_path: Path) -> None:
    async with world() as w:
        lines = CommandLines(command.environment(w.emulator, XDG_STATE_HOME=str(tmp_path / "home")), "--count", "1")
        for words in (("status",), ("audit", "--sample", "0")):
            code, out, _ = await lines.run(*words)
            assert (code, "\nmover: none on this machine, unknown elsewhere" in out) == (0, True)
            code, out, err = await lines.run(*words, "--lease", LEASES, "--fail-on", "no-mover")
            assert (code, "\nmover: none\n" in out, "exit code 3 for no-mover (1)" in err) == (3, True, True)
            with hold_machine_leases(w.pair.ends, tmp_path / "state", "r4"):
                code, out, _ = await lines.run(*words, "--fail-on", "no-mover", "-o", "json")
            assert (code, json.loads(out)["mover"]["moving"]) == (0, True)
