"""The syphon: brings what waits in the backlog queues back to the primary, once or for as long as it runs.

result = await sbpair.syphon.run(pair, once=True)
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sbpair.errors import EntityMissing, SbpairError
from sbpair.move.mover import Setting
from sbpair.move.receipt import Named
from sbpair.syphon import queues
from sbpair.syphon.lane import Count, Lane, Plan

if TYPE_CHECKING:
    from sbpair.bus.control import QueueControl
    from sbpair.model import Pair
    from sbpair.move.events import SyphonEvent
    from sbpair.move.receipt import Receipt

log = logging.getLogger(__name__)

LOOK_AGAIN_SECONDS = 60.0
"""How often a watch without any backlog queue looks whether there is one now."""


@dataclass(frozen=True, slots=True)
class Result:
    """`failures` are the lanes that could not go on: (queue, why)."""

    receipt: Receipt
    failures: tuple[tuple[str, SbpairError], ...]
    seconds: float
    stopped: bool

    @property
    def exit_code(self) -> int:
        """The receipt's, unless nothing could be moved at all: then why not."""
        if not self.failures:
            return self.receipt.exit_code
        worst = min((error.exit_code for _, error in self.failures), key=lambda code: (code != 5, code))
        return worst if worst == 5 or not self.receipt.sent else 3


async def run(
    pair: Pair,
    *,
    once: bool,
    stop: asyncio.Event | None = None,
    on_event: Callable[[SyphonEvent], None] = lambda _event: None,
    hold: int = 1_000,
) -> Result:
    """Move what is in the pair's backlog queues to where it was meant to go.

    With `once`, ends when every message that was there at the start is settled or held; else when `stop` is set.
    Without the Manage claim, the queues are 0 to the pair's count, and emptiness is judged by waiting. At most `hold`
    messages are held for destinations that take nothing for now. Raises only what is wrong before anything is received,
    such as EntityMissing where there is no backlog queue at all.
    """
    started = time.monotonic()
    stop = stop or asyncio.Event()
    setting = Setting(namespace=pair.secondary.name, on_event=on_event, hold=hold)
    # The SDK takes half a second to load: a wrong option should not have to wait for it.
    from sbpair.bus.atom import open_queues
    from sbpair.bus.credentials import token_getter

    async with open_queues(pair.secondary) as control, token_getter(pair) as get_token:
        plan = Plan(pair, once, setting, stop, get_token=get_token)
        lanes = [Lane(queue, plan) for queue in await _queues_to_empty(plan, control)]
        await _run_all(lanes, stop)
    return _result(plan, lanes, time.monotonic() - started)


def _result(plan: Plan, lanes: list[Lane], seconds: float) -> Result:
    setting = plan.setting
    missing = [lane for lane in lanes if isinstance(lane.error, EntityMissing)]
    if len(missing) == len(lanes) and not plan.stop.is_set() and not setting.tally.receipt().received:
        raise queues.none_there(plan.pair)
    # Where nothing can be, nothing is left behind: a queue that is not there has been told of, and is no failure.
    failures = tuple((lane.queue, lane.error) for lane in lanes if lane.error is not None and lane not in missing)
    for _, queue, number, _, message_id in setting.journal.unconfirmed():
        why = "the primary has it, and the backlog did not confirm that it has let go of it"
        setting.tally.doubtful(Named(queue, number, message_id, None, why))
    return Result(setting.tally.receipt(), failures, seconds, plan.stop.is_set())


async def _run_all(lanes: list[Lane], stop: asyncio.Event) -> None:
    try:
        async with asyncio.TaskGroup() as tasks:
            watcher = tasks.create_task(_interrupt(stop, lanes), name="watch for the stop")
            async with asyncio.TaskGroup() as running:
                for lane in lanes:
                    running.create_task(lane.run(), name=f"lane {lane.queue}")
            watcher.cancel()
    except BaseExceptionGroup as group:
        raise _first(group) from None


def _first(error: BaseException) -> BaseException:
    return _first(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


async def _queues_to_empty(plan: Plan, control: QueueControl) -> tuple[str, ...]:
    found = await _queues(plan, control)
    while not found and not plan.once and not plan.stop.is_set():
        await _wait(plan.stop, LOOK_AGAIN_SECONDS)
        found = await _queues(plan, control)
    return found


async def _queues(plan: Plan, control: QueueControl) -> tuple[str, ...]:
    found = await queues.find(plan.pair, control)
    if found.managed:
        plan.count = _counter(control)
    plan.setting.on_event(found)
    return found.queues


def _counter(control: QueueControl) -> Count:
    async def count(queue: str) -> int:
        return (await control.counts(queue)).active

    return count


async def _interrupt(stop: asyncio.Event, lanes: list[Lane]) -> None:
    await stop.wait()
    for lane in lanes:
        lane.interrupt()


async def _wait(stop: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        return
