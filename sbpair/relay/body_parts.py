"""Bodies that come from an iterator, and bodies that a second attempt may send again.

Invariant: the parts keep their order, and none is lost or repeated by a wait or an attempt that is given up.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable
from concurrent.futures import Executor
from typing import Final, TypeAlias, TypeGuard

from sbpair.errors import InDoubt, UsageError

MAX_KEPT: Final = 64 * 1024
"""Bytes of a stream that are kept for a second attempt."""

MAX_WHOLE: Final = 512 * 1024
"""Larger bytes are sent in parts."""

SentBody: TypeAlias = bytes | AsyncIterable[bytes] | Iterable[bytes] | None
_BYTES: Final = (bytes, bytearray, memoryview)
_END: Final = object()


def is_blocking(body: object) -> TypeGuard[Iterable[bytes]]:
    """Return whether a body is iterated over without `await`."""
    return isinstance(body, Iterable) and not isinstance(body, (str, *_BYTES))


async def pulled(parts: Iterable[bytes], executor: Executor | None = None) -> AsyncIterator[bytes]:
    """Iterate over a source that may block, in another thread."""
    loop, source = asyncio.get_running_loop(), iter(parts)
    while (part := await loop.run_in_executor(executor, next, source, _END)) is not _END:
        yield part  # type: ignore[misc]


class BodyParts:
    """The parts of `source` but empty ones."""

    def __init__(self, source: AsyncIterator[bytes]) -> None:
        self._source = source
        self._next: asyncio.Task[bytes | None] | None = None
        self._has_ended = False
        self._is_closed = False

    @property
    def error(self) -> BaseException | None:
        """The error of the source itself, if it has failed."""
        failed = self._next is not None and self._next.done() and not self._next.cancelled()
        return self._next.exception() if self._next is not None and failed else None

    async def next(self) -> bytes | None:
        """Return the next part, or None at the end. If it is cancelled, the part stays for the next call.

        Raises the error of the source, UsageError for a part that is not bytes, ConnectionResetError after `close`.
        """
        if self._has_ended:
            return None
        if self._is_closed:
            raise ConnectionResetError("the body was given up")
        if self._next is None:
            self._next = asyncio.create_task(self._take(), name="read a body")
        part = await asyncio.shield(self._next)
        self._next, self._has_ended = None, part is None
        return part

    async def _take(self) -> bytes | None:
        async for part in self._source:
            if not isinstance(part, _BYTES):
                raise UsageError(
                    f"expected bytes from the body's iterator, got {type(part).__name__}", hint="encode it"
                )
            if part:
                return bytes(part)
        return None

    async def close(self) -> None:
        """End the source, which may not have been read to its end."""
        self._is_closed = True
        if self._next is not None:
            self._next.cancel()
            await asyncio.gather(self._next, return_exceptions=True)
        closing = getattr(self._source, "aclose", None)
        if closing is not None:
            await closing()


class RequestBody:
    """Bytes, or a stream of which the first 64 kB can be sent again. Raises UsageError for anything else.

    aiohttp repeats a request whose idle connection was closed, after it has read a part of the body. So each iteration
    begins anew, or raises InDoubt. `on_part` is called for each part of an iteration, and at its end.
    """

    def __init__(self, body: SentBody | str) -> None:
        if isinstance(body, str):
            raise UsageError("expected bytes as the body of a request, got str", hint="encode the text")
        self.on_part: Callable[[], object] = lambda: None
        self._whole: bytes | None = None
        self._parts: BodyParts | None = None
        if body is None or isinstance(body, _BYTES):
            self._whole = None if body is None else bytes(body)
        elif hasattr(body, "__aiter__"):
            self._parts = BodyParts(body.__aiter__())
        elif is_blocking(body):
            self._parts = BodyParts(pulled(body))
        else:
            raise UsageError(f"expected bytes or an iterator as the body, got {type(body).__name__}", hint="encode it")
        self._kept: list[bytes] = []
        self._size = 0

    @property
    def error(self) -> BaseException | None:
        """The error of the stream itself, if that has failed."""
        return None if self._parts is None else self._parts.error

    @property
    def length(self) -> int | None:
        """The length if it is known."""
        return None if self._parts is not None else len(self._whole or b"")

    @property
    def is_complete(self) -> bool:
        """Whether all of the body can be sent, from its beginning."""
        return self._size <= MAX_KEPT and self.error is None

    @property
    def data(self) -> bytes | RequestBody | None:
        """The body for aiohttp: bytes if they are few, else this object."""
        return self if self._parts is not None or len(self._whole or b"") > MAX_WHOLE else self._whole

    async def __aiter__(self) -> AsyncIterator[bytes]:
        on_part = self.on_part
        async for part in self._slices() if self._parts is None else self._stream(self._parts):
            on_part()
            yield part
        on_part()

    async def close(self) -> None:
        """End the stream, which may not have been read to its end: it fails for an attempt that still reads it."""
        if self._parts is not None:
            await self._parts.close()

    async def _slices(self) -> AsyncIterator[bytes]:
        whole = self._whole or b""
        for start in range(0, len(whole), MAX_KEPT):
            yield whole[start : start + MAX_KEPT]

    async def _stream(self, parts: BodyParts) -> AsyncIterator[bytes]:
        if not self.is_complete:
            raise InDoubt("the body of a request was read in part, and cannot be sent again", hint="send it anew")
        for kept in list(self._kept):
            yield kept
        while (part := await parts.next()) is not None:
            self._size += len(part)
            if self._size <= MAX_KEPT:
                self._kept.append(part)
            else:
                self._kept.clear()
            yield part
