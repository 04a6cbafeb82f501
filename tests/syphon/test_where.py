"""Filters of syphons and moves over real sockets: what is not chosen stays, with its delivery count."""

import asyncio
from collections import defaultdict
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient
from azure.servicebus.exceptions import SessionCannotBeLockedError

from sbpair.emulator.entities.queue import QueueEntity
from sbpair.model.message_state import dead_letter_path
from sbpair.move import held
from sbpair.move.filter import MessageFilter
from sbpair.move.receipt import FilterCounts
from tests.kit import moves
from tests.kit.stranded import in_session, put
from tests.kit.waiting import until

SESSIONS = 3


def by_session(queue: QueueEntity, *, dead: bool = False) -> dict[str, list[int]]:
    """Return the numbers of a queue's messages by session, in the order of the queue."""
    found = defaultdict(list)
    for each in moves.stored(queue, dead=dead):
        number = int(each.read_properties().message_id[1:])
        found[f"S{number % SESSIONS}"].append(number)
    return found


def numbers(chosen: Any) -> dict[str, list[int]]:
    return {f"S{index}": [each for each in range(index, 30, SESSIONS) if chosen(each)] for index in range(SESSIONS)}


@pytest.mark.parametrize("dead", [False, True])
@pytest.mark.parametrize("kind", ["queue", "session queue", "subscription", "session subscription", "partitioned"])
async def test_move_of_any_source_takes_what_matches_in_order_of_its_session(kind: str, dead: bool) -> None:
    async with moves.world() as w:
        path, takes, has = w.create(kind, "from")
        for number in range(30):
            put(takes, in_session(number))
        if dead:
            moves.bury(has)
            path = dead_letter_path(path)
        _, _, there = w.create("session queue", "to")
        result = await w.move(path, "to", where=MessageFilter("number % 4 < 2"))
        receipt = result.receipt
        chosen = sum(map(len, numbers(lambda each: each % 4 < 2).values()))
        assert (receipt.received, receipt.sent, receipt.skipped, result.exit_code) == (30, chosen, 30 - chosen, 0)
        assert receipt.where == FilterCounts("number % 4 < 2", chosen, 30 - chosen, 0, "", ())
        assert by_session(there) == numbers(lambda each: each % 4 < 2)
        assert by_session(has, dead=dead) == numbers(lambda each: each % 4 >= 2)
        messages = has.dead_letters if dead else has.messages
        assert {each.delivery_count for each in messages.peek(0, 99)} == {0}
        rest = (await w.move(path, "to")).receipt  # none of them is locked
        assert (rest.received, rest.sent) == (30 - chosen, 30 - chosen)
        assert all(
            arrived == sorted(arrived, key=lambda each: (each % 4 >= 2, each)) for arrived in by_session(there).values()
        )


async def test_session_with_a_skipped_message_stays_locked_until_the_run_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held, "SESSION_RENEWAL_SECONDS", 0.05)
    async with moves.world() as w:
        path, takes, _ = w.create("session queue", "from")
        for number in range(6):
            put(takes, in_session(number))
        _, _, there = w.create("session queue", "to")
        stop = asyncio.Event()
        where = MessageFilter("number <> 0")
        running = asyncio.create_task(w.move(path, "to", once=False, stop=stop, where=where))
        await until(lambda: len(moves.stored(there)) == 5)
        put(takes, in_session(9))  # of the session S0, whose first message is skipped
        put(takes, in_session(7))
        await until(lambda: len(moves.stored(there)) == 6)

        def receive(session: str) -> list[str]:
            with (
                ServiceBusClient.from_connection_string(w.namespaces[0].connection_string, retry_total=0) as client,
                client.get_queue_receiver("from", session_id=session, max_wait_time=1) as receiver,
            ):
                return [str(each.message_id) for each in receiver]

        lock = takes.messages.held_session("S0")
        for _ in range(2):  # beyond the end of a lock that nothing renews
            before = lock.locked_until_ms
            w.emulator.advance(40_000)
            await until(lambda: lock.locked_until_ms > before)  # noqa: B023
        with pytest.raises(SessionCannotBeLockedError):
            await asyncio.to_thread(receive, "S0")
        stop.set()
        receipt = (await running).receipt
        assert (receipt.sent, receipt.skipped, receipt.balanced) == (6, 1, True)
        assert by_session(there) == {"S0": [3], "S1": [1, 4, 7], "S2": [2, 5]}
        assert await asyncio.to_thread(receive, "S0") == ["m0", "m9"]
