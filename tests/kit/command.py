"""The command line in a process, with an emulated pair in its environment."""

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sbpair.testing import Emulator

Here = Callable[..., tuple[int, str, str]]
"""Runs a command line in this process: the fixture `here`."""

SIDES = ("PRIMARY", "SECONDARY")
STRICT = ("-W", "error")
"""Python's options that make a warning an error."""


def environment(emulator: Emulator | None, *without: str, **more: str) -> dict[str, str]:
    """Return this process's environment for a pair, except variables with these prefixes and those of sbpair."""
    found = {key: value for key, value in os.environ.items() if not key.startswith(("SBPAIR_", *without))}
    for side, namespace in zip(SIDES, emulator.ready.namespaces if emulator else (), strict=False):
        found[f"SBPAIR_{side}_CONNECTION_STRING"] = namespace.connection_string
        found[f"SBPAIR_{side}_NAME"] = namespace.name
    return {**found, **more}


def untimed(text: str) -> str:
    """Return lines of stderr off a terminal without their times, which only errors, excerpts and hints lack."""
    timed = re.compile(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ (?=.)")
    lines = text.splitlines(keepends=True)
    assert all(timed.match(line) or line.startswith(("error: ", "  ", "hint: ")) for line in lines), text
    return "".join(timed.sub("", line) for line in lines)


def run_program(*words: str | Path, env: dict[str, str] | None = None, **more: Any) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, for a minute at most."""
    return subprocess.run(words, env=env, capture_output=True, text=True, timeout=60, check=False, **more)


def run(*words: str, env: dict[str, str], **more: Any) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own."""
    return run_program(sys.executable, *STRICT, "-m", "sbpair", *words, env=env, **more)


async def start(
    *words: str,
    env: dict[str, str],
    python: tuple[str, ...] = STRICT,
    program: tuple[str, str] = ("-m", "sbpair"),
    stdin: int = asyncio.subprocess.DEVNULL,
    stdout: int = asyncio.subprocess.PIPE,
    stderr: int = asyncio.subprocess.PIPE,
    prepare: Callable[[], object] | None = None,
) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, *python, *program, *words),
        env=env,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        preexec_fn=prepare,
    )


async def finished(process: asyncio.subprocess.Process, text: str = "") -> tuple[int, str, str]:
    """Wait for a process; return its exit code and what it wrote to the standard output and error."""
    out, err = await process.communicate(text.encode() if process.stdin else None)
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()
