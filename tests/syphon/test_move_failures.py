"""Moves that meet trouble half-way: what is not moved stays in its source, and the receipt says so."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from sbpair.amqp_server.shared_access import AccessRight
from sbpair.cli.render.receipt import backing_off_lines
from sbpair.emulator.entities.queue import QueueEntity
from sbpair.model.document import encoded
from sbpair.model.message_state import dead_letter_path
from tests.kit.moves import World, bury, ids, peeked, stored, world
from tests.kit.stranded import in_session, put
from tests.syphon import worlds

MESSAGES = 20


def fill(queue: QueueEntity) -> set[object]:
    for number in range(MESSAGES):
        put(queue, in_session(number))
    return {f"m{number}" for number in range(MESSAGES)}


def after(queue: QueueEntity, count: int, act: Callable[[], object]) -> list[object]:
    """Do something once, as soon as so many messages have arrived in a queue. Returns their ids, also later ones."""
    engine: Any = queue.messages
    enqueue, arrived = engine.enqueue, []

    def counted(messages: Any) -> None:
        enqueue(messages)
        before = len(arrived)
        arrived.extend(each.sections.read_properties().message_id for each in messages)
        if before < count <= len(arrived):
            asyncio.get_running_loop().call_soon(act)

    engine.enqueue = counted
    return arrived


def delete(w: World, queue: QueueEntity) -> None:
    w.delete(queue.path)


def disable(_: World, queue: QueueEntity) -> None:
    queue.update(replace(queue.description, status="SendDisabled"))


def run_full(_: World, queue: QueueEntity) -> None:
    worlds.fill(queue)


REASONS: dict[Callable[[World, QueueEntity], None], tuple[str, str]] = {
    delete: ("it does not exist: its messages stay in the source; create it", "run again once it exists"),
    disable: ("(com.microsoft:entity-disabled)", "set its Status to Active in the Azure portal"),
    run_full: ("(amqp:resource-limit-exceeded)", "room comes back"),
}


@pytest.mark.parametrize("dead", [False, True], ids=["active", "dead"])
@pytest.mark.parametrize("kind", ["queue", "session queue"])
@pytest.mark.parametrize("trouble", [delete, disable, run_full])
async def test_messages_stay_that_a_destination_stops_accepting(
    trouble: Callable[[World, QueueEntity], None], kind: str, dead: bool
) -> None:
    async with world() as w:
        path, takes, has = w.create(kind, "from")
        wanted = fill(takes)
        if dead:
            bury(has)
        _, _, there = w.create("queue", "to")
        arrived = after(there, 4, lambda: trouble(w, there))
        result = await w.move(dead_letter_path(path) if dead else path, "to", max_held=2, count_remaining=True)
        left = ids(has, dead=dead)
        counts = {each.delivery_count for each in peeked(has, dead=dead)}
        assert not dead or len(stored(has)) == MESSAGES
        assert dead or not has.dead_letters.peek(0, 1)
    receipt = result.receipt
    assert receipt.sent >= len(arrived) > 0
    assert set(arrived) | set(left) == wanted
    assert len(left) == MESSAGES - receipt.sent
    assert counts == {0}
    assert result.exit_code == 3
    [named] = receipt.backing_off
    assert (named.destination, named.messages > 0, receipt.backing_off_total) == ("to", True, 1)
    reason, hint = REASONS[trouble]
    assert reason in named.reason
    assert hint in named.hint
    [line] = backing_off_lines(encoded(receipt))
    assert line.startswith(f"to took no more: {named.reason}; {named.hint}; ")
    assert result.remaining is not None
    assert (result.remaining.messages, result.remaining.exact) == (len(left), True)


@pytest.mark.parametrize("dead", [False, True], ids=["active", "dead"])
@pytest.mark.parametrize("kind", ["queue", "session queue", "subscription"])
async def test_a_move_needs_listen_and_send_alone(kind: str, dead: bool) -> None:
    async with world() as w:
        path, takes, has = w.create(kind, "from")
        wanted = fill(takes)
        if dead:
            bury(has)
        _, _, there = w.create("queue", "to", 1)
        w.may_only("primary", AccessRight.LISTEN)
        w.may_only("secondary", AccessRight.SEND)
        result = await w.move(dead_letter_path(path) if dead else path, "to", sides=(0, 1), count_remaining=True)
        assert set(ids(there)) == wanted
        assert not stored(has, dead=dead)
    assert (result.receipt.sent, result.exit_code) == (MESSAGES, 0)


@pytest.mark.parametrize("kind", ["queue", "session queue"])
async def test_a_limited_watch_ends_after_so_many_messages(kind: str) -> None:
    async with world() as w:
        path, takes, has = w.create(kind, "from")
        _, _, there = w.create("queue", "to")
        stop = asyncio.Event()
        watching = asyncio.create_task(w.move(path, "to", once=False, stop=stop, max_messages=30))
        fill(takes)
        while not there.counts().total:  # noqa: ASYNC110  a turn of the loop is no sleep
            await asyncio.sleep(0)
        fill(takes)
        result = await watching
        assert (len(stored(there)), len(stored(has))) == (30, 10)
        assert (result.receipt.sent, result.exit_code) == (30, 0)
        assert {each.delivery_count for each in peeked(has)} == {0}
