"""Checks of this machine, and the exit code of a diagnosis."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from sbpair.azure.health import HealthResponse
from sbpair.doctor import machine
from sbpair.doctor.access import clock_check
from sbpair.doctor.check import bounded, diagnosis_exit_code, failed, note, of_error, ok, unknown, within
from sbpair.errors import NotAuthorized, UsageError
from sbpair.model.report import Outcome, Report

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


def test_error_becomes_a_failed_check_with_its_hint() -> None:
    found = of_error("primary.send", NotAuthorized("may not send", hint="use a key with Send"))
    assert (found.reason, found.exit_code) == ("may not send", 5)
    assert found.detail
    assert found.detail.hint == "use a key with Send"


async def test_check_without_answer_times_out() -> None:
    async def never() -> str:
        await asyncio.Event().wait()
        return "well"

    found = await bounded("x", 0.01, never(), hint="look there")
    assert (found.outcome, found.exit_code) == (Outcome.FAILED, 6)
    assert found.detail
    assert found.detail.hint == "look there"


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
    ("ahead", "outcome"),
    [
        *((seconds, Outcome.OK) for seconds in (0.0, 60.4, -60.4)),
        *((seconds, Outcome.FAILED) for seconds in (60.6, -60.6, 3_600.0, -86_400.0 * 365)),
        (None, Outcome.UNKNOWN),
    ],
)
def test_clocks_may_differ_by_a_minute(ahead: float | None, outcome: Outcome) -> None:
    assert clock_check("primary.clock", "contoso", HealthResponse(401, ahead, 0.5)).outcome is outcome


def test_clock_difference_reports_its_direction() -> None:
    assert "120 s behind that of contoso;" in clock_check("c", "contoso", HealthResponse(401, 120, 0.5)).reason
    assert "120 s ahead of that of contoso;" in clock_check("c", "contoso", HealthResponse(401, -120, 0.5)).reason


# Send time-out


@pytest.mark.parametrize(
    ("seconds", "outcome"),
    [(60.0, Outcome.OK), (15.1, Outcome.OK), (15.0, Outcome.FAILED), (1.0, Outcome.FAILED), (0.0, Outcome.FAILED)],
)
def test_a_send_is_given_more_than_fifteen_seconds(seconds: float, outcome: Outcome) -> None:
    assert machine.send_timeout_check(seconds).outcome is outcome


# Versions


@pytest.mark.parametrize(
    ("version", "outcome"),
    [
        *((version, Outcome.OK) for version in ("7.15.0", "7.15.1", "8.0.0b1", "10.0")),
        *((version, Outcome.FAILED) for version in ("7.14.9", "7.9.0", "6", "unknown", "")),
    ],
)
def test_a_package_must_be_new_enough(version: str, outcome: Outcome) -> None:
    found = machine.package_check("azure-servicebus", version, "7.15.0")
    assert (found.outcome, found.exit_code) == (outcome, 7 if outcome is Outcome.FAILED else 0)


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
    found = machine.java_version_check("/usr/bin/java", said)
    assert (found.outcome, found.exit_code) == (outcome, 7 if outcome is Outcome.FAILED else 0)


async def test_the_java_of_java_home_is_asked_for_its_version(tmp_path: Path) -> None:
    environ = java(tmp_path, """echo 'openjdk version "21.0.1" 2023-10-17' >&2""")
    found = await machine.java_check(environ, 10, wanted=True)
    assert (found.outcome, found.reason) == (Outcome.OK, f"21, at {tmp_path}/bin/java")


@pytest.mark.parametrize(("wanted", "outcome", "code"), [(True, Outcome.FAILED, 7), (False, Outcome.NOTE, 0)])
async def test_no_java_is_a_lack_where_spark_is_installed(wanted: bool, outcome: Outcome, code: int) -> None:
    found = await machine.java_check({"PATH": "/nowhere"}, 10, wanted=wanted)
    assert (found.outcome, found.exit_code) == (outcome, code)
    assert found.detail
    assert "install Java 17" in found.detail.hint


async def test_java_home_without_java_fails_despite_the_path(tmp_path: Path) -> None:
    """Spark looks nowhere else."""
    java(tmp_path, "")
    environ = {"JAVA_HOME": str(tmp_path / "gone"), "PATH": str(tmp_path / "bin")}
    assert (await machine.java_check(environ, 10, wanted=True)).reason.startswith("Java is not installed")


async def test_a_java_that_does_not_end_is_ended(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    found = await machine.java_check(java(tmp_path, f"echo $$ > {pid}; exec sleep 600"), 0.5, wanted=True)
    assert (found.outcome, found.exit_code) == (Outcome.FAILED, 6)
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


async def test_a_java_that_cannot_be_started_is_a_lack(tmp_path: Path) -> None:
    environ = java(tmp_path, "")
    (tmp_path / "bin" / "java").write_bytes(b"\x7fELF nothing of the kind")
    assert (await machine.java_check(environ, 10, wanted=True)).exit_code == 7


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
    found = machine.file_check(file)
    assert found.outcome is outcome
    assert (outcome is Outcome.OK) or (found.detail and "chmod go-w" in found.detail.hint)


def test_a_file_that_is_not_there_is_worth_a_note() -> None:
    assert machine.file_check(Path("/nowhere/config.toml")).outcome is Outcome.NOTE


def test_a_file_below_a_file_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert machine.file_check(tmp_path / "file" / "config.toml").exit_code == 7


def test_the_state_may_be_there_or_yet_to_be_made(tmp_path: Path) -> None:
    assert machine.state_check(tmp_path).outcome is Outcome.OK
    assert machine.state_check(tmp_path / "a" / "b").reason.endswith("which the first run creates")


def test_a_state_that_is_no_directory_is_a_lack(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        assert machine.state_check(path).exit_code == 7


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_state_that_cannot_be_written_is_a_lack(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert machine.state_check(tmp_path / "state").exit_code == 7


def test_a_usage_error_keeps_its_exit_code() -> None:
    assert of_error("configuration", UsageError("no", hint="yes")).exit_code == 2
