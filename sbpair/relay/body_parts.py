"""The parts of a body that comes from an async iterator.

Invariant: the parts keep their order, and a wait that is given up loses none.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from sbpair.errors import UsageError


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
            if not isinstance(part, (bytes, bytearray, memoryview)):
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
