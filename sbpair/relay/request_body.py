"""The body of a request to the relay, which a second attempt may send again.

Invariant: the parts of a stream keep their order, and none is lost or repeated by an attempt that is given up.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator
from typing import Final, TypeAlias

from sbpair.errors import InDoubt, UsageError
from sbpair.relay.body_parts import BodyParts

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
        self._parts: BodyParts | None = None
        if body is None or isinstance(body, (bytes, bytearray, memoryview)):
            self._whole = None if body is None else bytes(body)
        elif hasattr(body, "__aiter__"):
            self._parts = BodyParts(body.__aiter__())
        else:
            kind = type(body).__name__
            raise UsageError(f"expected bytes or an async iterator as the body, got {kind}", hint="use aiter")
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

    def open(self) -> bytes | AsyncIterator[bytes] | None:
        """Return the body for an attempt, from its beginning. Ends the use of an earlier one."""
        if self._parts is not None:
            return self._stream(self._parts)
        if self._whole is not None and len(self._whole) > MAX_WHOLE:
            return self._slices(self._whole)
        return self._whole

    async def close(self) -> None:
        """End the stream, which may not have been read to its end: it fails for an attempt that still reads it."""
        if self._parts is not None:
            await self._parts.close()

    async def _slices(self, whole: bytes) -> AsyncIterator[bytes]:
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
