"""The mover: messages go from a queue to their destinations, at least once, through three one-way stages.

`intake` routes received messages, a `destination_sender` per destination sends them, `settlement` ends them in the
backlog. No stage calls an earlier one; they share a `failure_latch`.

Invariant: a delivery is completed in the source only after the destination accepted its message. Before that, the
message stays in the source. After that, it may be delivered again, and the journal knows it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from sbpair.errors import SbpairError, Unavailable
from sbpair.move.context import MoveContext
from sbpair.move.destination_sender import DestinationSender, DestinationSenders
from sbpair.move.failure_latch import FailureLatch
from sbpair.move.held import SkippedMessages, renew_locks
from sbpair.move.intake import Intake
from sbpair.move.interface import Destination, MessageSource, ReceivedMessage
from sbpair.move.message.route import remove_all, router, without_sessions
from sbpair.move.receipt import BackingOff
from sbpair.move.settlement import Settlement


class Mover:
    """The three stages of one queue. Each accepted message ends in one bucket of the receipt."""

    def __init__(
        self,
        source: MessageSource,
        destination: Destination,
        tasks: asyncio.TaskGroup,
        context: MoveContext,
        skipped: SkippedMessages | None = None,
    ) -> None:
        """Create a mover. `skipped` are messages that the run has skipped over earlier connections."""
        self._source = source
        self._context = context
        self._latch = FailureLatch(source.interrupt)
        self._skipped = SkippedMessages() if skipped is None else skipped
        self._settlement = Settlement(source, tasks, context, self._latch, self._skipped)
        terms = (context.duplicate_windows, context.renames, context.default_ttl_ms)
        route = remove_all if context.removes else router(context.ttl, self._service_ms, *terms)
        if context.keeps_sessions:
            route = without_sessions(route)
        new_sender = partial(
            DestinationSender,
            source_queue=source.queue,
            namespace=destination if context.traced is None else context.traced(source.queue, destination),
            route=route,
            settlement=self._settlement,
            context=context,
            latch=self._latch,
        )
        self._senders = DestinationSenders(new_sender, tasks, context, self._latch)
        self._intake = Intake(source.queue, route, self._senders, self._settlement, context, self._service_ms)
        self.accept = self._intake.accept
        self.unsettleable = self._settlement.unsettleable
        self.fail, self.halt = self._latch.fail, self._latch.halt
        self.retry_now = self._latch.backoffs.end

    @property
    def fatal(self) -> SbpairError | None:
        """Why no message at all can be sent."""
        return self._latch.fatal

    @property
    def halted(self) -> bool:
        """Whether it starts no more sends: `finish` is next."""
        return self._latch.stopping.is_set()

    async def wait_changed(self, seconds: float) -> None:
        """Wait until a delivery ends or a destination backs off, at most `seconds`. No-op once halted."""
        await (asyncio.sleep(0) if self.halted else self._latch.wait_changed(seconds))

    @property
    def settlement_error(self) -> Unavailable | None:
        """Why the source may not know the end of some messages."""
        return self._settlement.error

    @property
    def held(self) -> int:
        """Messages received and not settled."""
        return len(self._settlement.held)

    @property
    def room(self) -> int:
        return self._intake.room

    @property
    def oldest_ms(self) -> int | None:
        """When the message held longest was enqueued, in ms since 1970."""
        first = self._settlement.held.first()
        return None if first is None else first.facts.enqueued_at or None

    @property
    def locked(self) -> int:
        """Messages that this mover keeps locked: held or skipped ones."""
        return self.held + len(self._skipped)

    def own_numbers(self) -> set[int]:
        """Return the sequence numbers of held and of skipped messages, also of skipped ones whose lock is lost."""
        return {message.facts.sequence_number for message in self._settlement.held} | self._skipped.times.keys()

    def waiting(self) -> dict[str, int]:
        """Return how many messages wait, by destination that backs off."""
        return {sender.destination: len(sender.queue) for sender in self._senders.backing_off()}

    def backing_off(self) -> list[BackingOff]:
        """Return the destinations that take nothing for now while messages of them wait."""
        return [
            BackingOff(sender.destination, sender.backoff_reason or "", sender.backoff_hint, len(sender.queue))
            for sender in self._senders.backing_off()
            if len(sender.queue)
        ]

    def stuck(self, failures: int) -> bool:
        """Return whether every held message is for a destination with so many failures in a row."""
        return self._senders.count_stuck(failures) == self.held

    async def renew_locks(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(renew_locks(self._settlement.held, self._source, self._context, self._intake.drop_lost))
            tasks.create_task(self._skipped.renew(self._context))

    async def touch_link(self) -> None:
        """Release the newest waiting or skipped message, to receive it again: the service closes unused links."""
        newest = self._senders.drop_newest()
        if newest is not None:
            await self._settlement.release([newest])
        else:
            await self._skipped.release_newest()

    async def finish(self) -> None:
        """Stop: finish and settle pending sends, and release the rest."""
        self._latch.stopping.set()
        self._settlement.flush()
        await self._source.stop()
        self._latch.links.end()
        await self._settlement.release_skipped()
        while self._senders.busy or self.held > len(self._idle()):
            await self._latch.wait_changed(1.0)
        idle = self._idle()
        self._intake.forget_redeliveries()
        await self._settlement.release(idle)

    async def release_held(self) -> None:
        """Complete accepted messages and release all others, without a wait for pending sends: after a cancellation."""
        await self._source.stop()
        self._intake.abandon_redeliveries()
        await self._settlement.release_skipped()
        await self._settlement.end_held()

    @property
    def refused(self) -> Sequence[ReceivedMessage]:
        """Deliveries that ended since the source refused to dead-letter them: their link cannot settle them again."""
        return self._settlement.refused

    @property
    def unsettled(self) -> Sequence[ReceivedMessage]:
        """Deliveries that are perhaps still locked, for the next connection. Complete after `abandon_all`."""
        return self._settlement.unsettled

    def abandon_all(self) -> None:
        """End everything held after the connection has gone: the messages are in the source, and still locked."""
        self._intake.abandon_redeliveries()
        self._settlement.return_all()
        self._skipped.forget_locks()

    def _idle(self) -> list[ReceivedMessage]:
        """Return the held messages that wait for a destination, or for the end of the delivery that they supersede."""
        return self._senders.waiting() + self._intake.redeliveries

    def _service_ms(self) -> int:
        """Return the service's time, which also stamps enqueued messages; the local time until that is known."""
        known = self._source.service_ms
        return self._context.now_ms() if known is None else known
