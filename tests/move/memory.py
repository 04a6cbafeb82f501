"""A mover between a source and a destination in memory, which answer as a test tells them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from sbpair import errors
from sbpair.model.retries import Backoff
from sbpair.move.context import MoveContext
from sbpair.move.held import SkippedMessages
from sbpair.move.interface import KeptMessage, RoutedMessage, SendOutcome
from sbpair.move.message.route import Facts
from sbpair.move.mover import Mover
from sbpair.move.receipt import Receipt
from sbpair.move.timings import MoveTimings
from sbpair.runs.journal import NO_KEY, Key

UNREACHABLE = errors.Unreachable("it is away")
IN_DOUBT = errors.InDoubt("no answer came")
REFUSED = errors.ServiceRefused("never")
LOST = errors.MessageLockLost("too late")

FAST = MoveTimings(backoff=Backoff(0.001, 0.001), gather_seconds=0.001, min_renewal_seconds=0.001)
RENEWING = replace(FAST, backoff=Backoff(100.0, 100.0), renew_before_seconds=10_000.0)

fast_context = partial(MoveContext, "ns", timings=FAST)


@dataclass(eq=False)
class FakeMessage:
    facts: Facts
    lock_until: float
    partition_key: str | None = None
    key: Key = NO_KEY

    @property
    def ordinal(self) -> int:
        return self.facts.sequence_number


@dataclass
class FakeBatch:
    messages: list[FakeMessage]
    numbers: Sequence[int] = ()

    @property
    def count(self) -> int:
        return len(self.messages)


class Memory:
    """A source, a destination and its link. Each call answers with the next of `answers[name]`: an error, or None.

    `together` is how many messages leave in one batch.
    """

    queue = "q"
    service_ms = None
    credit = 100

    def __init__(self, together: int = 1, **answers: list[Any]) -> None:
        self.together = together
        self.answers = {what: deque(each) for what, each in answers.items()}
        self.done: list[tuple[str, int]] = []
        self.error: errors.SbpairError | None = None
        self.stopped = self.interrupted = False
        self.reached = asyncio.Event()
        self.renewals = 0
        self.renewed = asyncio.Event()

    async def answer(self, what: str, *messages: Any) -> None:
        await asyncio.sleep(0)
        answer = self.answers[what].popleft() if self.answers.get(what) else None
        if answer == "hang":
            self.reached.set()
            await asyncio.Event().wait()
        if answer is not None:
            raise answer
        self.done += [(what, message.facts.sequence_number) for message in messages]

    async def used_up(self, what: str) -> None:
        while self.answers[what]:  # noqa: ASYNC110  a turn of the loop is no sleep
            await asyncio.sleep(0)

    async def ready(self, _destination: str) -> Memory:
        await self.answer("ready")
        return self

    def encode(self, routed: Sequence[RoutedMessage]) -> FakeBatch:
        return FakeBatch([each.message for each in routed[: self.together]])

    def send(self, batch: FakeBatch) -> SendOutcome:
        return partial(self.answer, "send", *batch.messages)

    async def complete(self, messages: Sequence[Any]) -> list[Any]:
        return await self.settled("complete", messages)

    async def release(self, messages: Sequence[Any]) -> list[Any]:
        return await self.settled("release", messages)

    async def settled(self, what: str, messages: Sequence[Any]) -> list[Any]:
        try:
            await self.answer(what, *messages)
        except errors.SbpairError as error:
            return [(message, error) for message in messages]
        return []

    def keep(self, messages: Sequence[Any]) -> list[KeptMessage]:
        return [
            KeptMessage(each.facts.sequence_number, each.facts.enqueued_at, each.lock_until, each) for each in messages
        ]

    async def release_kept(self, messages: Sequence[KeptMessage]) -> int:
        return len(await self.settled("release", [each.delivery for each in messages]))

    async def dead_letter(self, message: Any, _reason: str, _description: str) -> None:
        await self.answer("dead_letter", message)

    async def renew(self, messages: Sequence[Any]) -> None:
        self.renewals += len(messages)  # before the answer, which the end of a run may not wait for
        await self.answer("renew", *(getattr(each, "delivery", each) for each in messages))
        self.renewed.set()

    async def stop(self) -> None:
        self.stopped = True

    def interrupt(self) -> None:
        self.interrupted = True

    def grant(self, limit: int) -> None:
        raise NotImplementedError

    async def receive(self, limit: int, *, seconds: float) -> Sequence[Any]:
        raise NotImplementedError


def message(number: int, path: str | None = "orders", size: int = 10, lock: float = 1_000.0) -> FakeMessage:
    facts = Facts("q", number, 1, f"m{number}", path, size=size, flaw="" if path else "it has no path")
    return FakeMessage(facts, asyncio.get_running_loop().time() + lock)


async def move(
    memory: Memory,
    messages: list[FakeMessage],
    context: MoveContext,
    *,
    settle: bool = True,
    then: Callable[[Mover], Awaitable[None]] | None = None,
    skipped: SkippedMessages | None = None,
) -> Mover:
    """Drive a mover as a worker does, from the first delivery to the end."""
    made: Mover | None = None
    try:
        async with asyncio.TaskGroup() as tasks:
            made = Mover(memory, memory, tasks, context, skipped)
            locks = tasks.create_task(made.renew_locks())
            made.accept(messages)
            while settle and made.held and not made.stuck(3) and made.fatal is None:
                await made.wait_changed(1.0)
            if then is not None:
                await then(made)
            await made.finish()
            locks.cancel()
    finally:
        if made is not None:
            made.abandon_all()
            assert made.held == 0
    return made


def receipt_of(context: MoveContext) -> Receipt:
    receipt = context.tally.receipt()
    assert receipt.balanced, receipt
    return receipt
