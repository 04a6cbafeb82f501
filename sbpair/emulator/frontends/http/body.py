"""Bodies of HTTP requests, bounded in size and time, so that a slow peer fails its own request only."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from sbpair.emulator.service_errors import ArgumentInvalid

if TYPE_CHECKING:
    from aiohttp import web

MAX_BYTES: Final = 64 * 1024
MAX_SECONDS: Final = 30.0


async def read_body(request: web.BaseRequest, *, seconds: float = MAX_SECONDS) -> bytes:
    """Return the whole body. Raises ArgumentInvalid, at once if the declared length is too large."""
    if (request.content_length or 0) > MAX_BYTES:
        raise too_large()
    try:
        async with asyncio.timeout(seconds):
            return await _all_of(request)
    except TimeoutError as error:
        raise ArgumentInvalid(f"The request body did not arrive within {seconds:g} seconds.") from error
    except ConnectionError as error:
        raise ArgumentInvalid("The request ended before its body did.") from error


async def _all_of(request: web.BaseRequest) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in request.content.iter_any():
        parts.append(part)
        size += len(part)
        if size > MAX_BYTES:
            raise too_large()
    return b"".join(parts)


def too_large() -> ArgumentInvalid:
    return ArgumentInvalid(f"The request body is larger than {MAX_BYTES} bytes.")
