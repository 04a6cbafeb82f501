"""Changing and deleting queues, over azure-servicebus' administration client. Used by those who remove queues alone.

Thin, like `atom`. A change sends the whole description: what is not meant to change goes back as it was read.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from sbpair.azure.atom import AtomNamespace, counts_of, open_client
from sbpair.azure.atom_entities import queue_of
from sbpair.azure.management_errors import translate_management_errors
from sbpair.azure.transport import CALL_SECONDS
from sbpair.errors import ServiceRefused

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from azure.servicebus.management import QueueRuntimeProperties

    from sbpair.azure.interfaces import QueueRemoval
    from sbpair.model.pair import Endpoint
    from sbpair.model.queues import Counts

SAID_ANEW = ("max_size_in_megabytes", "default_message_time_to_live", "auto_delete_on_idle")
"""What the SDK reads as something else than has to be written: 16 sizes for one, and TimeSpan.MaxValue too long."""


@asynccontextmanager
async def open_removal(endpoint: Endpoint, *, call_seconds: float = CALL_SECONDS) -> AsyncIterator[QueueRemoval]:
    """The queues of `endpoint`, to be removed. Nothing is connected before the first call."""
    async with open_client(endpoint, call_seconds) as client:
        yield AtomRemoval(client, endpoint.name)


class AtomRemoval(AtomNamespace):
    """`QueueRemoval` of one namespace. To be had from `open_removal`."""

    async def exact_counts(self, path: str) -> Counts:
        with translate_management_errors(f"count the messages of {path}", self._namespace):
            runtime = await self._client.get_queue_runtime_properties(path)
        if any(figure is None for figure in _figures(runtime)):
            raise ServiceRefused(
                f"{self._namespace} does not say how many messages {path} holds",
                hint="what is not known to be empty is not removed: look into the queue",
            )
        return counts_of(runtime)

    async def set_status(self, path: str, status: str) -> None:
        with translate_management_errors(f"set the status of the queue {path}", self._namespace):
            there = await self._client.get_queue(path)
            chosen = await self._as_chosen(queue_of(there))
            said = {name: getattr(chosen, name) for name in SAID_ANEW}
            await self._client.update_queue(there, **said, status=status)

    async def delete(self, path: str) -> None:
        with translate_management_errors(f"delete the queue {path}", self._namespace):
            await self._client.delete_queue(path)


def _figures(runtime: QueueRuntimeProperties) -> tuple[int | None, ...]:
    return (
        runtime.active_message_count,
        runtime.dead_letter_message_count,
        runtime.scheduled_message_count,
        runtime.total_message_count,
        runtime.transfer_message_count,
        runtime.transfer_dead_letter_message_count,
    )
