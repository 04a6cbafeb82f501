"""Renewal of the locks of held messages: each is renewed in time, or dropped once its lock is lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from sbpair.errors import MessageLockLost, SbpairError

if TYPE_CHECKING:
    from sbpair.move.context import MoveContext
    from sbpair.move.held import HeldMessages
    from sbpair.move.interface import MessageSource, ReceivedMessage

log = logging.getLogger(__name__)


async def renew_locks(
    held: HeldMessages, source: MessageSource, context: MoveContext, on_lost: Callable[[ReceivedMessage], None]
) -> None:
    """Renew locks until cancelled. `on_lost` gets each delivery whose lock could not be renewed."""
    loop, timings = asyncio.get_running_loop(), context.timings
    while True:
        locked = [message for message in held if message.lock_until > 0.0]
        if not locked:
            held.added.clear()
            await held.added.wait()
            continue
        # A later lock expires later: nothing that arrives during this sleep is more urgent.
        soonest = min(message.lock_until for message in locked)
        await asyncio.sleep(max(timings.min_renewal_seconds, soonest - timings.renew_before_seconds - loop.time()))
        due = loop.time() + timings.renew_before_seconds
        await _renew([each for each in held if 0.0 < each.lock_until <= due], held, source, context, on_lost)


async def _renew(
    messages: list[ReceivedMessage],
    held: HeldMessages,
    source: MessageSource,
    context: MoveContext,
    on_lost: Callable[[ReceivedMessage], None],
) -> None:
    if not messages:
        return
    context.tally.spent("renewals", len(messages))
    try:
        await source.renew(messages)
    except MessageLockLost:
        if len(messages) == 1:
            messages[0].lock_until = 0.0
            on_lost(messages[0])
            return
        for message in messages:
            if message in held:
                await _renew([message], held, source, context, on_lost)
    except SbpairError as error:
        log.info("locks of %s were not renewed: %s", source.queue, error)
