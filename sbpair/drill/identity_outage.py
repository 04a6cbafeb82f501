"""The phases of a drill whose identity providers go away, first the primary's, then both, while a watch moves.

Each namespace is in a tenant of its own, and tokens are short. Invariant: a token serves until it ends, and nothing
ends with exit code 5.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from sbpair.backlog import queue_path
from sbpair.drill.drill_pair import PRIMARY, SECONDARY, EmitPhase, EmulatedOutages
from sbpair.move.events import SyphonEvent
from sbpair.move.receipt import Receipt
from sbpair.syphon import runner
from sbpair.syphon.run_request import syphon_request

if TYPE_CHECKING:
    from sbpair.drill import Application


async def outlast(
    sending: Application, outages: EmulatedOutages, emit: EmitPhase, on_event: Callable[[SyphonEvent], None]
) -> Receipt:
    """Run every phase, from healthy providers to healthy ones. Return the receipt of the watch. Raises TimedOut."""
    from sbpair.failover.entity_states import State

    stop, pair = asyncio.Event(), sending.client.pair
    watch = asyncio.create_task(
        runner.run(syphon_request(pair, once=False, lease=False), stop=stop, on_event=on_event), name="watch"
    )
    faults = outages.emulator.faults
    try:
        await sending.until_more("primary")
        emit("identity-down", f"the identity provider of {pair.primary.name} goes away; a token serves until it ends")
        faults.identity_down(PRIMARY, "500")
        await sending.until_more("primary")
        await sending.until("a failover", lambda: sending.state is State.FAILED_OVER)
        await sending.until_more("backlog")
        emit("both-down", f"the provider of {pair.secondary.name} goes away, too; new messages wait in the outbox")
        faults.identity_down(SECONDARY, "refuse")
        await sending.until_more("outbox")
        emit("identity-up", "both are back; the watch and the application go on")
        faults.end_all()
        await sending.until("the return to the primary", lambda: sending.state is State.HEALTHY)
        await sending.until("an empty outbox", lambda: not sending.waits_in_outbox)
        await sending.until_more("primary")
        names = (queue_path(pair.primary.name, index) for index in range(pair.backlog_queues))
        queues = [outages.emulator.namespaces[SECONDARY].queue(name) for name in names]
        await sending.until("an empty backlog", lambda: watch.done() or not any(len(each.messages) for each in queues))
    finally:
        faults.end_all()
        stop.set()
        result = await watch
    for _, error in result.failures:
        raise error
    return result.receipt
