"""Changing and deleting queues, over azure-servicebus' administration client. Used by those who remove queues alone.

Thin, like `atom`. A change sends the whole description: what is not meant to change goes back as it was read.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import fields
from datetime import timedelta
from typing import TYPE_CHECKING

from sbpair.bus.atom import AtomQueues, counts_of, iso_duration, open_client
from sbpair.bus.translate import translated
from sbpair.bus.transport import CALL_SECONDS
from sbpair.errors import ServiceRefused

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from azure.servicebus.management import QueueRuntimeProperties

    from sbpair.bus.control import QueueRemoval
    from sbpair.model import Counts, Endpoint, QueueSpec


@asynccontextmanager
async def open_removal(endpoint: Endpoint, *, call_seconds: float = CALL_SECONDS) -> AsyncIterator[QueueRemoval]:
    """The queues of `endpoint`, to be removed. Nothing is connected before the first call."""
    async with open_client(endpoint, call_seconds) as client:
        yield AtomRemoval(client, endpoint.name)


class AtomRemoval(AtomQueues):
    """`QueueRemoval` of one namespace. To be had from `open_removal`."""

    async def exact_counts(self, path: str) -> Counts:
        with translated(f"count the messages of {path}", self._namespace):
            runtime = await self._client.get_queue_runtime_properties(path)
        if any(figure is None for figure in _figures(runtime)):
            raise ServiceRefused(
                f"{self._namespace} does not say how many messages {path} holds",
                hint="what is not known to be empty is not removed: look into the queue",
            )
        return counts_of(runtime)

    async def update(self, spec: QueueSpec) -> None:
        with translated(f"change the queue {spec.path}", self._namespace):
            there = await self._client.get_queue(spec.path)
            said = {each.name: getattr(spec, each.name) for each in fields(spec) if each.name != "path"}
            # A forward that there is none of is absent, and not empty.
            said = {name: value for name, value in said.items() if value != ""}
            window = there.duplicate_detection_history_time_window
            if isinstance(window, timedelta):
                said["duplicate_detection_history_time_window"] = iso_duration(window)
            await self._client.update_queue(there, **said)

    async def delete(self, path: str) -> None:
        with translated(f"delete the queue {path}", self._namespace):
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
