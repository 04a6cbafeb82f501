"""The body of a request to the relay, which a second attempt may send again.

Invariant: the parts of a stream keep their order, and none is lost or repeated by an attempt that is given up.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator
from typing import Final, TypeAlias

from sbpair.errors import InDoubt, UsageError

MAX_KEPT: Final = 64 * 1024
"""Bytes of a stream that are kept for a second attempt."""

MAX_WHOLE: Final = 512 * 1024
"""Larger bytes are sent in parts."""

SentBody: TypeAlias = bytes | AsyncIterable[bytes] | None


class RequestBody:
    """Bytes, or a stream of which the first 64 kB can be sent again. Raises UsageError for anything else."""

    def __init__(self, body: SentBody | str) -> None:
        if isinstance(body, str):
            raise UsageError("expected bytes as the body of a request, got str", hint="encode the text")
        self._whole: bytes | None = None
        self._source: AsyncIterator[bytes] | None = None
        if body is None or isinstance(body, (bytes, bytearray, memoryview)):
            self._whole = None if body is None else bytes(body)
        elif hasattr(body, "__aiter__"):
            self._source = body.__aiter__()
        else:
            kind = type(body).__name__
            raise UsageError(f"expected bytes or an async iterator as the body, got {kind}", hint="use aiter")
        self._kept: list[bytes] = []
        self._size = 0
        self._next: asyncio.Task[bytes | None] | None = None
        self._has_ended = False
        self._is_closed = False
        self.error: Exception | None = None
        """The error of the stream itself, if that has failed."""

    @property
    def length(self) -> int | None:
        """The length if it is known."""
        return None if self._source is not None else len(self._whole or b"")

    @property
    def is_complete(self) -> bool:
        """Whether all of the body can be sent, from its beginning."""
        return self._size <= MAX_KEPT and self.error is None

    def open(self) -> bytes | AsyncIterator[bytes] | None:
        """Return the body for an attempt, from its beginning. Ends the use of an earlier one."""
        if self._source is not None:
            return self._stream()
        if self._whole is not None and len(self._whole) > MAX_WHOLE:
            return self._slices(self._whole)
        return self._whole

    async def close(self) -> None:
        """End the stream, which may not have been read to its end: it fails for an attempt that still reads it."""
        self._is_closed = True
        if self._next is not None:
            self._next.cancel()
            await asyncio.gather(self._next, return_exceptions=True)
        closing = getattr(self._source, "aclose", None)
        if closing is not None:
            await closing()

    async def _slices(self, whole: bytes) -> AsyncIterator[bytes]:
        for start in range(0, len(whole), MAX_KEPT):
            yield whole[start : start + MAX_KEPT]

    async def _stream(self) -> AsyncIterator[bytes]:
        if not self.is_complete:
            raise InDoubt("the body of a request was read in part, and cannot be sent again", hint="send it anew")
        for kept in list(self._kept):
            yield kept
        while (part := await self._pull()) is not None:
            yield part

    async def _pull(self) -> bytes | None:
        """Return the next part, or None. It stays for the next attempt if this one is given up meanwhile."""
        if self._has_ended:
            return None
        if self._is_closed:
            raise ConnectionResetError("the request was given up")
        if self._next is None:
            self._next = asyncio.create_task(self._take(), name="read the body of a request")
        try:
            part = await asyncio.shield(self._next)
        except Exception as error:
            self.error = error
            raise
        self._next = None
        if part is None:
            self._has_ended = True
            return None
        self._size += len(part)
        if self._size <= MAX_KEPT:
            self._kept.append(part)
        else:
            self._kept.clear()
        return part

    async def _take(self) -> bytes | None:
        assert self._source is not None  # noqa: S101  # only a stream is pulled
        async for part in self._source:
            if not isinstance(part, (bytes, bytearray, memoryview)):
                raise UsageError(
                    f"expected bytes from the body's iterator, got {type(part).__name__}", hint="encode it"
                )
            if part:
                return bytes(part)
        return None
