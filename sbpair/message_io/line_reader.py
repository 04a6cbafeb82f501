"""Lines of a file or a pipe as messages, read ahead in a thread up to a limit.

Invariant: a line is delivered as soon as it is complete, and none after an invalid line. The descriptor is read without
Python's buffers: a thread left behind in a buffered read would block the end of the program.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sbpair.errors import MachineLacks, SbpairError, UsageError

if TYPE_CHECKING:
    from sbpair.failover.sdk_messages import Message

CHUNK_BYTES = 65_536
MAX_GROUP_LINES = 100
MAX_GROUPS_AHEAD = 8

MAX_LINE_BYTES = 150 * 1024 * 1024
"""More than any tier accepts, in any encoding."""


@dataclass(frozen=True, slots=True)
class SourceLine:
    """The message of one line, counted from 1."""

    number: int
    message: Message


Parse = Callable[[bytes], "Message"]


class SourceLines:
    """Iterates over the lines of the descriptor `file`, in groups; skips the first `skip` lines and empty ones.

    `place` is its name in errors. Raises UsageError for an invalid line, after the lines before it, and MachineLacks if
    the file cannot be read.
    """

    def __init__(self, file: int, place: str, parse: Parse, skip: int) -> None:
        self._file, self._place, self._parse, self.skip = file, place, parse, skip
        self.seen = 0

    def __iter__(self) -> Iterator[list[SourceLine]]:
        group: list[SourceLine] = []
        for complete in _split(_chunks(self._file, self._place), self._place):
            for line in complete:
                self.seen += 1
                if self.seen <= self.skip or not line.strip():
                    continue
                try:
                    group.append(SourceLine(self.seen, self._parse(line)))
                except UsageError as error:
                    if group:
                        yield group
                    raise UsageError(f"{self._place}, line {self.seen}: {error.message}", hint=error.hint) from None
                if len(group) == MAX_GROUP_LINES:
                    yield group
                    group = []
            if group:
                yield group
                group = []


class LineReader:
    """Reads SourceLines in a thread, for the running loop."""

    def __init__(self, file: int, place: str, parse: Parse, skip: int = 0) -> None:
        self.lines = SourceLines(file, place, parse, skip)
        self._slots = threading.Semaphore(MAX_GROUPS_AHEAD)
        self._groups: asyncio.Queue[list[SourceLine] | SbpairError | None] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._thread: threading.Thread | None = None

    async def read(self) -> list[SourceLine]:
        """Return the next lines, or [] at the end. Raises UsageError for an invalid line, after the lines before it.

        Raises MachineLacks if the file cannot be read.
        """
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="read lines", daemon=True)
            self._thread.start()
        found = await self._groups.get()
        if isinstance(found, SbpairError):
            raise found
        self._slots.release()
        return found or []

    def _run(self) -> None:
        with suppress(RuntimeError):  # the loop has been closed
            try:
                for group in self.lines:
                    self._slots.acquire()
                    self._put(group)
            except SbpairError as error:
                self._put(error)
            else:
                self._put(None)

    def _put(self, item: list[SourceLine] | SbpairError | None) -> None:
        self._loop.call_soon_threadsafe(self._groups.put_nowait, item)


def check_lines(file: int, place: str, parse: Parse, skip: int) -> None:
    """Raise UsageError for the first invalid line. Afterwards the descriptor is at its start again."""
    for _ in SourceLines(file, place, parse, skip):
        pass
    os.lseek(file, 0, os.SEEK_SET)


def _chunks(file: int, place: str) -> Iterator[bytes]:
    while True:
        try:
            chunk = os.read(file, CHUNK_BYTES)
        except OSError as error:
            raise MachineLacks(f"{place} cannot be read: {error.strerror}", hint="check what it is") from error
        if not chunk:
            return
        yield chunk


def _split(chunks: Iterable[bytes], place: str) -> Iterator[list[bytes]]:
    """Yield the lines that each chunk completes, without their ends. The last line needs no end."""
    begun: list[bytes] = []
    size = 0
    for chunk in chunks:
        *complete, rest = chunk.split(b"\n")
        if complete:
            complete[0] = b"".join((*begun, complete[0]))
            begun, size = [], 0
            yield [line.removesuffix(b"\r") for line in complete]
        if rest:
            begun.append(rest)
            size += len(rest)
        if size > MAX_LINE_BYTES:
            raise UsageError(f"{place} has a line of more than {MAX_LINE_BYTES} bytes", hint="give a file of lines")
    if begun:
        yield [b"".join(begun).removesuffix(b"\r")]
