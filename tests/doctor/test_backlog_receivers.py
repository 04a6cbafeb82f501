"""Receivers other than ours at the backlog queues: what shows them, and what does not."""

import os
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from sbpair.amqp.message import Header, Sections, data_body
from sbpair.amqp_client.client import connect
from sbpair.doctor.backlog_receivers import HINT, observe_receivers
from sbpair.doctor.check import CheckNote
from sbpair.doctor.live_checks import run_live
from sbpair.emulator.entities.queue import QueueEntity
from sbpair.emulator.entities.stored_message import ACTIVE, StoredMessage
from sbpair.errors import ExitCode
from sbpair.model.report import Outcome
from sbpair.runs.file_lease import hold_machine_leases
from sbpair.testing import Emulator
from tests.kit.moves import peeked
from tests.kit.pairs import UNDER_CONTOSO, BacklogWorld, stored
from tests.kit.waiting import no_wait

Act = Callable[[QueueEntity], object]


def nothing(_queue: QueueEntity) -> None:
    """Neither before the check nor during it."""


def lock(count: int) -> Act:
    return lambda queue: queue.messages.receive(count)


def abandon(queue: QueueEntity) -> None:
    for each in queue.messages.receive(2):
        queue.messages.abandon(each.lock_token)


def complete(queue: QueueEntity) -> None:
    for each in queue.messages.receive(3):
        queue.messages.complete(each.lock_token)


OTHERS: list[tuple[Act, Act, str]] = [
    (lock(2), nothing, "2 locked"),
    (lock(4), nothing, "4 locked"),
    (nothing, abandon, "2 with a higher delivery count"),
    (nothing, complete, "3 gone"),
    (lock(1), lock(3), "4 locked"),
    (abandon, nothing, ""),
    (nothing, lambda queue: queue.send([stored()]), ""),
    (lambda queue: queue.messages.defer(queue.messages.receive(1)[0].lock_token), nothing, ""),
    (nothing, nothing, ""),
    (lambda queue: queue.messages.delete(9, 2**60), nothing, ""),
]


def dying() -> StoredMessage:
    sections = Sections(header=Header(ttl=1_000).encode(), body=data_body(b"body"))
    return StoredMessage(sections, 100, ttl_ms=1_000, partition_key="p")


async def seen(w: BacklogWorld, meanwhile: Callable[[], object], seconds: float = 10.0) -> str:
    """Return the observation of queue 7. A receive that delivers nothing waits so long."""

    async def act(_seconds: float) -> None:
        meanwhile()

    async with connect(w.pair.secondary) as client:
        return await observe_receivers(client, [f"{UNDER_CONTOSO}7"], seconds, act)


@pytest.mark.parametrize("partitioned", [False, True])
@pytest.mark.parametrize(("before", "meanwhile", "observed"), OTHERS)
async def test_receivers_are_known_by_what_they_do_and_nothing_changes(
    before: Act, meanwhile: Act, observed: str, partitioned: bool
) -> None:
    async with Emulator() as emulator:
        w = BacklogWorld(emulator, 2)
        queue = w.queue(7, enable_partitioning=partitioned)
        queue.send([stored(partition_key="p") for _ in range(4)])
        before(queue)
        queue.send([dying()])

        def act() -> None:
            meanwhile(queue)
            emulator.advance(2_000)

        found = await seen(w, act, 0.5 if observed == "4 locked" else 10.0)
        assert len(queue.dead_letters) == 1
        assert found == (f"{queue.path}: {observed}" if observed else "no other receiver")
        free = [each for each in peeked(queue) if each.state == ACTIVE]
        assert set(queue.messages.receive(9)) == set(free)


async def test_a_lock_that_runs_out_meanwhile_shows_a_receiver() -> None:
    async with Emulator() as emulator:
        w = BacklogWorld(emulator, 1)
        queue = w.queue(7)
        queue.send([stored() for _ in range(600)])
        queue.messages.receive(300)
        found = await seen(w, lambda: emulator.advance(61_000))
        assert found == f"{queue.path}: 250 with a higher delivery count"


@pytest.mark.parametrize("begins", ["before the check", "during it"])
async def test_a_live_run_of_this_machine_explains_what_is_seen(begins: str) -> None:
    async with Emulator() as emulator:
        w = BacklogWorld(emulator, 1)
        queue = w.queue(0)
        queue.send([stored(), stored()])
        sides = {"primary": w.pair.primary, "secondary": w.pair.secondary}
        with ExitStack() as stack:

            def begin(when: str) -> None:
                if when == begins:
                    stack.enter_context(hold_machine_leases(w.pair.ends, None, "r1"))
                    queue.messages.receive(1)

            async def act(_seconds: float) -> None:
                begin("during it")

            begin("before the check")
            *_, check = await run_live(sides, "0", seconds=10.0, sleep=act)
            assert (check.outcome, check.detail.hint) == (Outcome.UNKNOWN, "stop it, then try again")
            assert check.reason.startswith(f"process {os.getpid()} (run r1, since ")
        *_, check = await run_live(sides, "1", seconds=10.0, sleep=no_wait)
        assert (check.outcome, check.exit_code) == (Outcome.FAILED, ExitCode.PARTIAL_OR_FINDINGS)
        assert check.detail == CheckNote(HINT, "no other receiver", f"{queue.path}: 1 locked")
