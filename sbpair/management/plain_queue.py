"""Creation of one plain queue in one namespace."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from sbpair.azure.retry import attempt

if TYPE_CHECKING:
    from sbpair.model.pair import Endpoint, ResourceGroup
    from sbpair.model.queues import QueueSpec, Retrying


async def create_queue(
    endpoint: Endpoint,
    queue: QueueSpec,
    *,
    group: ResourceGroup | None = None,
    on_event: Callable[[Retrying], object] = lambda _event: None,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> bool:
    """Create a queue in the namespace of `endpoint`. Returns False where an entity of any kind has its name.

    An existing entity is not changed. With a `group`, the call goes to Resource Manager. Needs the Manage claim, or a
    role. Raises AccessError, Unavailable, ServiceRefused.
    """
    from sbpair.azure.control_plane import open_namespace

    async with open_namespace(endpoint, group) as namespace:
        return await attempt(f"create {queue.path}", lambda: namespace.create(queue), sleep=sleep, on_event=on_event)
