"""Blocking reads in a thread, ahead of a loop that wants what they return.

Invariant: a read that waits, as for a terminal, does not keep the program from ending.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Final, Generic, Self, TypeVar

from sbpair.errors import MachineLacks, SbpairError

Item = TypeVar("Item")

CHUNK_BYTES: Final = 64 * 1024


class ReadAhead(Generic[Item]):
    """Iterates over `items` in a thread, which is at most `limit` items ahead. Raises their SbpairError."""

    def __init__(self, items: Iterable[Item], limit: int = 1) -> None:
        self._items = items
        self._slots = threading.Semaphore(limit)
        self._found: asyncio.Queue[Item | SbpairError | None] = asyncio.Queue()
        self._thread: threading.Thread | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Item:
        if self._thread is None:
            loop = asyncio.get_running_loop()
            self._thread = threading.Thread(target=self._run, args=(loop,), name="read ahead", daemon=True)
            self._thread.start()
        found = await self._found.get()
        if isinstance(found, SbpairError):
            raise found
        self._slots.release()
        if found is None:
            raise StopAsyncIteration
        return found

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        def put(item: Item | SbpairError | None) -> None:
            loop.call_soon_threadsafe(self._found.put_nowait, item)

        with suppress(RuntimeError):  # the loop has been closed
            try:
                for each in self._items:
                    self._slots.acquire()
                    put(each)
            except SbpairError as error:
                put(error)
            else:
                put(None)


def read_chunks(file: int, place: str) -> Iterator[bytes]:
    """Read a descriptor to its end; `place` is its name in errors. Raises MachineLacks."""
    while True:
        try:
            chunk = os.read(file, CHUNK_BYTES)
        except OSError as error:
            raise MachineLacks(f"{place} cannot be read: {error.strerror}", hint="check what it is") from error
        if not chunk:
            return
        yield chunk
