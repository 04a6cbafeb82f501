"""Filters of a syphon over real sockets: what is not chosen stays, with its delivery count."""

from __future__ import annotations

import asyncio

from sbpair.move.filter.compiler import MessageFilter
from tests.kit.waiting import until
from tests.syphon.test_syphon import held_in, world

CHOSEN = "sys.MessageId IN ('m1', 'm4')"


async def test_messages_that_are_not_chosen_stay_with_their_delivery_count() -> None:
    async with world() as w:
        w.strand(*range(6))
        before = [message.delivery_count for message in held_in(w.backlog())]
        receipt = (await w.run(where=MessageFilter(CHOSEN))).receipt
        assert (receipt.received, receipt.sent, receipt.skipped, receipt.exit_code) == (6, 2, 4, 0)
        assert [message.delivery_count for message in held_in(w.backlog())] == before[:4]
        after = (await w.run()).receipt  # none of them is locked
        assert (after.received, after.sent, after.skipped) == (4, 4, 0)


async def test_stopped_watch_releases_what_it_skipped() -> None:
    async with world() as w:
        w.strand(*range(6))
        running = asyncio.create_task(w.run(once=False, where=MessageFilter(CHOSEN)))
        await until(lambda: w.destination().counts().active == 2)
        w.stop.set()
        receipt = (await running).receipt
        assert (receipt.sent, receipt.skipped, receipt.released, receipt.balanced) == (2, 4, 0, True)
        assert {message.delivery_count for message in held_in(w.backlog())} == {0}
        assert w.backlog().messages.receive(10)
