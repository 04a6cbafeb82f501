"""Checks of this machine: versions, Java, the state directory, the configuration file. Read-only."""

from __future__ import annotations

import asyncio
import os
import platform
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from sbpair import __version__
from sbpair.doctor.check import Check, bounded, failed, note, ok, unknown
from sbpair.errors import ExitCode, StateRefused
from sbpair.model.installation import requirements
from sbpair.operating_system import files, is_windows, ownership
from sbpair.replay.spark import INSTEAD as SPARK_INSTEAD
from sbpair.replay.spark import JAVAS, MIN_JAVA, find_java, java_version

LACKS = ExitCode.MACHINE
MIN_FREE_BYTES = 16_000_000


def versions() -> list[Check]:
    """Check the versions of Python, sbpair and Azure's packages that it requires."""
    azure = [each for each in requirements() if each.everywhere and each.name.startswith("azure-")]
    return [
        ok("python", f"{platform.python_version()} on {platform.system()}"),
        ok("sbpair", __version__),
        *(package_check(each.name, each.installed, each.minimum) for each in azure),
    ]


def package_check(name: str, version: str | None, minimum: str) -> Check:
    """Compare the version of a package, None if it is not installed, with the minimum."""
    if version is None:
        return failed(name, "is not installed", f"pip install '{name}>={minimum}'", LACKS)
    if _numbers(version) >= _numbers(minimum):
        return ok(name, version)
    return failed(name, f"{version} is older than {minimum}", f"pip install --upgrade '{name}>={minimum}'", LACKS)


def _numbers(version: str) -> list[int]:
    digits = re.match(r"[0-9.]*", version)
    return [int(each) for each in (digits[0] if digits else "").split(".") if each]


async def java_check(environ: Mapping[str, str], seconds: float, *, wanted: bool) -> Check:
    """Check the Java that Spark would start. If it is not `wanted`, a missing one is a note."""
    if is_windows():
        return note("java", "Spark is not started on Windows", SPARK_INSTEAD)
    program = find_java(environ)
    if program is None:
        what, hint = "Java is not installed: replay on Spark needs it", f"install {JAVAS}, or set JAVA_HOME"
        return failed("java", what, hint, LACKS) if wanted else note("java", what, f"{hint}, and sbpair[spark]")
    return await bounded("java", seconds, _ask(program), hint=f"find out why {program} -version does not end")


async def _ask(program: str) -> str | Check:
    try:
        process = await asyncio.create_subprocess_exec(
            program,
            "-version",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
    except OSError as error:
        return failed("java", f"{program} cannot be started: {error.strerror}", f"install {JAVAS}", LACKS)
    try:
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return java_version_check(program, output.decode(errors="replace"))


def java_version_check(program: str, output: str) -> Check:
    """Check the output of `java -version`."""
    version = java_version(output)
    if version is None:
        return unknown("java", f"{program} does not report its version", f"replay on Spark needs {JAVAS}")
    if version < MIN_JAVA:
        return failed("java", f"{program} is Java {version}, too old for Spark", f"install {JAVAS}", LACKS)
    return ok("java", f"{version}, at {program}")


def file_check(path: Path, name: str = "config_file") -> Check:
    """Check that only its owner, this user or root, can write to a file. All may read a configuration, but no key."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return note(name, f"{path} does not exist", "create it with sbpair config --init, or use environment variables")
    except OSError as error:
        return failed(name, f"{path} cannot be read: {error.strerror}", "check its permissions", LACKS)
    if files.is_of_another_user(found):
        hint = "become its owner: it decides where keys and messages go"
        return failed(name, f"{path} belongs to another user", hint)
    if files.is_writable_by_others(found):
        hint = f"chmod go-w {path}: it decides where keys and messages go"
        return failed(name, f"users other than its owner may write to {path}", hint)
    if name != "config_file" and files.is_readable_by_others(found):
        hint = "set its mode to 0400, or 0440 for a group; in Kubernetes: defaultMode 0440, and fsGroup"
        return note(name, f"all users of this machine may read the key in {path}", hint)
    return ok(name, f"{path}, whose permissions are not checked on Windows" if is_windows() else str(path))


def room_check(name: str, directory: Path) -> Check:
    """Check that the disk of a directory has room for what a run records."""
    if (room := shutil.disk_usage(directory).free) >= MIN_FREE_BYTES:
        return ok(name, str(directory))
    what = f"the disk of {directory} is full: {room // 1_000_000} MB are left"
    return failed(name, what, "make room there: a run stops that cannot record what it has sent", LACKS)


def state_check(directory: Path) -> Check:
    """Check that the syphon can write its journal, and others cannot; nothing is created."""
    nearest = next(each for each in (directory, *directory.absolute().parents) if each.exists())
    if not nearest.is_dir():
        return failed("state", f"{nearest} is not a directory", "name another with --state, or XDG_STATE_HOME", LACKS)
    try:
        ownership.check_owner(directory)
    except StateRefused as error:
        return failed("state", error.message, error.hint, error.exit_code)
    if not os.access(nearest, os.W_OK | os.X_OK):
        hint = "make it writable, or name another with --state, or XDG_STATE_HOME"
        return failed("state", f"{nearest} is not writable", hint, LACKS)
    if (room := room_check("state", nearest)).exit_code:
        return room
    if ownership.has_no_modes(nearest):
        what = f"{nearest} is on a mount without modes: they do not show who else may read and change the state"
        return note("state", what, "name a directory of a local disk with --state, unless no other user can reach it")
    if (above := ownership.shared_above(nearest)) is not None:
        return note("state", f"all users of this machine may replace {directory}", f"chmod o-w {above}, or chmod +t it")
    return ok("state", f"{directory}{'' if nearest == directory else ', which the first run creates'}")
