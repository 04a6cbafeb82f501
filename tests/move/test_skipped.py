"""Messages that a mover skips: kept locked, counted once, and released in the end."""

import asyncio
import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbpair.move.context import MoveContext
from sbpair.move.filter import UndecodedMessages
from sbpair.move.held import RENEWED_TOGETHER, SkippedMessages
from sbpair.move.intake import Intake
from sbpair.move.message.fast_decode import MessageNumbers
from sbpair.move.mover import Mover
from tests.move.memory import FAST, LOST, UNREACHABLE, Memory, fast_context, message, move, receipt_of


@pytest.fixture(scope="module", params=["decoded", "undecoded"], autouse=True)
def how_received(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let movers get each receive as a list, or as messages that are decoded when they are needed."""
    accept = Intake.accept
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "undecoded":
            patch.setattr(Intake, "accept", lambda intake, messages: accept(intake, undecoded(messages)))
        yield


def undecoded(messages: Sequence[Any]) -> Any:
    if not messages or isinstance(messages, UndecodedMessages):
        return messages
    numbers, times = ([each.facts[at] for each in messages] for at in (1, 2))
    nothing = [0] * len(messages)
    columns = MessageNumbers(numbers, times, nothing, nothing, nothing)
    lock_ends, payloads = [each.lock_until for each in messages], [bytes(each.facts.size) for each in messages]

    def decode(some: Sequence[Any], *_: object) -> list[Any]:
        return list(some)  # each is its own delivery

    return UndecodedMessages(columns, lock_ends, list(messages), payloads, decode)


def odd_ones(messages: Sequence[Any], _now_ms: int) -> list[bool]:
    return [number % 2 == 1 for number in numbers_of(messages)]


def numbers_of(messages: Sequence[Any]) -> Sequence[int]:
    if isinstance(messages, UndecodedMessages):
        return messages.numbers.sequence_numbers
    return [each.facts.sequence_number for each in messages]


def times_of(messages: Sequence[Any]) -> Sequence[int]:
    if isinstance(messages, UndecodedMessages):
        return messages.numbers.enqueued_at
    return [each.facts.enqueued_at for each in messages]


def replaced(number: int, **facts: Any) -> Any:
    made = message(number)
    made.facts = made.facts._replace(**facts)
    return made


def choosing(**changed: Any) -> MoveContext:
    return fast_context(chosen=odd_ones, **changed)


async def skip_and_move(
    memory: Memory, numbers: Sequence[int], context: MoveContext, **options: Any
) -> SkippedMessages:
    skipped = SkippedMessages(memory)
    await move(memory, [message(number) for number in numbers], context, skipped=skipped, **options)
    return skipped


def done(memory: Memory, what: str) -> list[int]:
    return [number for name, number in memory.done if name == what]


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_messages_that_are_not_chosen_are_released_in_the_end(is_cancelled: bool) -> None:
    memory, context = Memory(), choosing()
    skipped = SkippedMessages(memory)

    async def end(mover: Mover) -> None:
        if is_cancelled:
            await mover.release_held()
            raise asyncio.CancelledError

    with suppress(asyncio.CancelledError):
        await move(memory, list(map(message, [1, 2, 3, 4])), context, skipped=skipped, then=end)
    receipt = receipt_of(context)
    assert (done(memory, "complete"), done(memory, "release")) == ([1, 3], [2, 4])
    assert (receipt.received, receipt.sent, receipt.skipped, receipt.released) == (4, 2, 2, 0)
    assert (receipt.remaining, receipt.exit_code) == (0, 0)
    assert (len(skipped), set(skipped.times)) == (0, {2, 4})


async def test_skipped_messages_take_no_room_from_chosen_ones() -> None:
    context = choosing(max_held=3)

    async def check(mover: Mover) -> None:
        mover.accept([message(number) for number in (4, 6, 8, 10, 12)])
        assert (mover.room, mover.held, mover.locked) == (3, 0, 6)
        assert mover.own_numbers() == {2, 4, 6, 8, 10, 12}

    await skip_and_move(Memory(), [2], context, then=check)
    assert receipt_of(context).skipped == 6


async def test_messages_that_are_not_chosen_are_not_decoded() -> None:
    async def check(mover: Mover) -> None:
        for numbers, is_decoded in (([2, 4], False), ([4, 6], True)):  # a known one may be another message
            received = undecoded([message(number) for number in numbers])
            mover.accept(received)
            assert (received.is_decoded, mover.locked) == (is_decoded, numbers[-1] // 2)

    await skip_and_move(Memory(), [], choosing(), then=check)


async def test_sizes_of_skipped_messages_are_known_to_the_next_receive() -> None:
    rooms: list[int] = []

    async def check(mover: Mover) -> None:
        rooms.append(mover.room)

    context = choosing()
    await skip_and_move(Memory(), [2, 4], context, then=check)
    assert rooms == [context.batch_limits.prefetch]


async def test_number_of_a_skipped_message_may_be_that_of_a_chosen_one_later() -> None:
    """A queue that is deleted and created again numbers its messages from 1."""
    memory = Memory()
    context = fast_context(chosen=lambda messages, _now_ms: [time == 7 for time in times_of(messages)])

    async def created_again(mover: Mover) -> None:
        mover.accept([replaced(2, enqueued_at=7), message(4)])
        while mover.held:
            await mover.wait_changed(1.0)

    await skip_and_move(memory, [2, 4], context, then=created_again)
    receipt = receipt_of(context)
    assert (receipt.received, receipt.sent, receipt.skipped) == (3, 1, 2)
    assert done(memory, "complete") == [2]


async def test_skipped_message_that_comes_again_is_counted_once() -> None:
    memory, context = Memory(), choosing()

    async def again(mover: Mover) -> None:
        mover.accept([message(2), message(4), message(5)])
        while mover.held:
            await mover.wait_changed(1.0)

    await skip_and_move(memory, [1, 2], context, then=again)
    receipt = receipt_of(context)
    assert (receipt.received, receipt.sent, receipt.skipped, receipt.distinct) == (4, 2, 2, 4)
    assert done(memory, "release") == [2, 4]


@pytest.mark.parametrize(("numbers", "released"), [([2, 4], 4), ([2, 3, 4, 5], 5)])
async def test_a_link_is_kept_open_by_the_release_of_the_newest_message(numbers: list[int], released: int) -> None:
    """That of a waiting message, if there is one, and otherwise that of a skipped one."""
    memory, context = Memory(ready=[UNREACHABLE] * 50), choosing()

    async def touch(mover: Mover) -> None:
        await mover.touch_link()
        assert done(memory, "release") == [released]
        mover.accept([message(released)])

    await skip_and_move(memory, numbers, context, settle=False, then=touch)
    receipt = receipt_of(context)
    assert (receipt.distinct, receipt.skipped) == (len(numbers), 2)
    assert sorted(done(memory, "release")) == sorted([*numbers, released])


async def test_message_skipped_over_an_earlier_connection_stays_skipped() -> None:
    context = choosing()
    skipped = await skip_and_move(Memory(), [2], context)
    # Its age or its delivery count may be other ones now.
    everything = replace(context, chosen=lambda messages, _now_ms: [True] * len(messages))
    memory = Memory()
    skipped.source = memory
    await move(memory, [message(2), message(4)], everything, skipped=skipped)
    receipt = receipt_of(context)
    assert (receipt.received, receipt.sent, receipt.skipped) == (2, 1, 1)
    assert (done(memory, "complete"), done(memory, "release")) == ([4], [2])


async def test_locks_of_skipped_messages_are_renewed() -> None:
    memory = Memory()
    context = choosing(timings=replace(FAST, renew_before_seconds=10_000.0))

    async def wait(_mover: Mover) -> None:
        while len(done(memory, "renew")) < 7:  # noqa: ASYNC110  a turn of the loop is no sleep
            await asyncio.sleep(0)

    await skip_and_move(memory, [2, 4, 6], context, then=wait)
    assert done(memory, "renew")[:6] == [2, 4, 6, 2, 4, 6]
    assert receipt_of(context).operations.renewals >= 6


class Renewed(Memory):
    """Locks that are renewed last for ever."""

    async def renew(self, messages: Sequence[Any]) -> None:
        await super().renew(messages)
        for each in messages:
            each.lock_until = math.inf


async def test_each_lock_is_renewed_once_before_it_expires() -> None:
    memory, numbers = Renewed(), list(range(2, 2 * RENEWED_TOGETHER + 102, 2))
    context = choosing(timings=replace(FAST, renew_before_seconds=10_000.0))

    async def wait(_mover: Mover) -> None:
        while len(done(memory, "renew")) < len(numbers):  # noqa: ASYNC110  a turn of the loop is no sleep
            await asyncio.sleep(0)

    await skip_and_move(memory, numbers, context, then=wait)
    assert done(memory, "renew") == numbers


async def test_lost_lock_among_skipped_messages_is_found() -> None:
    memory = Memory(renew=[LOST, LOST, None, LOST, None])
    context = choosing(timings=replace(FAST, renew_before_seconds=10_000.0))
    numbers: list[int] = []

    async def wait(mover: Mover) -> None:
        await memory.used_up("renew")
        numbers.append(mover.locked)

    await skip_and_move(memory, [2, 4, 6, 8], context, then=wait)
    assert numbers[0] in (2, 3)
    assert receipt_of(context).skipped == 4


async def test_renewal_that_fails_is_tried_again() -> None:
    memory = Memory(renew=[UNREACHABLE])
    context = choosing(timings=replace(FAST, renew_before_seconds=10_000.0))

    async def wait(_mover: Mover) -> None:
        while not done(memory, "renew"):  # noqa: ASYNC110  a turn of the loop is no sleep
            await asyncio.sleep(0)

    await skip_and_move(memory, [2], context, then=wait)
    assert done(memory, "release") == [2]


async def test_message_that_the_primary_has_is_completed_though_not_chosen() -> None:
    context = choosing()
    memory = Memory()
    await move(memory, [message(2)], replace(context, chosen=None))
    again = Memory()
    context.journal._remember(99, [("ns", "q", 2, 1, "m2")])  # as an earlier run left it
    await skip_and_move(again, [2], context)
    receipt = receipt_of(context)
    assert (receipt.already_sent, receipt.skipped) == (1, 0)
    assert done(again, "complete") == [2]


async def test_redelivery_of_a_chosen_message_is_not_skipped_while_it_is_sent() -> None:
    memory = Memory(send=["hang"])
    chosen = {1}
    context = fast_context(chosen=lambda messages, _: [each in chosen for each in numbers_of(messages)])

    async def again(mover: Mover) -> None:
        await memory.reached.wait()
        chosen.clear()  # as if its age mattered
        mover.accept([message(1)])
        assert mover.locked == mover.held == 2
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await skip_and_move(memory, [1], context, settle=False, then=again)
    assert receipt_of(context).skipped == 0


@pytest.mark.parametrize(("now_ms", "sent"), [(600_000, 0), (600_001, 1)])
async def test_message_that_its_destination_may_have_seen_stays(now_ms: int, sent: int) -> None:
    context = fast_context(keeps_refused=True, duplicate_windows={"orders": 600_000}, now_ms=lambda: now_ms)
    await skip_and_move(Memory(), [1], context)
    receipt = receipt_of(context)
    assert (receipt.sent, receipt.skipped, len(receipt.stayed)) == (sent, 1 - sent, 1 - sent)


@given(st.lists(st.lists(st.integers(1, 12), max_size=5, unique=True), max_size=6), st.integers(0, 4))
async def test_every_delivery_is_in_one_bucket_whatever_comes_again(rounds: list[list[int]], limit: int) -> None:
    memory, context = Memory(), choosing(max_skipped=limit)

    async def go(mover: Mover) -> None:
        for numbers in rounds:
            mover.accept([message(number) for number in numbers])
            await mover.wait_changed(0.01)

    await skip_and_move(memory, [], context, then=go)
    receipt = receipt_of(context)
    assert receipt.skipped == min(limit, len({each for numbers in rounds for each in numbers if each % 2 == 0}))
