"""Temporary queues that are cancelled while they are created."""

import asyncio
from typing import Any

import pytest

from sbpair.management.calls import shielded
from sbpair.management.temporary_queues import TemporaryQueues
from sbpair.model.queues import QueueSpec
from tests.kit.waiting import no_wait, until


class SlowNamespace:
    """A namespace that creates a queue once `answers` is set."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.answers = asyncio.Event()

    async def tier_name(self) -> str:
        return "Standard"

    async def create(self, spec: QueueSpec) -> bool:
        self.steps.append(f"create {spec.path}")
        await self.answers.wait()
        self.steps.append("created")
        return True

    async def delete(self, path: str) -> None:
        self.steps.append(f"delete {path}")


async def test_a_creation_ends_through_cancellations_before_its_deletion() -> None:
    slow: Any = SlowNamespace()
    queues = TemporaryQueues(slow, "contoso")
    creating = asyncio.create_task(queues.create(QueueSpec("q")))
    await until(lambda: bool(slow.steps))
    for _ in range(3):
        creating.cancel()
        await asyncio.sleep(0)
    slow.answers.set()
    with pytest.raises(asyncio.CancelledError):
        await creating
    await queues.delete_all(no_wait, lambda _path, error: pytest.fail(str(error)))
    assert slow.steps == ["create q", "created", "delete q"]


async def test_a_second_cancellation_ends_what_is_not_always_shielded() -> None:
    waiting = asyncio.create_task(shielded(asyncio.Event().wait()))
    for ended in (False, True):
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting], timeout=0.05)
        assert waiting.cancelled() is ended
