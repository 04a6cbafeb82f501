"""Dead letters of destinations: where they go, which of them are new, and few calls to find that out."""

import asyncio
from bisect import bisect_left
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbpair.amqp_server.shared_access import AccessRight
from sbpair.azure.atom import open_atom
from sbpair.emulator.entities.description import QueueDescription, SubscriptionDescription
from sbpair.errors import NotAuthorized
from sbpair.move.receipt import Tally
from sbpair.syphon.ramp import DeadLetterWatch, highest_numbers
from tests.kit.stranded import put, stranded
from tests.syphon import worlds

NUMBERS = st.sets(st.integers(1, 2_000) | st.integers(1, 2**48 - 1), max_size=30)


@given(st.dictionaries(st.integers(0, 15), NUMBERS, max_size=4))
def test_highest_numbers_are_those_of_a_whole_peek(by_partition: dict[int, set[int]]) -> None:
    numbers = sorted((part << 48) + each for part, found in by_partition.items() for each in found)
    calls = 0

    async def first_from(start: int) -> int | None:
        nonlocal calls
        calls += 1
        at = bisect_left(numbers, start)
        return numbers[at] if at < len(numbers) else None

    found = asyncio.run(highest_numbers(first_from))
    assert found == {part: (part << 48) + max(each) for part, each in by_partition.items() if each}
    assert calls <= 1 + 100 * len(found)


class World(worlds.World):
    """A pair, and watches of dead letters in its primary."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.tally = Tally()

    @asynccontextmanager
    async def watch(self, *destinations: str) -> AsyncIterator[DeadLetterWatch]:
        async with open_atom(self.pair.primary) as control:
            watch = DeadLetterWatch(self.pair.primary, control, None, self.tally)
            try:
                for each in destinations:
                    await watch.add(each)
                yield watch
            finally:
                await watch.close()

    def bury(self, path: str, *names: str, reason: str = "Poison") -> None:
        """Send messages to an entity, and dead-letter them in the one that gets them."""
        sent_to, _, _ = path.partition("/subscriptions/")
        for name in names:
            put(self.primary.entity(sent_to), stranded(name, None))
        messages = self.primary.entity(path).messages
        for each in messages.receive(len(names)):
            messages.dead_letter(each.lock_token, reason, "why")


world = partial(worlds.world, 0, "spare", kind=World)


async def found(watch: DeadLetterWatch) -> list[Any]:
    return [(each.destination, each.message_id, each.reason) for each in await watch.find_new()]


@pytest.mark.parametrize("partitioned", [False, True])
async def test_new_dead_letters_of_a_queue_are_found_behind_many_old_ones(partitioned: bool) -> None:
    async with world() as w:
        w.primary.create_queue("orders", QueueDescription(enable_partitioning=partitioned))
        w.bury("orders", *(f"old{number}" for number in range(600)))
        async with w.watch("orders") as watch:
            calls = w.tally.receipt().operations.management_calls
            assert calls < (60 if not partitioned else 16 * 60)
            assert await found(watch) == []
            w.bury("orders", *(f"m{number}" for number in range(300)))
            new = await found(watch)
            assert {each[1] for each in new} == {f"m{number}" for number in range(300)}
            assert set(new[0]) >= {"orders", "Poison: why"}
            assert watch.uncounted == {}


async def test_topic_is_observed_in_all_subscriptions_also_new_ones() -> None:
    async with world() as w:
        topic = w.primary.create_topic("news")
        topic.create_subscription("a")
        w.bury("news/subscriptions/a", "old")
        async with w.watch("news") as watch:
            topic.create_subscription("b")
            w.bury("news/subscriptions/b", "m1")
            assert await found(watch) == [("news/subscriptions/b", "m1", "Poison: why")]


async def test_forwarded_messages_and_dead_letters_are_observed_where_they_go() -> None:
    async with world() as w:
        for path in ("collector", "end"):
            w.primary.create_queue(path)
        w.primary.create_queue("middle", QueueDescription(forward_dead_lettered_messages_to="collector"))
        w.primary.create_topic("news").create_subscription("a", SubscriptionDescription(forward_to="end"))
        put(w.primary.entity("collector"), stranded("of its own", None))
        async with w.watch("middle", "news") as watch:
            w.bury("middle", "m1")
            w.bury("end", "m2")
            put(w.primary.entity("collector"), stranded("of its own too", None))
            assert sorted(await found(watch)) == [("end", "m2", "Poison: why"), ("middle", "m1", "Poison: why")]


async def test_missing_destination_is_observed_once_it_exists() -> None:
    async with world() as w, w.watch("orders") as watch:
        assert await found(watch) == []
        w.primary.create_queue("orders")
        w.bury("orders", "m1")
        assert await found(watch) == [("orders", "m1", "Poison: why")]


async def test_dead_letters_with_lower_numbers_are_counted() -> None:
    async with world() as w:
        orders = w.primary.create_queue("orders")
        put(orders, stranded("early", None))
        [early] = orders.messages.receive(1)
        w.bury("orders", "old")
        async with w.watch("orders") as watch:
            orders.messages.dead_letter(early.lock_token, "Late", "")
            assert await found(watch) == []
            assert watch.uncounted == {"orders": 1}


async def test_listen_is_enough_for_a_queue_and_not_for_a_topic() -> None:
    async with world() as w:
        w.primary.create_queue("orders")
        w.primary.create_topic("news").create_subscription("a")
        w.may_only("primary", AccessRight.LISTEN)
        async with w.watch("orders", "missing") as watch:
            w.bury("orders", "m1")
            assert await found(watch) == [("orders", "m1", "Poison: why")]
            with pytest.raises(NotAuthorized, match="news cannot be observed: it is a topic") as caught:
                await watch.add("news")
            assert "leave out --ramp" in caught.value.hint
