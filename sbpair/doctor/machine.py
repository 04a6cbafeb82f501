"""What this machine has: versions, Java, a place for the state, a configuration file that nobody else writes to.

Reads only. Nothing here knows of a namespace.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import os
import platform
import re
import stat
from collections.abc import Mapping
from pathlib import Path

from sbpair import __version__
from sbpair.doctor.check import Check, bounded, failed, note, unknown, well
from sbpair.errors import ExitCode
from sbpair.replay.java import JAVAS, MIN_JAVA, find_java, java_version

MIN_SEND_SECONDS = 15.0
"""A partitioned entity needs so long to turn to another partition."""

LACKS = ExitCode.MACHINE
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)\s*>=\s*([0-9.]+)\s*$")


def versions() -> list[Check]:
    """Python's, sbpair's, and those of the packages that it asks for."""
    return [
        well("python", f"{platform.python_version()} on {platform.system()}"),
        well("sbpair", __version__),
        *(_package(name, minimum) for name, minimum in _requirements()),
    ]


def _requirements() -> list[tuple[str, str]]:
    try:
        asked = importlib.metadata.requires("sbpair") or []
    except importlib.metadata.PackageNotFoundError:
        return []
    found = [_REQUIREMENT.fullmatch(each) for each in asked]
    return [(match[1], match[2]) for match in found if match and match[1].startswith("azure-")]


def _package(name: str, minimum: str) -> Check:
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return failed(name, "is not installed", f"pip install '{name}>={minimum}'", LACKS)
    return package_check(name, version, minimum)


def package_check(name: str, version: str, minimum: str) -> Check:
    """Whether a version is new enough."""
    if _numbers(version) >= _numbers(minimum):
        return well(name, version)
    return failed(name, f"{version} is older than {minimum}", f"pip install --upgrade '{name}>={minimum}'", LACKS)


def _numbers(version: str) -> list[int]:
    digits = re.match(r"[0-9.]*", version)
    return [int(each) for each in (digits[0] if digits else "").split(".") if each]


def send_timeout_check(seconds: float) -> Check:
    """Whether a send is given long enough before its time-out counts as a failure of the namespace."""
    if seconds > MIN_SEND_SECONDS:
        return well("send_timeout", f"{seconds:g} s")
    what = f"{seconds:g} s: a partitioned entity needs more than {MIN_SEND_SECONDS:g} s to turn to another partition"
    return failed("send_timeout", what, "give a send 60 s")


async def java_check(environ: Mapping[str, str], seconds: float, *, wanted: bool) -> Check:
    """Whether the Java that Spark would start is there, and new enough. Not `wanted`, its lack is worth a note."""
    program = find_java(environ)
    if program is None:
        what, hint = "there is no Java: replay on Spark needs one", f"install {JAVAS}, or set JAVA_HOME"
        return failed("java", what, hint, LACKS) if wanted else note("java", what, f"{hint}, and sbpair[spark]")
    return await bounded("java", seconds, _ask(program), hint=f"see why {program} -version does not end")


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
        said, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return java_version_check(program, said.decode(errors="replace"))


def java_version_check(program: str, said: str) -> Check:
    """What `java -version` says, judged."""
    version = java_version(said)
    if version is None:
        return unknown("java", f"{program} does not say its version", f"replay on Spark needs {JAVAS}")
    if version < MIN_JAVA:
        return failed("java", f"{program} is Java {version}, too old for Spark", f"install {JAVAS}", LACKS)
    return well("java", f"{version}, at {program}")


def file_check(path: Path) -> Check:
    """Whether only its owner, and one who may, writes to the configuration file. It holds no secret to be read."""
    name = "config_file"
    try:
        found = path.stat()
    except FileNotFoundError:
        return note(name, f"there is no {path}", "sbpair config --example shows one; the environment does as well")
    except OSError as error:
        return failed(name, f"{path} cannot be read: {error.strerror}", "check its permissions", LACKS)
    if found.st_uid not in (0, os.getuid()):
        hint = "own it: it decides where keys and messages go"
        return failed(name, f"{path} belongs to another user", hint)
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        hint = f"chmod go-w {path}: it decides where keys and messages go"
        return failed(name, f"others than its owner may write to {path}", hint)
    return well(name, str(path))


def state_check(directory: Path) -> Check:
    """Whether the syphon can write its journal; nothing is made."""
    nearest = next(each for each in (directory, *directory.absolute().parents) if each.exists())
    if not nearest.is_dir():
        return failed("state", f"{nearest} is no directory", "name another with --state, or XDG_STATE_HOME", LACKS)
    if not os.access(nearest, os.W_OK | os.X_OK):
        hint = "make it writable, or name another with --state, or XDG_STATE_HOME"
        return failed("state", f"nothing can be written in {nearest}", hint, LACKS)
    return well("state", f"{directory}{'' if nearest == directory else ', which the first run makes'}")
