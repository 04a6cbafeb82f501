"""The command line in a process, with an emulated pair in its environment."""

import asyncio
import gc
import io
import logging
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from sbpair import __main__
from sbpair.operating_system.signals import SIGNALS
from sbpair.testing import Emulator
from tests.kit.fork_server import STRICT, Forked, can_fork, fork
from tests.kit.waiting import PATIENCE_SECONDS

Here = Callable[..., tuple[int, str, str]]
"""Runs a command line in this process: the fixture `here`."""

SIDES = ("PRIMARY", "SECONDARY")


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
    return subprocess.run(words, env=env, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False, **more)


def run(*words: str, env: dict[str, str], **more: Any) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own."""
    if more or not can_fork(env):
        return run_program(sys.executable, *STRICT, "-m", "sbpair", *words, env=env, **more)

    async def ran() -> tuple[int, str, str]:
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await finished(await start(*words, env=env))

    return subprocess.CompletedProcess(words, *asyncio.run(ran()))


@contextmanager
def loggers_kept() -> Iterator[None]:
    """Undo what a command sets of loggers: a drill silences some that are below Azure's."""
    names = (
        "azure",
        "azure.servicebus",
        "sbpair",
        "sbpair.failover.events",
        "sbpair.relay",
        "sbpair.relay.events",
        "spark",
    )
    loggers = [logging.getLogger(name) for name in (None, *names)]
    before = [(logger, logger.level, list(logger.handlers)) for logger in loggers]
    try:
        yield
    finally:
        for logger, level, handlers in before:
            logger.level, logger.handlers = level, handlers
        logging.getLogger().manager._clear_cache()  # type: ignore[attr-defined]


def run_here(words: Sequence[str]) -> int:
    """Run the command line in this process, and undo what it sets there. Returns the exit code."""
    thresholds = gc.get_threshold()
    signals = {number: signal.getsignal(number) for number in SIGNALS}
    # What a command freezes would never be collected; to unfreeze it would also end the exemption of what tests import.
    with loggers_kept(), mock.patch.object(gc, "freeze"):
        try:
            return __main__.run(words)
        finally:
            for number, handler in signals.items():
                signal.signal(number, handler)
            gc.set_threshold(*thresholds)


def captured(words: Sequence[str], environ: dict[str, str], *, clear: bool = False) -> tuple[int, str, str]:
    """Run the command line in this process, outside of a test; return its exit code and what it writes."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with mock.patch.dict(os.environ, environ, clear=clear), redirect_stdout(out), redirect_stderr(err):
        code = run_here(words)
    written, said = (stream.buffer.getvalue().decode() for stream in (out, err))  # type: ignore[attr-defined]
    return code, written, said


class Process:
    """A forked process, with the face of asyncio's."""

    def __init__(self, forked: Forked) -> None:
        self.stdin: asyncio.StreamWriter | None = None
        self.stdout: asyncio.StreamReader | None = None
        self.stderr: asyncio.StreamReader | None = None
        self.pid = forked.pid
        self._forked = forked
        self._ended = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(forked.reply, self._on_end)

    def _on_end(self) -> None:
        self._loop.remove_reader(self._forked.reply)
        self._forked.reap()
        self._ended.set()

    @property
    def returncode(self) -> int | None:
        return self._forked.returncode

    async def wait(self) -> int:
        await self._ended.wait()
        return self._forked.reap()

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    async def communicate(self, text: bytes | None = None) -> tuple[bytes, bytes]:
        if self.stdin is not None:
            with suppress(BrokenPipeError, ConnectionResetError):
                self.stdin.write(text or b"")
                await self.stdin.drain()
            self.stdin.close()
        streams = [each for each in (self.stdout, self.stderr) if each is not None]
        read = iter(await asyncio.gather(*[each.read() for each in streams]))
        await self.wait()
        return (next(read) if self.stdout else b""), (next(read) if self.stderr else b"")

    async def connect(self, ends: list[int | None]) -> None:
        """Take the test's ends of the pipes."""
        stdin, *outputs = ends
        if stdin is not None:
            pipe = os.fdopen(stdin, "wb", buffering=0)
            made = await self._loop.connect_write_pipe(asyncio.streams.FlowControlMixin, pipe)
            self.stdin = asyncio.StreamWriter(*made, None, self._loop)
        for name, end in zip(("stdout", "stderr"), outputs, strict=True):
            if end is not None:
                reader = asyncio.StreamReader()
                pipe = os.fdopen(end, "rb", buffering=0)
                await self._loop.connect_read_pipe(partial(asyncio.StreamReaderProtocol, reader), pipe)
                setattr(self, name, reader)


async def start(
    *words: str,
    env: dict[str, str],
    python: tuple[str, ...] = STRICT,
    program: tuple[str, str] = ("-m", "sbpair"),
    stdin: int = asyncio.subprocess.DEVNULL,
    stdout: int = asyncio.subprocess.PIPE,
    stderr: int = asyncio.subprocess.PIPE,
    prepare: Callable[[], object] | None = None,
) -> Any:
    only_warnings = python[:1] in ((), ("-W",))
    if prepare is None and only_warnings and program == ("-m", "sbpair") and can_fork(env):
        return await _forked(words, env, (stdin, stdout, stderr), strict=python == STRICT)
    return await asyncio.create_subprocess_exec(
        *(sys.executable, *python, *program, *words),
        env=env,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        preexec_fn=prepare,
    )


async def _forked(words: tuple[str, ...], env: dict[str, str], files: Sequence[int], *, strict: bool) -> Process:
    theirs: list[int] = []
    ends: list[int | None] = []
    with ExitStack() as opened:
        for number, file in enumerate(files):
            if file == asyncio.subprocess.PIPE:
                pipe = os.pipe()
                ends.append(pipe[number == 0])
                theirs.append(pipe[number != 0])
                opened.callback(os.close, theirs[-1])
            elif file == asyncio.subprocess.DEVNULL:
                ends.append(None)
                theirs.append(os.open(os.devnull, os.O_RDWR))
                opened.callback(os.close, theirs[-1])
            else:
                ends.append(None)
                theirs.append(theirs[1] if file == asyncio.subprocess.STDOUT else file)
        process = Process(fork(words, env, theirs, strict=strict))
    await process.connect(ends)
    return process


async def finished(process: Any, text: str = "") -> tuple[int, str, str]:
    """Wait for a process; return its exit code and what it wrote to the standard output and error."""
    out, err = await process.communicate(text.encode() if process.stdin else None)
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


class CommandLines:
    """Command lines in processes of their own, in one environment. Each ends with the words of `last`."""

    def __init__(self, environ: dict[str, str], *last: str, **options: Any) -> None:
        self.environ, self.last = environ, last
        self._options = options

    async def start(self, *words: str, **more: Any) -> asyncio.subprocess.Process:
        """Start one. What `more` has in capitals is a variable, and all else an option of `start`."""
        changed = {name: value for name, value in more.items() if name.isupper()}
        options = self._options | {name: value for name, value in more.items() if not name.isupper()}
        return await start(*words, *self.last, env=self.environ | changed, **options)

    async def run(self, *words: str, text: str = "", **more: Any) -> tuple[int, str, str]:
        return await finished(await self.start(*words, **more), text)
