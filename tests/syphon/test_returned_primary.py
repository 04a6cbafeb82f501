"""A lost primary that answers again: what is in it, what both namespaces have, and the word that it is back."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from sbpair.amqp_server.shared_access import AccessRight, AuthorizationRule
from sbpair.errors import Unsafe
from sbpair.model.pair import SasKey
from sbpair.status import LostPrimary, read_lost_primary, read_status
from sbpair.testing import Emulator
from tests.faults.test_lost_primary import accept_half
from tests.kit.moves import run_syphon
from tests.kit.stranded import numbered, put
from tests.syphon.worlds import HASTY, World


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    async with Emulator() as emulator:
        w = World(emulator, 1)
        for side in (w.primary, w.secondary):
            side.create_queue("orders")
        yield w


async def test_a_primary_that_answers_again_is_counted_and_copies_are_listed(tmp_path: Path) -> None:
    async with world() as w:
        queue = w.primary.queue("orders")
        w.strand(*range(4))
        twice = accept_half(w.emulator, tmp_path, w.backlog(), queue)
        topic = w.primary.create_topic("events")
        topic.create_subscription("all")
        put(topic, numbered(7, "events"))
        [locked] = queue.messages.receive(1)
        queue.messages.dead_letter(locked.lock_token)
        assert await read_lost_primary(w.pair, tmp_path) is None
        w.pair = replace(w.pair, lost="primary")
        counted = LostPrimary("contoso", declared=True, answers=True, messages=2, dead_letters=1)
        assert await read_lost_primary(w.pair, tmp_path) == counted
        await run_syphon(w.pair, to=w.pair.secondary, once=True, timings=HASTY, state=tmp_path)
        lost = await read_lost_primary(w.pair, tmp_path)
        assert lost
        assert {each.message_id for each in lost.accepted_twice} == twice
        assert replace(lost, accepted_twice=()) == counted
        status, elsewhere = [await read_status(w.pair, to=to, state=tmp_path) for to in (None, w.pair.secondary)]
        assert (status.lost_primary, elsewhere.lost_primary) == (lost, None)
        w.emulator.faults.namespace_down("contoso")
        away = await read_lost_primary(w.pair, tmp_path)
        assert away
        assert (away.answers, away.messages, away.accepted_twice) == (False, None, lost.accepted_twice)


async def test_without_manage_a_lost_primary_answers_and_is_not_counted() -> None:
    async with world() as w:
        w.primary.keys = (*w.primary.keys, AuthorizationRule("send", "key", "other", frozenset({AccessRight.SEND})))
        primary = replace(w.pair.primary, credential=SasKey("send", "key"))
        lost = await read_lost_primary(replace(w.pair, primary=primary, lost="primary"))
        assert lost
        assert (lost.answers, lost.messages, lost.dead_letters) == (True, None, None)
        assert "lacks a claim" in lost.reason


async def test_messages_go_to_the_primary_again_once_it_is_said_to_be_back(tmp_path: Path) -> None:
    async with world() as w:
        w.backlog()
        run = partial(run_syphon, w.pair, once=True, timings=HASTY, state=tmp_path)
        await run()
        await run(to=w.pair.secondary)
        w.strand(0)
        with pytest.raises(Unsafe, match=r"last delivered to contoso-dr, and contoso was lost") as refusal:
            await run()
        assert "--primary-is-back" in refusal.value.hint
        lost = await read_lost_primary(w.pair, tmp_path)
        assert lost
        assert (lost.declared, lost.answers) == (False, True)
        assert (await run(primary_is_back=True)).receipt.sent == 1
        assert (await run()).receipt.sent == 0
        assert await read_lost_primary(w.pair, tmp_path) is None
