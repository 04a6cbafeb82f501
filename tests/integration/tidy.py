"""A coroutine as a test, which leaves no task behind."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import Any

MAX_SECONDS = 60


def sync(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def wrapper(*arguments: Any, **keywords: Any) -> None:
        async def main() -> None:
            async with asyncio.timeout(MAX_SECONDS):
                await test(*arguments, **keywords)
            for _ in range(20):
                await asyncio.sleep(0)
            assert asyncio.all_tasks() == {asyncio.current_task()}

        asyncio.run(main())

    return wrapper
