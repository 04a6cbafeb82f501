"""Lines of a file or a pipe, read ahead in a thread, a bounded number of them. What they mean is `lines`' affair.

The law: a line is handed out as soon as it is whole, and none after one that is wrong. The descriptor is read without
Python's buffers, which a thread that is left behind in a read would hold on to at the end of the program.
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
LINES_AT_ONCE = 100
AHEAD = 8
"""So many lots of lines wait at most."""

LONGEST_LINE_BYTES = 150 * 1024 * 1024
"""More than any tier takes, however it is written."""


@dataclass(frozen=True, slots=True)
class SourceLine:
    """The message of one line, counted from 1."""

    number: int
    message: Message


Parse = Callable[[bytes], "Message"]


class LineReader:
    """Reads the descriptor `file`, which errors call `place`; leaves out the first `skip` lines, and empty ones."""

    def __init__(self, file: int, place: str, parse: Parse, skip: int = 0) -> None:
        self._file, self._place, self._parse, self.skip = file, place, parse, skip
        self._room = threading.Semaphore(AHEAD)
        self._lots: asyncio.Queue[list[SourceLine] | SbpairError | None] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._thread: threading.Thread | None = None
        self.seen = 0

    async def take(self) -> list[SourceLine]:
        """The next lines, at least one; [] at the end. Raises UsageError for a line that is wrong, after those before.

        Raises MachineLacks where the file cannot be read.
        """
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="read lines", daemon=True)
            self._thread.start()
        found = await self._lots.get()
        if isinstance(found, SbpairError):
            raise found
        self._room.release()
        return found or []

    def _run(self) -> None:
        with suppress(RuntimeError):  # the loop has been closed: nobody reads any more
            try:
                for lot in self._parsed():
                    self._room.acquire()
                    self._hand(lot)
            except SbpairError as error:
                self._hand(error)
            else:
                self._hand(None)

    def _hand(self, what: list[SourceLine] | SbpairError | None) -> None:
        self._loop.call_soon_threadsafe(self._lots.put_nowait, what)

    def _parsed(self) -> Iterator[list[SourceLine]]:
        lot: list[SourceLine] = []
        for whole in _split(_chunks(self._file, self._place), self._place):
            for line in whole:
                self.seen += 1
                if self.seen <= self.skip or not line.strip():
                    continue
                try:
                    lot.append(SourceLine(self.seen, self._parse(line)))
                except UsageError as error:
                    if lot:
                        yield lot
                    raise _wrong(self._place, self.seen, error) from None
                if len(lot) == LINES_AT_ONCE:
                    yield lot
                    lot = []
            if lot:
                yield lot
                lot = []


def check(file: int, place: str, parse: Parse, skip: int) -> None:
    """Raise UsageError for the first line that is wrong. The descriptor can be read from its start again."""
    number = 0
    for whole in _split(_chunks(file, place), place):
        for line in whole:
            number += 1
            if number > skip and line.strip():
                try:
                    parse(line)
                except UsageError as error:
                    raise _wrong(place, number, error) from None
    os.lseek(file, 0, os.SEEK_SET)


def _wrong(place: str, number: int, error: UsageError) -> UsageError:
    return UsageError(f"{place}, line {number}: {error.message}", hint=error.hint)


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
    """The lines that each chunk completes, without their ends; the last one needs none."""
    begun: list[bytes] = []
    size = 0
    for chunk in chunks:
        *whole, rest = chunk.split(b"\n")
        if whole:
            whole[0] = b"".join((*begun, whole[0]))
            begun, size = [], 0
            yield [line.removesuffix(b"\r") for line in whole]
        if rest:
            begun.append(rest)
            size += len(rest)
        if size > LONGEST_LINE_BYTES:
            raise UsageError(f"{place} has a line of more than {LONGEST_LINE_BYTES} bytes", hint="give a file of lines")
    if begun:
        yield [b"".join(begun).removesuffix(b"\r")]
