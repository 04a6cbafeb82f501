"""Runs that remove messages: what came after their count stays, and when the service deletes in batches."""

from collections.abc import Sequence
from typing import Any
from unittest import mock

import pytest

from sbpair.amqp.message import APPLICATION_PROPERTIES, Properties, Sections, data_body, encode_map
from sbpair.amqp.types import Int
from sbpair.emulator.entities.queue import QueueEntity
from sbpair.message_io.message_json import render_received
from sbpair.message_io.peek import count_chosen
from sbpair.model.document import encoded
from sbpair.move.filter import MessageFilter
from sbpair.move.kept_file import KeptFile
from sbpair.move.message.route import BACKLOG
from sbpair.move.peek.peeker import PeekedMessage
from sbpair.move.raw_source import RawSource
from sbpair.syphon import runner
from sbpair.testing import Emulator
from tests.kit.moves import World, ids, move_terms, peeked, run_syphon
from tests.kit.stranded import put


def render(message: Any) -> Any:
    return encoded(render_received("primary", PeekedMessage(message.facts, message.content.split())))


async def remove(w: World, path: str, keep: KeptFile, **more: Any) -> runner.SyphonResult:
    """Count what an entity has, and remove that."""
    address = w.address(path)
    found = await count_chosen(address, None, None, lambda _event: None)
    w.emulator.advance(1_000)
    with keep:
        terms = {**move_terms("remove", BACKLOG, path), "keep": keep, "until_ms": found.until_ms, **more}
        result = await run_syphon(address.alone, **terms)
    assert result.receipt.balanced
    return result


def fill(queue: QueueEntity, numbers: Sequence[int]) -> None:
    for number in numbers:
        properties = Properties(message_id=f"m{number}", group_id=f"s{number % 3}")
        own = encode_map(APPLICATION_PROPERTIES, {"number": Int(number)})
        put(queue, Sections(properties=properties.encode(), application_properties=own, body=data_body(b"x")).join())


@pytest.mark.parametrize("kind", ["queue", "session queue", "partitioned"])
@pytest.mark.parametrize("where", [None, "number < 20"])
async def test_messages_that_come_after_the_count_stay(kind: str, where: str | None, tmp_path: Any) -> None:
    async with Emulator() as emulator:
        w = World(emulator)
        path, queue, _ = w.create(kind, "q")
        fill(queue, range(5))
        counting = count_chosen

        async def count_then_fill(*words: Any) -> Any:
            found = await counting(*words)
            emulator.advance(1_000)
            fill(queue, range(5, 10))
            return found

        with mock.patch("tests.syphon.test_remove.count_chosen", count_then_fill):
            chosen = None if where is None else MessageFilter(where)
            result = await remove(w, path, KeptFile(tmp_path / "k", render), where=chosen, sessions="session" in kind)
        assert (result.receipt.sent, result.exit_code) == (5, 0)
        left = peeked(queue)
        assert len(left) == 5
        assert {each.delivery_count for each in left} == {0}
        assert len((tmp_path / "k").read_text().splitlines()) == 5


@pytest.mark.parametrize(
    ("tier", "kind", "wanted"),
    [
        ("premium", "queue", [4000, 4000]),
        ("standard", "queue", [4000, 500, 500, 500]),
        ("standard", "partitioned", [4000, 500]),
        ("standard", "session queue", []),
    ],
)
async def test_the_service_deletes_in_batches_where_it_can(tier: str, kind: str, wanted: list[int]) -> None:
    deleting, asked = RawSource.delete, list[int]()

    async def delete(source: RawSource, count: int, before_ms: int) -> int:
        asked.append(count)
        return await deleting(source, count, before_ms)

    async with Emulator((("contoso", 0, tier), ("contoso-dr", 0))) as emulator:
        w = World(emulator)
        path, queue, _ = w.create(kind, "q")
        fill(queue, range(600))
        emulator.advance(1_000)
        fill(queue, range(600, 601))
        with mock.patch.object(RawSource, "delete", delete):
            result = await remove(w, path, KeptFile(None, render), sessions="session" in kind)
        assert (asked, result.receipt.sent, ids(queue)) == (wanted, 601, [])


async def test_a_file_that_cannot_grow_ends_the_run_and_the_rest_stays(tmp_path: Any) -> None:
    async with Emulator() as emulator:
        w = World(emulator)
        path, queue, _ = w.create("queue", "q")
        fill(queue, range(30))
        keep = KeptFile(tmp_path / "k", render)
        writing = iter([None, None, OSError(28, "No space left on device")])  # of the directory, and of two batches
        with mock.patch("sbpair.move.kept_file.AT_ONCE", 10), mock.patch("os.fsync", side_effect=writing):
            result = await remove(w, path, keep)
        assert (result.exit_code, result.receipt.sent, len(ids(queue))) == (7, 10, 20)
        assert len((tmp_path / "k").read_text().splitlines()) == 10
