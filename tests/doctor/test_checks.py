"""Checks of this machine, and the exit code of a diagnosis."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sbpair.azure.http_client import HealthResponse
from sbpair.doctor import machine_checks
from sbpair.doctor.check import Check, bounded, diagnosis_exit_code, failed, note, ok, unknown, within
from sbpair.doctor.namespace_checks import clock_check
from sbpair.errors import NotAuthorized
from sbpair.model.report import Outcome, Report
from sbpair.operating_system import ownership

FINE = (ok("a", "fine"), note("b", "by the way"), unknown("c", "who knows"))


@pytest.mark.parametrize(
    ("codes", "code"),
    [
        *(((), 0), ((3,), 3), ((5,), 5), ((6, 6), 6), ((7,), 7), ((2,), 2)),
        *((mixed, 3) for mixed in ((5, 6), (6, 3), (2, 7), (7, 7, 7, 5))),
    ],
)
def test_equal_failures_share_their_exit_code_and_others_give_3(codes: tuple[int, ...], code: int) -> None:
    assert diagnosis_exit_code(Report((*FINE, *(failed("d", "wrong", "hint it", each) for each in codes)))) == code


async def refused() -> str:
    raise NotAuthorized("may not send", hint="use a key with Send")


async def never() -> str:
    await asyncio.Event().wait()
    return "well"


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        (refused, failed("x", "may not send", "use a key with Send", 5)),
        (never, failed("x", "no answer within 0.01 s", "look there", 6)),
    ],
)
async def test_an_error_or_no_answer_is_a_failed_check(action: Callable[[], Any], expected: Check) -> None:
    assert await bounded("x", 0.01, action(), hint="look there") == expected


async def test_endless_cleanup_is_cancelled_until_it_ends() -> None:
    asked = 0

    async def stubborn() -> str:
        nonlocal asked
        while asked < 3:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                asked += 1
        return "well, at last"

    with pytest.raises(TimeoutError):
        await within(0.01, stubborn(), cancel_seconds=0.01)
    assert asked == 3


async def test_a_cancellation_from_outside_is_no_time_out() -> None:
    begun, ended = asyncio.Event(), []

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    task = asyncio.create_task(within(60, work()))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == [True]


async def test_a_bug_is_not_taken_for_a_finding() -> None:
    async def broken() -> str:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await bounded("x", 1, broken())


# Clocks


@pytest.mark.parametrize(
    ("ahead", "outcome", "reason"),
    [
        *((seconds, Outcome.OK, "within") for seconds in (0.0, 60.4, -60.4)),
        *((seconds, Outcome.FAILED, "s behind that of contoso;") for seconds in (60.6, 3_600.0)),
        *((seconds, Outcome.FAILED, "s ahead of that of contoso;") for seconds in (-60.6, -86_400.0 * 365)),
        (None, Outcome.UNKNOWN, "does not report its time"),
    ],
)
def test_clocks_may_differ_by_a_minute(ahead: float | None, outcome: Outcome, reason: str) -> None:
    found = clock_check("primary.clock", "contoso", HealthResponse(401, ahead, 0.5))
    assert found.outcome is outcome
    assert reason in found.reason


# Versions


@pytest.mark.parametrize(
    ("version", "outcome"),
    [
        *((version, Outcome.OK) for version in ("7.15.0", "7.15.1", "8.0.0b1", "10.0")),
        *((version, Outcome.FAILED) for version in ("7.14.9", "7.9.0", "6", "unknown", "")),
    ],
)
def test_a_package_must_be_new_enough(version: str, outcome: Outcome) -> None:
    found = machine_checks.package_check("azure-servicebus", version, "7.15.0")
    assert (found.outcome, found.exit_code) == (outcome, 7 if outcome is Outcome.FAILED else 0)


def test_packages_of_extras_are_not_required() -> None:
    names = {each.name for each in machine_checks.versions()}
    assert "azure-servicebus" in names
    assert "azure-mgmt-relay" not in names


# Java


def java(directory: Path, text: str) -> dict[str, str]:
    program = directory / "bin" / "java"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)
    return {"JAVA_HOME": str(directory), "PATH": ""}


@pytest.mark.parametrize(
    ("said", "outcome"),
    [
        ('openjdk version "17.0.15" 2025-04-15', Outcome.OK),
        ('openjdk version "21" 2023-09-19', Outcome.OK),
        ('openjdk version "25-ea" 2025-09-16', Outcome.OK),
        ('java version "1.8.0_392"', Outcome.FAILED),
        ('openjdk version "11.0.2"', Outcome.FAILED),
        ('openjdk version "16"', Outcome.FAILED),
        ("The operation couldn't be completed. Unable to locate a Java Runtime.", Outcome.UNKNOWN),
        ("", Outcome.UNKNOWN),
    ],
)
def test_java_must_be_new_enough(said: str, outcome: Outcome) -> None:
    found = machine_checks.java_version_check("/usr/bin/java", said)
    assert (found.outcome, found.exit_code) == (outcome, 7 if outcome is Outcome.FAILED else 0)


async def test_the_java_of_java_home_is_asked_for_its_version(tmp_path: Path) -> None:
    environ = java(tmp_path, """echo 'openjdk version "21.0.1" 2023-10-17' >&2""")
    found = await machine_checks.java_check(environ, 10, wanted=True)
    assert (found.outcome, found.reason) == (Outcome.OK, f"21, at {tmp_path}/bin/java")


@pytest.mark.parametrize(("wanted", "outcome", "code"), [(True, Outcome.FAILED, 7), (False, Outcome.NOTE, 0)])
async def test_no_java_is_a_lack_where_spark_is_installed(wanted: bool, outcome: Outcome, code: int) -> None:
    found = await machine_checks.java_check({"PATH": "/nowhere"}, 10, wanted=wanted)
    assert (found.outcome, found.exit_code) == (outcome, code)
    assert "install Java 17" in found.detail.hint


async def test_java_home_without_java_fails_despite_the_path(tmp_path: Path) -> None:
    """Spark looks nowhere else."""
    java(tmp_path, "")
    environ = {"JAVA_HOME": str(tmp_path / "gone"), "PATH": str(tmp_path / "bin")}
    assert (await machine_checks.java_check(environ, 10, wanted=True)).reason.startswith("Java is not installed")


async def test_a_java_that_does_not_end_is_ended(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    found = await machine_checks.java_check(java(tmp_path, f"echo $$ > {pid}; exec sleep 600"), 0.5, wanted=True)
    assert (found.outcome, found.exit_code) == (Outcome.FAILED, 6)
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


async def test_a_java_that_cannot_be_started_is_a_lack(tmp_path: Path) -> None:
    environ = java(tmp_path, "")
    (tmp_path / "bin" / "java").write_bytes(b"\x7fELF nothing of the kind")
    assert (await machine_checks.java_check(environ, 10, wanted=True)).exit_code == 7


# Files


@pytest.mark.parametrize(
    ("mode", "outcome"),
    [
        *((mode, Outcome.OK) for mode in (0o600, 0o644, 0o400)),
        *((mode, Outcome.FAILED) for mode in (0o664, 0o646, 0o666, 0o602, 0o777)),
    ],
)
def test_configuration_file_writable_by_others_fails(tmp_path: Path, mode: int, outcome: Outcome) -> None:
    file = tmp_path / "config.toml"
    file.touch()
    file.chmod(mode)
    found = machine_checks.file_check(file)
    assert found.outcome is outcome
    assert (outcome is Outcome.OK) or (found.detail and "chmod go-w" in found.detail.hint)


@pytest.mark.parametrize(
    ("mode", "outcome"),
    [(0o600, Outcome.OK), (0o440, Outcome.OK), (0o644, Outcome.NOTE), (0o444, Outcome.NOTE), (0o620, Outcome.FAILED)],
)
def test_a_file_of_a_key_that_all_users_may_read_is_noted(tmp_path: Path, mode: int, outcome: Outcome) -> None:
    file = tmp_path / "key"
    file.touch()
    file.chmod(mode)
    found = machine_checks.file_check(file, "primary.key_file")
    assert (found.outcome, found.name) == (outcome, "primary.key_file")


def test_a_state_directory_that_all_users_may_write_to_fails(tmp_path: Path) -> None:
    tmp_path.chmod(0o707)
    found = machine_checks.state_check(tmp_path)
    assert (found.outcome, found.exit_code) == (Outcome.FAILED, 4)
    assert found.detail
    assert f"chmod o-w {tmp_path}" in found.detail.hint


def test_a_state_directory_on_a_mount_without_modes_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"//share {tmp_path} cifs rw 0 0\n")
    monkeypatch.setattr(ownership, "MOUNTS", mounts)
    tmp_path.chmod(0o777)
    found = machine_checks.state_check(tmp_path / "orders")
    assert (found.outcome, found.exit_code) == (Outcome.NOTE, 0)
    assert found.reason.startswith(f"{tmp_path} is on a mount without modes")


@pytest.mark.parametrize(("mode", "outcome"), [(0o777, Outcome.NOTE), (0o1777, Outcome.OK), (0o775, Outcome.OK)])
def test_a_directory_above_the_state_that_others_can_replace_is_noted(
    tmp_path: Path, mode: int, outcome: Outcome
) -> None:
    state = tmp_path / "shared" / "sbpair" / "orders"
    state.mkdir(parents=True)
    state.parents[1].chmod(mode)
    found = machine_checks.state_check(state)
    assert found.outcome is outcome
    assert (str(state.parents[1]) in str(found.detail)) is (outcome is Outcome.NOTE)


@pytest.mark.parametrize(
    ("check", "path", "outcome", "code"),
    [
        (machine_checks.file_check, "nothing", Outcome.NOTE, 0),
        (machine_checks.file_check, "file/config.toml", Outcome.FAILED, 7),
        (machine_checks.state_check, "", Outcome.OK, 0),
        (machine_checks.state_check, "a/b", Outcome.OK, 0),
        (machine_checks.state_check, "file", Outcome.FAILED, 7),
        (machine_checks.state_check, "file/below", Outcome.FAILED, 7),
        (machine_checks.state_check, "closed/below", Outcome.FAILED, 7),
    ],
)
def test_a_path_that_cannot_be_used_is_a_lack(
    check: Callable[[Path], Check],
    path: str,
    outcome: Outcome,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "closed").mkdir()
    # Root may write everywhere.
    monkeypatch.setattr(os, "access", lambda directory, _mode: directory.name != "closed")
    found = check(tmp_path / path)
    assert (found.outcome, found.exit_code) == (outcome, code)
    assert found.reason.endswith("which the first run creates") is (path == "a/b")
